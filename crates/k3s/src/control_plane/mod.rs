//! The control plane: the servers of one cluster, and the etcd they keep together.

pub mod admit;
pub mod health;
pub mod hook;
pub mod observed;
pub mod plan;
pub mod preflight;
pub mod quorum;
pub mod remediation;
pub mod rollout;
pub mod select;
