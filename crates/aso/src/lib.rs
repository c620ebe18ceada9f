//! AKS clusters as inline Azure resources: AzureASOManagedCluster, AzureASOManagedControlPlane, AzureASOManagedMachinePool
//! and their templates. What stands is the API and the pure parts: what inline resources are, in which order they are made
//! and deleted, and what Cluster API sets in them. The controllers are being built, and nothing of this is in the manager
//! yet (docs/aso.md).

pub mod api;
pub mod cluster;
pub mod cluster_template;
pub mod control_plane;
pub mod control_plane_template;
pub mod inline;
pub mod mutators;
pub mod pool;
pub mod pool_template;
