//! EdgeMachine and EdgeMachineTemplate.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slipway_capi::contract::{InfrastructureInitialization, TemplateMetadata};

use crate::api::{Image, rule};

/// What a Machine asks of an edge host. It gets one that the selector finds and that is large enough.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "EdgeMachine",
    plural = "edgemachines",
    category = "cluster-api",
    shortname = "em",
    namespaced,
    status = "EdgeMachineStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = r".metadata.labels['cluster\.x-k8s\.io/cluster-name']"
    ),
    printcolumn(name = "Host", type_ = "string", json_path = ".spec.hostName"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 10
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct EdgeMachineSpec {
    /// edge://namespace/host/claim. Written as soon as the host is the machine's, before it is given its bootstrap data.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// The host that was chosen. Written by the provider, and given up if another machine has the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 63))]
    pub host_name: Option<String>,
    /// Which hosts may be chosen; all of the namespace if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_selector: Option<LabelSelector>,
    /// How large the host has to be at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum: Option<Minimum>,
    /// The node image of the host. May be changed: the host is then upgraded in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
}

/// How large a host is at least.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Minimum {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub processors: Option<u32>,
    #[serde(rename = "memoryMiB", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub memory_mib: Option<u64>,
    /// As the host's kernel calls it, e.g. x86_64 or aarch64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct EdgeMachineStatus {
    pub initialization: InfrastructureInitialization,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_domain: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// An address of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Address {
    /// Hostname, InternalIP or ExternalIP.
    #[serde(rename = "type")]
    pub type_: String,
    pub address: String,
}

fn rules() -> Value {
    json!([rule(
        "!has(oldSelf.providerID) || oldSelf.providerID == '' || (has(self.providerID) && self.providerID == oldSelf.providerID)",
        "providerID cannot be changed: the node has it",
    )])
}

/// What EdgeMachines are made from.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "EdgeMachineTemplate",
    plural = "edgemachinetemplates",
    category = "cluster-api",
    shortname = "emt",
    namespaced,
    status = "EdgeMachineTemplateStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "Image",
        type_ = "string",
        json_path = ".spec.template.spec.image.reference"
    ),
    printcolumn(name = "CPU", type_ = "string", json_path = ".status.capacity.cpu"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".status.capacity.memory"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[schemars(extend("x-kubernetes-validations" = template_rules()))]
pub struct EdgeMachineTemplateSpec {
    pub template: EdgeMachineTemplateResource,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EdgeMachineTemplateResource {
    pub metadata: TemplateMetadata,
    pub spec: EdgeMachineSpec,
}

fn template_rules() -> Value {
    // That it does not change is admission's to say: Cluster API's topology controller asks with a dry run what a change would be.
    json!([rule(
        "!has(self.template.spec) || (!has(self.template.spec.providerID) && !has(self.template.spec.hostName))",
        "providerID and hostName belong to one machine, not to a template",
    ),])
}

/// What a node of this template will have, for scaling from zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct EdgeMachineTemplateStatus {
    /// Amounts by resource name, of the smallest host that may be chosen.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
}

/// What kind of node it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeInfo {
    /// As Kubernetes calls it, e.g. amd64.
    pub architecture: String,
    pub operating_system: String,
}
