//! The network profile of a cluster: what AKS chooses when nothing was asked for.

use serde_json::{Map, Value, json};

use super::{at, since};
use crate::{error_response::ErrorResponse, kinds::Draft, store::object_mut};

pub fn fill(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let now = draft.now;
    let kept = draft
        .old
        .and_then(|old| at(old.properties(), &["networkProfile"]))
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    let network = object_mut(draft.properties(), "networkProfile");
    for key in ["ipFamilies", "podCidrs", "serviceCidrs"] {
        if network
            .get(key)
            .and_then(Value::as_array)
            .is_some_and(Vec::is_empty)
        {
            network.remove(key);
        }
    }
    if let Some(sku) = network.get_mut("loadBalancerSku")
        && let Some(text) = sku.as_str()
    {
        *sku = text.to_ascii_lowercase().into();
    }
    for (key, value) in kept {
        if key != "loadBalancerProfile" {
            network.entry(key).or_insert(value);
        } else if !network.contains_key("loadBalancerProfile") {
            network.insert(key, value);
        }
    }
    let asked_for_plugin = network.contains_key("networkPlugin");
    // Azure CNI in overlay mode took the place of kubenet as the default in early 2025.
    if !asked_for_plugin && since(now, 2025, 1) {
        network.insert("networkPlugin".to_owned(), "azure".into());
        network
            .entry("networkPluginMode")
            .or_insert_with(|| "overlay".into());
    }
    let mut fill = |key: &str, value: Value| {
        network.entry(key).or_insert(value);
    };
    fill("networkPlugin", "kubenet".into());
    fill("networkPolicy", "none".into());
    fill("loadBalancerSku", "standard".into());
    fill("outboundType", "loadBalancer".into());
    fill("serviceCidr", "10.0.0.0/16".into());
    let text = |network: &Map<String, Value>, key: &str| {
        network
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (plugin, mode) = (text(network, "networkPlugin"), text(network, "networkPluginMode"));
    if mode == "overlay" && plugin == "kubenet" {
        return Err(ErrorResponse::invalid_parameter(
            "networkProfile.networkPluginMode",
            "networkPluginMode 'overlay' can only be used with networkPlugin 'azure'.",
        ));
    }
    if plugin == "azure" {
        network
            .entry("networkDataplane")
            .or_insert_with(|| "azure".into());
    }
    if plugin == "kubenet" || mode == "overlay" {
        network.entry("podCidr").or_insert_with(|| "10.244.0.0/16".into());
    }
    let service = text(network, "serviceCidr");
    network
        .entry("dnsServiceIP")
        .or_insert_with(|| tenth_address(&service).into());
    network.entry("serviceCidrs").or_insert_with(|| json!([service]));
    if let Some(pods) = network.get("podCidr").cloned() {
        network.entry("podCidrs").or_insert_with(|| json!([pods]));
    }
    network.entry("ipFamilies").or_insert_with(|| json!(["IPv4"]));
    if text(network, "outboundType") == "loadBalancer" {
        let balancer = object_mut(network, "loadBalancerProfile");
        let named = balancer.contains_key("outboundIPs") || balancer.contains_key("outboundIPPrefixes");
        if !named {
            balancer
                .entry("managedOutboundIPs")
                .or_insert_with(|| json!({"count": 1}));
        }
        balancer
            .entry("backendPoolType")
            .or_insert_with(|| "nodeIPConfiguration".into());
    }
    Ok(())
}

/// `10.0.0.0/16` -> `10.0.0.10`, the address AKS gives cluster DNS.
fn tenth_address(cidr: &str) -> String {
    let base = cidr.split('/').next().unwrap_or_default();
    match base.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(address)) => {
            std::net::Ipv4Addr::from(u32::from(address).wrapping_add(10)).to_string()
        }
        Ok(std::net::IpAddr::V6(address)) => {
            std::net::Ipv6Addr::from(u128::from(address).wrapping_add(10)).to_string()
        }
        Err(_) => "10.0.0.10".to_owned(),
    }
}
