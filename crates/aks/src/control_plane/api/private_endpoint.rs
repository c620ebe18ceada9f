//! Private endpoints in the subnet of the nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A private endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["name"]))]
pub struct PrivateEndpoint {
    /// Resource ids of application security groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub application_security_groups: Vec<String>,
    /// The name of the network interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_network_interface_name: Option<String>,
    /// The region; the cluster's if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// Whether the other side approves connections by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manual_approval: Option<bool>,
    /// The name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Addresses from the subnet.
    #[serde(rename = "privateIPAddresses", default, skip_serializing_if = "Vec::is_empty")]
    pub private_ip_addresses: Vec<String>,
    /// What the endpoint connects to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub private_link_service_connections: Vec<PrivateLinkServiceConnection>,
}

/// A connection of a private endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrivateLinkServiceConnection {
    /// The parts of the resource to connect to.
    #[serde(rename = "groupIDs", default, skip_serializing_if = "Vec::is_empty")]
    pub group_ids: Vec<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Resource id of what is connected to.
    #[serde(
        rename = "privateLinkServiceID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub private_link_service_id: Option<String>,
    /// A message for who approves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 140))]
    pub request_message: Option<String>,
}
