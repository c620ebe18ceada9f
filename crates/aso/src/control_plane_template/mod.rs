//! AzureASOManagedControlPlaneTemplate: what a ClusterClass makes AzureASOManagedControlPlanes from.

pub mod api;
