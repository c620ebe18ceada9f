//! ClusterAPINodeClass: which of Cluster API's objects nodes come from, and what is known about such nodes.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slipway_capi::view::ObjectReference;
use slipway_packing::model::ResourceList;

use super::schema;

/// Which objects of Cluster API nodes come from. An object is used if it is of the type, in the scope, opted in, and carries
/// everything that the selector and the labels ask for.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "ClusterAPINodeClass",
    plural = "clusterapinodeclasses",
    category = "karpenter",
    shortname = "capinc",
    shortname = "capincs",
    status = "ClusterAPINodeClassStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "Resource",
        type_ = "string",
        json_path = ".spec.scalableResource.kind"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = schema::class_rules()))]
pub struct ClusterAPINodeClassSpec {
    /// The type of object whose replicas become nodes: never one object. MachineDeployments if absent; MachineSets, MachinePools
    /// with machines, and infrastructure machine templates, from which Machines are then made one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {"group": "cluster.x-k8s.io", "kind": "MachineDeployment"}))]
    pub scalable_resource: Option<ScalableResourceType>,
    /// Inclusive filters, each `key=value` or `key`: an object is used only if it carries them all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::label_filters")]
    pub labels: Vec<String>,
    /// The same as a label selector, as karpenter-provider-cluster-api has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scalable_resource_selector: Option<LabelSelector>,
    /// The Cluster the nodes belong to. Without it, the cluster's own (`--cluster-name`), or else every Cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 63))]
    pub cluster_name: Option<String>,
    /// The namespace of the objects. Without it, the cluster's own (`--cluster-namespace`), or else every namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 63))]
    pub namespace: Option<String>,
    /// Where prices come from. Annotations of the objects if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<PriceSource>,
    /// What the system keeps of every node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead: Option<Overhead>,
    /// Who replaces machines whose template has changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift_policy: Option<DriftPolicy>,
    /// How long a node may take to come. Bare metal takes long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<Deadlines>,
    /// What Machines are made of besides the infrastructure machine template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_template: Option<MachineTemplate>,
}

/// A type of object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ScalableResourceType {
    /// Its group.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "default" = "cluster.x-k8s.io"))]
    pub group: String,
    /// Its kind: MachineDeployment, MachineSet, MachinePool, or one that ends in `Template`.
    #[schemars(extend(
        "maxLength" = 63,
        "pattern" = "^(MachineDeployment|MachineSet|MachinePool|[A-Z][A-Za-z0-9]*Template)$",
        "default" = "MachineDeployment"
    ))]
    pub kind: String,
}

impl Default for ScalableResourceType {
    fn default() -> Self {
        ScalableResourceType {
            group: slipway_capi::names::GROUP.to_owned(),
            kind: "MachineDeployment".to_owned(),
        }
    }
}

/// A list of prices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct PriceSource {
    /// A ConfigMap in the cluster of the NodeClass. Each line of its value is `<instance type>[/<zone>[/<capacity type>]] <price
    /// per hour>`; the most exact line counts, and an object's own annotation before all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapKey>,
}

/// One value of a ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKey {
    pub namespace: String,
    pub name: String,
    #[serde(default = "prices")]
    #[schemars(extend("default" = "prices"))]
    pub key: String,
}

fn prices() -> String {
    "prices".to_owned()
}

/// What the system keeps of every node, so that pods are not planned onto it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Overhead {
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resources")]
    pub kube_reserved: ResourceList,
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resources")]
    pub system_reserved: ResourceList,
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resources")]
    pub eviction_threshold: ResourceList,
    /// Take the difference between capacity and allocatable of a live node of the same object, where there is one, before what is
    /// given here. True if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learn: Option<bool>,
}

/// Who replaces machines whose template has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DriftPolicy {
    /// Cluster API: its rollout goes on, and claims follow from the old Machines to the new ones.
    #[default]
    ClusterAPI,
    /// The autoscaler: claims of changed machines are drifted, and replaced within the NodePool's budgets.
    Autoscaler,
}

/// How long a node may take, as a Go duration; `Never` waits for ever.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Deadlines {
    /// Until a Machine stands for the claim. 5m if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = r"^(([0-9]+(s|m|h))+|Never)$"))]
    pub launch: Option<String>,
    /// Until its Node has joined. 15m if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = r"^(([0-9]+(s|m|h))+|Never)$"))]
    pub registration: Option<String>,
}

/// What a Machine is made of besides its infrastructure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineTemplate {
    /// The template that its bootstrap configuration is cloned from.
    pub bootstrap_ref: ObjectReference,
    /// Its Kubernetes version.
    #[schemars(extend("minLength" = 1))]
    pub version: String,
}

/// What was found of the class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterAPINodeClassStatus {
    /// How many objects are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scalable_resources: Option<i32>,
    /// How many instance types they come to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_types: Option<i32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
