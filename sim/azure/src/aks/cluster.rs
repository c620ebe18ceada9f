//! Managed clusters: defaults as AKS fills them in, and what cannot change.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{POOL, at, boolean, network_profile, pool, refused, running, versions};
use crate::{
    arm_id::ArmId,
    error_response::ErrorResponse,
    kinds::{Child, Draft},
    store::{Resource, object_mut},
};

/// Set once, at creation; a path of keys below `properties`.
const IMMUTABLE: &[&[&str]] = &[
    &["dnsPrefix"],
    &["fqdnSubdomain"],
    &["nodeResourceGroup"],
    &["enableRBAC"],
    &["networkProfile", "serviceCidr"],
    &["networkProfile", "dnsServiceIP"],
    &["networkProfile", "loadBalancerSku"],
    &["apiServerAccessProfile", "enablePrivateCluster"],
    &["apiServerAccessProfile", "privateDNSZone"],
    &["windowsProfile", "adminUsername"],
    &["linuxProfile", "adminUsername"],
];

pub fn complete(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    check_name(draft.id.name())?;
    if draft
        .body
        .get("tags")
        .and_then(Value::as_object)
        .is_some_and(Map::is_empty)
    {
        draft.body.remove("tags");
    }
    draft.properties().retain(|_, value| value.as_str() != Some(""));
    check_immutable(draft)?;
    refused::check_body(draft)?;
    refused::check_identities(draft)?;
    let profiles = take_profiles(draft)?;
    fill_identity(draft);
    fill_version(draft)?;
    if is_automatic(draft) {
        fill_automatic(draft.properties());
    }
    network_profile::fill(draft)?;
    refused::check_ranges(draft)?;
    fill_names(draft);
    fill_features(draft);
    check_accounts(draft)?;
    let children = fill_pools(draft, profiles)?;
    let quota: Vec<(ArmId, &Map<String, Value>)> = children
        .iter()
        .filter_map(|(id, _, body, _)| Some((id.clone(), body.get("properties")?.as_object()?)))
        .collect();
    super::nodes::check_quota(draft.azure, draft.id, &quota)?;
    draft.nodes = quota.iter().map(|(_, properties)| pool::count(properties)).sum();
    if draft.old.is_none() {
        let group = ArmId::resource_group(
            &draft.id.subscription,
            draft.body["properties"]["nodeResourceGroup"]
                .as_str()
                .unwrap_or_default(),
        );
        let document = json!({
            "location": draft.body["location"],
            "managedBy": draft.id.to_string(),
            "tags": {"aks-managed-cluster-name": draft.id.name(), "aks-managed-cluster-rg": draft.id.group},
            "properties": {},
        });
        let Value::Object(document) = document else {
            unreachable!("it was written as an object")
        };
        draft
            .children
            .push((group, "Microsoft.Resources/resourceGroups", document, Map::new()));
    }
    draft.children.extend(children);
    Ok(())
}

fn check_name(name: &str) -> Result<(), ErrorResponse> {
    let inner = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
    let edge = |char: Option<char>| char.is_some_and(|char| char.is_ascii_alphanumeric());
    if name.len() <= 63 && name.chars().all(inner) && edge(name.chars().next()) && edge(name.chars().last()) {
        return Ok(());
    }
    Err(ErrorResponse::invalid_parameter(
        "resourceName",
        format!(
            "The value of parameter resourceName is invalid. Error details: Invalid resource name {name}. The name must start and end with alphanumerics, contain only alphanumerics, underscores and hyphens and have at most 63 characters. Please see https://aka.ms/aks-naming-rules for more details."
        ),
    ))
}

fn check_immutable(draft: &Draft<'_>) -> Result<(), ErrorResponse> {
    let (Some(old), Some(new)) = (draft.old, draft.body.get("properties").and_then(Value::as_object)) else {
        return Ok(());
    };
    for path in IMMUTABLE {
        let (before, after) = (at(old.properties(), path), at(new, path));
        let same = match (before, after) {
            (_, None) => true,
            (Some(Value::String(before)), Some(Value::String(after))) => before.eq_ignore_ascii_case(after),
            (Some(before), Some(after)) => before == after,
            (None, Some(after)) => *after == Value::Bool(false) || after.as_str() == Some(""),
        };
        if !same {
            return Err(ErrorResponse::property_change_not_allowed(&path.join(".")));
        }
    }
    Ok(())
}

fn take_profiles(draft: &mut Draft<'_>) -> Result<Option<Vec<Map<String, Value>>>, ErrorResponse> {
    let sent = draft.properties().remove("agentPoolProfiles");
    let profiles: Option<Vec<Map<String, Value>>> = sent.and_then(|sent| {
        sent.as_array().map(|list| {
            list.iter()
                .filter_map(|profile| profile.as_object().cloned())
                .collect()
        })
    });
    match profiles {
        Some(profiles) if !profiles.is_empty() => Ok(Some(profiles)),
        _ if draft.old.is_some() => Ok(None),
        _ => Err(ErrorResponse::invalid_parameter(
            "agentPoolProfiles",
            "Required parameter agentPoolProfiles is missing (null).",
        )),
    }
}

fn fill_identity(draft: &mut Draft<'_>) {
    let (principal, tenant) = (draft.made_up("principal"), draft.azure.settings.tenant.clone());
    let kept = draft
        .old
        .and_then(|old| old.document.get("identity").cloned())
        .and_then(|identity| identity.as_object().cloned())
        .unwrap_or_default();
    let made_up = |id: &str, what: &str| {
        Uuid::new_v5(
            &Uuid::NAMESPACE_OID,
            format!("{}/{what}", id.to_ascii_lowercase()).as_bytes(),
        )
        .to_string()
    };
    if draft.body.contains_key("identity") || !kept.is_empty() {
        let identity = object_mut(&mut draft.body, "identity");
        for (key, value) in &kept {
            identity.entry(key.clone()).or_insert_with(|| value.clone());
        }
        let kind = identity
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or("SystemAssigned")
            .to_owned();
        if kind == "SystemAssigned" {
            identity.entry("principalId").or_insert_with(|| principal.into());
            identity.entry("tenantId").or_insert_with(|| tenant.into());
            identity.remove("userAssignedIdentities");
        } else if kind == "UserAssigned" {
            if let Some(assigned) = identity
                .get_mut("userAssignedIdentities")
                .and_then(Value::as_object_mut)
            {
                for (id, entry) in assigned.iter_mut() {
                    let found = ArmId::parse(id).and_then(|id| draft.azure.state().resources.get(&id));
                    let (client, principal) = found.map_or_else(
                        || (made_up(id, "client"), made_up(id, "principal")),
                        |found| {
                            (
                                found.text("clientId").to_owned(),
                                found.text("principalId").to_owned(),
                            )
                        },
                    );
                    *entry = json!({"clientId": client, "principalId": principal});
                }
            }
            identity.remove("principalId");
            identity.remove("tenantId");
        }
        draft.fill("servicePrincipalProfile", json!({"clientId": "msi"}));
    }
}

fn fill_version(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let settings = &draft.azure.settings;
    let name = draft.id.name();
    let desired = draft
        .body
        .get("properties")
        .and_then(|properties| properties.get("kubernetesVersion"))
        .and_then(Value::as_str)
        .filter(|desired| !desired.is_empty())
        .map(str::to_owned);
    draft.hidden.remove("targetVersion");
    let (shown, current) = match draft.old {
        None => {
            let desired = desired.unwrap_or_else(|| settings.default_kubernetes_version.clone());
            let resolved = versions::resolve(settings, &desired, name)?;
            (desired, resolved)
        }
        Some(old) => {
            let current = old.text("currentKubernetesVersion").to_owned();
            let desired = desired.unwrap_or_else(|| old.text("kubernetesVersion").to_owned());
            let target = versions::target(settings, &current, &desired, name)?;
            if target != current {
                draft.hidden.insert("targetVersion".to_owned(), target.into());
                draft.verb = "upgrade";
                draft.state = Some("Upgrading");
            }
            (desired, current)
        }
    };
    let properties = draft.properties();
    properties.insert("kubernetesVersion".to_owned(), shown.into());
    properties.insert("currentKubernetesVersion".to_owned(), current.into());
    Ok(())
}

fn fill_names(draft: &mut Draft<'_>) {
    let location = draft
        .body
        .get("location")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let (name, group) = (
        draft.id.name().to_owned(),
        draft.id.group.clone().unwrap_or_default(),
    );
    let unique = draft.made_up("fqdn").replace('-', "");
    let suffix = &unique[..8];
    let uid = unique[..24].to_owned();
    draft.keep("dnsPrefix", || {
        format!(
            "{}-{}",
            &name[..name.len().min(10)],
            &group[..group.len().min(16)]
        )
        .into()
    });
    draft.keep("nodeResourceGroup", || {
        format!("MC_{group}_{name}_{location}").into()
    });
    let prefix = draft.properties()["dnsPrefix"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let is_private = boolean(
        draft.properties(),
        &["apiServerAccessProfile", "enablePrivateCluster"],
    );
    let has_public_name = at(
        draft.properties(),
        &["apiServerAccessProfile", "enablePrivateClusterPublicFQDN"],
    ) != Some(&Value::Bool(false));
    if !is_private || has_public_name {
        draft.own("fqdn", || {
            format!("{prefix}-{suffix}.hcp.{location}.azmk8s.io").into()
        });
    }
    if is_private {
        let zone = draft.made_up("zone");
        draft.own("privateFQDN", || {
            format!("{prefix}-{suffix}.{zone}.privatelink.{location}.azmk8s.io").into()
        });
    }
    draft.own("azurePortalFQDN", || {
        format!("{prefix}-{suffix}.portal.hcp.{location}.azmk8s.io").into()
    });
    draft.own("resourceUID", || uid.into());
    draft.own("powerState", running);
}

fn is_automatic(draft: &Draft<'_>) -> bool {
    let before = draft.old.and_then(|old| old.document.get("sku"));
    let sku = draft.body.get("sku").or(before);
    sku.is_some_and(|sku| sku["name"] == "Automatic")
}

/// What a cluster of the SKU Automatic has whether or not it is asked for: nobody signs in without Entra, and nodes are made for the
/// pods that wait.
fn fill_automatic(properties: &mut Map<String, Value>) {
    properties.insert("disableLocalAccounts".to_owned(), true.into());
    for (profile, key, value) in [
        ("aadProfile", "managed", json!(true)),
        ("aadProfile", "enableAzureRBAC", json!(true)),
        ("nodeProvisioningProfile", "mode", json!("Auto")),
        ("oidcIssuerProfile", "enabled", json!(true)),
        ("autoUpgradeProfile", "upgradeChannel", json!("stable")),
        ("networkProfile", "networkPlugin", json!("azure")),
        ("networkProfile", "networkPluginMode", json!("overlay")),
        ("networkProfile", "networkDataplane", json!("cilium")),
    ] {
        object_mut(properties, profile).entry(key).or_insert(value);
    }
}

fn fill_features(draft: &mut Draft<'_>) {
    let location = draft
        .body
        .get("location")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let tenant = draft.azure.settings.tenant.clone();
    let issuer = draft.made_up("issuer");
    draft.body.entry("sku").or_insert_with(|| {
        draft
            .old
            .and_then(|old| old.document.get("sku").cloned())
            .unwrap_or_else(|| json!({"name": "Base", "tier": "Free"}))
    });
    draft.body.entry("kind").or_insert_with(|| "Base".into());
    for (key, value) in [
        ("enableRBAC", json!(true)),
        ("supportPlan", json!("KubernetesOfficial")),
        ("maxAgentPools", json!(100)),
        ("securityProfile", json!({})),
        ("workloadAutoScalerProfile", json!({})),
        ("metricsProfile", json!({"costAnalysis": {"enabled": false}})),
        ("bootstrapProfile", json!({"artifactSource": "Direct"})),
    ] {
        draft.keep(key, || value);
    }
    let properties = draft.properties();
    object_mut(properties, "autoUpgradeProfile")
        .entry("nodeOSUpgradeChannel")
        .or_insert_with(|| "NodeImage".into());
    let nodes = object_mut(properties, "nodeProvisioningProfile");
    nodes.entry("mode").or_insert_with(|| "Manual".into());
    nodes.entry("defaultNodePools").or_insert_with(|| "Auto".into());
    let storage = object_mut(properties, "storageProfile");
    for driver in ["diskCSIDriver", "fileCSIDriver", "snapshotController"] {
        object_mut(storage, driver)
            .entry("enabled")
            .or_insert_with(|| true.into());
    }
    let network = object_mut(properties, "networkProfile");
    let is_plain_azure =
        network.get("networkPlugin") == Some(&json!("azure")) && !network.contains_key("networkPluginMode");
    if is_plain_azure {
        let windows = object_mut(properties, "windowsProfile");
        windows
            .entry("adminUsername")
            .or_insert_with(|| "azureuser".into());
        windows.entry("enableCSIProxy").or_insert_with(|| true.into());
    }
    if let Some(sent) = properties
        .get_mut("autoScalerProfile")
        .and_then(Value::as_object_mut)
    {
        for (key, value) in AUTOSCALER {
            let value = if refused::AUTOSCALER_BOOLEANS.contains(key) {
                Value::Bool(*value == "true")
            } else {
                Value::from(*value)
            };
            sent.entry(*key).or_insert(value);
        }
    }
    if let Some(windows) = properties
        .get_mut("windowsProfile")
        .and_then(Value::as_object_mut)
    {
        windows.remove("adminPassword");
    }
    let kept = draft
        .old
        .and_then(|old| at(old.properties(), &["oidcIssuerProfile", "issuerURL"]).cloned());
    let profile = object_mut(draft.properties(), "oidcIssuerProfile");
    profile.entry("enabled").or_insert_with(|| false.into());
    if profile.get("enabled") == Some(&Value::Bool(true)) {
        let url = kept.unwrap_or_else(|| {
            format!("https://{location}.oic.prod-aks.azure.com/{tenant}/{issuer}/").into()
        });
        profile.insert("issuerURL".to_owned(), url);
    }
    for key in ["identityProfile", "addonProfiles"] {
        if let Some(kept) = draft.old.and_then(|old| old.properties().get(key).cloned()) {
            draft.properties().entry(key).or_insert(kept);
        }
    }
    if let Some(profile) = draft
        .properties()
        .get_mut("aadProfile")
        .and_then(Value::as_object_mut)
    {
        profile.entry("tenantID").or_insert_with(|| tenant.into());
    }
}

/// The cluster autoscaler's settings as AKS writes them out.
const AUTOSCALER: &[(&str, &str)] = &[
    ("balance-similar-node-groups", "false"),
    ("daemonset-eviction-for-empty-nodes", "false"),
    ("daemonset-eviction-for-occupied-nodes", "true"),
    ("expander", "random"),
    ("ignore-daemonsets-utilization", "false"),
    ("max-empty-bulk-delete", "10"),
    ("max-graceful-termination-sec", "600"),
    ("max-node-provision-time", "15m"),
    ("max-total-unready-percentage", "45"),
    ("new-pod-scale-up-delay", "0s"),
    ("ok-total-unready-count", "3"),
    ("scale-down-delay-after-add", "10m"),
    ("scale-down-delay-after-delete", "10s"),
    ("scale-down-delay-after-failure", "3m"),
    ("scale-down-unneeded-time", "10m"),
    ("scale-down-unready-time", "20m"),
    ("scale-down-utilization-threshold", "0.5"),
    ("scan-interval", "10s"),
    ("skip-nodes-with-local-storage", "false"),
    ("skip-nodes-with-system-pods", "true"),
];

fn check_accounts(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let properties = draft.properties();
    if boolean(properties, &["disableLocalAccounts"]) && !boolean(properties, &["aadProfile", "managed"]) {
        return Err(ErrorResponse::invalid_parameter(
            "disableLocalAccounts",
            "Disabling local accounts is only allowed for clusters that have managed Microsoft Entra integration enabled.",
        ));
    }
    if boolean(properties, &["securityProfile", "workloadIdentity", "enabled"])
        && !boolean(properties, &["oidcIssuerProfile", "enabled"])
    {
        return Err(ErrorResponse::invalid_parameter(
            "securityProfile.workloadIdentity",
            "Workload identity needs the OIDC issuer: set oidcIssuerProfile.enabled to true.",
        ));
    }
    Ok(())
}

/// The pools a cluster's body names, each as a resource of its own.
fn fill_pools(
    draft: &mut Draft<'_>,
    profiles: Option<Vec<Map<String, Value>>>,
) -> Result<Vec<Child>, ErrorResponse> {
    let Some(profiles) = profiles else {
        return Ok(Vec::new());
    };
    let is_new = draft.old.is_none();
    let has_system = profiles
        .iter()
        .any(|profile| profile.get("mode").and_then(Value::as_str).unwrap_or("System") == "System");
    if is_new && !has_system {
        return Err(super::last_system_pool());
    }
    let cluster = Resource {
        id: draft.id.to_string(),
        kind: super::CLUSTER.to_owned(),
        state: String::new(),
        document: draft.body.clone(),
        hidden: Map::new(),
        operation: None,
        order: 0,
        etag: String::new(),
        created: draft.now,
        changed: draft.now,
    };
    let mut facts = pool::ClusterFacts::of(&cluster, draft.now);
    // Pools may go along with an upgrade of their control plane.
    let target = draft
        .hidden
        .get("targetVersion")
        .and_then(Value::as_str)
        .map(str::to_owned);
    if let Some(target) = &target {
        facts.current_version = target;
    }
    let mut children: Vec<Child> = Vec::new();
    for mut profile in profiles {
        let Some(name) = profile.get("name").and_then(Value::as_str).map(str::to_owned) else {
            return Err(ErrorResponse::invalid_parameter(
                "agentPoolProfile.name",
                "Required parameter agentPoolProfile.name is missing (null).",
            ));
        };
        pool::check_name(&name, profile.get("osType"))?;
        profile.remove("name");
        let id = draft.id.child("agentPools", &name);
        if children.iter().any(|(other, ..)| other.key() == id.key()) {
            return Err(ErrorResponse::invalid_parameter(
                "agentPoolProfile.name",
                format!("Agent pool name {name} is used more than once."),
            ));
        }
        let old = draft.azure.state().resources.get(&id);
        let filled = pool::fill(draft.azure, &facts, profile, old, true, &name)?;
        let body = Map::from_iter([("properties".to_owned(), Value::Object(filled.properties))]);
        children.push((id, POOL, body, filled.hidden));
    }
    Ok(children)
}

/// What is only known once the cluster stands: its outbound address and its kubelet identity.
pub fn finish(resource: &mut Resource) {
    let id = resource.arm_id();
    let node_group = resource.text("nodeResourceGroup").to_owned();
    let made_up = |what: &str| {
        Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{}/{what}", id.key()).as_bytes()).to_string()
    };
    let identity_of = |name: &str| {
        json!({
            "resourceId": format!(
                "/subscriptions/{}/resourcegroups/{node_group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{name}",
                id.subscription
            ),
            "clientId": made_up(&format!("{name}/client")),
            "objectId": made_up(&format!("{name}/object")),
        })
    };
    let kubelet = identity_of(&format!("{}-agentpool", id.name()));
    let address = format!(
        "/subscriptions/{}/resourceGroups/{node_group}/providers/Microsoft.Network/publicIPAddresses/{}",
        id.subscription,
        made_up("outbound")
    );
    let name = id.name().to_owned();
    let properties = resource.properties_mut();
    object_mut(properties, "identityProfile")
        .entry("kubeletidentity")
        .or_insert(kubelet);
    if let Some(balancer) = properties
        .get_mut("networkProfile")
        .and_then(|network| network.get_mut("loadBalancerProfile"))
        .and_then(Value::as_object_mut)
    {
        balancer
            .entry("effectiveOutboundIPs")
            .or_insert_with(|| json!([{"id": address}]));
    }
    if let Some(addons) = properties.get_mut("addonProfiles").and_then(Value::as_object_mut) {
        for (addon, profile) in addons.iter_mut() {
            if let Some(profile) = profile.as_object_mut()
                && profile.get("enabled") == Some(&Value::Bool(true))
            {
                profile
                    .entry("identity")
                    .or_insert_with(|| identity_of(&format!("{}-{name}", addon.to_lowercase())));
            }
        }
    }
}
