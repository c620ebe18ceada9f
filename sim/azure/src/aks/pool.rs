//! Agent pools: what AKS fills in, what it refuses to change, and how a pool is shown on its own and in its
//! cluster.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{is_preview, last_system_pool, nodes, refused_pool, running, since, versions};
use crate::{
    arm_id::ArmId,
    azure::Azure,
    error_response::ErrorResponse,
    kinds::{Draft, View},
    store::Resource,
};

/// Set once, at creation.
const IMMUTABLE: &[&str] = &[
    "vmSize",
    "osDiskSizeGB",
    "osDiskType",
    "kubeletDiskType",
    "maxPods",
    "osType",
    "type",
    "vnetSubnetID",
    "podSubnetID",
    "availabilityZones",
    "enableNodePublicIP",
    "nodePublicIPPrefixID",
    "scaleSetPriority",
    "kubeletConfig",
    "linuxOSConfig",
    "enableEncryptionAtHost",
    "enableUltraSSD",
    "gpuInstanceProfile",
    "proximityPlacementGroupID",
    "hostGroupID",
    "capacityReservationGroupID",
];

/// What a pool takes from its cluster.
pub struct ClusterFacts<'a> {
    pub name: &'a str,
    pub version: &'a str,
    pub current_version: &'a str,
    pub network_plugin: &'a str,
    pub is_overlay: bool,
    pub service_cidr: &'a str,
    pub location: &'a str,
    pub now: Timestamp,
}

impl<'a> ClusterFacts<'a> {
    pub fn of(cluster: &'a Resource, now: Timestamp) -> Self {
        let network = |key: &str| {
            super::at(cluster.properties(), &["networkProfile", key])
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        Self {
            name: cluster.name(),
            version: cluster.text("kubernetesVersion"),
            current_version: cluster.text("currentKubernetesVersion"),
            network_plugin: network("networkPlugin"),
            is_overlay: network("networkPluginMode") == "overlay",
            service_cidr: network("serviceCidr"),
            location: cluster.location(),
            now,
        }
    }
}

/// What a pool's new document asks of the service.
pub struct Filled {
    pub properties: Map<String, Value>,
    pub hidden: Map<String, Value>,
    pub verb: &'static str,
}

/// PUT on a pool of its own.
pub fn complete(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let cluster_id = draft.id.parent().unwrap_or_else(|| draft.id.clone());
    let cluster = draft
        .azure
        .state()
        .resources
        .get(&cluster_id)
        .ok_or_else(|| ErrorResponse::resource_not_found(&cluster_id))?;
    let facts = ClusterFacts::of(cluster, draft.now);
    let sent = std::mem::take(draft.properties());
    check_name(draft.id.name(), sent.get("osType"))?;
    let mut filled = fill(draft.azure, &facts, sent, draft.old, false, draft.id.name())?;
    if filled.properties.get("mode").and_then(Value::as_str) != Some("System")
        && draft.old.is_some_and(|old| old.text("mode") == "System")
        && !other_system_pool(draft.azure, &cluster_id, draft.id)
    {
        return Err(last_system_pool());
    }
    // A pool written by itself does not keep empty maps.
    for key in ["nodeLabels", "tags"] {
        let is_empty = filled
            .properties
            .get(key)
            .and_then(Value::as_object)
            .is_some_and(Map::is_empty);
        if is_empty {
            filled.properties.remove(key);
        }
    }
    super::nodes::check_quota(
        draft.azure,
        &cluster_id,
        &[(draft.id.clone(), &filled.properties)],
    )?;
    draft.nodes = count(&filled.properties);
    draft.verb = if draft.old.is_some() {
        filled.verb
    } else {
        "create"
    };
    draft.state = state_of(draft.verb);
    draft.hidden = filled.hidden;
    draft.body.retain(|key, _| key == "properties");
    *draft.properties() = filled.properties;
    Ok(())
}

pub fn state_of(verb: &str) -> Option<&'static str> {
    match verb {
        "scale" => Some("Scaling"),
        "upgrade" => Some("Upgrading"),
        _ => None,
    }
}

fn other_system_pool(azure: &Azure, cluster: &ArmId, except: &ArmId) -> bool {
    azure
        .state()
        .resources
        .of_kind(&cluster.key(), super::POOL)
        .into_iter()
        .any(|pool| pool.text("mode") == "System" && !pool.id.eq_ignore_ascii_case(&except.to_string()))
}

pub fn count(properties: &Map<String, Value>) -> u64 {
    properties.get("count").and_then(Value::as_u64).unwrap_or(0)
}

pub fn check_name(name: &str, os_type: Option<&Value>) -> Result<(), ErrorResponse> {
    let longest = if os_type.and_then(Value::as_str) == Some("Windows") {
        6
    } else {
        12
    };
    let well_formed = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .chars()
            .all(|char| char.is_ascii_lowercase() || char.is_ascii_digit())
        && name.len() <= longest;
    if well_formed {
        return Ok(());
    }
    Err(ErrorResponse::invalid_parameter(
        "agentPoolProfile.name",
        format!(
            "The value of parameter agentPoolProfile.name is invalid. Error details: Invalid agent pool name {name}. Agent pool names must start with a lowercase letter, contain only lowercase letters and numbers and have at most {longest} characters. Please see https://aka.ms/aks-naming-rules for more details."
        ),
    ))
}

/// Keeps what was there before, refuses what must not change.
fn keep_immutable(properties: &mut Map<String, Value>, old: &Resource) -> Result<(), ErrorResponse> {
    for key in IMMUTABLE {
        let is_changed = match (properties.get(*key), old.properties().get(*key)) {
            (Some(new), Some(before)) => !same_setting(new, before),
            (Some(_), None) => *key == "availabilityZones",
            (None, _) => false,
        };
        if is_changed {
            return Err(ErrorResponse::property_change_not_allowed(&format!(
                "properties.{key}"
            )));
        }
        if let Some(before) = old.properties().get(*key) {
            properties.insert((*key).to_owned(), before.clone());
        }
    }
    Ok(())
}

/// Without what the service decides, and without empty settings: the Azure CLI sends them for what it leaves to the service.
fn cleaned(mut properties: Map<String, Value>) -> Map<String, Value> {
    properties.retain(|_, value| value.as_str() != Some(""));
    for key in [
        "provisioningState",
        "powerState",
        "currentOrchestratorVersion",
        "nodeImageVersion",
        "eTag",
        "name",
    ] {
        properties.remove(key);
    }
    if properties
        .get("nodeTaints")
        .and_then(Value::as_array)
        .is_some_and(Vec::is_empty)
    {
        properties.remove("nodeTaints");
    }
    if properties.get("osDiskSizeGB") == Some(&json!(0)) {
        properties.remove("osDiskSizeGB");
    }
    properties
}

/// Fills in what was not sent, refuses what must not change.
pub fn fill(
    azure: &Azure,
    facts: &ClusterFacts<'_>,
    sent: Map<String, Value>,
    old: Option<&Resource>,
    in_cluster: bool,
    name: &str,
) -> Result<Filled, ErrorResponse> {
    let mut properties = cleaned(sent);
    if let Some(old) = old {
        keep_immutable(&mut properties, old)?;
    }
    let is_windows = properties.get("osType").and_then(Value::as_str) == Some("Windows");
    let max_pods = match (facts.network_plugin, facts.is_overlay) {
        ("azure" | "none", true) => 250,
        ("azure", false) => 30,
        _ => 110,
    };
    let old_count = old.map_or(1, |old| count(old.properties()));
    let mut fill = |key: &str, value: Value| {
        properties.entry(key).or_insert(value);
    };
    fill("count", old_count.into());
    fill("vmSize", "Standard_D8ds_v5".into());
    fill("osDiskSizeGB", 128.into());
    fill("osDiskType", "Managed".into());
    fill("kubeletDiskType", "OS".into());
    fill("maxPods", max_pods.into());
    fill("type", "VirtualMachineScaleSets".into());
    fill("mode", if in_cluster { "System" } else { "User" }.into());
    fill("osType", "Linux".into());
    fill("osSKU", if is_windows { "Windows2022" } else { "Ubuntu" }.into());
    fill("enableNodePublicIP", false.into());
    fill("scaleDownMode", "Delete".into());
    fill("enableFIPS", false.into());
    fill("powerState", running());
    // The service began to write this out in late 2024, and not for pools that come with a new cluster.
    if since(facts.now, 2024, 10) && (!in_cluster || old.is_some()) {
        fill("enableAutoScaling", false.into());
    }
    if old.is_some() {
        fill("upgradeStrategy", "Rolling".into());
    }
    fill_upgrade_settings(&mut properties, facts, in_cluster, old);
    let security = crate::store::object_mut(&mut properties, "securityProfile");
    for (key, value) in [
        ("sshAccess", json!("LocalUser")),
        ("enableVTPM", json!(false)),
        ("enableSecureBoot", json!(false)),
    ] {
        security.entry(key).or_insert(value);
    }
    fill_spot(&mut properties);
    refused_pool::check(azure, facts, &properties, old, name)?;
    check_scaling(&properties, name)?;
    let (verb, hidden) = fill_version(azure, facts, &mut properties, old)?;
    let image = if is_windows {
        "AKSWindows-2022-containerd-20348.4294.251107"
    } else {
        "AKSUbuntu-2204gen2containerd-202511.07.0"
    };
    let image = old
        .and_then(|old| old.properties().get("nodeImageVersion").cloned())
        .unwrap_or_else(|| image.into());
    properties.insert("nodeImageVersion".to_owned(), image);
    let verb = match verb {
        "update" if old.is_some_and(|old| count(old.properties()) != count(&properties)) => "scale",
        verb => verb,
    };
    Ok(Filled {
        properties,
        hidden,
        verb,
    })
}

/// Numbers, strings without case, and lists in any order are the same setting.
fn same_setting(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::String(new), Value::String(old)) => new.eq_ignore_ascii_case(old),
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().all(|entry| old.contains(entry))
        }
        _ => new == old,
    }
}

fn fill_upgrade_settings(
    properties: &mut Map<String, Value>,
    facts: &ClusterFacts<'_>,
    in_cluster: bool,
    old: Option<&Resource>,
) {
    if let Some(kept) = old.and_then(|old| old.properties().get("upgradeSettings")) {
        properties
            .entry("upgradeSettings")
            .or_insert_with(|| kept.clone());
    }
    let is_new = !properties.contains_key("upgradeSettings");
    let full = json!({"maxSurge": "10%", "maxUnavailable": "0"});
    if !since(facts.now, 2024, 1) {
        properties.entry("upgradeSettings").or_insert_with(|| json!({}));
    } else if since(facts.now, 2025, 6) || (in_cluster && since(facts.now, 2024, 5) && is_new) {
        properties.entry("upgradeSettings").or_insert(full);
    }
}

fn fill_spot(properties: &mut Map<String, Value>) {
    if properties.get("scaleSetPriority").and_then(Value::as_str) != Some("Spot") {
        return;
    }
    properties
        .entry("scaleSetEvictionPolicy")
        .or_insert_with(|| "Delete".into());
    properties.entry("spotMaxPrice").or_insert_with(|| (-1).into());
    let taint = "kubernetes.azure.com/scalesetpriority=spot:NoSchedule";
    let taints = properties.entry("nodeTaints").or_insert_with(|| json!([]));
    if let Some(taints) = taints.as_array_mut()
        && !taints.iter().any(|existing| existing == taint)
    {
        taints.push(taint.into());
    }
    let labels = crate::store::object_mut(properties, "nodeLabels");
    labels
        .entry("kubernetes.azure.com/scalesetpriority")
        .or_insert_with(|| "spot".into());
}

fn check_scaling(properties: &Map<String, Value>, name: &str) -> Result<(), ErrorResponse> {
    let number = |key: &str| properties.get(key).and_then(Value::as_i64);
    let is_system = properties.get("mode").and_then(Value::as_str) == Some("System");
    let count = number("count").unwrap_or(0);
    if !(0..=1000).contains(&count) || (is_system && count < 1) {
        return Err(ErrorResponse::invalid_parameter(
            "agentPoolProfile.count",
            format!(
                "The value of parameter agentPoolProfile.count is invalid. Error details: Agent pool {name} must have between {} and 1000 nodes, {count} were requested. Please see https://aka.ms/aks-naming-rules for more details.",
                i64::from(is_system)
            ),
        ));
    }
    if !super::boolean(properties, &["enableAutoScaling"]) {
        if number("minCount").is_some() || number("maxCount").is_some() {
            return Err(ErrorResponse::invalid_parameter(
                "agentPoolProfile.minCount",
                format!(
                    "Agent pool {name}: minCount and maxCount can only be set when enableAutoScaling is true."
                ),
            ));
        }
        return Ok(());
    }
    match (number("minCount"), number("maxCount")) {
        (Some(least), Some(most)) if least <= most && (least..=most).contains(&count) => Ok(()),
        _ => Err(ErrorResponse::invalid_parameter(
            "agentPoolProfile.count",
            format!(
                "Agent pool {name}: autoscaling needs minCount <= count <= maxCount, got minCount {:?}, count {count}, maxCount {:?}.",
                number("minCount"),
                number("maxCount")
            ),
        )),
    }
}

/// The version asked for, the one it means, and whether getting there is an upgrade.
fn fill_version(
    azure: &Azure,
    facts: &ClusterFacts<'_>,
    properties: &mut Map<String, Value>,
    old: Option<&Resource>,
) -> Result<(&'static str, Map<String, Value>), ErrorResponse> {
    let mut hidden = old.map(|old| old.hidden.clone()).unwrap_or_default();
    hidden.remove("targetVersion");
    let desired = properties
        .get("orchestratorVersion")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let Some(old) = old else {
        let desired = desired.unwrap_or_else(|| facts.version.to_owned());
        let resolved = if desired == facts.version || desired == facts.current_version {
            facts.current_version.to_owned()
        } else {
            versions::resolve(&azure.settings, &desired, facts.name)?
        };
        versions::check_skew(&resolved, facts.current_version)?;
        properties.insert("orchestratorVersion".to_owned(), desired.into());
        properties.insert("currentOrchestratorVersion".to_owned(), resolved.into());
        nodes::name_scale_set(azure, facts, &mut hidden);
        return Ok(("create", hidden));
    };
    let current = old.text("currentOrchestratorVersion").to_owned();
    let desired = desired.unwrap_or_else(|| old.text("orchestratorVersion").to_owned());
    properties.insert("orchestratorVersion".to_owned(), desired.clone().into());
    properties.insert("currentOrchestratorVersion".to_owned(), current.clone().into());
    let keeps = desired == current
        || versions::parse(&desired)
            .is_some_and(|(_, _, patch)| patch.is_none() && versions::minor(&current) == desired);
    if keeps {
        return Ok(("update", hidden));
    }
    let resolved = if desired == versions::minor(facts.current_version) {
        facts.current_version.to_owned()
    } else {
        versions::resolve(&azure.settings, &desired, facts.name)?
    };
    versions::check_skew(&resolved, facts.current_version)?;
    hidden.insert("targetVersion".to_owned(), resolved.into());
    Ok(("upgrade", hidden))
}

/// A pool resource as an answer shows it.
pub fn present(_: &Azure, resource: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    document.insert("id".to_owned(), resource.arm_id().aks_spelling().into());
    let properties = crate::store::object_mut(document, "properties");
    gate(properties, resource, view, false);
}

/// A pool as an entry of its cluster's `agentPoolProfiles`.
pub fn profile(resource: &Resource, view: &View<'_>) -> Value {
    let mut properties = resource.properties().clone();
    properties.insert("name".to_owned(), resource.name().into());
    properties.insert("provisioningState".to_owned(), resource.state.clone().into());
    gate(&mut properties, resource, view, true);
    Value::Object(properties)
}

/// Leaves out what this API version, or the service at that time, did not show.
fn gate(properties: &mut Map<String, Value>, resource: &Resource, view: &View<'_>, in_cluster: bool) {
    let api = view.api;
    let mut hide = |key: &str, hidden: bool| {
        if hidden {
            properties.remove(key);
        }
    };
    hide("currentOrchestratorVersion", api < "2022");
    hide(
        "scaleDownMode",
        if in_cluster {
            !since(view.now, 2025, 1)
        } else {
            api < "2022"
        },
    );
    hide("enableNodePublicIP", !since(view.now, 2024, 9));
    hide("securityProfile", api < "2023-11");
    hide("upgradeStrategy", !(is_preview(api) && api >= "2025-10"));
    let echoes = view.written && in_cluster;
    for (key, year, month) in [("nodeLabels", 2024, 1), ("tags", 2024, 7)] {
        let is_empty = properties
            .get(key)
            .and_then(Value::as_object)
            .is_some_and(Map::is_empty);
        let is_update = resource.state != "Creating";
        if is_empty && !(echoes && (is_update || since(view.now, year, month))) {
            properties.remove(key);
        }
    }
    if let Some(security) = properties
        .get_mut("securityProfile")
        .and_then(Value::as_object_mut)
    {
        if !is_preview(api) && api < "2025" {
            security.remove("sshAccess");
        }
        if !in_cluster && api.starts_with("2024-04") {
            security.remove("enableVTPM");
            security.remove("enableSecureBoot");
        }
    }
    if let Some(upgrade) = properties
        .get_mut("upgradeSettings")
        .and_then(Value::as_object_mut)
        && api < "2025"
    {
        upgrade.remove("maxUnavailable");
    }
    let is_fresh = in_cluster && view.written && resource.state == "Creating";
    if is_preview(api) && api >= "2024-04" && !is_fresh {
        properties.insert("eTag".to_owned(), resource.etag.clone().into());
    }
}
