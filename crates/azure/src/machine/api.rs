//! What the status of a machine says, the same for every kind of pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slipway_capi::contract::InfrastructureInitialization;

/// What has become of a VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineStatus {
    /// Whether the VM is there and runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// What has come about once, and stays so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initialization: Option<InfrastructureInitialization>,
    /// The addresses of the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Address>,
    /// The zone that the VM stands in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_domain: Option<String>,
    /// The name of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The node image that the VM runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The Kubernetes version that the node runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Azure's word for the power state of the VM, e.g. running or deallocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_state: Option<String>,
    /// Conditions in Kubernetes' own form.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What kind of node a pool makes, for autoscalers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeInfo {
    /// As Kubernetes calls it, e.g. amd64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub architecture: String,
    /// linux or windows.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operating_system: String,
}

/// An address of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Address {
    /// Hostname, InternalIP or ExternalIP.
    #[serde(rename = "type")]
    pub type_: String,
    /// The address.
    pub address: String,
}
