//! KThreesControlPlane and KThreesControlPlaneTemplate, v1beta2: the servers of one cluster.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString},
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::conditions::{Condition, V1Beta2Status},
    bootstrap::api::KThreesConfigSpec,
};

/// KThreesControlPlaneSpec defines the desired state of KThreesControlPlane.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "controlplane.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KThreesControlPlane",
    plural = "kthreescontrolplanes",
    namespaced,
    status = "KThreesControlPlaneStatus",
    derive = "PartialEq",
    derive = "Default",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Initialized",
        type_ = "boolean",
        json_path = ".status.initialized",
        description = "This denotes whether or not the control plane has completed the k3s server initialization"
    ),
    printcolumn(
        name = "API Server Available",
        type_ = "boolean",
        json_path = ".status.ready",
        description = "KThreesControlPlane API Server is ready to receive requests"
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".spec.version",
        description = "Kubernetes version associated with this control plane"
    ),
    printcolumn(
        name = "Replicas",
        type_ = "integer",
        json_path = ".status.replicas",
        description = "Total number of non-terminated machines targeted by this control plane"
    ),
    printcolumn(
        name = "Ready",
        type_ = "integer",
        json_path = ".status.readyReplicas",
        description = "Total number of fully running and ready control plane machines"
    ),
    printcolumn(
        name = "Updated",
        type_ = "integer",
        json_path = ".status.updatedReplicas",
        description = "Total number of non-terminated machines targeted by this control plane that have the desired template spec"
    ),
    printcolumn(
        name = "Unavailable",
        type_ = "integer",
        json_path = ".status.unavailableReplicas",
        description = "Total number of unavailable machines targeted by this control plane"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct KThreesControlPlaneSpec {
    /// Number of servers (default 1). Odd with embedded etcd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The k3s version, e.g. v1.34.1+k3s1.
    pub version: String,
    /// What every server is configured with.
    #[serde(rename = "kthreesConfigSpec", skip_serializing_if = "Option::is_none")]
    pub kthrees_config_spec: Option<KThreesConfigSpec>,
    /// Machines older than this are replaced once this time has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout_after: Option<Time>,
    /// The same as rolloutAfter, where the v1beta2 contract has it; the later of the two counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// What else makes a machine be replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout_before: Option<RolloutBefore>,
    /// How changes reach the machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout_strategy: Option<RolloutStrategy>,
    /// What the machines look like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_template: Option<MachineTemplate>,
    /// How unhealthy machines are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remediation_strategy: Option<RemediationStrategy>,
}

impl KThreesControlPlaneSpec {
    pub fn config(&self) -> KThreesConfigSpec {
        self.kthrees_config_spec.clone().unwrap_or_default()
    }

    pub fn machines(&self) -> MachineTemplate {
        self.machine_template.clone().unwrap_or_default()
    }

    pub fn desired_replicas(&self) -> i32 {
        self.replicas.unwrap_or(1)
    }

    /// The later of the two places a restart can be asked for.
    pub fn effective_rollout_after(&self) -> Option<jiff::Timestamp> {
        let contract = self.rollout.as_ref().and_then(|rollout| rollout.after.as_ref());
        self.rollout_after.iter().chain(contract).map(|time| time.0).max()
    }

    pub fn strategy(&self) -> RolloutStrategyType {
        self.rollout_strategy
            .as_ref()
            .and_then(|strategy| strategy.type_)
            .unwrap_or_default()
    }

    /// How many machines a rollout may add: 0 or 1.
    pub fn max_surge(&self) -> i32 {
        let surge = self
            .rollout_strategy
            .as_ref()
            .and_then(|strategy| strategy.rolling_update.as_ref())
            .and_then(|rolling| rolling.max_surge.as_ref());
        match surge {
            Some(IntOrString::Int(surge)) => *surge,
            Some(IntOrString::String(surge)) => surge.parse().unwrap_or(1),
            None => 1,
        }
    }
}

/// When machines are replaced on request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rollout {
    /// Machines older than this are replaced once this time has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Time>,
}

/// What makes a machine be replaced before it stops working.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutBefore {
    /// Replace a server this many days before its certificates expire (at least 7). Never, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificates_expiry_days: Option<i32>,
}

/// How a change of the servers is brought about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutStrategyType {
    /// Every changed server is replaced, one after the other.
    #[default]
    RollingUpdate,
    /// In place where the update extension covers the change, else replaced.
    InPlace,
    /// In place only; a change the update extension does not cover waits and is reported.
    External,
}

/// How changes reach the machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStrategy {
    /// RollingUpdate (default), InPlace or External.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<RolloutStrategyType>,
    /// Limits of a rolling update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// Limits of a rolling update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// How many machines may be added at a time: 0 or 1 (default 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
}

/// Labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// What the machines look like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineTemplate {
    /// Labels and annotations every machine carries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// The infrastructure template the hosts are made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure_ref: Option<ObjectReference>,
    /// How long a drain may take; without limit if absent or 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_drain_timeout: Option<String>,
    /// How long to wait for volumes to detach; without limit if absent or 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_volume_detach_timeout: Option<String>,
    /// How long to try to delete the node; without limit if 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_deletion_timeout: Option<String>,
    /// The same in the shape of the v1beta2 contract; what is set here wins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<MachineTemplateSpec>,
}

/// What the machines look like, in the shape of the v1beta2 contract.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineTemplateSpec {
    /// The infrastructure template the hosts are made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure_ref: Option<ContractReference>,
    /// Conditions that must be true before a machine counts as ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_gates: Option<Vec<ReadinessGate>>,
    /// Limits on deleting a machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletion>,
    /// Taints Cluster API keeps on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taints: Option<Vec<MachineTaint>>,
}

/// A reference whose version Cluster API finds by contract.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContractReference {
    pub api_group: String,
    pub kind: String,
    pub name: String,
}

/// One condition that must be true before a machine counts as ready.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReadinessGate {
    pub condition_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub polarity: Option<String>,
}

/// Limits on deleting a machine, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeletion {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_drain_timeout_seconds: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_volume_detach_timeout_seconds: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_deletion_timeout_seconds: Option<i32>,
}

/// One taint Cluster API keeps on the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineTaint {
    pub key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    pub effect: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation: Option<String>,
}

/// How unhealthy machines are replaced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemediationStrategy {
    /// How often a replacement that fails too is replaced again. Without limit, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retry: Option<i32>,
    /// How long to wait before a failed replacement is replaced (default 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_period: Option<String>,
    /// How long a replacement must have lived for its failure to count as unrelated (default 1h).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_healthy_period: Option<String>,
}

/// KThreesControlPlaneStatus defines the observed state of KThreesControlPlane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KThreesControlPlaneStatus {
    /// The label selector of the servers, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Number of servers, those being deleted included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The lowest version a healthy server has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The versions the servers' kubelets report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versions: Option<Vec<StatusVersion>>,
    /// Number of servers that match the spec (v1beta1 contract).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Number of servers that match the spec (v1beta2 contract).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
    /// Number of machines that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Number of machines that are available (v1beta2 contract).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Number of desired machines that are not ready (v1beta1 contract).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_replicas: Option<i32>,
    /// Whether the first server has answered (v1beta1 contract).
    #[serde(default)]
    pub initialized: bool,
    /// Whether the API server takes requests.
    #[serde(default)]
    pub ready: bool,
    /// Why only a change by the user can help, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// Why only a change by the user can help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_message: Option<String>,
    /// The generation this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The state of the object, with severities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// The last replacement of an unhealthy machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_remediation: Option<LastRemediation>,
    /// Progress of the initialization (v1beta2 contract).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ControlPlaneInitialization>,
    /// The state of the object as metav1 conditions.
    #[serde(rename = "v1beta2", skip_serializing_if = "Option::is_none")]
    pub v1beta2: Option<V1Beta2Status>,
}

/// How many servers have one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusVersion {
    pub version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
}

/// Progress of the initialization.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneInitialization {
    /// Whether the first server has answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane_initialized: Option<bool>,
}

/// The last replacement of an unhealthy machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastRemediation {
    /// Name of the machine that was replaced.
    pub machine: String,
    /// When it was deleted.
    pub timestamp: Time,
    /// How often its replacement had to be replaced.
    pub retry_count: i32,
}

/// KThreesControlPlaneTemplateSpec defines the desired state of KThreesControlPlaneTemplate.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "controlplane.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KThreesControlPlaneTemplate",
    plural = "kthreescontrolplanetemplates",
    namespaced,
    derive = "PartialEq",
    derive = "Default"
)]
pub struct KThreesControlPlaneTemplateSpec {
    /// The control plane each cluster gets a copy of.
    pub template: KThreesControlPlaneTemplateResource,
}

/// One control plane to copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KThreesControlPlaneTemplateResource {
    /// Labels and annotations of the copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the copy; replicas and version come from the Cluster's topology.
    pub spec: KThreesControlPlaneTemplateResourceSpec,
}

/// A control plane's spec without replicas and version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KThreesControlPlaneTemplateResourceSpec {
    /// What every server is configured with.
    #[serde(rename = "kthreesConfigSpec", skip_serializing_if = "Option::is_none")]
    pub kthrees_config_spec: Option<KThreesConfigSpec>,
    /// Machines older than this are replaced once this time has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout_after: Option<Time>,
    /// The same as rolloutAfter, where the v1beta2 contract has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// What else makes a machine be replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout_before: Option<RolloutBefore>,
    /// How changes reach the machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout_strategy: Option<RolloutStrategy>,
    /// What the machines look like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_template: Option<MachineTemplate>,
    /// How unhealthy machines are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remediation_strategy: Option<RemediationStrategy>,
}
