//! Defaulting of control planes: what a user left open and the schema cannot fill in.

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::ResourceExt;
use slipway_capi::names::label;

use crate::{
    api::{AzureManagedControlPlane, ControlPlaneClass, ControlPlaneSku, OidcIssuerProfile},
    version::with_v,
};

pub const VNET_RANGE: &str = "10.0.0.0/8";
pub const SUBNET_RANGE: &str = "10.240.0.0/16";
pub const OVERLAY_VNET_RANGE: &str = "10.224.0.0/12";
pub const OVERLAY_SUBNET_RANGE: &str = "10.224.0.0/16";
/// The longest name AKS takes for the resource group of the nodes.
const NODE_RESOURCE_GROUP_LENGTH: usize = 80;

/// Makes an SSH public key in the authorized_keys form; a parameter so that tests need no randomness.
pub type MakeKey = fn() -> Result<String, String>;

pub(crate) fn tier(sku: &mut Option<ControlPlaneSku>) {
    let sku = sku.get_or_insert_with(|| ControlPlaneSku {
        tier: "Free".to_owned(),
    });
    if sku.tier == "Paid" {
        "Standard".clone_into(&mut sku.tier);
    } else if sku.tier.is_empty() {
        "Free".clone_into(&mut sku.tier);
    }
}

pub(crate) fn ranges(class: &mut ControlPlaneClass) {
    let overlay = class.network_plugin_mode.as_deref() == Some("overlay");
    let network = &mut class.virtual_network;
    if network.cidr_block.is_empty() {
        (if overlay { OVERLAY_VNET_RANGE } else { VNET_RANGE }).clone_into(&mut network.cidr_block);
    }
    if network.subnet.cidr_block.is_empty() {
        (if overlay {
            OVERLAY_SUBNET_RANGE
        } else {
            SUBNET_RANGE
        })
        .clone_into(&mut network.subnet.cidr_block);
    }
}

pub fn control_plane(
    plane: &mut AzureManagedControlPlane,
    old: Option<&AzureManagedControlPlane>,
    make_key: MakeKey,
) {
    let name = plane.name_any();
    let cluster = plane.labels().get(label::CLUSTER_NAME).cloned();
    let spec = &mut plane.spec;
    let class = &mut spec.class;
    class.version = with_v(&class.version);
    tier(&mut class.sku);
    if let (Some(member), Some(cluster)) = (&mut class.fleets_member, &cluster)
        && member.name.as_deref().unwrap_or_default().is_empty()
    {
        member.name = Some(cluster.clone());
    }
    if spec.ssh_public_key.as_deref() == Some("") {
        // Applying the same manifest again asks for no other key.
        let kept = old
            .and_then(|old| old.spec.ssh_public_key.clone())
            .filter(|key| !key.is_empty());
        if let Some(key) = kept.or_else(|| make_key().ok().map(|key| STANDARD.encode(key))) {
            spec.ssh_public_key = Some(key);
        }
    }
    if let (true, Some(cluster)) = (class.resource_group_name.is_empty(), cluster) {
        class.resource_group_name = cluster;
    }
    if spec
        .node_resource_group_name
        .as_deref()
        .unwrap_or_default()
        .is_empty()
    {
        let group = format!("MC_{}_{name}_{}", class.resource_group_name, class.location);
        spec.node_resource_group_name = Some(group.chars().take(NODE_RESOURCE_GROUP_LENGTH).collect());
    }
    ranges(class);
    let network = &mut class.virtual_network;
    if network.name.is_empty() {
        network.name.clone_from(&name);
    }
    if network.resource_group.as_deref().unwrap_or_default().is_empty() {
        network.resource_group = Some(class.resource_group_name.clone());
    }
    if network.subnet.name.is_empty() {
        network.subnet.name.clone_from(&name);
    }
    class
        .oidc_issuer_profile
        .get_or_insert_with(OidcIssuerProfile::default);
    spec.dns_prefix.get_or_insert_with(|| name.clone());
    for plan in class
        .extensions
        .iter_mut()
        .filter_map(|extension| extension.plan.as_mut())
    {
        if plan.name.as_deref().unwrap_or_default().is_empty() {
            plan.name = Some(format!("{name}-{}", plan.product.as_deref().unwrap_or_default()));
        }
    }
}
