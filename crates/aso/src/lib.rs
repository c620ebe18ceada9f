//! AKS clusters as inline Azure resources: AzureASOManagedCluster, AzureASOManagedControlPlane, AzureASOManagedMachinePool
//! and their templates. `inline` says what resources are, `mutators` what Cluster API decides in them, `resources` what all
//! kinds do with them, `engine` who writes them; each kind has its folder (docs/aso.md).

pub mod access;
pub mod adopt;
pub mod api;
pub mod borrowing;
pub mod caches;
pub mod cluster;
pub mod cluster_template;
pub mod command;
pub mod conditions;
pub mod control_plane;
pub mod control_plane_template;
pub mod diff;
pub mod engine;
mod example;
pub mod inline;
mod insight;
pub mod migrate;
pub mod mutators;
pub mod pool;
pub mod pool_template;
pub mod provider;
pub mod resources;
pub mod settings;
pub mod shared;
mod status;
