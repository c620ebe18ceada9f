//! What AKS refuses in the body of an agent pool, beside what [`super::refused`] says of clusters.

use serde_json::{Map, Value};

use super::{pool::ClusterFacts, refused};
use crate::{azure::Azure, error_response::ErrorResponse, locations, store::Resource};

/// Keys, and the words AKS knows there.
const WORDS: &[(&str, &[&str])] = &[
    ("mode", &["System", "User", "Gateway"]),
    ("osType", &["Linux", "Windows"]),
    ("osDiskType", &["Managed", "Ephemeral"]),
    ("kubeletDiskType", &["OS", "Temporary"]),
    ("scaleSetPriority", &["Regular", "Spot"]),
    ("scaleSetEvictionPolicy", &["Delete", "Deallocate"]),
    ("scaleDownMode", &["Delete", "Deallocate"]),
    (
        "type",
        &["VirtualMachineScaleSets", "AvailabilitySet", "VirtualMachines"],
    ),
];

/// Labels a caller may set although their prefix is AKS's own.
const OWN_LABELS: &[&str] = &["kubernetes.azure.com/scalesetpriority"];

/// Looks at a pool whose defaults are filled in. What is set once is asked of a new pool only.
pub fn check(
    azure: &Azure,
    facts: &ClusterFacts<'_>,
    properties: &Map<String, Value>,
    old: Option<&Resource>,
    name: &str,
) -> Result<(), ErrorResponse> {
    for (key, words) in WORDS {
        let sent = properties.get(*key).and_then(Value::as_str).unwrap_or(words[0]);
        if !words.iter().any(|word| word.eq_ignore_ascii_case(sent)) {
            return Err(refused::invalid(
                &format!("agentPoolProfile.{key}"),
                format!(
                    "{sent:?} is not one of the supported values: {}",
                    words.join(", ")
                ),
            ));
        }
    }
    check_labels(properties, name)?;
    check_taints(properties)?;
    check_system(properties, name)?;
    if old.is_none() {
        check_size(facts, properties, name)?;
        check_zones(facts, properties, name)?;
        check_numbers(properties, name)?;
        if let Some(subnet) = properties.get("vnetSubnetID").and_then(Value::as_str) {
            refused::check_subnet(azure, subnet, facts.service_cidr)?;
        }
    }
    Ok(())
}

fn text<'a>(properties: &'a Map<String, Value>, key: &str) -> &'a str {
    properties.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn check_size(
    facts: &ClusterFacts<'_>,
    properties: &Map<String, Value>,
    name: &str,
) -> Result<(), ErrorResponse> {
    let size = text(properties, "vmSize");
    if !refused::is_size(size) {
        return Err(ErrorResponse::aks(
            400,
            "BadRequest",
            format!(
                "The VM size of AgentPoolProfile:{name} is not allowed in your subscription in location '{}'.  For more details, please visit https://aka.ms/aks/quotas-skus-regions",
                facts.location
            ),
        ));
    }
    if text(properties, "mode").eq_ignore_ascii_case("System") && !refused::is_big_enough(size) {
        return Err(ErrorResponse::aks(
            400,
            "SystemPoolSkuTooLow",
            format!(
                "System node pool must use VM sku with more than 2 cores and 4GB memory. Nodepool name: {name}."
            ),
        ));
    }
    Ok(())
}

fn check_zones(
    facts: &ClusterFacts<'_>,
    properties: &Map<String, Value>,
    name: &str,
) -> Result<(), ErrorResponse> {
    let zones: Vec<&str> = properties
        .get("availabilityZones")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let refusal = |message: String| {
        Err(ErrorResponse::aks(400, "AvailabilityZoneNotSupported", message)
            .target("agentPoolProfile.availabilityZone"))
    };
    if zones.is_empty() {
        return Ok(());
    }
    if !locations::has_zones(facts.location) {
        return refusal(format!(
            "Availability zone is not supported in region {}.",
            facts.location
        ));
    }
    let unknown: Vec<&str> = zones
        .into_iter()
        .filter(|zone| !["1", "2", "3"].contains(zone))
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    refusal(format!(
        "The zone(s) '{}' for resource '{name}' is not supported. The supported zones for location '{}' are '1,2,3'",
        unknown.join(","),
        facts.location
    ))
}

fn check_numbers(properties: &Map<String, Value>, name: &str) -> Result<(), ErrorResponse> {
    let number = |key: &str| properties.get(key).and_then(Value::as_i64);
    let disk = number("osDiskSizeGB").unwrap_or(128);
    if !(30..=2048).contains(&disk) {
        return Err(ErrorResponse::aks(
            400,
            "InvalidParameter",
            format!("The OSDiskSize for Agent {name} cannot be less than 30GB or larger than 2048GB."),
        )
        .target("agentPoolProfile.osDiskSizeGB"));
    }
    let pods = number("maxPods").unwrap_or(30);
    if !(10..=250).contains(&pods) {
        return Err(ErrorResponse::aks(
            400,
            "InvalidParameter",
            "The value of parameter maxPods is invalid. Please see https://aka.ms/aks-naming-rules for more details.",
        )
        .target("maxPods"));
    }
    let is_system = text(properties, "mode").eq_ignore_ascii_case("System");
    let count = number("count").unwrap_or(1);
    if is_system && pods * count < 30 {
        return Err(ErrorResponse::aks(
            400,
            "InsufficientAgentPoolMaxPodsPerAgentPool",
            format!(
                "The AgentPoolProfile '{name}' has an invalid total maxPods(maxPods per node * node count), the total maxPods({pods} * {count}) should be larger than 30. Please refer to aka.ms/aks-min-max-pod for more detail."
            ),
        )
        .target("agentPoolProfile.kubernetesConfig.kubeletConfig.maxPods"));
    }
    Ok(())
}

/// System pods run on Linux, on machines that stay.
fn check_system(properties: &Map<String, Value>, name: &str) -> Result<(), ErrorResponse> {
    if !text(properties, "mode").eq_ignore_ascii_case("System") {
        return Ok(());
    }
    let problem = if text(properties, "osType").eq_ignore_ascii_case("Windows") {
        "Windows agent pools must have mode User"
    } else if text(properties, "scaleSetPriority").eq_ignore_ascii_case("Spot") {
        "Spot agent pools must have mode User"
    } else {
        return Ok(());
    };
    Err(refused::invalid(
        "agentPoolProfile.mode",
        format!("{problem}, agent pool {name} has mode System"),
    ))
}

fn check_labels(properties: &Map<String, Value>, pool: &str) -> Result<(), ErrorResponse> {
    let Some(labels) = properties.get("nodeLabels").and_then(Value::as_object) else {
        return Ok(());
    };
    for (key, value) in labels {
        let Some(value) = value.as_str() else {
            return Err(refused::wrong_type(
                "AgentPoolProfile.properties.nodeLabels",
                value,
                "string",
            ));
        };
        let bad = |message: String| {
            Err(ErrorResponse::aks(400, "BadRequest", message).target(&format!("{key}={value}")))
        };
        let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
        let is_below = |domain: &str| prefix == domain || prefix.ends_with(&format!(".{domain}"));
        if is_below("kubernetes.azure.com") && !OWN_LABELS.contains(&key.as_str()) {
            return bad(format!(
                "Invalid node label key {key}. The 'kubernetes.azure.com' prefix is preserved by aks system labels"
            ));
        }
        let is_allowed = is_below("kubelet.kubernetes.io") || is_below("node.kubernetes.io");
        if (is_below("kubernetes.io") || is_below("k8s.io")) && !is_allowed {
            return bad("For Kubernetes version greater than or equal to 1.16, node label keys in the 'kubernetes.io' or 'k8s.io' namespace must begin with an allowed prefix (kubelet.kubernetes.io, node.kubernetes.io). For more information, please check https://aka.ms/aks-node-labels-116.".to_owned());
        }
        if key == "agentpool" && value != pool {
            return bad(format!(
                "Node label with key 'agentpool' must have the name of the agent pool, {pool}, as its value"
            ));
        }
        if !is_qualified(key) || !is_label_value(value) {
            return bad(format!("Invalid node label {key}={value}"));
        }
    }
    Ok(())
}

fn check_taints(properties: &Map<String, Value>) -> Result<(), ErrorResponse> {
    let Some(taints) = properties.get("nodeTaints") else {
        return Ok(());
    };
    let Some(list) = taints.as_array() else {
        return Err(refused::wrong_type(
            "AgentPoolProperties.properties.nodeTaints",
            taints,
            "[]string",
        ));
    };
    for taint in list {
        let text = taint.as_str().unwrap_or_default();
        if !is_taint(text) {
            return Err(ErrorResponse::invalid_parameter(
                "agentPoolProfile.nodeTaints",
                format!(
                    "The value of parameter agentPoolProfile.nodeTaints is invalid. Error details: invalid taint spec: {text}. Please see https://aka.ms/node-taints for more details."
                ),
            ));
        }
    }
    Ok(())
}

/// `key=value:Effect` or `key:Effect`.
fn is_taint(text: &str) -> bool {
    let Some((name, effect)) = text.rsplit_once(':') else {
        return false;
    };
    let (key, value) = name.split_once('=').unwrap_or((name, ""));
    is_qualified(key)
        && is_label_value(value)
        && ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect)
}

fn is_name(text: &str) -> bool {
    let edge = |char: Option<char>| char.is_some_and(|char| char.is_ascii_alphanumeric());
    text.len() <= 63
        && edge(text.chars().next())
        && edge(text.chars().last())
        && text
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.'))
}

/// A label key as Kubernetes takes it: a name, and perhaps a DNS name before it.
fn is_qualified(key: &str) -> bool {
    let Some((prefix, name)) = key.split_once('/') else {
        return is_name(key);
    };
    let is_dns = prefix.len() <= 253
        && !prefix.is_empty()
        && prefix.split('.').all(|part| {
            is_name(part)
                && part
                    .chars()
                    .all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-')
        });
    is_dns && is_name(name)
}

fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_name(value)
}
