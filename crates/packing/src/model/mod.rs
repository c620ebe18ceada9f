//! What goes in and what comes out: Kubernetes' and Karpenter's objects with their own JSON field names, cut down to
//! what scheduling reads, so that they can be taken from an API server as they are.

mod instance;
mod map;
mod meta;
mod names;
mod node;
mod plan;
mod pod;
mod pool;
mod repair;
mod storage;
mod workload;

pub use instance::{InstanceType, Offering, Overhead};
pub use map::SmallMap;
pub use meta::{LabelSelector, ObjectMeta, OwnerReference, SelectorOperator, SelectorRequirement};
pub use names::Names;
pub use node::{
    Condition, Node, NodeClaim, NodeClaimResources, NodeClaimSpec, NodeClaimStatus, NodeSpec, NodeStatus,
};
pub use plan::{CandidateKind, CandidateRefusal, NewClaim, NodeAssignment, Plan, PodRefusal, RefusalReason};
pub use pod::{
    Affinity, Container, ContainerPort, ContainerStatus, NodeAffinity, NodeSelector, NodeSelectorTerm, Pod,
    PodAffinity, PodAffinityTerm, PodResourceClaim, PodSpec, PodStatus, PreferredSchedulingTerm,
    ResourceRequirements, Taint, Toleration, TopologySpreadConstraint, Volume, WeightedPodAffinityTerm,
};
pub use pool::{
    Budget, Disruption, NodeClassRef, NodePool, NodePoolSpec, NodePoolStatus, NodePoolTemplate,
    NodePoolTemplateSpec, TemplateMeta,
};
pub use repair::{RepairAction, RepairPolicy};
pub use storage::{
    CsiNode, CsiNodeDriver, PersistentVolume, PersistentVolumeClaim, StorageClass, TopologySelectorTerm,
};
pub use workload::{
    Controller, DaemonSet, Improvements, IntOrString, MinValuesPolicy, MinimumSavings, Namespace, OfferingOf,
    Options, PackingPolicy, PackingWeights, PodDisruptionBudget, PreferencePolicy, ReservedOfferingMode,
    Service, Snapshot, UtcOffset, Workload,
};

use crate::quantity::Quantity;

/// Amounts by resource name.
pub type ResourceList = SmallMap<Quantity>;
/// Labels or annotations.
pub type StringMap = SmallMap<String>;
