//! AzureASOManagedMachinePool: one node pool, and the provider ids of its nodes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{InfrastructureInitialization, ResourceStatus, Resources, conditions, resources};

/// One node pool.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureASOManagedMachinePool",
    plural = "azureasomanagedmachinepools",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    status = "AzureASOManagedMachinePoolStatus",
    shortname = "aasommp",
    category = "cluster-api",
    printcolumn = r#"{"name": "Cluster", "type": "string", "description": "Cluster to which this AzureASOManagedMachinePool belongs", "jsonPath": ".metadata.labels.cluster\\.x-k8s\\.io/cluster-name"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#,
    printcolumn = r#"{"name": "Replicas", "type": "integer", "description": "Nodes of the pool", "jsonPath": ".status.replicas"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "priority": 1, "jsonPath": ".status.conditions[?(@.type=='Ready')].message"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "description": "Time duration since creation of this AzureASOManagedMachinePool", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AzureASOManagedMachinePoolSpec {
    /// The nodes' provider ids; kept up to date by the controller.
    #[serde(rename = "providerIDList", default, skip_serializing_if = "Vec::is_empty")]
    pub provider_id_list: Vec<String>,
    /// Azure resources in the form of Azure Service Operator, of any kind; one is a ManagedClustersAgentPool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "resources")]
    pub resources: Resources,
}

/// What has become of a node pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AzureASOManagedMachinePoolStatus {
    /// The number of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Whether AKS has done what was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// What has come about once, and stays so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<InfrastructureInitialization>,
    /// How each resource stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<ResourceStatus>,
    /// Conditions in Kubernetes' own form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}
