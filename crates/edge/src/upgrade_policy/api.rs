//! UpgradePolicy.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector},
    util::intstr::IntOrString,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::window::Window;

/// How upgrades go through a fleet. Everything is optional: without a policy one host at a time is upgraded, and the first one that
/// rolls back stops it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "edge.slipway.dev",
    version = "v1alpha1",
    kind = "UpgradePolicy",
    plural = "upgradepolicies",
    category = "edge",
    shortname = "up",
    namespaced,
    status = "UpgradePolicyStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Concurrent", type_ = "string", json_path = ".spec.maxConcurrent"),
    printcolumn(
        name = "Stop After",
        type_ = "integer",
        json_path = ".spec.stopAfterRollbacks"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Upgrading", type_ = "integer", json_path = ".status.nodeUpgrades"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradePolicySpec {
    /// Which machines go first. Each machine is in the first wave that selects it and has room; who is in none goes last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32))]
    pub waves: Vec<Wave>,
    /// How many minutes a wave has to run well before the next one begins (default 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soak_minutes: Option<u32>,
    /// When hosts may be disturbed; always if empty. What has begun is finished.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32))]
    pub windows: Vec<Window>,
    /// How many machines are disturbed at once, as a number or a share of the fleet (default 1). 0 stops it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<IntOrString>,
    /// How many rollbacks of one image stop the fleet (default 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub stop_after_rollbacks: Option<u32>,
    /// What has to be well in the cluster before another machine is disturbed. What has begun is finished.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16))]
    pub health_gates: Vec<HealthGate>,
    /// Versions that must not be jumped over, e.g. v1.34.2+k3s1: an upgrade past one of them stops there first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64))]
    pub mandatory_versions: Vec<String>,
    /// Releases that upgrades go by. With them a path over several minor versions is found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64))]
    pub known_versions: Vec<String>,
}

/// Machines that go together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Wave {
    #[schemars(extend("minLength" = 1, "maxLength" = 63))]
    pub name: String,
    /// By the labels of Machines; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// At most so many, as a number or a share of the fleet; no limit if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<IntOrString>,
}

/// Objects of the workload cluster that have to be well; at least one has to be there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthGate {
    /// Deployments have to be Available, all Pods of StatefulSets and DaemonSets available, Nodes Ready. Of Nodes, and of the Pods of each
    /// DaemonSet, as many may be away as machines are being upgraded.
    pub kind: HealthGateKind,
    /// All namespaces if absent. Nodes have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1))]
    pub namespace: Option<String>,
    /// All if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

impl HealthGate {
    /// `Deployment in namespace shop`.
    pub fn describe(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{:?} in namespace {namespace}", self.kind),
            None => format!("{:?}", self.kind),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HealthGateKind {
    #[default]
    Deployment,
    StatefulSet,
    DaemonSet,
    Node,
}

/// Whether upgrades can go by it, and which do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradePolicyStatus {
    /// The generation of the spec that this is said of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The ClusterUpgrades that name it and are not done.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cluster_upgrades: Vec<String>,
    /// How many NodeUpgrades go by it and have not ended.
    pub node_upgrades: i32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
