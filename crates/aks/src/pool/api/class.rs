//! The part of a pool that its template has too.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{KubeletConfig, LinuxOsConfig};

/// What a pool and its template share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["mode", "sku"]))]
pub struct PoolClass {
    /// Tags for the pool, beside those of the control plane.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub additional_tags: BTreeMap<String, String>,
    /// JSON or YAML merge patches, applied in order to the ASO-shaped ManagedClustersAgentPool before it is sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aso_managed_clusters_agent_pool_patches: Vec<String>,
    /// The zones of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub availability_zones: Vec<String>,
    /// Encrypts disks on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_encryption_at_host: Option<bool>,
    /// Runs FIPS-validated cryptography.
    #[serde(rename = "enableFIPS", default, skip_serializing_if = "Option::is_none")]
    pub enable_fips: Option<bool>,
    /// Gives every node a public address.
    #[serde(
        rename = "enableNodePublicIP",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub enable_node_public_ip: Option<bool>,
    /// Lets ultra disks be attached.
    #[serde(rename = "enableUltraSSD", default, skip_serializing_if = "Option::is_none")]
    pub enable_ultra_ssd: Option<bool>,
    /// Settings of the kubelet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_config: Option<KubeletConfig>,
    /// Where the kubelet keeps its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["OS", "Temporary"]))]
    pub kubelet_disk_type: Option<String>,
    /// Settings of the Linux nodes.
    #[serde(rename = "linuxOSConfig", default, skip_serializing_if = "Option::is_none")]
    pub linux_os_config: Option<LinuxOsConfig>,
    /// Pods per node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_pods: Option<i64>,
    /// System pools carry what the cluster needs; there is always one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["System", "User"]))]
    pub mode: String,
    /// The pool's name in AKS; the object's name if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels of the nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_labels: BTreeMap<String, String>,
    /// Resource id of the prefix that public addresses come from.
    #[serde(
        rename = "nodePublicIPPrefixID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub node_public_ip_prefix_id: Option<String>,
    /// Size of the nodes' disks; what AKS chooses if absent.
    #[serde(rename = "osDiskSizeGB", default, skip_serializing_if = "Option::is_none")]
    pub os_disk_size_gb: Option<i64>,
    /// Where the nodes' disks live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Ephemeral", "Managed"], "default" = "Managed"))]
    pub os_disk_type: Option<String>,
    /// The nodes' operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Linux", "Windows"], "default" = "Linux"))]
    pub os_type: Option<String>,
    /// What becomes of nodes that are scaled away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Deallocate", "Delete"], "default" = "Delete"))]
    pub scale_down_mode: Option<String>,
    /// Regular or Spot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Regular", "Spot"]))]
    pub scale_set_priority: Option<String>,
    /// Lets AKS choose the size between two bounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// The virtual machine size.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sku: String,
    /// The highest price for a spot node; -1 is the on-demand price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"))]
    pub spot_max_price: Option<IntOrString>,
    /// The subnet of the nodes; the control plane's if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_name: Option<String>,
    /// Taints of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
}

/// Bounds between which AKS scales.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scaling {
    /// The most nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<i64>,
    /// The fewest nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_size: Option<i64>,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["effect", "key", "value"]))]
pub struct Taint {
    /// What the taint does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["NoSchedule", "NoExecute", "PreferNoSchedule"]))]
    pub effect: String,
    /// The key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The value.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
}
