//! Microsoft.Network: what clusters are put into and reached through.

mod addresses;
mod dns;
mod endpoints;
mod ranges;

pub use dns::KINDS as DNS_KINDS;
pub use endpoints::interfaces_of;
pub use ranges::check_ranges;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::kinds::{Draft, EtagForm, Kind, Missing, PLAIN, States, View, at_once, polled};
use crate::{
    arm_id::ArmId,
    azure::Azure,
    error_response::ErrorResponse,
    operation::Style,
    store::{Resource, object_mut},
};

const SUBNET: &str = "Microsoft.Network/virtualNetworks/subnets";
const PEERING: &str = "Microsoft.Network/virtualNetworks/virtualNetworkPeerings";
const RULE: &str = "Microsoft.Network/networkSecurityGroups/securityRules";
const ROUTE: &str = "Microsoft.Network/routeTables/routes";
const ENDPOINT: &str = "Microsoft.Network/privateEndpoints";
const INTERFACE: &str = "Microsoft.Network/networkInterfaces";

const fn network(path: &'static str, create_after: u64) -> Kind {
    Kind {
        path,
        style: Style::Network,
        create: polled(201, true, false, Some(create_after)),
        update: polled(200, true, false, Some(create_after)),
        unchanged: at_once(200),
        delete: polled(202, true, true, Some(10)),
        states: States {
            creating: "Updating",
            updating: "Updating",
            deleting: "Deleting",
        },
        etag: EtagForm::Network,
        ..PLAIN
    }
}

const fn child(path: &'static str, create_after: u64) -> Kind {
    Kind {
        located: false,
        missing: Missing::Network,
        parent_missing: Missing::Gateway,
        ..network(path, create_after)
    }
}

pub const KINDS: &[Kind] = &[
    Kind {
        embedded: &[("subnets", SUBNET), ("virtualNetworkPeerings", PEERING)],
        complete: complete_network,
        present: present_network,
        ..network("Microsoft.Network/virtualNetworks", 3)
    },
    Kind {
        complete: complete_subnet,
        present: present_subnet,
        ..child(SUBNET, 3)
    },
    Kind {
        complete: complete_guid,
        ..child(PEERING, 10)
    },
    Kind {
        embedded: &[("securityRules", RULE)],
        delete: polled(202, true, true, Some(1)),
        complete: complete_guid,
        present: present_security_group,
        ..network("Microsoft.Network/networkSecurityGroups", 1)
    },
    Kind {
        complete: complete_rule,
        parent_first: true,
        ..child(RULE, 1)
    },
    Kind {
        embedded: &[("routes", ROUTE)],
        delete: polled(202, true, true, Some(2)),
        complete: complete_route_table,
        present: present_route_table,
        ..network("Microsoft.Network/routeTables", 2)
    },
    Kind {
        delete: polled(202, true, true, Some(2)),
        complete: complete_route,
        ..child(ROUTE, 2)
    },
    Kind {
        complete: addresses::complete_address,
        present: addresses::present_address,
        finish: addresses::finish_address,
        ..network("Microsoft.Network/publicIPAddresses", 1)
    },
    Kind {
        complete: addresses::complete_prefix,
        present: addresses::present_prefix,
        finish: addresses::finish_prefix,
        ..network("Microsoft.Network/publicIPPrefixes", 3)
    },
    Kind {
        complete: addresses::complete_gateway,
        present: addresses::present_gateway,
        ..network("Microsoft.Network/natGateways", 10)
    },
    Kind {
        complete: endpoints::complete_bastion,
        present: endpoints::present_bastion,
        finish: endpoints::finish_bastion,
        ..network("Microsoft.Network/bastionHosts", 10)
    },
    Kind {
        complete: endpoints::complete_endpoint,
        present: endpoints::present_endpoint,
        finish: endpoints::finish_endpoint,
        ..network(ENDPOINT, 10)
    },
    Kind {
        complete: endpoints::complete_zone_group,
        present: endpoints::present_zone_group,
        ..child("Microsoft.Network/privateEndpoints/privateDnsZoneGroups", 10)
    },
    Kind {
        create: at_once(201),
        update: at_once(200),
        complete: endpoints::complete_interface,
        present: endpoints::present_interface,
        ..network(INTERFACE, 10)
    },
];

fn made_up(id: &str, what: &str) -> String {
    Uuid::new_v5(
        &Uuid::NAMESPACE_OID,
        format!("{}/{what}", id.to_ascii_lowercase()).as_bytes(),
    )
    .to_string()
}

fn fill_guid(draft: &mut Draft<'_>) {
    let guid = draft.made_up("guid");
    draft.own("resourceGuid", || guid.into());
}

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete_guid(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    fill_guid(draft);
    Ok(())
}

/// Resources a write refers to must exist and be ready.
fn check_references(draft: &Draft<'_>) -> Result<(), ErrorResponse> {
    let mut ids = Vec::new();
    collect_ids(&Value::Object(draft.body.clone()), &mut ids);
    for text in ids {
        let Some(id) = ArmId::parse(&text) else { continue };
        let is_network = id
            .providers
            .last()
            .is_some_and(|(namespace, _)| namespace.eq_ignore_ascii_case("Microsoft.Network"));
        if !is_network || id.key().starts_with(&draft.id.key()) {
            continue;
        }
        let Some(found) = draft.azure.state().resources.get(&id) else {
            return Err(ErrorResponse::with_body(
                404,
                json!({"error": {"code": "NotFound", "message": format!("Resource {id} not found."), "details": []}}),
            ));
        };
        if found.state != "Succeeded" && found.kind != SUBNET {
            return Err(ErrorResponse::with_body(
                429,
                json!({"error": {
                    "code": "RetryableError",
                    "message": "A retryable error occurred.",
                    "details": [{
                        "code": "ReferencedResourceNotProvisioned",
                        "message": format!(
                            "Cannot proceed with operation because resource {id} used by resource {} is not in Succeeded state. Resource is in {} state.",
                            draft.id, found.state
                        ),
                    }],
                }}),
            ));
        }
    }
    Ok(())
}

/// Values of `id` keys, however deep.
fn collect_ids(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                match value {
                    Value::String(text) if key == "id" => found.push(text.clone()),
                    _ => collect_ids(value, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| collect_ids(value, found)),
        _ => {}
    }
}

/// Gives the entries of a named list ids, etags and types, as if each were a resource.
fn show_entries(
    resource: &Resource,
    document: &mut Map<String, Value>,
    property: &str,
    word: &str,
    extra: &[(&str, Value)],
) {
    let etag = format!("W/\"{}\"", resource.etag);
    let Some(list) = object_mut(document, "properties")
        .get_mut(property)
        .and_then(Value::as_array_mut)
    else {
        return;
    };
    for entry in list.iter_mut().filter_map(Value::as_object_mut) {
        let name = entry
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        entry.insert("id".to_owned(), format!("{}/{word}/{name}", resource.id).into());
        entry.insert("etag".to_owned(), etag.clone().into());
        entry.insert("type".to_owned(), format!("{}/{word}", resource.kind).into());
        let properties = object_mut(entry, "properties");
        properties.insert("provisioningState".to_owned(), "Succeeded".into());
        for (key, value) in extra {
            properties.entry(*key).or_insert_with(|| value.clone());
        }
    }
}

/// Resources of the same group that mention an id.
fn users<'a>(azure: &'a Azure, resource: &Resource, kind: &str) -> Vec<&'a Resource> {
    let id = resource.arm_id();
    let group = ArmId::resource_group(&id.subscription, id.group.as_deref().unwrap_or_default());
    let key = id.key();
    azure
        .state()
        .resources
        .of_kind(&group.key(), kind)
        .into_iter()
        .filter(|user| {
            let mut ids = Vec::new();
            user.document
                .values()
                .for_each(|value| collect_ids(value, &mut ids));
            ids.iter().any(|id| id.to_ascii_lowercase() == key)
        })
        .collect()
}

fn complete_network(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let has_space = draft
        .properties()
        .get("addressSpace")
        .and_then(|space| space.get("addressPrefixes"))
        .and_then(Value::as_array)
        .is_some_and(|prefixes| !prefixes.is_empty());
    if !has_space {
        return Err(ErrorResponse::new(
            400,
            "InvalidRequestFormat",
            "Cannot parse the request: a virtual network needs addressSpace.addressPrefixes.",
        ));
    }
    fill_guid(draft);
    draft.fill("enableDdosProtection", false.into());
    Ok(())
}

fn present_network(_: &Azure, _: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    if view.api >= "2023-09" {
        object_mut(document, "properties")
            .entry("privateEndpointVNetPolicies")
            .or_insert_with(|| "Disabled".into());
    }
}

fn complete_subnet(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let has_prefix = draft.properties().contains_key("addressPrefix")
        || draft.properties().contains_key("addressPrefixes");
    if !has_prefix {
        return Err(ErrorResponse::new(
            400,
            "InvalidRequestFormat",
            "Cannot parse the request: a subnet needs addressPrefix or addressPrefixes.",
        ));
    }
    check_references(draft)?;
    for key in ["ipConfigurations", "privateEndpoints"] {
        draft.properties().remove(key);
    }
    draft.fill("delegations", json!([]));
    draft.fill("privateEndpointNetworkPolicies", "Disabled".into());
    draft.fill("privateLinkServiceNetworkPolicies", "Enabled".into());
    Ok(())
}

fn present_subnet(azure: &Azure, resource: &Resource, _: &View<'_>, document: &mut Map<String, Value>) {
    let actions = json!(["Microsoft.Network/virtualNetworks/subnets/join/action"]);
    show_entries(
        resource,
        document,
        "delegations",
        "delegations",
        &[("actions", actions)],
    );
    let mut configurations: Vec<Value> = users(azure, resource, INTERFACE)
        .into_iter()
        .flat_map(|interface| {
            let names: Vec<String> = interface
                .properties()
                .get("ipConfigurations")
                .and_then(Value::as_array)
                .map(|list| {
                    list.iter()
                        .filter_map(|entry| entry["name"].as_str().map(str::to_owned))
                        .collect()
                })
                .unwrap_or_default();
            names
                .into_iter()
                .map(|name| json!({"id": format!("{}/ipConfigurations/{name}", interface.id)}))
                .collect::<Vec<_>>()
        })
        .collect();
    configurations.extend(
        users(azure, resource, "Microsoft.Network/bastionHosts")
            .into_iter()
            .map(|bastion| json!({"id": format!("{}/bastionHostIpConfigurations/IpConf", bastion.id)})),
    );
    let endpoints: Vec<Value> = users(azure, resource, ENDPOINT)
        .into_iter()
        .map(|endpoint| json!({"id": endpoint.id}))
        .collect();
    let properties = object_mut(document, "properties");
    if !configurations.is_empty() {
        properties.insert("ipConfigurations".to_owned(), configurations.into());
    }
    if !endpoints.is_empty() {
        properties.insert("privateEndpoints".to_owned(), endpoints.into());
        properties.insert("purpose".to_owned(), "PrivateEndpoints".into());
    }
}

/// Name, direction, priority, access, sources and destinations of the rules every group has.
const DEFAULT_RULES: &[(&str, &str, u64, &str, &str, &str, &str)] = &[
    (
        "AllowVnetInBound",
        "Inbound",
        65000,
        "Allow",
        "VirtualNetwork",
        "VirtualNetwork",
        "Allow inbound traffic from all VMs in VNET",
    ),
    (
        "AllowAzureLoadBalancerInBound",
        "Inbound",
        65001,
        "Allow",
        "AzureLoadBalancer",
        "*",
        "Allow inbound traffic from azure load balancer",
    ),
    (
        "DenyAllInBound",
        "Inbound",
        65500,
        "Deny",
        "*",
        "*",
        "Deny all inbound traffic",
    ),
    (
        "AllowVnetOutBound",
        "Outbound",
        65000,
        "Allow",
        "VirtualNetwork",
        "VirtualNetwork",
        "Allow outbound traffic from all VMs to all VMs in VNET",
    ),
    (
        "AllowInternetOutBound",
        "Outbound",
        65001,
        "Allow",
        "*",
        "Internet",
        "Allow outbound traffic from all VMs to Internet",
    ),
    (
        "DenyAllOutBound",
        "Outbound",
        65500,
        "Deny",
        "*",
        "*",
        "Deny all outbound traffic",
    ),
];

fn present_security_group(_: &Azure, resource: &Resource, _: &View<'_>, document: &mut Map<String, Value>) {
    let rules: Vec<Value> = DEFAULT_RULES
        .iter()
        .map(
            |(name, direction, priority, access, source, destination, description)| {
                json!({
                    "name": name,
                    "id": format!("{}/defaultSecurityRules/{name}", resource.id),
                    "etag": format!("W/\"{}\"", resource.etag),
                    "type": "Microsoft.Network/networkSecurityGroups/defaultSecurityRules",
                    "properties": {
                        "provisioningState": resource.state,
                        "description": description,
                        "protocol": "*",
                        "sourcePortRange": "*",
                        "destinationPortRange": "*",
                        "sourceAddressPrefix": source,
                        "destinationAddressPrefix": destination,
                        "access": access,
                        "priority": priority,
                        "direction": direction,
                        "sourcePortRanges": [],
                        "destinationPortRanges": [],
                        "sourceAddressPrefixes": [],
                        "destinationAddressPrefixes": [],
                    },
                })
            },
        )
        .collect();
    object_mut(document, "properties").insert("defaultSecurityRules".to_owned(), rules.into());
}

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete_rule(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    for key in [
        "sourcePortRanges",
        "destinationPortRanges",
        "sourceAddressPrefixes",
        "destinationAddressPrefixes",
    ] {
        draft.fill(key, json!([]));
    }
    Ok(())
}

fn present_route_table(_: &Azure, _: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    if view.api >= "2025" {
        object_mut(document, "properties")
            .entry("disablePeeringRoute")
            .or_insert_with(|| "None".into());
    }
}

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete_route_table(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    fill_guid(draft);
    draft.fill("disableBgpRoutePropagation", false.into());
    Ok(())
}

/// Routes of one table are written one after the other.
fn complete_route(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let table = draft.id.parent().unwrap_or_else(|| draft.id.clone());
    let busy = draft
        .azure
        .state()
        .resources
        .of_kind(&table.key(), ROUTE)
        .into_iter()
        .find(|route| route.operation.is_some() && route.id.to_ascii_lowercase() != draft.id.key());
    if let Some(busy) = busy {
        let operation = busy.operation.as_deref().unwrap_or_default();
        return Err(ErrorResponse::with_body(
            429,
            json!({"error": {
                "code": "RetryableError",
                "message": "A retryable error occurred.",
                "details": [{
                    "code": "RetryableErrorDueToAnotherOperation",
                    "message": format!(
                        "Operation PutRouteOperation ({operation}) is updating resource {table}. The call can be retried in 14 seconds."
                    ),
                }],
            }}),
        )
        .retry_after(14));
    }
    draft.fill("hasBgpOverride", false.into());
    Ok(())
}
