//! Key management, Defender, image cleaning and workload identity.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Security features; each is switched off by `enabled: false`, not by leaving it out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecurityProfile {
    /// Encrypts Secrets with a key in a key vault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure_key_vault_kms: Option<KeyVaultKms>,
    /// Microsoft Defender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defender: Option<Defender>,
    /// Removes unused images from nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_cleaner: Option<ImageCleaner>,
    /// Workload identity. Needs the OIDC issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_identity: Option<WorkloadIdentity>,
}

/// Encryption of Secrets. Needs a user-assigned identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["enabled", "keyID"]))]
pub struct KeyVaultKms {
    /// Whether Secrets are encrypted.
    pub enabled: bool,
    /// The key's identifier.
    #[serde(rename = "keyID", default, skip_serializing_if = "String::is_empty")]
    pub key_id: String,
    /// Public or Private.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Public"))]
    pub key_vault_network_access: Option<String>,
    /// Resource id of the key vault, where access is private.
    #[serde(
        rename = "keyVaultResourceID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub key_vault_resource_id: Option<String>,
}

/// Microsoft Defender.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["logAnalyticsWorkspaceResourceID", "securityMonitoring"]))]
pub struct Defender {
    /// Resource id of the Log Analytics workspace.
    #[serde(
        rename = "logAnalyticsWorkspaceResourceID",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    pub log_analytics_workspace_resource_id: String,
    /// Threat detection.
    pub security_monitoring: SecurityMonitoring,
}

/// Threat detection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecurityMonitoring {
    /// Whether threats are detected.
    pub enabled: bool,
}

/// Image cleaning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageCleaner {
    /// Whether images are removed.
    pub enabled: bool,
    /// Hours between two runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 24, "maximum" = 2160))]
    pub interval_hours: Option<i64>,
}

/// Workload identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadIdentity {
    /// Whether pods can use workload identity.
    pub enabled: bool,
}
