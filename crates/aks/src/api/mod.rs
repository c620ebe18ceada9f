//! The custom resources of this provider, field by field as the peer has them, and what the v1beta2 contract adds.
//! Values that the schema enumerates are text here: an object that an older or newer schema let in must stay readable.

mod access;
mod autoscaler;
mod cluster;
mod control_plane;
mod control_plane_class;
pub mod crd;
mod extension;
mod features;
mod identity;
mod network;
mod node_config;
mod pool;
mod pool_class;
mod private_endpoint;
mod security;
mod status;
mod sysctls;
mod template;

pub use access::{AadProfile, ApiServerAccessProfile, ManagedIdentity, OidcIssuerProfile};
pub use autoscaler::AutoscalerProfile;
pub use cluster::{
    AzureManagedCluster, AzureManagedClusterSpec, AzureManagedClusterStatus, DefaultPoolTemplate,
    MachinePoolReference,
};
pub use control_plane::{
    AzureManagedControlPlane, AzureManagedControlPlaneSpec, AzureManagedControlPlaneStatus,
};
pub use control_plane_class::ControlPlaneClass;
pub use extension::{Extension, ExtensionPlan, ExtensionScope};
pub use features::{AddonProfile, AutoUpgradeProfile, ControlPlaneSku, FleetMember};
pub use identity::{AllowedNamespaces, AzureClusterIdentity, AzureClusterIdentitySpec};
pub use network::{HttpProxyConfig, LoadBalancerProfile, ServiceEndpoint, Subnet, VirtualNetwork};
pub use node_config::{KubeletConfig, LinuxOsConfig};
pub use pool::{AzureManagedMachinePool, AzureManagedMachinePoolSpec, AzureManagedMachinePoolStatus};
pub use pool_class::{PoolClass, Scaling, Taint};
pub use private_endpoint::{PrivateEndpoint, PrivateLinkServiceConnection};
pub use security::{
    Defender, ImageCleaner, KeyVaultKms, SecurityMonitoring, SecurityProfile, WorkloadIdentity,
};
pub use status::{
    AzureClusterIdentityStatus, ControlPlaneInitialization, Empty, Endpoint, InfrastructureInitialization,
    LongRunningOperation, NewerConditions, OidcIssuerStatus, ReplicaVersion,
};
pub use sysctls::Sysctls;
pub use template::{
    AzureManagedClusterTemplate, AzureManagedClusterTemplateSpec, AzureManagedControlPlaneTemplate,
    AzureManagedControlPlaneTemplateSpec, AzureManagedMachinePoolTemplate,
    AzureManagedMachinePoolTemplateSpec, ClusterResource, ClusterResourceSpec, ControlPlaneResource,
    PoolResource, TemplateMetadata,
};

/// The API group of every kind here.
pub const GROUP: &str = "infrastructure.cluster.x-k8s.io";
/// Carries a pool's mode, so that the system pools of a cluster can be listed by label.
pub const LABEL_AGENT_POOL_MODE: &str =
    "azuremanagedmachinepool.infrastructure.cluster.x-k8s.io/agentpoolmode";
/// The mode of pools that carry what the cluster needs.
pub const MODE_SYSTEM: &str = "System";
/// The mode of all other pools.
pub const MODE_USER: &str = "User";
