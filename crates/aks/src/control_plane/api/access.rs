//! Who may reach the API server and how: Entra ID, its network access, identities, the OIDC issuer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Sign-in with Microsoft Entra ID.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AadProfile {
    /// Object ids of the Entra ID groups that administer the cluster.
    #[serde(rename = "adminGroupObjectIDs")]
    pub admin_group_object_ids: Vec<String>,
    /// Whether AKS manages the integration.
    pub managed: bool,
}

/// How the API server is reached. All but the ranges is fixed at creation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiServerAccessProfile {
    /// Ranges in CIDR form that may reach the API server.
    #[serde(rename = "authorizedIPRanges", default, skip_serializing_if = "Vec::is_empty")]
    pub authorized_ip_ranges: Vec<String>,
    /// Gives the API server a private address only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_private_cluster: Option<bool>,
    /// Adds a public name for the private address.
    #[serde(
        rename = "enablePrivateClusterPublicFQDN",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub enable_private_cluster_public_fqdn: Option<bool>,
    /// `System`, `None` or the resource id of a private DNS zone.
    #[serde(rename = "privateDNSZone", default, skip_serializing_if = "Option::is_none")]
    pub private_dns_zone: Option<String>,
}

/// The control plane's identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManagedIdentity {
    /// Whether AKS makes the identity or you bring it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["SystemAssigned", "UserAssigned"], "default" = "SystemAssigned"))]
    pub type_: Option<String>,
    /// Resource id of the identity you bring.
    #[serde(
        rename = "userAssignedIdentityResourceID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub user_assigned_identity_resource_id: Option<String>,
}

/// The OIDC issuer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OidcIssuerProfile {
    /// Whether the issuer is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,
}
