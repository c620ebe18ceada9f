//! ClusterUpgrade.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::{Image, rule};

/// Brings a cluster to a version: the control plane, then the MachineDeployments, the canary first.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "edge.slipway.dev",
    version = "v1alpha1",
    kind = "ClusterUpgrade",
    plural = "clusterupgrades",
    category = "edge",
    shortname = "cu",
    namespaced,
    status = "ClusterUpgradeStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(name = "At", type_ = "string", json_path = ".status.stop"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Machines", type_ = "integer", json_path = ".status.machines"),
    printcolumn(name = "Up To Date", type_ = "integer", json_path = ".status.upToDate"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        priority = 10
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct ClusterUpgradeSpec {
    /// The Cluster, in this namespace.
    #[schemars(extend("minLength" = 1, "maxLength" = 63))]
    pub cluster_name: String,
    /// The version it is to have, e.g. v1.35.2+k3s1.
    pub version: String,
    /// The image of each version on the way, the last one included.
    #[schemars(extend("minItems" = 1, "maxItems" = 64))]
    pub images: Vec<VersionedImage>,
    /// The UpgradePolicy that says when hosts may be disturbed and when it stops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_name: Option<String>,
    /// The MachineDeployment that goes before the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<String>,
    /// Nothing new is begun; what hosts have begun is finished.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The variable of a topology that holds the image, with reference and digest (default nodeImage).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub topology_image_variable: Option<String>,
}

/// The image of one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionedImage {
    pub version: String,
    #[serde(flatten)]
    pub image: Image,
}

fn rules() -> Value {
    json!([rule(
        "self.clusterName == oldSelf.clusterName",
        "clusterName cannot be changed: make a ClusterUpgrade for the other Cluster",
    )])
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClusterUpgradePhase {
    #[default]
    Pending,
    ControlPlane,
    Canary,
    Workers,
    Halted,
    Paused,
    /// It cannot be done as it is asked for.
    Blocked,
    Done,
}

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterUpgradeStatus {
    pub phase: ClusterUpgradePhase,
    /// The version that is being taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How many machines the cluster is to have.
    pub machines: i32,
    /// How many of them run the version that is asked for, kubelets included.
    pub up_to_date: i32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
