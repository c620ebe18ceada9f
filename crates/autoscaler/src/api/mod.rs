//! The kinds: NodePool and NodeClaim as Karpenter has them, ClusterAPINodeClass as karpenter-provider-cluster-api has it and
//! with what that lacks. Only types, names and schemas; nothing is decided here.

pub mod crd;
pub mod names;
mod node_claim;
mod node_class;
mod node_pool;
mod schema;

pub use node_claim::{NodeClaim, NodeClaimSpec, NodeClaimStatus, Resources};
pub use node_class::{
    ClusterAPINodeClass, ClusterAPINodeClassSpec, ClusterAPINodeClassStatus, ConfigMapKey, Deadlines,
    DriftPolicy, MachineTemplate, Overhead, PriceSource, ScalableResourceType,
};
pub use node_pool::{
    Budget, Disruption, NodeClaimTemplate, NodeClaimTemplateSpec, NodeClassReference, NodePool, NodePoolSpec,
    NodePoolStatus, TemplateMetadata,
};
