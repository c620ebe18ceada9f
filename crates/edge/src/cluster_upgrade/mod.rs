//! ClusterUpgrade: one cluster brought to one version, control plane first.

pub mod admit;
pub mod api;
pub mod plan;
