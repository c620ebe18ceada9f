//! Public addresses, prefixes and NAT gateways.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{check_references, fill_guid, users};
use crate::{
    azure::Azure,
    error_response::ErrorResponse,
    kinds::{Draft, View},
    store::{Resource, object_mut},
};

/// A public address that is the same every time.
fn address(id: &str) -> String {
    let bytes = Uuid::new_v5(&Uuid::NAMESPACE_OID, id.to_ascii_lowercase().as_bytes()).into_bytes();
    format!("20.{}.{}.{}", bytes[0], bytes[1], bytes[2].max(1))
}

pub fn complete_address(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    check_references(draft)?;
    fill_guid(draft);
    complete_sku(draft, "Standard");
    if let Some(kept) = draft
        .old
        .and_then(|old| old.properties().get("ipAddress").cloned())
    {
        draft.fill("ipAddress", kept);
    }
    draft.fill("publicIPAddressVersion", "IPv4".into());
    draft.fill("publicIPAllocationMethod", "Dynamic".into());
    draft.fill("idleTimeoutInMinutes", 4.into());
    draft.fill("ipTags", json!([]));
    Ok(())
}

pub fn finish_address(resource: &mut Resource) {
    let address = address(&resource.id);
    if resource.text("publicIPAllocationMethod") == "Static" {
        resource
            .properties_mut()
            .entry("ipAddress")
            .or_insert_with(|| address.into());
    }
}

pub fn present_address(
    azure: &Azure,
    resource: &Resource,
    view: &View<'_>,
    document: &mut Map<String, Value>,
) {
    let gateway = users(azure, resource, "Microsoft.Network/natGateways")
        .first()
        .map(|gateway| json!({"id": gateway.id}));
    let configuration = users(azure, resource, "Microsoft.Network/bastionHosts")
        .first()
        .map(|bastion| json!({"id": format!("{}/bastionHostIpConfigurations/IpConf", bastion.id)}));
    let properties = object_mut(document, "properties");
    if let Some(gateway) = gateway {
        properties.insert("natGateway".to_owned(), gateway);
    }
    if let Some(configuration) = configuration {
        properties.insert("ipConfiguration".to_owned(), configuration);
    }
    if view.api >= "2022-07" {
        properties
            .entry("ddosSettings")
            .or_insert_with(|| json!({"protectionMode": "VirtualNetworkInherited"}));
    }
}

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
pub fn complete_prefix(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    fill_guid(draft);
    complete_sku(draft, "Standard");
    if let Some(kept) = draft
        .old
        .and_then(|old| old.properties().get("ipPrefix").cloned())
    {
        draft.fill("ipPrefix", kept);
    }
    draft.fill("publicIPAddressVersion", "IPv4".into());
    draft.fill("ipTags", json!([]));
    Ok(())
}

pub fn finish_prefix(resource: &mut Resource) {
    let length = resource
        .properties()
        .get("prefixLength")
        .and_then(Value::as_u64)
        .unwrap_or(28);
    let prefix = format!("{}/{length}", address(&resource.id));
    resource
        .properties_mut()
        .entry("ipPrefix")
        .or_insert_with(|| prefix.into());
}

pub fn present_prefix(azure: &Azure, resource: &Resource, _: &View<'_>, document: &mut Map<String, Value>) {
    let addresses: Vec<Value> = users(azure, resource, "Microsoft.Network/publicIPAddresses")
        .into_iter()
        .map(|address| json!({"id": address.id}))
        .collect();
    if !addresses.is_empty() {
        object_mut(document, "properties").insert("publicIPAddresses".to_owned(), addresses.into());
    }
}

pub fn complete_gateway(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    check_references(draft)?;
    fill_guid(draft);
    complete_sku(draft, "Standard");
    draft.fill("idleTimeoutInMinutes", 4.into());
    Ok(())
}

pub fn present_gateway(_: &Azure, _: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    let properties = object_mut(document, "properties");
    if view.api >= "2025" {
        properties.entry("scope").or_insert_with(|| "Public".into());
        for key in ["privateIPAddresses", "privateIPAddressesV6"] {
            properties.entry(key).or_insert_with(|| json!([]));
        }
    } else if view.api >= "2024" {
        properties.entry("type").or_insert_with(|| "Public".into());
    }
}

pub fn complete_sku(draft: &mut Draft<'_>, name: &str) {
    let sku = object_mut(&mut draft.body, "sku");
    sku.entry("name").or_insert_with(|| name.into());
    sku.entry("tier").or_insert_with(|| "Regional".into());
}
