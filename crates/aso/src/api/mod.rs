//! The custom resources of this provider in one place, field by field as upstream has them, and what the v1beta2 contract
//! and readers of a status need beside them; each kind has its own `api`.

pub mod crd;
mod resources;
mod status;

pub use slipway_capi::contract::{
    ControlPlaneInitialization, Endpoint, InfrastructureInitialization, ReplicaVersion, TemplateMetadata,
};

pub use self::{
    resources::Resources,
    status::{ResourceName, ResourceStatus},
};
pub(crate) use self::{resources::resources, status::conditions};
pub use crate::{
    cluster::api::*, cluster_template::api::*, control_plane::api::*, control_plane_template::api::*,
    pool::api::*, pool_template::api::*,
};

/// The API group of every kind here.
pub const GROUP: &str = "infrastructure.cluster.x-k8s.io";
