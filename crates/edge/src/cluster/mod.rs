//! EdgeCluster: where the API of a cluster on edge hosts is reached.

pub mod admit;
pub mod api;
