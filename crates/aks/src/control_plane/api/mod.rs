//! AzureManagedControlPlane: one AKS cluster.

mod access;
mod autoscaler;
mod class;
mod extension;
mod features;
mod network;
mod private_endpoint;
mod security;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slipway_capi::condition::legacy::LegacyCondition;

pub use self::{
    access::{AadProfile, ApiServerAccessProfile, ManagedIdentity, OidcIssuerProfile},
    autoscaler::AutoscalerProfile,
    class::ControlPlaneClass,
    extension::{Extension, ExtensionPlan, ExtensionScope},
    features::{AddonProfile, AutoUpgradeProfile, ControlPlaneSku, FleetMember},
    network::{HttpProxyConfig, LoadBalancerProfile, ServiceEndpoint, Subnet, VirtualNetwork},
    private_endpoint::{PrivateEndpoint, PrivateLinkServiceConnection},
    security::{Defender, ImageCleaner, KeyVaultKms, SecurityMonitoring, SecurityProfile, WorkloadIdentity},
};
use crate::api::{
    ControlPlaneInitialization, Endpoint, LongRunningOperation, OidcIssuerStatus, ReplicaVersion,
    V1Beta2Conditions, status::old_conditions,
};

/// One AKS cluster.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureManagedControlPlane",
    plural = "azuremanagedcontrolplanes",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    status = "AzureManagedControlPlaneStatus",
    shortname = "amcp",
    category = "cluster-api",
    printcolumn = r#"{"name": "Cluster", "type": "string", "description": "Cluster to which this AzureManagedControlPlane belongs", "jsonPath": ".metadata.labels.cluster\\.x-k8s\\.io/cluster-name"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Severity", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].severity"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "description": "Kubernetes version that AKS runs", "jsonPath": ".status.version"}"#,
    printcolumn = r#"{"name": "Endpoint", "type": "string", "description": "Where the API server answers", "jsonPath": ".spec.controlPlaneEndpoint.host"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].message"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "description": "Time duration since creation of this AzureManagedControlPlane", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AzureManagedControlPlaneSpec {
    /// What the template has too.
    #[serde(flatten)]
    pub class: ControlPlaneClass,
    /// Where the API server answers; written once AKS has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<Endpoint>,
    /// What the API server's public name begins with; the object's name if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_prefix: Option<String>,
    /// The resource group that AKS makes for nodes; AKS's own choice of name if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_resource_group_name: Option<String>,
    /// The nodes' SSH public key in base64. Absent: none; empty: one is made.
    #[serde(rename = "sshPublicKey", default, skip_serializing_if = "Option::is_none")]
    pub ssh_public_key: Option<String>,
}

/// What has become of an AKS cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AzureManagedControlPlaneStatus {
    /// Whether the API server answers, and everything asked for is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Whether the API server has ever answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialized: Option<bool>,
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
    /// The version AKS has upgraded to by itself, if it is above the spec's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 2))]
    pub auto_upgrade_version: Option<String>,
    /// The OIDC issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc_issuer_profile: Option<OidcIssuerStatus>,
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
