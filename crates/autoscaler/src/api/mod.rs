//! The kinds: NodePool and NodeClaim as Karpenter has them, ClusterAPINodeClass as karpenter-provider-cluster-api has it and
//! with what that lacks. Only types, names and schemas; nothing is decided here.

mod capacity_buffer;
pub mod crd;
pub mod names;
mod node_claim;
mod node_class;
mod node_overlay;
mod node_pool;
mod provisioning_request;
mod schema;

pub use capacity_buffer::{
    ACTIVE_CAPACITY, CapacityBuffer, CapacityBufferSpec, CapacityBufferStatus, LocalReference,
    ScalableReference,
};
pub use node_claim::{NodeClaim, NodeClaimSpec, NodeClaimStatus, Resources};
pub use node_class::{
    ClusterAPINodeClass, ClusterAPINodeClassSpec, ClusterAPINodeClassStatus, ConfigMapKey, Deadlines,
    DriftPolicy, MachineTemplate, Overhead, PriceSource, ScalableResourceType,
};
pub use node_overlay::{NodeOverlay, NodeOverlaySpec, NodeOverlayStatus};
pub use node_pool::{
    Budget, Disruption, NodeClaimTemplate, NodeClaimTemplateSpec, NodeClassReference, NodePool, NodePoolSpec,
    NodePoolStatus, TemplateMetadata,
};
pub use provisioning_request::{
    BEST_EFFORT_ATOMIC, CHECK_CAPACITY, PodSet, PodTemplateReference, ProvisioningRequest,
    ProvisioningRequestSpec, ProvisioningRequestStatus,
};
