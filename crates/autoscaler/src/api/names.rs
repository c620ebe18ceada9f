//! Labels, annotations, taints, finalizers and condition types. They are interface: Karpenter's and its Cluster API provider's
//! own, because manifests, dashboards and other tools name them.

/// The group of NodePool and NodeClaim.
pub const GROUP: &str = "karpenter.sh";
/// The group of ClusterAPINodeClass.
pub const NODE_CLASS_GROUP: &str = "karpenter.cluster.x-k8s.io";
/// On NodeClaims and Nodes.
pub const TERMINATION_FINALIZER: &str = "karpenter.sh/termination";

pub mod label {
    pub use slipway_packing::labels::{
        ARCHITECTURE, CAPACITY_ON_DEMAND, CAPACITY_SPOT, CAPACITY_TYPE, HOSTNAME, INITIALIZED, INSTANCE_TYPE,
        NODE_POOL, OPERATING_SYSTEM, REGION, REGISTERED, ZONE,
    };
    /// On a scalable resource: a user opts in. On a Machine the Go provider means "a NodeClaim has it" by the same label, so
    /// on Machines it is read for hand-over only and never trusted.
    pub const MEMBER: &str = "node.cluster.x-k8s.io/karpenter-member";
    /// On a Machine: the uid of the NodeClaim that it is bound to.
    pub const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim";
    /// On a Node with accelerators, as Cluster Autoscaler knows it.
    pub const ACCELERATOR: &str = "cluster-api/accelerator";
}

pub mod annotation {
    /// On a NodeClaim: `namespace/name` of its Machine, as the Go provider writes it.
    pub const MACHINE: &str = "cluster.x-k8s.io/machine";
    /// On a NodeClaim: `Kind/namespace/name` of the scalable resource that was chosen for it, before a Machine exists.
    pub const SCALABLE_RESOURCE: &str = "karpenter.cluster.x-k8s.io/scalable-resource";
    /// On a Machine: the uid of the NodeClaim whose deletion it is to go with. Written before replicas fall.
    pub const DELETED_WITH: &str = "karpenter.cluster.x-k8s.io/deleted-with";
    /// On a NodeClaim: replicas have fallen for it.
    pub const GAVE_BACK: &str = "karpenter.cluster.x-k8s.io/replica-given-back";
    /// On a NodeClaim that is deleted: its node is drained, and its Machine may go.
    pub const DRAINED: &str = "karpenter.cluster.x-k8s.io/drained";
    /// On a NodeClaim that is deleted: its Machine is gone and replicas have fallen, so nothing is left of it.
    pub const SETTLED: &str = "karpenter.cluster.x-k8s.io/settled";
    /// On a NodePool: nothing is created or disrupted for it.
    pub const FROZEN: &str = "karpenter.cluster.x-k8s.io/frozen";
    /// On a NodeClaim: why it is being disrupted. Its Node is tainted, and it is deleted once its replacements are there.
    pub const DISRUPTED_FOR: &str = "karpenter.cluster.x-k8s.io/disrupted-for";
    /// On a NodeClaim: the command that it was made for, with the claims that go when it is initialized.
    pub const REPLACES: &str = "karpenter.cluster.x-k8s.io/replaces";
    /// On a NodePool: the time zone that the schedules of its budgets are in, such as `Europe/Berlin`; UTC if absent.
    pub const BUDGET_TIME_ZONE: &str = "slipway.dev/budget-time-zone";
    pub const NODE_POOL_HASH: &str = "karpenter.sh/nodepool-hash";
    pub const NODE_POOL_HASH_VERSION: &str = "karpenter.sh/nodepool-hash-version";
    pub const TERMINATION_TIMESTAMP: &str = "karpenter.sh/nodeclaim-termination-timestamp";
    pub const DO_NOT_DISRUPT: &str = slipway_packing::labels::DO_NOT_DISRUPT;
    pub const MIN_VALUES_RELAXED: &str = "karpenter.sh/nodeclaim-min-values-relaxed";
}

pub mod taint {
    pub const DISRUPTED: &str = "karpenter.sh/disrupted";
    pub const UNREGISTERED: &str = "karpenter.sh/unregistered";
}

pub mod condition {
    pub const READY: &str = "Ready";
    pub const LAUNCHED: &str = "Launched";
    pub const REGISTERED: &str = "Registered";
    pub const INITIALIZED: &str = "Initialized";
    pub const CONSOLIDATABLE: &str = "Consolidatable";
    pub const DRIFTED: &str = "Drifted";
    pub const DRAINED: &str = "Drained";
    pub const VOLUMES_DETACHED: &str = "VolumesDetached";
    pub const INSTANCE_TERMINATING: &str = "InstanceTerminating";
    pub const CONSISTENT_STATE_FOUND: &str = "ConsistentStateFound";
    pub const DISRUPTION_REASON: &str = "DisruptionReason";
    pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
    pub const NODE_CLASS_READY: &str = "NodeClassReady";
    pub const NODE_REGISTRATION_HEALTHY: &str = "NodeRegistrationHealthy";
}
