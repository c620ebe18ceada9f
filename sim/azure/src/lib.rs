//! A simulated Azure: Entra ID, ARM and the resource providers a Kubernetes fleet needs, calibrated on recorded
//! traffic. [`Azure`] is the state machine; [`Simulator`] shares one between callers and gives it a clock; the
//! `azure-sim` binary puts it behind HTTPS.

mod aks;
mod arm;
mod arm_id;
mod arm_rules;
mod azure;
mod backing;
mod collection;
mod entra;
mod error_response;
mod fault;
mod gate;
mod job_name;
mod kinds;
mod kubernetes_authorization;
mod lifecycle;
mod locations;
mod metadata_service;
mod operation;
mod range;
mod references;
mod registration;
mod roles;
mod server;
mod settings;
mod simulator;
mod store;
mod throttle;
mod wire;
mod write;

pub use aks::Node;
pub use arm_id::ArmId;
pub use azure::{Azure, ClusterChange, RecordedRequest, State};
pub use entra::{Application, Directory, FederatedCredential, object_id_of};
pub use fault::Fault;
pub use server::{Ca, Options, Ports, Server, read_state};
pub use settings::{Bucket, Limits, Settings, Speed};
pub use simulator::Simulator;
pub use store::{Resource, Store};
pub use wire::{Delivery, Request, Response};
