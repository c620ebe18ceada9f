//! The control plane controller: an AzureManagedControlPlane becomes an AKS cluster with its network, endpoints,
//! fleet membership, extensions and kubeconfigs.

pub mod act;
pub mod controller;
pub mod observe;

/// Holds a control plane until everything it made in Azure is gone.
pub const FINALIZER: &str = "azuremanagedcontrolplane.infrastructure.cluster.x-k8s.io";
