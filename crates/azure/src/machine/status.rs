//! What a machine says of its VM, and its pool of its machines. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use slipway_capi::{
    condition::{self, Report, Status},
    contract::InfrastructureInitialization,
    frame::Plan,
    names::{condition as type_, reason},
};

use super::{Fleet, MachineStatus, NodeInfo, Size, Told, Vm, plan::Facts};
use crate::reconcile::ResourceState;

/// What the status of a pool says of its machines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolStatus {
    /// Tells core which objects it makes Machines of.
    pub kind: Option<String>,
    /// What a node has: for autoscalers that scale from nothing.
    pub capacity: BTreeMap<String, String>,
    pub node_info: Option<NodeInfo>,
}

impl PoolStatus {
    /// What it says after a reconcile. `kind`: of the pool's machines.
    #[must_use]
    pub fn after(self, fleet: &Fleet, kind: &str, state: &ResourceState) -> Self {
        let Some(kind) = fleet.kind_to_tell(self.kind.clone(), kind.to_owned()) else {
            return Self::default();
        };
        let (capacity, node_info) = match Size::of_pool(state) {
            Some((capacity, info)) => (capacity, Some(info)),
            None => (self.capacity, self.node_info),
        };
        Self {
            kind: Some(kind),
            capacity,
            node_info,
        }
    }
}

/// Whether Azure says that the VM runs.
pub const RUNNING: &str = "VirtualMachineRunning";
const NOT_RUNNING: &str = "NotRunning";
const GONE: &str = "Gone";

/// `before`: what stands in the status.
pub fn status<A>(
    before: &MachineStatus,
    facts: &Facts,
    plan: &Plan<A>,
    generation: Option<i64>,
    now: Timestamp,
) -> MachineStatus {
    let mut status = before.clone();
    let running = match &facts.told {
        Told::Present { vm, .. } => {
            fill(&mut status, vm);
            runs(vm)
        }
        Told::Absent => Report::new(RUNNING, Status::False, GONE, "Azure has no such VM any more"),
        Told::Nothing | Told::Off if !facts.is_deleting => return status,
        Told::Nothing | Told::Off => Report::new(RUNNING, Status::Unknown, "Unknown", ""),
    };
    let waits = plan.waits().next();
    let ready = if facts.is_deleting {
        let (reason, message) = waits.map_or((reason::DELETING, ""), |(wait, message)| {
            (wait.reason.as_str(), message)
        });
        Report::new(type_::READY, Status::False, reason, message)
    } else if running.status == Status::True {
        Report::new(type_::READY, Status::True, reason::READY, "")
    } else {
        Report::new(
            type_::READY,
            running.status,
            &running.reason,
            running.message.clone(),
        )
    };
    status.ready = Some(ready.status == Status::True);
    condition::set(&mut status.conditions, &ready, generation, now);
    condition::set(&mut status.conditions, &running, generation, now);
    status
}

fn fill(status: &mut MachineStatus, vm: &Vm) {
    status.initialization = Some(InfrastructureInitialization {
        provisioned: Some(true),
    });
    status.failure_domain.clone_from(&vm.zone);
    status.power_state.clone_from(&vm.power);
    // What a node said stands while nobody hears of it.
    if vm.has_node {
        status.node_name = Some(vm.name.clone());
        status.addresses.clone_from(&vm.addresses);
        status.image.clone_from(&vm.image);
        status.version.clone_from(&vm.version);
    }
}

/// A VM of which Azure tells no power state is taken for one that runs: its node says the rest.
fn runs(vm: &Vm) -> Report {
    match vm.power.as_deref() {
        None | Some("running") => Report::new(RUNNING, Status::True, "Running", ""),
        Some(power) => Report::new(
            RUNNING,
            Status::False,
            NOT_RUNNING,
            format!("Azure says that the VM is {power}"),
        ),
    }
}
