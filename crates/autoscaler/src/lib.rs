//! Karpenter's API on Cluster API machines: NodePool, NodeClaim and ClusterAPINodeClass, the provisioner that turns pods that
//! wait into claims, and the accounts that keep claims, Machines and replicas one to one. What is missing: docs/autoscaler.md.

pub mod accounting;
pub mod api;
pub mod batch;
pub mod cluster_api;
pub mod command;
pub mod cost;
pub mod disruption;
pub mod environment;
mod error;
pub mod group;
pub mod hash;
mod insight;
pub mod instances;
pub mod lifecycle;
pub mod making;
pub mod management;
pub mod memory;
pub mod metrics;
pub mod node;
pub mod node_claim;
pub mod node_class;
pub mod node_pool;
pub mod options;
mod provider;
pub mod provisioner;
pub mod read;
pub mod repair;
pub mod safety;
pub mod snapshot;
pub mod startup;
pub mod static_capacity;
pub mod time_zone;
pub mod watched;

pub use error::Error;
pub use provider::provider;
