//! Conditions in the form Cluster API used before metav1 (with a severity), and the names of those the two kinds
//! carry. The names are interface: dashboards and `clusterctl describe` read them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slipway_capi::condition::legacy::LegacyCondition;

/// One condition of `status.conditions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of condition in CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
    /// One of True, False, Unknown.
    pub status: String,
    /// How bad a False is: Error, Warning or Info. Empty otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub severity: Option<String>,
    /// When the status last changed.
    pub last_transition_time: Time,
    /// Why, in one CamelCase word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The conditions as the contract's functions work with them.
pub fn to_legacy(conditions: &[Condition]) -> Vec<LegacyCondition> {
    conditions
        .iter()
        .filter_map(|condition| serde_json::from_value(serde_json::to_value(condition).ok()?).ok())
        .collect()
}

/// The conditions as they are stored.
pub fn from_legacy(conditions: &[LegacyCondition]) -> Vec<Condition> {
    conditions
        .iter()
        .filter_map(|condition| serde_json::from_value(serde_json::to_value(condition).ok()?).ok())
        .collect()
}

/// `status.v1beta2`: the metav1 conditions, which Cluster API reads first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct V1Beta2Status {
    /// The state of the object, one entry per type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>>,
}

pub const READY: &str = "Ready";
pub const PAUSED: &str = "Paused";
pub const DATA_SECRET_AVAILABLE: &str = "DataSecretAvailable";
pub const CERTIFICATES_AVAILABLE: &str = "CertificatesAvailable";

pub const MACHINES_READY: &str = "MachinesReady";
pub const AVAILABLE: &str = "Available";
pub const MACHINES_SPEC_UP_TO_DATE: &str = "MachinesSpecUpToDate";
/// Whether every control-plane machine of the cluster is ours; v1beta2 only.
pub const MACHINES_OWNED: &str = "MachinesOwned";
pub const RESIZED: &str = "Resized";
pub const COMPONENTS_HEALTHY: &str = "ControlPlaneComponentsHealthy";
/// cluster-api-k3s' type string carries the word `Condition`; it is what is on the wire.
pub const ETCD_CLUSTER_HEALTHY: &str = "EtcdClusterHealthyCondition";
pub const TOKEN_AVAILABLE: &str = "TokenAvailable";

/// On Machines.
pub const AGENT_HEALTHY: &str = "AgentHealthy";
pub const ETCD_MEMBER_HEALTHY: &str = "EtcdMemberHealthy";

pub mod reason {
    pub const WAITING_FOR_CLUSTER_INFRASTRUCTURE: &str = "WaitingForClusterInfrastructure";
    pub const WAITING_FOR_CONTROL_PLANE_AVAILABLE: &str = "WaitingForControlPlaneAvailable";
    pub const DATA_SECRET_GENERATION_FAILED: &str = "DataSecretGenerationFailed";
    pub const CERTIFICATES_CORRUPTED: &str = "CertificatesCorrupted";
    pub const WAITING_FOR_KTHREES_SERVER: &str = "WaitingForKthreesServer";
    pub const ROLLING_UPDATE_IN_PROGRESS: &str = "RollingUpdateInProgress";
    pub const SCALING_UP: &str = "ScalingUp";
    pub const SCALING_DOWN: &str = "ScalingDown";
    pub const DELETING: &str = "Deleting";
    pub const COMPONENTS_UNHEALTHY: &str = "ControlPlaneComponentsUnhealthy";
    pub const COMPONENTS_UNKNOWN: &str = "ControlPlaneComponentsUnknown";
    pub const POD_FAILED: &str = "PodFailed";
    pub const ETCD_CLUSTER_UNKNOWN: &str = "EtcdClusterUnknown";
    pub const ETCD_CLUSTER_UNHEALTHY: &str = "EtcdClusterUnhealthy";
    pub const ETCD_MEMBER_UNHEALTHY: &str = "EtcdMemberUnhealthy";
    pub const TOKEN_GENERATION_FAILED: &str = "TokenGenerationFailed";
}
