//! AKS clusters as Cluster API objects: AzureManagedCluster, AzureManagedControlPlane, AzureManagedMachinePool, their
//! templates, AzureManagedMachine and AzureClusterIdentity. What is done is decided by pure functions over what was observed; `access`,
//! `observe` and `act` are the only parts that ask anybody.

pub mod access;
pub mod admit;
pub mod api;
pub mod caches;
pub mod cluster;
pub mod cluster_template;
mod conditions;
pub mod control_plane;
pub mod control_plane_template;
pub mod example;
pub mod identity;
mod insight;
pub mod machine;
pub mod planning;
pub mod pool;
pub mod pool_template;
pub mod provider;
pub mod render;
pub mod status;
pub mod version;
