//! CapacityBuffer: room that is kept for pods to come. The kind is Cluster Autoscaler's and Karpenter's alike.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slipway_packing::model::ResourceList;

use super::schema;

/// The strategy that is served, and meant where none is named.
pub const ACTIVE_CAPACITY: &str = "buffer.x-k8s.io/active-capacity";

/// Room for so many pods like those of a template or a workload.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "autoscaling.x-k8s.io",
    version = "v1beta1",
    kind = "CapacityBuffer",
    namespaced,
    category = "autoscaling",
    shortname = "cb",
    status = "CapacityBufferStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "Strategy",
        type_ = "string",
        description = "The strategy to be used.",
        json_path = ".spec.provisioningStrategy"
    ),
    printcolumn(
        name = "PodTemplate",
        type_ = "string",
        description = "The name of the PodTemplate used.",
        json_path = ".status.podTemplateRef.name"
    ),
    printcolumn(
        name = "Replicas",
        type_ = "integer",
        description = "The actual number of buffer chunks.",
        json_path = ".status.replicas"
    ),
    printcolumn(
        name = "ConditionsType",
        type_ = "string",
        description = "List of all condition types.",
        json_path = ".status.conditions[*].type"
    ),
    printcolumn(
        name = "ConditionsStatus",
        type_ = "string",
        description = "List of all condition statuses.",
        json_path = ".status.conditions[*].status"
    ),
    printcolumn(
        name = "ConditionsReason",
        type_ = "string",
        description = "List of all condition reasons.",
        json_path = ".status.conditions[*].reason"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        description = "The age of the CapacityBuffer.",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = schema::buffer_rules()))]
pub struct CapacityBufferSpec {
    /// `buffer.x-k8s.io/active-capacity`: nodes are made until there is room, and kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = ACTIVE_CAPACITY))]
    pub provisioning_strategy: Option<String>,
    /// A PodTemplate of the same namespace, which says what a pod of the buffer is like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_ref: Option<LocalReference>,
    /// A Deployment, StatefulSet or ReplicaSet of the same namespace, of which the pods are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scalable_ref: Option<ScalableReference>,
    /// Room for so many pods. Where there is a percentage too, the larger counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub replicas: Option<i32>,
    /// Room for so much of the workload's replicas, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub percentage: Option<i32>,
    /// What the pods of the buffer may ask for together. Without replicas and percentage: as many as fit.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resources")]
    pub limits: ResourceList,
}

/// An object of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalReference {
    #[schemars(extend("minLength" = 1))]
    pub name: String,
}

/// A workload of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalableReference {
    /// `apps`, also if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    #[schemars(extend("minLength" = 1))]
    pub kind: String,
    #[schemars(extend("minLength" = 1))]
    pub name: String,
}

/// What has become of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityBufferStatus {
    /// The PodTemplate that is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_ref: Option<LocalReference>,
    /// For how many pods room is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The PodTemplate as it was when it was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_generation: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning_strategy: Option<String>,
}
