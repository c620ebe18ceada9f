//! The pool controller: an AzureManagedMachinePool becomes a node pool of its Cluster's AKS cluster, and its nodes
//! become the provider ids that Cluster API looks for.

pub mod act;
pub mod controller;
pub mod observe;

/// Holds a pool until AKS has deleted it. The name is the one pools already carry.
pub const FINALIZER: &str = "azurecluster.infrastructure.cluster.x-k8s.io";
