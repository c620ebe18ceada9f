//! AzureManagedMachinePool: one node pool of an AKS cluster.

mod class;
mod node_config;
mod sysctls;

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slipway_azure::machine::NodeInfo;
use slipway_capi::condition::legacy::LegacyCondition;

pub use self::{
    class::{PoolClass, Scaling, Taint},
    node_config::{KubeletConfig, LinuxOsConfig},
    sysctls::Sysctls,
};
use crate::api::{
    InfrastructureInitialization, LongRunningOperation, V1Beta2Conditions, status::old_conditions,
};

/// One node pool.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureManagedMachinePool",
    plural = "azuremanagedmachinepools",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    status = "AzureManagedMachinePoolStatus",
    shortname = "ammp",
    category = "cluster-api",
    printcolumn = r#"{"name": "Cluster", "type": "string", "description": "Cluster to which this AzureManagedMachinePool belongs", "jsonPath": ".metadata.labels.cluster\\.x-k8s\\.io/cluster-name"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Severity", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].severity"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "priority": 1, "jsonPath": ".status.conditions[?(@.type=='Ready')].message"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "description": "Time duration since creation of this AzureManagedMachinePool", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Mode", "type": "string", "jsonPath": ".spec.mode"}"#,
    printcolumn = r#"{"name": "Replicas", "type": "integer", "description": "Nodes that AKS says the pool has", "jsonPath": ".status.replicas"}"#,
    printcolumn = r#"{"name": "Size", "type": "string", "description": "Virtual machine size of the nodes", "jsonPath": ".spec.sku"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "description": "Kubernetes version that the nodes run", "jsonPath": ".status.version"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AzureManagedMachinePoolSpec {
    /// What the template has too.
    #[serde(flatten)]
    pub class: PoolClass,
    /// The nodes' provider ids; kept up to date by the controller.
    #[serde(rename = "providerIDList", default, skip_serializing_if = "Vec::is_empty")]
    pub provider_id_list: Vec<String>,
}

/// What has become of a node pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AzureManagedMachinePoolStatus {
    /// Whether AKS has done what was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// What has come about once, and stays so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<InfrastructureInitialization>,
    /// The number of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The Kubernetes version that the nodes run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The kind of the objects that stand for the pool's VMs, where machines are switched on: core makes a Machine of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_machine_kind: Option<String>,
    /// What a node of the pool has by the name of its VM size, where machines are switched on: for autoscalers that scale from nothing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, String>,
    /// What kind of node that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
    /// Kept for readers of the old contract; conditions say what is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_reason: Option<String>,
    /// Kept for readers of the old contract; conditions say what is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// Conditions in the old form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "old_conditions")]
    pub conditions: Vec<LegacyCondition>,
    /// Conditions in Kubernetes' own form.
    #[serde(rename = "v1beta2", default, skip_serializing_if = "Option::is_none")]
    pub v1beta2: Option<V1Beta2Conditions>,
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Kept from earlier controllers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub long_running_operation_states: Vec<LongRunningOperation>,
}

impl AzureManagedMachinePool {
    /// The pool's name in AKS.
    pub fn azure_name(&self) -> &str {
        match self.spec.class.name.as_deref() {
            Some(name) if !name.is_empty() => name,
            _ => self.metadata.name.as_deref().unwrap_or_default(),
        }
    }
}
