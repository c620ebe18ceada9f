//! AzureClusterIdentity: how clusters sign in to Azure.

use k8s_openapi::{api::core::v1::SecretReference, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slipway_capi::condition::legacy::LegacyCondition;

use crate::api::status::old_conditions;

/// Whose clusters may use an identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedNamespaces {
    /// Namespaces by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<Vec<String>>,
    /// Namespaces by label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub selector: Option<LabelSelector>,
}

/// How clusters sign in to Azure.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureClusterIdentity",
    plural = "azureclusteridentities",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    status = "AzureClusterIdentityStatus",
    category = "cluster-api",
    printcolumn = r#"{"name": "Type", "type": "string", "description": "Type of AzureClusterIdentity", "jsonPath": ".spec.type"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "description": "Time duration since creation of this AzureClusterIdentity", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["clientID", "tenantID", "type"]))]
pub struct AzureClusterIdentitySpec {
    /// Whose clusters may use it: absent means none but its own, empty means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// Path of a certificate in the manager's file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_path: Option<String>,
    /// The client id.
    #[serde(rename = "clientID", default, skip_serializing_if = "String::is_empty")]
    pub client_id: String,
    /// The Secret with the client secret or certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub client_secret: Option<SecretReference>,
    /// Resource id of a user-assigned identity; has no effect.
    #[serde(rename = "resourceID", default, skip_serializing_if = "Option::is_none")]
    pub resource_id: Option<String>,
    /// The tenant id.
    #[serde(rename = "tenantID", default, skip_serializing_if = "String::is_empty")]
    pub tenant_id: String,
    /// How to sign in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["ServicePrincipal", "UserAssignedMSI", "ManualServicePrincipal", "ServicePrincipalCertificate", "WorkloadIdentity", "UserAssignedIdentityCredential"]))]
    pub type_: String,
    /// The cloud of the credentials file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_assigned_identity_credentials_cloud_type: Option<String>,
    /// Path of a credentials file in the manager's file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_assigned_identity_credentials_path: Option<String>,
}

/// The status of an AzureClusterIdentity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AzureClusterIdentityStatus {
    /// Conditions in the old form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "old_conditions")]
    pub conditions: Vec<LegacyCondition>,
}
