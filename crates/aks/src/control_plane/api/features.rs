//! Tier, add-ons, automatic upgrades and fleet membership.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One AKS add-on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["enabled", "name"]))]
pub struct AddonProfile {
    /// Settings of the add-on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
    /// Whether the add-on runs.
    pub enabled: bool,
    /// The add-on's name in AKS.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// Automatic upgrades.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoUpgradeProfile {
    /// Which upgrades AKS does by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["node-image", "none", "patch", "rapid", "stable"]))]
    pub upgrade_channel: Option<String>,
}

/// Membership in a fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["managerName", "managerResourceGroup"]))]
pub struct FleetMember {
    /// The update group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "default"))]
    pub group: Option<String>,
    /// The fleet's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub manager_name: String,
    /// The fleet's resource group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub manager_resource_group: String,
    /// The member's name; the Cluster's if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The pricing tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["tier"]))]
pub struct ControlPlaneSku {
    /// Free, Standard or Premium. Paid is an old word for Standard.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["Free", "Paid", "Standard", "Premium"], "default" = "Free"))]
    pub tier: String,
}
