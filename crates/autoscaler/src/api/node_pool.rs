//! NodePool: what nodes may be made, how many, and when they may be taken away.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slipway_packing::{
    model::{ResourceList, Taint},
    requirement::RequirementSpec,
};

use super::schema;

/// What nodes are made for pods that find no place, and when they are taken away again.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.sh",
    version = "v1",
    kind = "NodePool",
    category = "karpenter",
    status = "NodePoolStatus",
    derive = "PartialEq",
    derive = "Default",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.nodes"),
    printcolumn(
        name = "NodeClass",
        type_ = "string",
        json_path = ".spec.template.spec.nodeClassRef.name"
    ),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.nodes"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Weight", type_ = "integer", json_path = ".spec.weight", priority = 1),
    printcolumn(
        name = "CPU",
        type_ = "string",
        json_path = ".status.resources.cpu",
        priority = 1
    ),
    printcolumn(
        name = "Memory",
        type_ = "string",
        json_path = ".status.resources.memory",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = schema::pool_rules()))]
pub struct NodePoolSpec {
    /// What every NodeClaim of the pool begins with.
    pub template: NodeClaimTemplate,
    /// When and how fast nodes are taken away.
    #[serde(default)]
    #[schemars(extend("default" = {"consolidateAfter": "0s"}))]
    pub disruption: Disruption,
    /// What all nodes of the pool together may have at most; `nodes` counts them. Never exceeded.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resources")]
    pub limits: ResourceList,
    /// Of several pools that would do, the one with the highest weight is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1, "maximum" = 100))]
    pub weight: Option<i32>,
    /// Makes the pool static: this many nodes, whatever pods there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub replicas: Option<i64>,
}

/// What every NodeClaim of a pool begins with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimTemplate {
    #[serde(default)]
    #[schemars(extend("default" = null))]
    pub metadata: TemplateMetadata,
    pub spec: NodeClaimTemplateSpec,
}

/// Labels and annotations of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Labels that every node gets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::template_labels")]
    pub labels: BTreeMap<String, String>,
    /// Annotations that every node gets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::template_annotations")]
    pub annotations: BTreeMap<String, String>,
}

/// What is asked of every node of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["nodeClassRef", "requirements"]))]
pub struct NodeClaimTemplateSpec {
    /// Taints that stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::taints")]
    pub taints: Vec<Taint>,
    /// Taints that somebody else removes once the node has started; pods need not tolerate them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::taints")]
    pub startup_taints: Vec<Taint>,
    /// What the nodes' labels must be.
    #[serde(default)]
    #[schemars(schema_with = "schema::pool_requirements")]
    pub requirements: Vec<RequirementSpec>,
    /// Where the nodes come from.
    #[schemars(schema_with = "schema::pool_class_reference")]
    pub node_class_ref: NodeClassReference,
    /// How long a node may take to drain before its pods are deleted, whatever keeps them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = r"^([0-9]+(s|m|h))+$"))]
    pub termination_grace_period: Option<String>,
    /// How old a node may become.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = r"^(([0-9]+(s|m|h))+|Never)$", "default" = "720h"))]
    pub expire_after: Option<String>,
}

/// A NodeClass: the provider's own settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeClassReference {
    pub group: String,
    pub kind: String,
    pub name: String,
}

/// When and how fast nodes are taken away.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    /// How long a node must be underused before it may go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = r"^(([0-9]+(s|m|h))+|Never)$", "default" = "0s"))]
    pub consolidate_after: Option<String>,
    /// Which nodes may go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend(
        "enum" = ["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"],
        "default" = "WhenEmptyOrUnderutilized"
    ))]
    pub consolidation_policy: Option<String>,
    /// How many nodes may go at once; of several that are active the strictest counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend(
        "maxItems" = 50,
        "default" = [{"nodes": "10%"}],
        "x-kubernetes-list-type" = "atomic",
        "x-kubernetes-validations" = schema::budget_rules()
    ))]
    pub budgets: Option<Vec<Budget>>,
}

/// How many nodes of a pool may go at once, why, and when that holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["nodes"]))]
pub struct Budget {
    /// The reasons it holds for; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::reasons")]
    pub reasons: Option<Vec<String>>,
    /// A number or a percentage.
    #[serde(default)]
    #[schemars(extend("pattern" = r"^((100|[0-9]{1,2})%|[0-9]+)$", "default" = "10%"))]
    pub nodes: String,
    /// When it begins to hold, as cron writes it, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend(
        "pattern" = r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$"
    ))]
    pub schedule: Option<String>,
    /// For how long it holds then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = r"^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$"))]
    pub duration: Option<String>,
}

/// What the pool has come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolStatus {
    /// What its nodes have together.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resources")]
    pub resources: ResourceList,
    /// How many nodes it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 0))]
    pub nodes: Option<i64>,
    /// The NodeClass as it was when it was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class_observed_generation: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
