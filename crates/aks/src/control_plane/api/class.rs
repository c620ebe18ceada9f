//! The part of a control plane that its template has too.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{
    AadProfile, AddonProfile, ApiServerAccessProfile, AutoUpgradeProfile, AutoscalerProfile, ControlPlaneSku,
    Empty, Extension, FleetMember, HttpProxyConfig, LoadBalancerProfile, ManagedIdentity, OidcIssuerProfile,
    SecurityProfile, VirtualNetwork,
};

/// What a control plane and its template share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["identityRef", "location", "resourceGroupName", "version"]))]
pub struct ControlPlaneClass {
    /// Sign-in with Microsoft Entra ID. Once set it cannot be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad_profile: Option<AadProfile>,
    /// Tags for the Azure resources of this cluster, beside those that mark ownership.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub additional_tags: BTreeMap<String, String>,
    /// AKS add-ons. One that is listed can be disabled but not removed from the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addon_profiles: Vec<AddonProfile>,
    /// Who may reach the API server over the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_server_access_profile: Option<ApiServerAccessProfile>,
    /// JSON or YAML merge patches, applied in order to the ASO-shaped ManagedCluster before it is sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aso_managed_cluster_patches: Vec<String>,
    /// Upgrades that AKS does by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_upgrade_profile: Option<AutoUpgradeProfile>,
    /// Settings of AKS's cluster autoscaler, for all pools that scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaler_profile: Option<AutoscalerProfile>,
    /// The Azure cloud: AzurePublicCloud (also if empty), AzureChinaCloud or AzureUSGovernmentCloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure_environment: Option<String>,
    /// Leaves Entra ID as the only way to sign in. Needs aadProfile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable_local_accounts: Option<bool>,
    /// The address of the DNS service, inside the services' range and ending in .10.
    #[serde(rename = "dnsServiceIP", default, skip_serializing_if = "Option::is_none")]
    pub dns_service_ip: Option<String>,
    /// Speaks a preview version of the AKS API, for patches that need one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub enable_preview_features: Option<bool>,
    /// Cluster extensions to install.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Extension>,
    /// Makes the cluster a member of a fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleets_member: Option<FleetMember>,
    /// The proxy that nodes use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_proxy_config: Option<HttpProxyConfig>,
    /// The identity of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<ManagedIdentity>,
    /// The AzureClusterIdentity to sign in with.
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub identity_ref: ObjectReference,
    /// Resource id of the user-assigned identity of the kubelets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_user_assigned_identity: Option<String>,
    /// Outbound addresses and ports of the load balancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer_profile: Option<LoadBalancerProfile>,
    /// The SKU of the load balancer.
    #[serde(rename = "loadBalancerSKU", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Basic", "Standard"], "default" = "Standard"))]
    pub load_balancer_sku: Option<String>,
    /// The Azure region.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub location: String,
    /// Empty; there because Cluster API's ClusterClass expects the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_template: Option<Empty>,
    /// What moves packets on the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["azure", "cilium"]))]
    pub network_dataplane: Option<String>,
    /// How pods get their network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["azure", "kubenet", "none"], "default" = "azure"))]
    pub network_plugin: Option<String>,
    /// `overlay` gives pods addresses that the virtual network does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["overlay"]))]
    pub network_plugin_mode: Option<String>,
    /// What enforces network policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["azure", "calico", "cilium"]))]
    pub network_policy: Option<String>,
    /// The OIDC issuer. Once enabled it stays enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc_issuer_profile: Option<OidcIssuerProfile>,
    /// How traffic leaves the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["loadBalancer", "managedNATGateway", "userAssignedNATGateway", "userDefinedRouting"]))]
    pub outbound_type: Option<String>,
    /// The resource group of the cluster; the Cluster's name if empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_group_name: String,
    /// Security features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_profile: Option<SecurityProfile>,
    /// The pricing tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sku: Option<ControlPlaneSku>,
    /// The subscription; that of the identity if empty.
    #[serde(rename = "subscriptionID", default, skip_serializing_if = "Option::is_none")]
    pub subscription_id: Option<String>,
    /// The Kubernetes version, with a leading `v`. A version that AKS has raised by itself is never lowered.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("minLength" = 2))]
    pub version: String,
    /// The virtual network: made if it does not exist, used as it is if it is not ours.
    #[serde(default, skip_serializing_if = "VirtualNetwork::is_unset")]
    pub virtual_network: VirtualNetwork,
}
