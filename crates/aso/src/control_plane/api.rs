//! AzureASOManagedControlPlane: the AKS cluster, what belongs to it (extensions, maintenance windows), and its version.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{
    ControlPlaneInitialization, Endpoint, ReplicaVersion, ResourceStatus, Resources, conditions, resources,
};

/// One AKS cluster.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureASOManagedControlPlane",
    plural = "azureasomanagedcontrolplanes",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    status = "AzureASOManagedControlPlaneStatus",
    shortname = "aasomcp",
    category = "cluster-api",
    printcolumn = r#"{"name": "Cluster", "type": "string", "description": "Cluster to which this AzureASOManagedControlPlane belongs", "jsonPath": ".metadata.labels.cluster\\.x-k8s\\.io/cluster-name"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "description": "Kubernetes version that AKS runs", "jsonPath": ".status.version"}"#,
    printcolumn = r#"{"name": "Endpoint", "type": "string", "description": "Where the API server answers", "jsonPath": ".status.controlPlaneEndpoint.host"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "priority": 1, "jsonPath": ".status.conditions[?(@.type=='Ready')].message"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "description": "Time duration since creation of this AzureASOManagedControlPlane", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AzureASOManagedControlPlaneSpec {
    /// The Kubernetes version of the control plane; where it is empty, the ManagedCluster's own counts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Azure resources in the form of Azure Service Operator, of any kind; one is a ManagedCluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "resources")]
    pub resources: Resources,
}

/// What has become of an AKS cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AzureASOManagedControlPlaneStatus {
    /// Whether the API server has ever answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialized: Option<bool>,
    /// Whether the API server answers, and every resource is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// What has come about once, and stays so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ControlPlaneInitialization>,
    /// Whether there are no Nodes for the control plane: always so for AKS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_managed_control_plane: Option<bool>,
    /// The version that AKS runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The same as a list, as the v1beta2 contract has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<ReplicaVersion>,
    /// Where the API server answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<Endpoint>,
    /// How each resource stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<ResourceStatus>,
    /// Conditions in Kubernetes' own form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}
