//! Admission: defaulting and validation as pure functions over (old, new) and a few facts, and the thin handlers that
//! fetch those facts.

pub mod access;
pub mod address;
pub mod autoscaler;
pub mod cluster;
pub mod control_plane;
pub mod control_plane_update;
pub mod defaults;
pub mod existing;
pub mod extension;
mod handler;
pub mod identity;
pub mod immutable;
pub mod names;
pub mod network;
pub mod patches;
pub mod pool;
pub mod pool_update;
pub mod security;
pub mod ssh;
pub mod upgrades;

pub use handler::{
    admission, cluster_template_verdict, cluster_verdict, control_plane_template_verdict,
    control_plane_verdict, identity_verdict, pool_template_verdict, pool_verdict,
};

/// What validation of a control plane must know of its Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterNetworkFact {
    /// The object names no Cluster.
    NoCluster,
    /// The Cluster cannot be read.
    Unreadable(String),
    /// The ranges of services and pods.
    Known {
        services: Vec<String>,
        pods: Vec<String>,
    },
}

/// What validation of a pool must know of its Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherSystemPools {
    /// The object names no Cluster, or the Cluster is gone or being deleted.
    NotNeeded,
    /// The apiserver did not tell.
    Unreadable(String),
    /// How many other system pools the Cluster has that are not being deleted.
    Count(usize),
}
