//! Cluster extensions.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One cluster extension.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["extensionType", "name"]))]
pub struct Extension {
    /// The kind of identity AKS gives the extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["SystemAssigned", "UserAssigned"]))]
    pub aks_assigned_identity_type: Option<String>,
    /// Lets Azure raise the extension's minor version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub auto_upgrade_minor_version: Option<bool>,
    /// Settings of the extension.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration_settings: BTreeMap<String, String>,
    /// The extension's type, as its publisher registered it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub extension_type: String,
    /// The extension's own identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["SystemAssigned"]))]
    pub identity: Option<String>,
    /// The name of this installation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The marketplace plan, for extensions that need one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<ExtensionPlan>,
    /// The release train to follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_train: Option<String>,
    /// Whether it serves the cluster or one namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ExtensionScope>,
    /// The version, where minor versions are not raised automatically.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// A marketplace plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionPlan {
    /// The plan's name; control plane and product if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The product id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// The promotion code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotion_code: Option<String>,
    /// The publisher id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publisher: Option<String>,
    /// The plan's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// Whom an extension serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["scopeType"]))]
pub struct ExtensionScope {
    /// Where an extension for the cluster is installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_namespace: Option<String>,
    /// Cluster or Namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["Cluster", "Namespace"]))]
    pub scope_type: String,
    /// The namespace that an extension for one namespace serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_namespace: Option<String>,
}
