//! AKS clusters as Cluster API objects: AzureManagedCluster, AzureManagedControlPlane, AzureManagedMachinePool, their
//! templates and AzureClusterIdentity. Everything here is decided by pure functions over what was observed.

pub mod admit;
pub mod api;
pub mod plan;
pub mod provider;
pub mod render;
pub mod status;
pub mod version;
