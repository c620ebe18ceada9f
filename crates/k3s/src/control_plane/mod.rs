//! The control plane: the servers of one cluster, and the etcd they keep together.

pub mod act;
pub mod admit;
pub mod controller;
pub mod health;
pub mod hook;
mod last_read;
mod leases;
pub mod liveness;
pub mod observe;
pub mod observed;
pub mod orphan;
pub mod ownership;
pub mod plan;
pub mod preflight;
pub mod probe;
pub mod quorum;
pub mod remediation;
mod retry;
pub mod rollout;
pub mod secrets;
pub mod select;
pub mod status;
pub mod sync;
pub mod upkeep;
pub mod workload;
