//! Private endpoints with their interfaces and DNS, and bastion hosts.

use serde_json::{Map, Value, json};

use super::{ENDPOINT, INTERFACE, check_references, fill_guid, made_up, show_entries};
use crate::{
    arm_id::ArmId,
    azure::Azure,
    error_response::ErrorResponse,
    kinds::{Draft, View},
    store::{Resource, object_mut},
};

pub fn complete_endpoint(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    check_references(draft)?;
    fill_guid(draft);
    let name = format!("{}.nic.{}", draft.id.name(), draft.made_up("nic"));
    let custom = draft
        .properties()
        .get("customNetworkInterfaceName")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
        .map(str::to_owned);
    let group = ArmId::resource_group(
        &draft.id.subscription,
        draft.id.group.as_deref().unwrap_or_default(),
    );
    let interface = group.provider("Microsoft.Network", "networkInterfaces", &custom.unwrap_or(name));
    draft.fill("privateLinkServiceConnections", json!([]));
    draft.fill("manualPrivateLinkServiceConnections", json!([]));
    draft.fill("customNetworkInterfaceName", "".into());
    draft.fill("ipConfigurations", json!([]));
    draft.keep("customDnsConfigs", || json!([]));
    draft.own("networkInterfaces", || json!([{"id": interface.to_string()}]));
    if draft.old.is_none() {
        let subnet = draft.properties().get("subnet").cloned();
        let document = json!({
            "location": draft.body.get("location"),
            "properties": {
                "ipConfigurations": [{
                    "name": "privateEndpointIpConfig",
                    "properties": {
                        "privateIPAddress": "10.0.0.4",
                        "privateIPAllocationMethod": "Dynamic",
                        "subnet": subnet,
                        "primary": true,
                        "privateIPAddressVersion": "IPv4",
                    },
                }],
                "privateEndpoint": {"id": draft.id.to_string()},
            },
        });
        if let Value::Object(document) = document {
            draft.children.push((interface, INTERFACE, document, Map::new()));
        }
    }
    Ok(())
}

/// Once connected, the endpoint knows the names it answers for.
pub fn finish_endpoint(resource: &mut Resource) {
    let names: Vec<Value> = resource
        .properties()
        .get("privateLinkServiceConnections")
        .and_then(Value::as_array)
        .map(|connections| {
            connections
                .iter()
                .filter_map(|connection| {
                    let target = connection["properties"]["privateLinkServiceId"].as_str()?;
                    let group = connection["properties"]["groupIds"][0].as_str()?;
                    let name = target.rsplit('/').next()?;
                    Some(json!({
                        "fqdn": format!("{name}.{group}.core.windows.net"),
                        "ipAddresses": ["10.0.0.4"],
                    }))
                })
                .collect()
        })
        .unwrap_or_default();
    resource
        .properties_mut()
        .insert("customDnsConfigs".to_owned(), names.into());
}

/// The interfaces that go away with a private endpoint.
pub fn interfaces_of(gone: &Resource) -> Vec<String> {
    if gone.kind != ENDPOINT {
        return Vec::new();
    }
    gone.properties()
        .get("networkInterfaces")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|interface| interface["id"].as_str().map(str::to_owned))
        .collect()
}

pub fn present_endpoint(_: &Azure, resource: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    let approved = json!({"status": "Approved", "description": "Auto-Approved", "actionsRequired": "None"});
    let state = [("privateLinkServiceConnectionState", approved)];
    for word in [
        "privateLinkServiceConnections",
        "manualPrivateLinkServiceConnections",
    ] {
        show_entries(resource, document, word, word, &state);
    }
    let properties = object_mut(document, "properties");
    if view.api >= "2025" {
        properties.entry("ipVersionType").or_insert_with(|| "IPv4".into());
    } else if view.api >= "2024" {
        properties
            .entry("isIPv6EnabledPrivateEndpoint")
            .or_insert_with(|| false.into());
    }
}

pub fn complete_zone_group(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    check_references(draft)?;
    let name = draft
        .id
        .parent()
        .map(|endpoint| endpoint.name().to_owned())
        .unwrap_or_default();
    for config in draft
        .properties()
        .get_mut("privateDnsZoneConfigs")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        let zone = config
            .get("properties")
            .and_then(|properties| properties.get("privateDnsZoneId"))
            .and_then(Value::as_str)
            .and_then(|id| id.rsplit('/').next())
            .unwrap_or_default()
            .to_owned();
        object_mut(config, "properties").insert(
            "recordSets".to_owned(),
            json!([{
                "recordType": "A",
                "recordSetName": name,
                "fqdn": format!("{name}.{zone}"),
                "ttl": 10,
                "provisioningState": "Succeeded",
                "ipAddresses": ["10.0.0.4"],
            }]),
        );
    }
    Ok(())
}

pub fn present_zone_group(_: &Azure, resource: &Resource, _: &View<'_>, document: &mut Map<String, Value>) {
    show_entries(
        resource,
        document,
        "privateDnsZoneConfigs",
        "privateDnsZoneConfigs",
        &[],
    );
}

pub fn complete_interface(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    check_references(draft)?;
    fill_guid(draft);
    for config in draft
        .properties()
        .get_mut("ipConfigurations")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        let properties = object_mut(config, "properties");
        for (key, value) in [
            ("privateIPAddress", json!("10.0.0.5")),
            ("privateIPAllocationMethod", json!("Dynamic")),
            ("primary", json!(true)),
            ("privateIPAddressVersion", json!("IPv4")),
        ] {
            properties.entry(key).or_insert(value);
        }
    }
    Ok(())
}

pub fn present_interface(_: &Azure, resource: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    show_entries(resource, document, "ipConfigurations", "ipConfigurations", &[]);
    let is_newer = view.api >= "2022";
    if is_newer {
        document.insert("kind".to_owned(), "Regular".into());
    }
    let guid = made_up(&resource.id, "guid");
    let suffix = made_up(&resource.id, "suffix").replace('-', "");
    let properties = object_mut(document, "properties");
    for (key, value) in [
        ("resourceGuid", json!(guid)),
        (
            "dnsSettings",
            json!({
                "dnsServers": [],
                "appliedDnsServers": [],
                "internalDomainNameSuffix": format!("{}.xx.internal.cloudapp.net", &suffix[..20]),
            }),
        ),
        ("enableAcceleratedNetworking", json!(false)),
        ("vnetEncryptionSupported", json!(false)),
        ("enableIPForwarding", json!(false)),
        ("hostedWorkloads", json!([])),
        ("tapConfigurations", json!([])),
        ("nicType", json!("Standard")),
    ] {
        properties.entry(key).or_insert(value);
    }
    if is_newer {
        for (key, value) in [
            ("disableTcpStateTracking", json!(false)),
            ("allowPort25Out", json!(true)),
            ("auxiliaryMode", json!("None")),
            ("auxiliarySku", json!("None")),
        ] {
            properties.entry(key).or_insert(value);
        }
    }
}

pub fn complete_bastion(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    check_references(draft)?;
    object_mut(&mut draft.body, "sku")
        .entry("name")
        .or_insert_with(|| "Basic".into());
    if let Some(kept) = draft.old.and_then(|old| old.properties().get("dnsName").cloned()) {
        draft.fill("dnsName", kept);
    }
    draft.fill("scaleUnits", 2.into());
    Ok(())
}

pub fn finish_bastion(resource: &mut Resource) {
    let name = format!("bst-{}.bastion.azure.com", made_up(&resource.id, "dns"));
    resource
        .properties_mut()
        .entry("dnsName")
        .or_insert_with(|| name.into());
}

pub fn present_bastion(_: &Azure, resource: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    let address = resource
        .properties()
        .get("ipConfigurations")
        .and_then(|list| list[0]["properties"]["publicIPAddress"]["id"].as_str());
    if let (true, Some(address)) = (view.api >= "2025", address) {
        object_mut(document, "properties").insert("publicUri".to_owned(), address.into());
    }
    show_entries(
        resource,
        document,
        "ipConfigurations",
        "bastionHostIpConfigurations",
        &[("privateIPAllocationMethod", json!("Dynamic"))],
    );
}
