//! What AKS refuses in the body of a managed cluster: values it does not know, ranges that do not fit, things that
//! are not there. Every row has a test in `tests/main/refusals.rs`, which says where its code and text are known from.

use serde_json::{Map, Value};

use super::{at, nodes::cpus};
use crate::{
    arm_id::ArmId, azure::Azure, error_response::ErrorResponse, kinds::Draft, range::Range, store::Resource,
};

/// A path of keys below `properties`, and the words AKS knows there. Case does not matter to it.
const WORDS: &[(&[&str], &[&str])] = &[
    (
        &["networkProfile", "networkPlugin"],
        &["azure", "kubenet", "none"],
    ),
    (&["networkProfile", "networkPluginMode"], &["overlay"]),
    (
        &["networkProfile", "networkPolicy"],
        &["none", "azure", "calico", "cilium"],
    ),
    (&["networkProfile", "networkDataplane"], &["azure", "cilium"]),
    (
        &["networkProfile", "outboundType"],
        &[
            "loadBalancer",
            "userDefinedRouting",
            "managedNATGateway",
            "userAssignedNATGateway",
            "none",
            "block",
        ],
    ),
    (&["networkProfile", "loadBalancerSku"], &["standard", "basic"]),
    (
        &["autoUpgradeProfile", "upgradeChannel"],
        &["rapid", "stable", "patch", "node-image", "none"],
    ),
    (
        &["autoUpgradeProfile", "nodeOSUpgradeChannel"],
        &["None", "Unmanaged", "SecurityPatch", "NodeImage"],
    ),
    (
        &["autoScalerProfile", "expander"],
        &["least-waste", "most-pods", "priority", "random"],
    ),
];

/// Settings of the autoscaler that are true or false; all others are text.
pub const AUTOSCALER_BOOLEANS: &[&str] = &[
    "daemonset-eviction-for-empty-nodes",
    "daemonset-eviction-for-occupied-nodes",
    "ignore-daemonsets-utilization",
];

/// Ranges that AKS keeps for itself.
const RESERVED: &[&str] = &["169.254.0.0/16", "172.30.0.0/16", "172.31.0.0/16", "192.0.2.0/24"];

/// `The value of parameter … is invalid`, the frame AKS puts around most details.
pub fn invalid(parameter: &str, details: impl std::fmt::Display) -> ErrorResponse {
    ErrorResponse::invalid_parameter(
        parameter,
        format!(
            "The value of parameter {parameter} is invalid. Error details: {details}. Please see https://aka.ms/aks-naming-rules for more details."
        ),
    )
}

fn unknown_word(parameter: &str, sent: &str, words: &[&str]) -> ErrorResponse {
    invalid(
        parameter,
        format!(
            "{sent:?} is not one of the supported values: {}",
            words.join(", ")
        ),
    )
}

/// JSON of another type than the field's.
pub fn wrong_type(field: &str, sent: &Value, desired: &str) -> ErrorResponse {
    let sent = match sent {
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::String(_) | Value::Null => "string",
    };
    ErrorResponse::aks(
        400,
        "UnmarshalError",
        format!(
            "UnmarshalEntity encountered error: json: cannot unmarshal {sent} into Go struct field {field} of type {desired}."
        ),
    )
}

/// What can be told from the body alone, before anything is filled in.
pub fn check_body(draft: &Draft<'_>) -> Result<(), ErrorResponse> {
    if let Some(tier) = draft.body.get("sku").and_then(|sku| sku["tier"].as_str()) {
        check_word("sku.tier", tier, &["Free", "Standard", "Premium", "Paid"])?;
    }
    let Some(properties) = draft.body.get("properties").and_then(Value::as_object) else {
        return Ok(());
    };
    for (path, words) in WORDS {
        match at(properties, path) {
            None => {}
            Some(Value::String(sent)) => check_word(&path.join("."), sent, words)?,
            Some(other) => {
                return Err(wrong_type(
                    &format!("ManagedClusterProperties.properties.{}", path.join(".")),
                    other,
                    "string",
                ));
            }
        }
    }
    check_autoscaler(properties)
}

fn check_word(parameter: &str, sent: &str, words: &[&str]) -> Result<(), ErrorResponse> {
    if sent.is_empty() || words.iter().any(|word| word.eq_ignore_ascii_case(sent)) {
        return Ok(());
    }
    Err(unknown_word(parameter, sent, words))
}

fn check_autoscaler(properties: &Map<String, Value>) -> Result<(), ErrorResponse> {
    let Some(profile) = properties.get("autoScalerProfile").and_then(Value::as_object) else {
        return Ok(());
    };
    for (key, value) in profile {
        let is_boolean = AUTOSCALER_BOOLEANS.contains(&key.as_str());
        if value.is_boolean() != is_boolean || value.is_string() == is_boolean {
            return Err(wrong_type(
                &format!("AutoScalerProfile.properties.autoScalerProfile.{key}"),
                value,
                if is_boolean { "bool" } else { "string" },
            ));
        }
    }
    Ok(())
}

/// The ranges of services and pods, and the address of cluster DNS, once the defaults are known.
pub fn check_ranges(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let network = |key: &str| {
        draft
            .body
            .get("properties")
            .and_then(|properties| properties["networkProfile"][key].as_str())
            .unwrap_or_default()
            .to_owned()
    };
    let (services, pods, dns) = (
        network("serviceCidr"),
        network("podCidr"),
        network("dnsServiceIP"),
    );
    let unreadable =
        |target: &str| ErrorResponse::aks(400, "CidrStringParseError", "Cidr is invalid").target(target);
    let range = Range::parse(&services).ok_or_else(|| unreadable("networkProfile.serviceCIDR"))?;
    if !pods.is_empty() {
        let pods = Range::parse(&pods).ok_or_else(|| unreadable("networkProfile.podCIDR"))?;
        if range.overlaps(&pods) {
            return Err(invalid(
                "networkProfile.podCidr",
                "the pod CIDR overlaps with the service CIDR",
            ));
        }
    }
    for reserved in RESERVED {
        if Range::parse(reserved).is_some_and(|reserved| reserved.overlaps(&range)) {
            return Err(invalid(
                "networkProfile.serviceCidr",
                format!("the service CIDR {services} is conflicted with the reserved CIDR {reserved}"),
            ));
        }
    }
    match range.offset(&dns) {
        None => Err(invalid(
            "networkProfile.dnsServiceIP",
            format!("the DNS service IP {dns} does not belong to the range {services}"),
        )),
        Some(0 | 1) => Err(invalid(
            "networkProfile.dnsServiceIP",
            format!("the DNS service IP {dns} must not be the first address of the range {services}"),
        )),
        Some(_) => Ok(()),
    }
}

/// A subnet that pools are put into must exist, and no subnet beside it may have addresses of the services.
pub fn check_subnet(azure: &Azure, subnet: &str, services: &str) -> Result<(), ErrorResponse> {
    let parameter = "agentPoolProfile.vnetSubnetID";
    let id = ArmId::parse(subnet)
        .filter(|id| {
            id.type_path()
                .eq_ignore_ascii_case("Microsoft.Network/virtualNetworks/subnets")
        })
        .ok_or_else(|| invalid(parameter, format!("{subnet:?} is not the id of a subnet")))?;
    let network = id.parent().unwrap_or_else(|| id.clone());
    if azure.state().resources.get(&id).is_none() {
        return Err(ErrorResponse::aks(
            400,
            "SubnetNotFound",
            format!(
                "Could not find subnet {} in vnet {} from resource group {} of subscription {}.",
                id.name(),
                network.name(),
                id.group.as_deref().unwrap_or_default(),
                id.subscription
            ),
        ));
    }
    let Some(services_range) = Range::parse(services) else {
        return Ok(());
    };
    for neighbour in azure
        .state()
        .resources
        .of_kind(&network.key(), "Microsoft.Network/virtualNetworks/subnets")
    {
        for prefix in prefixes(neighbour.properties()) {
            if Range::parse(&prefix).is_some_and(|range| range.overlaps(&services_range)) {
                return Err(ErrorResponse::aks(
                    400,
                    "ServiceCidrOverlapExistingSubnetsCidr",
                    format!(
                        "The specified service CIDR {services} is conflicted with an existing subnet CIDR {prefix}"
                    ),
                )
                .target("networkProfile.serviceCIDR"));
            }
        }
    }
    Ok(())
}

/// The ranges of a subnet.
pub fn prefixes(properties: &Map<String, Value>) -> Vec<String> {
    let one = properties.get("addressPrefix").into_iter();
    let many = properties
        .get("addressPrefixes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    one.chain(many)
        .filter_map(|prefix| prefix.as_str().map(str::to_owned))
        .collect()
}

/// Identities a cluster is to run as must be there.
pub fn check_identities(draft: &Draft<'_>) -> Result<(), ErrorResponse> {
    let is_missing =
        |id: &str| ArmId::parse(id).is_none_or(|id| draft.azure.state().resources.get(&id).is_none());
    let assigned = draft
        .body
        .get("identity")
        .and_then(|identity| identity["userAssignedIdentities"].as_object());
    if let Some(id) = assigned.into_iter().flat_map(Map::keys).find(|id| is_missing(id)) {
        return Err(ErrorResponse::gateway(
            400,
            "FailedIdentityOperation",
            format!(
                "Identity operation for resource '{}' failed with error 'Failed to perform resource identity operation. Status: 'BadRequest'. Response: '{{\"error\":{{\"code\":\"BadRequest\",\"message\":\"Resource '{id}' was not found.\"}}}}'.'.",
                draft.id
            ),
        ));
    }
    let kubelet = draft
        .body
        .get("properties")
        .and_then(|properties| properties["identityProfile"]["kubeletidentity"]["resourceId"].as_str());
    let is_new = draft.old.is_none_or(|old| {
        at(
            old.properties(),
            &["identityProfile", "kubeletidentity", "resourceId"],
        )
        .and_then(Value::as_str)
            != kubelet
    });
    match kubelet {
        Some(id) if is_new && is_missing(id) => Err(invalid(
            "identityProfile.kubeletidentity.resourceId",
            format!("the identity {id} was not found"),
        )),
        _ => Ok(()),
    }
}

/// Nothing of a stopped cluster can change; it can be started and deleted.
pub fn check_running(azure: &Azure, id: &ArmId, verb: &str) -> Result<(), ErrorResponse> {
    let Some(cluster) = super::cluster_of(id).and_then(|id| azure.state().resources.get(&id)) else {
        return Ok(());
    };
    let is_cluster = id.key() == cluster.id.to_ascii_lowercase();
    if (is_cluster && verb == "delete") || !is_stopped(cluster) {
        return Ok(());
    }
    Err(ErrorResponse::aks(
        409,
        "OperationNotAllowed",
        format!(
            "managed cluster is in Provisioning State({}) and Power State(Stopped), {} cannot be performed",
            cluster.state,
            if verb == "delete" { "deleting" } else { "updating" }
        ),
    ))
}

fn is_stopped(cluster: &Resource) -> bool {
    at(cluster.properties(), &["powerState", "code"]).and_then(Value::as_str) == Some("Stopped")
}

/// Maintenance configurations have fixed names.
pub fn check_maintenance_name(name: &str) -> Result<(), ErrorResponse> {
    let known = [
        "default",
        "aksManagedAutoUpgradeSchedule",
        "aksManagedNodeOSUpgradeSchedule",
    ];
    if known.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    Err(ErrorResponse::aks(
        400,
        "InvalidParameter",
        "Only 'default', 'aksManagedAutoUpgradeSchedule' and 'aksManagedNodeOSUpgradeSchedule' are allowed configNames for maintenance configuration.",
    ))
}

/// Whether a size is spelled as Azure spells its sizes: family, cores, features, version.
pub fn is_size(size: &str) -> bool {
    let Some(rest) = size
        .get(.."Standard_".len())
        .filter(|start| start.eq_ignore_ascii_case("Standard_"))
        .map(|start| &size[start.len()..])
    else {
        return false;
    };
    let family: String = rest
        .chars()
        .take_while(char::is_ascii_alphabetic)
        .collect::<String>()
        .to_ascii_uppercase();
    let families = [
        "A", "B", "D", "DC", "DS", "E", "EB", "EC", "F", "FS", "FX", "G", "GS", "H", "HB", "HC", "HX", "L",
        "LS", "M", "NC", "ND", "NG", "NM", "NP", "NV",
    ];
    let cores = rest[family.len()..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect::<String>();
    let tail = &rest[family.len() + cores.len()..];
    let version = tail.rsplit_once("_v").map(|(_, version)| version);
    families.contains(&family.as_str())
        && cores
            .parse::<u32>()
            .is_ok_and(|cores| (1..=1000).contains(&cores))
        && tail
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || char == '_' || char == '-')
        && version.is_none_or(|version| {
            version
                .parse::<u32>()
                .is_ok_and(|version| (2..=7).contains(&version))
        })
}

/// System pods need two cores.
pub fn is_big_enough(size: &str) -> bool {
    let name = size.to_ascii_lowercase();
    // In the D and DS series of the first versions the number counts sizes, not cores.
    let counts_sizes = (name.starts_with("standard_d") || name.starts_with("standard_ds"))
        && (name.ends_with("_v2") || !name.contains("_v"))
        && !name.ends_with("s_v2");
    if counts_sizes {
        return !matches!(
            name.as_str(),
            "standard_d1" | "standard_d1_v2" | "standard_ds1" | "standard_ds1_v2"
        );
    }
    cpus(size) >= 2
}
