//! The virtual network, its subnet, load balancing and proxying.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::PrivateEndpoint;

/// A proxy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpProxyConfig {
    /// The proxy for HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_proxy: Option<String>,
    /// The proxy for HTTPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub https_proxy: Option<String>,
    /// Where no proxy is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_proxy: Vec<String>,
    /// A further certificate authority, PEM in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted_ca: Option<String>,
}

/// The load balancer's outbound side: at most one of the three kinds of address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerProfile {
    /// SNAT ports per node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_outbound_ports: Option<i64>,
    /// Minutes until an idle flow is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_in_minutes: Option<i64>,
    /// How many outbound addresses AKS makes.
    #[serde(
        rename = "managedOutboundIPs",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub managed_outbound_ips: Option<i64>,
    /// Resource ids of public IP prefixes to use.
    #[serde(rename = "outboundIPPrefixes", default, skip_serializing_if = "Vec::is_empty")]
    pub outbound_ip_prefixes: Vec<String>,
    /// Resource ids of public IP addresses to use.
    #[serde(rename = "outboundIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub outbound_ips: Vec<String>,
}

/// A virtual network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["cidrBlock", "name"]))]
pub struct VirtualNetwork {
    /// The address range.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("default" = "10.0.0.0/8"))]
    pub cidr_block: String,
    /// The name; the control plane's if empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The resource group; the cluster's if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_group: Option<String>,
    /// The subnet of the nodes.
    #[serde(default, skip_serializing_if = "Subnet::is_unset")]
    pub subnet: Subnet,
}

/// A subnet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["cidrBlock", "name"]))]
pub struct Subnet {
    /// The address range, inside the virtual network's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("default" = "10.240.0.0/16"))]
    pub cidr_block: String,
    /// The name; the control plane's if empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Private endpoints in this subnet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub private_endpoints: Vec<PrivateEndpoint>,
    /// Service endpoints of this subnet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["service"]))]
    pub service_endpoints: Vec<ServiceEndpoint>,
}

/// A service endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["locations", "service"]))]
pub struct ServiceEndpoint {
    /// Regions it holds for.
    pub locations: Vec<String>,
    /// The service, as `Microsoft.Storage`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
}

impl VirtualNetwork {
    /// Whether nothing of it was written.
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

impl Subnet {
    /// Whether nothing of it was written.
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}
