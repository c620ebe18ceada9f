//! The machines of node pools as Cluster API Machines, for every provider of AKS pools: one object for each VM of a pool, which
//! says how the VM stands, and whose deletion deletes the VM. Cluster API's core makes the Machines from these objects.
//!
//! The pool's controller is the one that looks at VMs and writes to Azure, because AKS takes one change of a pool at a time:
//! it shows VMs, chooses which go, and has AKS delete them (`fleet`, `act`). The machine's own controller says how its VM stands
//! and lets the object go when Azure no longer has the VM (`plan`, `status`). What the first has seen it gives to the second
//! through a [`Board`].

pub mod act;
pub mod api;
pub mod board;
pub mod fleet;
pub mod instances;
pub mod kind;
pub mod observe;
pub mod plan;
pub mod size;
pub mod status;
pub mod vm;

pub use api::{Address, MachineStatus, NodeInfo};
pub use board::{Board, Posted, Told};
pub use fleet::{Action, Fleet};
pub use instances::Instances;
pub use kind::{PoolMachine, registration};
pub use observe::Sources;
pub use size::Size;
pub use vm::Vm;

/// Switches machines on for every pool of the manager.
pub const GATE: slipway_runtime::provider::Gate = slipway_runtime::provider::Gate {
    name: "AKSMachines",
    stage: slipway_runtime::provider::Stage::Alpha,
    enabled_by_default: false,
    help: "Show the nodes of AKS pools as Machines; the annotation slipway.dev/machines switches it for one pool",
};

/// Switches machines on or off for one pool, whatever the gate says.
pub const ANNOTATION: &str = "slipway.dev/machines";
