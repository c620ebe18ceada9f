//! Networks: validation of ranges, plugins, policies, load balancers and private endpoints.

use std::{net::IpAddr, sync::LazyLock};

use regex::Regex;
use serde_json::json;
use slipway_runtime::admission::field::{FieldError, Path};

use super::ClusterNetworkFact;
use crate::{
    admit::address::Range,
    api::{ControlPlaneClass, PrivateEndpoint, Subnet},
};

const ENDPOINT_PATTERN: &str = r"^[-\w\._]+$";
const RESOURCE_ID_PATTERN: &str = "(?i)subscriptions/(.+)/resourceGroups/(.+)/providers/(.+?)/(.+?)/(.+)";

static ENDPOINT_NAME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^[-A-Za-z0-9_.]+$").expect("a pattern"));
static RESOURCE_ID: LazyLock<Regex> = LazyLock::new(|| Regex::new(RESOURCE_ID_PATTERN).expect("a pattern"));

pub fn plugin_mode(root: &Path, class: &ControlPlaneClass) -> Option<FieldError> {
    let overlay = class.network_plugin_mode.as_deref() == Some("overlay");
    let kubenet = class.network_plugin.as_deref() == Some("kubenet");
    (overlay && kubenet).then(|| {
        FieldError::invalid(
            &root.child("networkPluginMode"),
            "overlay",
            "cannot be set to \"overlay\" when NetworkPlugin is \"kubenet\"",
        )
    })
}

pub fn policy_and_dataplane(root: &Path, class: &ControlPlaneClass) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let policy = class.network_policy.as_deref();
    let dataplane = class.network_dataplane.as_deref();
    if policy == Some("cilium") && dataplane.is_some_and(|plane| plane != "cilium") {
        errors.push(FieldError::invalid(
            &root.child("networkPolicy"),
            "cilium",
            "cilium network policy can only be used with cilium network dataplane",
        ));
    }
    if dataplane == Some("cilium") {
        let path = root.child("networkDataplane");
        if class.network_plugin_mode.as_deref() != Some("overlay") {
            errors.push(FieldError::invalid(
                &path,
                "cilium",
                "cilium network dataplane can only be used with overlay network plugin mode",
            ));
        }
        if policy != Some("cilium") {
            errors.push(FieldError::invalid(
                &path,
                "cilium",
                "cilium dataplane requires network policy cilium.",
            ));
        }
    }
    errors
}

pub fn load_balancer(root: &Path, class: &ControlPlaneClass) -> Vec<FieldError> {
    let Some(profile) = &class.load_balancer_profile else {
        return Vec::new();
    };
    let path = root.child("loadBalancerProfile");
    let mut errors: Vec<FieldError> = [
        ("managedOutboundIPs", profile.managed_outbound_ips, 1, 100),
        (
            "allocatedOutboundPorts",
            profile.allocated_outbound_ports,
            0,
            64000,
        ),
        ("idleTimeoutInMinutes", profile.idle_timeout_in_minutes, 4, 120),
    ]
    .into_iter()
    .filter_map(|(name, value, least, most)| {
        let value = value.filter(|value| !(least..=most).contains(value))?;
        let detail = format!("value should be in between {least} and {most}");
        Some(FieldError::invalid(&path.child(name), value, detail))
    })
    .collect();
    let kinds = [
        profile.managed_outbound_ips.is_some(),
        !profile.outbound_ip_prefixes.is_empty(),
        !profile.outbound_ips.is_empty(),
    ];
    if kinds.iter().filter(|used| **used).count() > 1 {
        errors.push(FieldError::forbidden(
            &path,
            "load balancer profile must specify at most one of ManagedOutboundIPs, OutboundIPPrefixes and OutboundIPs",
        ));
    }
    if class.load_balancer_sku.as_deref() == Some("Basic") {
        errors.push(FieldError::forbidden(
            &path,
            "AKS takes a load balancer profile only with loadBalancerSKU Standard",
        ));
    }
    errors
}

pub fn virtual_network(root: &Path, class: &ControlPlaneClass) -> Vec<FieldError> {
    let network = &class.virtual_network;
    if network.is_unset() {
        return Vec::new();
    }
    let path = root.child("virtualNetwork");
    let mut errors = Vec::new();
    let outer = Range::parse(&network.cidr_block);
    if outer.is_none() {
        errors.push(FieldError::invalid(
            &path.child("cidrBlock"),
            network.cidr_block.as_str(),
            "pre-existing virtual networks CIDR block is invalid",
        ));
    }
    let inner = Range::parse(&network.subnet.cidr_block);
    if inner.is_none() {
        errors.push(FieldError::invalid(
            &path.child("subnet").child("cidrBlock"),
            network.subnet.cidr_block.as_str(),
            "pre-existing subnets CIDR block is invalid",
        ));
    }
    if let (Some(outer), Some(inner)) = (outer, inner)
        && !outer.contains(inner.address)
    {
        errors.push(FieldError::invalid(
            &path.child("cidrBlock"),
            network.cidr_block.as_str(),
            "pre-existing virtual networks CIDR block should contain the subnet CIDR block",
        ));
    }
    errors
}

/// What depends on the Cluster's own network.
pub fn cluster_network(root: &Path, class: &ControlPlaneClass, fact: &ClusterNetworkFact) -> Vec<FieldError> {
    let network = Path::new("Cluster").child("spec").child("clusterNetwork");
    let (services, pods) = match fact {
        // Asked here too: a rule that an object meets only once it belongs to a Cluster would hold an object
        // that was let in.
        ClusterNetworkFact::NoCluster => {
            return class
                .dns_service_ip
                .as_deref()
                .map(|address| dns_address(root, address).1)
                .unwrap_or_default();
        }
        ClusterNetworkFact::Unreadable(problem) => {
            return vec![FieldError::internal(&network, problem.as_str())];
        }
        ClusterNetworkFact::Known { services, pods } => (services, pods),
    };
    let mut errors = Vec::new();
    let service_ranges = network.child("services").child("cidrBlocks");
    for (path, ranges) in [
        (&service_ranges, services),
        (&network.child("pods").child("cidrBlocks"), pods),
    ] {
        if ranges.len() > 1 {
            errors.push(FieldError::too_many(path, ranges.len(), 1));
        }
    }
    let service_range = if services.len() == 1 {
        services[0].as_str()
    } else {
        ""
    };
    if let Some(address) = class.dns_service_ip.as_deref() {
        errors.extend(dns_service(root, &service_ranges, service_range, address));
    }
    let subnet = root.child("virtualNetwork").child("subnet");
    errors.extend(private_endpoints(
        &subnet.child("privateEndpoints"),
        &class.virtual_network.subnet,
    ));
    errors
}

fn dns_service(root: &Path, ranges: &Path, range: &str, address: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let parsed = Range::parse(range);
    if range.is_empty() {
        errors.push(FieldError::required(
            ranges,
            "service CIDR must be specified if specifying DNSServiceIP",
        ));
    } else if parsed.is_none() {
        errors.push(FieldError::invalid(
            ranges,
            range,
            format!("failed to parse cluster service cidr: invalid CIDR address: {range}"),
        ));
    }
    let (ip, problems) = dns_address(root, address);
    if let (Some(ip), Some(range_parsed)) = (ip, parsed)
        && !range_parsed.contains(ip)
    {
        errors.push(FieldError::invalid(
            ranges,
            range,
            "DNSServiceIP must reside within the associated cluster serviceCIDR",
        ));
    }
    errors.extend(problems);
    errors
}

/// What can be told of the address of cluster DNS without its range.
fn dns_address(root: &Path, address: &str) -> (Option<IpAddr>, Vec<FieldError>) {
    let path = root.child("dnsServiceIP");
    let problem = |detail: &str| vec![FieldError::invalid(&path, address, detail)];
    match address.parse::<IpAddr>() {
        Err(_) => (None, problem("must be a valid IP address")),
        Ok(ip) if !ip.to_string().ends_with(".10") => (Some(ip), problem("must end with \".10\"")),
        Ok(ip) => (Some(ip), Vec::new()),
    }
}

pub fn private_endpoints(path: &Path, subnet: &Subnet) -> Vec<FieldError> {
    subnet
        .private_endpoints
        .iter()
        .enumerate()
        .flat_map(|(index, endpoint)| private_endpoint(&path.index(index), endpoint, &subnet.cidr_block))
        .collect()
}

fn private_endpoint(path: &Path, endpoint: &PrivateEndpoint, range: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = endpoint.name.as_str();
    if name.is_empty() {
        errors.push(FieldError::invalid(
            &path.child("name"),
            name,
            "name of private endpoint cannot be empty",
        ));
    } else if !ENDPOINT_NAME.is_match(name) {
        let detail = format!("name of private endpoint doesn't match regex {ENDPOINT_PATTERN}");
        errors.push(FieldError::invalid(&path.child("name"), name, detail));
    }
    if endpoint.private_link_service_connections.is_empty() {
        errors.push(FieldError::invalid(
            path,
            json!(null),
            "privateLinkServiceConnections cannot be empty",
        ));
    }
    for (index, connection) in endpoint.private_link_service_connections.iter().enumerate() {
        let at = path.child("privateLinkServiceConnections").index(index);
        let service = connection.private_link_service_id.as_deref().unwrap_or_default();
        let name = connection.name.as_deref().unwrap_or_default();
        if service.is_empty() {
            errors.push(FieldError::required(
                &at,
                "privateLinkServiceID is required for all privateLinkServiceConnections in private endpoints",
            ));
        } else if !RESOURCE_ID.is_match(service) {
            let detail = format!(
                "private endpoint privateLinkServiceConnection service ID doesn't match regex {RESOURCE_ID_PATTERN}"
            );
            errors.push(FieldError::invalid(&at, service, detail));
        } else if !name.is_empty() && !ENDPOINT_NAME.is_match(name) {
            let detail = format!(
                "private endpoint privateLinkServiceConnection name doesn't match regex {ENDPOINT_PATTERN}"
            );
            errors.push(FieldError::invalid(&at, name, detail));
        }
    }
    for address in &endpoint.private_ip_addresses {
        let at = path.child("privateIPAddresses");
        match address.parse::<IpAddr>() {
            Err(_) => errors.push(FieldError::invalid(
                &at,
                address.as_str(),
                "Private Endpoint IP address isn't a valid IPv4 or IPv6 address",
            )),
            Ok(ip) if !Range::parse(range).is_some_and(|range| range.contains(ip)) => {
                errors.push(FieldError::invalid(
                    &at,
                    address.as_str(),
                    format!("Private Endpoint IP address needs to be in subnet range ([{range}])"),
                ));
            }
            Ok(_) => {}
        }
    }
    errors
}
