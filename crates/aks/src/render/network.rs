//! Resource groups, the virtual network, its subnet and private endpoints.

use serde_json::{Value, json};

use super::{Facts, ids, set, set_list, tags, text};
use crate::api::PrivateEndpoint;

/// The resource groups, the cluster's first; one if the network lives there too.
pub fn resource_groups(facts: &Facts<'_>) -> Vec<Value> {
    let class = &facts.plane.spec.class;
    let mut names = vec![class.resource_group_name.as_str()];
    let network = ids::network_group(facts);
    if !network.eq_ignore_ascii_case(&class.resource_group_name) {
        names.push(network);
    }
    names
        .into_iter()
        .map(|name| {
            json!({
                "apiVersion": "resources.azure.com/v1api20200601",
                "kind": "ResourceGroup",
                "metadata": {"name": name},
                "spec": {
                    "azureName": name,
                    "location": class.location,
                    "tags": tags::of_new(facts.cluster_name, name, &class.additional_tags),
                }
            })
        })
        .collect()
}

pub fn virtual_network(facts: &Facts<'_>) -> Value {
    let class = &facts.plane.spec.class;
    let name = &class.virtual_network.name;
    json!({
        "apiVersion": "network.azure.com/v1api20240301",
        "kind": "VirtualNetwork",
        "metadata": {"name": name},
        "spec": {
            "azureName": name,
            "owner": {"armId": ids::resource_group(facts.subscription, ids::network_group(facts))},
            "location": class.location,
            "addressSpace": {"addressPrefixes": [class.virtual_network.cidr_block]},
            "tags": tags::of_new(facts.cluster_name, name, &class.additional_tags),
        }
    })
}

pub fn subnet(facts: &Facts<'_>) -> Value {
    let network = &facts.plane.spec.class.virtual_network;
    let subnet = &network.subnet;
    let mut spec = json!({
        "azureName": subnet.name,
        "owner": {"armId": ids::virtual_network(facts)},
        "addressPrefix": subnet.cidr_block,
    });
    if !subnet.service_endpoints.is_empty() {
        spec["serviceEndpoints"] = subnet
            .service_endpoints
            .iter()
            .map(|endpoint| json!({"service": endpoint.service, "locations": endpoint.locations}))
            .collect();
    }
    json!({
        "apiVersion": "network.azure.com/v1api20240301",
        "kind": "VirtualNetworksSubnet",
        "metadata": {"name": format!("{}-{}", network.name, subnet.name.to_lowercase())},
        "spec": spec,
    })
}

pub fn private_endpoints(facts: &Facts<'_>) -> Vec<Value> {
    let subnet = &facts.plane.spec.class.virtual_network.subnet;
    subnet
        .private_endpoints
        .iter()
        .map(|endpoint| private_endpoint(facts, endpoint))
        .collect()
}

fn private_endpoint(facts: &Facts<'_>, endpoint: &PrivateEndpoint) -> Value {
    let class = &facts.plane.spec.class;
    let mut spec = json!({
        "azureName": endpoint.name,
        "owner": {"armId": ids::resource_group(facts.subscription, &class.resource_group_name)},
        "location": text(endpoint.location.as_ref()).unwrap_or(&class.location),
        "subnet": {"reference": {"armId": ids::subnet(facts, &class.virtual_network.subnet.name)}},
        "tags": tags::of_new(facts.cluster_name, &endpoint.name, &class.additional_tags),
    });
    set(
        &mut spec,
        "customNetworkInterfaceName",
        text(endpoint.custom_network_interface_name.as_ref()),
    );
    if !endpoint.application_security_groups.is_empty() {
        let mut groups = endpoint.application_security_groups.clone();
        groups.sort();
        spec["applicationSecurityGroups"] = groups
            .iter()
            .map(|id| json!({"reference": {"armId": id}}))
            .collect();
    }
    if !endpoint.private_ip_addresses.is_empty() {
        let mut addresses = endpoint.private_ip_addresses.clone();
        addresses.sort();
        spec["ipConfigurations"] = addresses
            .iter()
            .map(|address| json!({"privateIPAddress": address}))
            .collect();
    }
    let mut connections: Vec<Value> = endpoint
        .private_link_service_connections
        .iter()
        .map(|connection| {
            let id = connection.private_link_service_id.as_deref().unwrap_or_default();
            let mut body = json!({"privateLinkServiceReference": {"armId": id}});
            // Azure asks for a name; the endpoint's serves where the user gave none.
            body["name"] = text(connection.name.as_ref()).unwrap_or(&endpoint.name).into();
            set_list(&mut body, "groupIds", &connection.group_ids);
            set(
                &mut body,
                "requestMessage",
                text(connection.request_message.as_ref()),
            );
            body
        })
        .collect();
    connections.sort_by(|left, right| left["name"].as_str().cmp(&right["name"].as_str()));
    let kind = if endpoint.manual_approval == Some(true) {
        "manualPrivateLinkServiceConnections"
    } else {
        "privateLinkServiceConnections"
    };
    spec[kind] = connections.into();
    json!({
        "apiVersion": "network.azure.com/v1api20240301",
        "kind": "PrivateEndpoint",
        "metadata": {"name": endpoint.name.to_lowercase()},
        "spec": spec,
    })
}
