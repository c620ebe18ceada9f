//! The custom resources of this provider in one place, field by field as upstream has them, and what the v1beta2 contract
//! adds; each kind has its own `api`. Values that the schema enumerates are text: an object that an older or newer schema
//! let in must stay readable.

pub mod crd;
pub(crate) mod status;

pub use slipway_capi::contract::{
    ControlPlaneInitialization, Endpoint, InfrastructureInitialization, ReplicaVersion, TemplateMetadata,
    V1Beta2Conditions,
};

pub use self::status::{Empty, LongRunningOperation, OidcIssuerStatus};
pub use crate::{
    cluster::api::*, cluster_template::api::*, control_plane::api::*, control_plane_template::api::*,
    identity::api::*, machine::api::*, pool::api::*, pool_template::api::*,
};

/// The API group of every kind here.
pub const GROUP: &str = "infrastructure.cluster.x-k8s.io";
/// Carries a pool's mode, so that the system pools of a cluster can be listed by label.
pub const LABEL_AGENT_POOL_MODE: &str =
    "azuremanagedmachinepool.infrastructure.cluster.x-k8s.io/agentpoolmode";
/// The mode of pools that carry what the cluster needs.
pub const MODE_SYSTEM: &str = "System";
