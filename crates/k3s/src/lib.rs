//! K3s on Cluster API: bootstrap (KThreesConfig) and control plane (KThreesControlPlane), a drop-in for
//! cluster-api-k3s that can be trusted with etcd.

pub mod api;
pub mod bootstrap;
pub mod control_plane;
pub mod conversion;
pub mod duration;
pub mod error;
mod example;
mod insight;
pub mod provider;
mod reads;
pub mod version;

pub use provider::provider;
