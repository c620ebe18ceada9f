//! The API: kinds, groups, versions, labels, annotations and finalizers, the same on the wire as cluster-api-k3s',
//! plus what the Cluster API v1beta2 contract asks for.

pub mod conditions;
pub mod crd;
pub mod v1beta1;

pub use crate::bootstrap::api::{
    AgentConfig, AgentToken, Datastore, File, FileSource, KThreesConfig, KThreesConfigSpec,
    KThreesConfigStatus, KThreesConfigTemplate, KThreesConfigTemplateSpec, SecretKey, ServerConfig,
};
pub use crate::control_plane::api::{
    KThreesControlPlane, KThreesControlPlaneSpec, KThreesControlPlaneStatus, KThreesControlPlaneTemplate,
    KThreesControlPlaneTemplateSpec, MachineTemplate, RolloutStrategy, RolloutStrategyType,
};

pub const BOOTSTRAP_GROUP: &str = "bootstrap.cluster.x-k8s.io";
pub const CONTROL_PLANE_GROUP: &str = "controlplane.cluster.x-k8s.io";
/// The version that is stored, and that everything inside works with.
pub const VERSION: &str = "v1beta2";

pub const FINALIZER: &str = "kthrees.controlplane.cluster.x-k8s.io";

/// On a Machine: the server configuration it was created with, as JSON.
pub const SERVER_CONFIGURATION_ANNOTATION: &str =
    "controlplane.cluster.x-k8s.io/kthrees-server-configuration";
/// On the control plane, between the deletion of an unhealthy machine and the creation of its replacement.
pub const REMEDIATION_IN_PROGRESS_ANNOTATION: &str = "controlplane.cluster.x-k8s.io/remediation-in-progress";
/// On a replacement machine: which machine it replaces, and how often that was tried.
pub const REMEDIATION_FOR_ANNOTATION: &str = "controlplane.cluster.x-k8s.io/remediation-for";
/// On the control plane: the ranges of the Cluster it was initialised with. Written once, before the first
/// machine: k3s refuses a server whose ranges differ from the first one's.
pub const CLUSTER_NETWORK_ANNOTATION: &str = "controlplane.cluster.x-k8s.io/kthrees-cluster-network";
/// On the control plane: set when the first server answered, so that a moved object still knows it.
pub const INITIALIZED_ANNOTATION: &str = "controlplane.cluster.x-k8s.io/kthrees-initialized";

/// The hook that keeps a deleted server's host until its etcd member has left. On every server from creation.
pub const PRE_TERMINATE_HOOK: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/k3s-cleanup";
/// On a Machine that is being deleted: the etcd member that was asked to leave for it.
pub const MEMBER_REMOVAL_ANNOTATION: &str = "kthrees.controlplane.cluster.x-k8s.io/member-removal";
/// On a Machine that we made: its userdata keeps k3s from joining etcd again before its host is gone.
pub const STAYS_OUT_ANNOTATION: &str = "kthrees.controlplane.cluster.x-k8s.io/stays-out-of-etcd";
/// The key cluster-api-k3s uses for the hook, with the value [`LEGACY_HOOK_VALUE`].
pub const LEGACY_PRE_TERMINATE_HOOK: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io";
pub const LEGACY_HOOK_VALUE: &str = "k3s";

/// The field manager of what the control plane writes: spec, cloned-from and in-place annotations.
pub const FIELD_MANAGER: &str = "capi-kthreescontrolplane";
/// The field manager of labels and annotations that are kept in step on every pass.
pub const METADATA_FIELD_MANAGER: &str = "capi-kthreescontrolplane-metadata";
