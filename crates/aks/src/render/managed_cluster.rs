//! The AKS cluster itself.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use super::{Facts, PoolFacts, RenderError, agent_pool, api_version, ids, patch, set, set_list, tags, text};
use crate::{
    admit::address::Range,
    api::{
        AddonProfile, ApiServerAccessProfile, AutoscalerProfile, ControlPlaneClass, HttpProxyConfig,
        LoadBalancerProfile, MODE_SYSTEM, SecurityProfile,
    },
    version::{self, without_v},
};

/// The version to ask for: the spec's, never below what AKS already runs, so that automatic upgrades are not fought.
pub fn desired_version(class: &ControlPlaneClass, running: Option<&str>) -> String {
    let desired = without_v(&class.version);
    running
        .map_or(desired, |running| version::newer(desired, running))
        .to_owned()
}

/// The AKS cluster. `running` is the version AKS shows; `pools` are those it is created with and are left out (`None`)
/// once it exists, because AKS then has them as resources of their own.
pub fn managed_cluster(
    facts: &Facts<'_>,
    running: Option<&str>,
    pools: Option<&[PoolFacts<'_>]>,
) -> Result<Value, RenderError> {
    let plane = facts.plane;
    let class = &plane.spec.class;
    let name = plane.metadata.name.as_deref().unwrap_or_default();
    let mut spec = json!({
        "azureName": name,
        "owner": {"armId": ids::resource_group(facts.subscription, &class.resource_group_name)},
        "location": class.location,
        "enableRBAC": true,
        "kubernetesVersion": desired_version(class, running),
        "servicePrincipalProfile": {"clientId": "msi"},
        "identity": identity(class),
        "networkProfile": network_profile(facts)?,
        "tags": tags::of_new(facts.cluster_name, name, &class.additional_tags),
    });
    let body = &mut spec;
    set(
        body,
        "nodeResourceGroup",
        text(plane.spec.node_resource_group_name.as_ref()),
    );
    set(body, "dnsPrefix", text(plane.spec.dns_prefix.as_ref()));
    set(body, "linuxProfile", linux_profile(facts)?);
    set(
        body,
        "autoScalerProfile",
        class.autoscaler_profile.as_ref().map(autoscaler_profile),
    );
    if let Some(profile) = &class.aad_profile {
        body["aadProfile"] = json!({
            "managed": profile.managed,
            "enableAzureRBAC": profile.managed,
            "adminGroupObjectIDs": profile.admin_group_object_ids,
        });
    }
    set(body, "disableLocalAccounts", class.disable_local_accounts);
    if !class.addon_profiles.is_empty() {
        body["addonProfiles"] = addons(&class.addon_profiles);
    }
    if let Some(sku) = &class.sku {
        let tier = if sku.tier == "Paid" { "Standard" } else { &sku.tier };
        body["sku"] = json!({"name": "Base", "tier": tier});
    }
    set(
        body,
        "apiServerAccessProfile",
        class.api_server_access_profile.as_ref().map(api_server_access),
    );
    if let Some(id) = text(class.kubelet_user_assigned_identity.as_ref()) {
        body["identityProfile"] = json!({"kubeletidentity": {"resourceReference": {"armId": id}}});
    }
    set(
        body,
        "httpProxyConfig",
        class.http_proxy_config.as_ref().map(http_proxy),
    );
    if let Some(enabled) = class
        .oidc_issuer_profile
        .as_ref()
        .and_then(|issuer| issuer.enabled)
    {
        body["oidcIssuerProfile"] = json!({"enabled": enabled});
    }
    if let Some(channel) = class
        .auto_upgrade_profile
        .as_ref()
        .and_then(|profile| text(profile.upgrade_channel.as_ref()))
    {
        body["autoUpgradeProfile"] = json!({"upgradeChannel": channel});
    }
    set(
        body,
        "securityProfile",
        class.security_profile.as_ref().map(security_profile),
    );
    if let Some(pools) = pools {
        body["agentPoolProfiles"] = profiles(facts, pools)?.into();
    }
    let mut manifest = json!({
        "apiVersion": api_version(plane),
        "kind": "ManagedCluster",
        "metadata": {"name": name},
        "spec": spec,
    });
    patch::apply(
        &mut manifest,
        "spec.asoManagedClusterPatches",
        &class.aso_managed_cluster_patches,
    )?;
    Ok(manifest)
}

fn addons(addons: &[AddonProfile]) -> Value {
    let addons: Map<String, Value> = addons
        .iter()
        .map(|addon| {
            let mut profile = json!({"enabled": addon.enabled});
            if !addon.config.is_empty() {
                profile["config"] = json!(addon.config);
            }
            (addon.name.clone(), profile)
        })
        .collect();
    addons.into()
}

fn api_server_access(profile: &ApiServerAccessProfile) -> Value {
    let mut access = json!({});
    let body = &mut access;
    set(body, "enablePrivateCluster", profile.enable_private_cluster);
    set(
        body,
        "enablePrivateClusterPublicFQDN",
        profile.enable_private_cluster_public_fqdn,
    );
    set(body, "privateDNSZone", text(profile.private_dns_zone.as_ref()));
    set_list(body, "authorizedIPRanges", &profile.authorized_ip_ranges);
    access
}

fn http_proxy(proxy: &HttpProxyConfig) -> Value {
    let mut config = json!({});
    set(&mut config, "httpProxy", text(proxy.http_proxy.as_ref()));
    set(&mut config, "httpsProxy", text(proxy.https_proxy.as_ref()));
    set(&mut config, "trustedCa", text(proxy.trusted_ca.as_ref()));
    set_list(&mut config, "noProxy", &proxy.no_proxy);
    config
}

fn profiles(facts: &Facts<'_>, pools: &[PoolFacts<'_>]) -> Result<Vec<Value>, RenderError> {
    if !pools.iter().any(|pool| pool.class.mode == MODE_SYSTEM) {
        let name = facts.plane.metadata.name.clone().unwrap_or_default();
        return Err(RenderError::NoSystemPool(name));
    }
    let mut profiles = pools
        .iter()
        .map(|pool| Ok(agent_pool::profile(&agent_pool::agent_pool(facts, pool)?)))
        .collect::<Result<Vec<_>, RenderError>>()?;
    profiles.sort_by(|left, right| left["name"].as_str().cmp(&right["name"].as_str()));
    Ok(profiles)
}

/// AKS names these settings as the autoscaler names its flags.
fn autoscaler_profile(profile: &AutoscalerProfile) -> Value {
    let fields = json!(profile);
    let flags: Map<String, Value> = fields
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| (dashed(name), value.clone()))
        .collect();
    flags.into()
}

fn dashed(name: &str) -> String {
    let mut flag = String::with_capacity(name.len() + 6);
    for character in name.chars() {
        if character.is_ascii_uppercase() {
            flag.push('-');
        }
        flag.push(character.to_ascii_lowercase());
    }
    flag
}

fn identity(class: &ControlPlaneClass) -> Value {
    let identity = class.identity.as_ref();
    let kind = identity
        .and_then(|identity| text(identity.type_.as_ref()))
        .unwrap_or("SystemAssigned");
    let mut body = json!({"type": kind});
    let id = identity.and_then(|identity| text(identity.user_assigned_identity_resource_id.as_ref()));
    if let Some(id) = id.filter(|_| kind == "UserAssigned") {
        body["userAssignedIdentities"] = json!([{"reference": {"armId": id}}]);
    }
    body
}

fn linux_profile(facts: &Facts<'_>) -> Result<Option<Value>, RenderError> {
    let Some(key) = text(facts.plane.spec.ssh_public_key.as_ref()) else {
        return Ok(None);
    };
    let decoded = STANDARD.decode(key).map_err(|_| RenderError::SshKey)?;
    let decoded = String::from_utf8(decoded).map_err(|_| RenderError::SshKey)?;
    Ok(Some(
        json!({"adminUsername": "azureuser", "ssh": {"publicKeys": [{"keyData": decoded}]}}),
    ))
}

fn network_profile(facts: &Facts<'_>) -> Result<Value, RenderError> {
    let class = &facts.plane.spec.class;
    let mut profile = json!({});
    set(&mut profile, "networkPlugin", text(class.network_plugin.as_ref()));
    set(
        &mut profile,
        "networkPluginMode",
        text(class.network_plugin_mode.as_ref()),
    );
    set(&mut profile, "networkPolicy", text(class.network_policy.as_ref()));
    set(
        &mut profile,
        "networkDataplane",
        text(class.network_dataplane.as_ref()),
    );
    set(
        &mut profile,
        "loadBalancerSku",
        text(class.load_balancer_sku.as_ref()).map(str::to_lowercase),
    );
    set(&mut profile, "outboundType", text(class.outbound_type.as_ref()));
    set(
        &mut profile,
        "loadBalancerProfile",
        class.load_balancer_profile.as_ref().map(load_balancer),
    );
    set(&mut profile, "podCidr", facts.pods);
    if let Some(services) = facts.services {
        let range = Range::parse(services).ok_or_else(|| RenderError::ServiceRange(services.to_owned()))?;
        profile["serviceCidr"] = services.into();
        let tenth = range.tenth().to_string();
        profile["dnsServiceIP"] = text(class.dns_service_ip.as_ref()).unwrap_or(&tenth).into();
    }
    Ok(profile)
}

fn load_balancer(profile: &LoadBalancerProfile) -> Value {
    let references =
        |ids: &[String]| -> Value { ids.iter().map(|id| json!({"reference": {"armId": id}})).collect() };
    let mut body = json!({});
    set(
        &mut body,
        "allocatedOutboundPorts",
        profile.allocated_outbound_ports,
    );
    set(&mut body, "idleTimeoutInMinutes", profile.idle_timeout_in_minutes);
    if let Some(count) = profile.managed_outbound_ips {
        body["managedOutboundIPs"] = json!({"count": count});
    }
    if !profile.outbound_ip_prefixes.is_empty() {
        body["outboundIPPrefixes"] = json!({"publicIPPrefixes": references(&profile.outbound_ip_prefixes)});
    }
    if !profile.outbound_ips.is_empty() {
        body["outboundIPs"] = json!({"publicIPs": references(&profile.outbound_ips)});
    }
    body
}

fn security_profile(profile: &SecurityProfile) -> Value {
    let mut body = json!({});
    if let Some(kms) = &profile.azure_key_vault_kms {
        let mut part = json!({"enabled": kms.enabled, "keyId": kms.key_id});
        set(
            &mut part,
            "keyVaultNetworkAccess",
            text(kms.key_vault_network_access.as_ref()),
        );
        if let Some(id) = text(kms.key_vault_resource_id.as_ref()) {
            part["keyVaultResourceReference"] = json!({"armId": id});
        }
        body["azureKeyVaultKms"] = part;
    }
    if let Some(defender) = &profile.defender {
        body["defender"] = json!({
            "logAnalyticsWorkspaceResourceReference": {"armId": defender.log_analytics_workspace_resource_id},
            "securityMonitoring": {"enabled": defender.security_monitoring.enabled},
        });
    }
    if let Some(cleaner) = &profile.image_cleaner {
        let mut part = json!({"enabled": cleaner.enabled});
        set(&mut part, "intervalHours", cleaner.interval_hours);
        body["imageCleaner"] = part;
    }
    if let Some(workload) = &profile.workload_identity {
        body["workloadIdentity"] = json!({"enabled": workload.enabled});
    }
    body
}
