//! A node pool of AKS.

use serde_json::{Value, json};

use super::{Facts, PoolFacts, RenderError, api_version, ids, patch, set, set_list, text};
use crate::{
    api::{KubeletConfig, LinuxOsConfig, MODE_SYSTEM},
    pool::admit::price,
    version::{self, without_v},
};

/// Names of the API that AKS spells otherwise.
const RENAMED: &[(&str, &str)] = &[
    ("netIpv4IPLocalPortRange", "netIpv4IpLocalPortRange"),
    ("netIpv4TCPFinTimeout", "netIpv4TcpFinTimeout"),
    ("netIpv4TCPKeepaliveProbes", "netIpv4TcpKeepaliveProbes"),
    ("netIpv4TCPKeepaliveTime", "netIpv4TcpKeepaliveTime"),
    ("netIpv4TCPMaxSynBacklog", "netIpv4TcpMaxSynBacklog"),
    ("netIpv4TCPMaxTwBuckets", "netIpv4TcpMaxTwBuckets"),
    ("netIpv4TCPTwReuse", "netIpv4TcpTwReuse"),
    ("netIpv4TCPkeepaliveIntvl", "netIpv4TcpkeepaliveIntvl"),
];

/// The version of a pool: what its MachinePool asks for, never below what AKS already runs. `None`: AKS decides.
pub fn desired_version(facts: &Facts<'_>, pool: &PoolFacts<'_>) -> Result<Option<String>, RenderError> {
    let existing = pool
        .existing
        .and_then(|body| body.pointer("/properties/orchestratorVersion"))
        .and_then(Value::as_str)
        .filter(|version| !version.is_empty());
    let desired = pool.version.map(without_v).filter(|version| !version.is_empty());
    if let Some(desired) = desired {
        let status = facts.plane.status.as_ref();
        let running = status
            .and_then(|status| status.version.as_deref())
            .unwrap_or_default();
        let control_plane = version::newer(&facts.plane.spec.class.version, running);
        if version::compare(desired, control_plane).is_gt() {
            return Err(RenderError::PoolAboveControlPlane {
                pool: pool.azure_name.to_owned(),
                desired: desired.to_owned(),
                control_plane: control_plane.to_owned(),
            });
        }
    }
    Ok(match (desired, existing) {
        (Some(desired), Some(existing)) => Some(version::newer(desired, existing).to_owned()),
        (desired, existing) => desired.or(existing).map(str::to_owned),
    })
}

/// How many nodes to ask for: the MachinePool's number, or AKS's own where AKS scales. The last node of a system pool
/// is never asked away: AKS would refuse.
fn count(pool: &PoolFacts<'_>) -> i64 {
    let existing = pool
        .existing
        .and_then(|body| body.pointer("/properties/count"))
        .and_then(Value::as_i64);
    let fewest = i64::from(pool.class.mode == MODE_SYSTEM);
    let Some(scaling) = &pool.class.scaling else {
        return i64::from(pool.replicas).max(fewest);
    };
    let least = scaling.min_size.unwrap_or(0).max(fewest);
    let most = scaling.max_size.unwrap_or(i64::MAX).max(least);
    // Bounds that moved past AKS's own count take it along: AKS refuses a count outside of them.
    existing.unwrap_or(i64::from(pool.replicas)).clamp(least, most)
}

/// The pool as an object of its own.
pub fn agent_pool(facts: &Facts<'_>, pool: &PoolFacts<'_>) -> Result<Value, RenderError> {
    let class = pool.class;
    let network = &facts.plane.spec.class.virtual_network;
    let subnet = text(class.subnet_name.as_ref()).unwrap_or(&network.subnet.name);
    let mut spec = json!({
        "azureName": pool.azure_name,
        "owner": {"armId": ids::managed_cluster(facts)},
        "count": count(pool),
        "enableAutoScaling": class.scaling.is_some(),
        "mode": class.mode,
        "type": "VirtualMachineScaleSets",
        "vmSize": class.sku,
        "vnetSubnetReference": {"armId": ids::subnet(facts, subnet)},
    });
    let body = &mut spec;
    if let Some(scaling) = &class.scaling {
        set(body, "minCount", scaling.min_size);
        set(body, "maxCount", scaling.max_size);
    }
    set_list(body, "availabilityZones", &class.availability_zones);
    if !class.node_labels.is_empty() {
        body["nodeLabels"] = json!(class.node_labels);
    }
    if !class.taints.is_empty() {
        body["nodeTaints"] = class
            .taints
            .iter()
            .map(|taint| Value::from(format!("{}={}:{}", taint.key, taint.value, taint.effect)))
            .collect();
    }
    let mut tags = facts.plane.spec.class.additional_tags.clone();
    tags.extend(class.additional_tags.clone());
    if !tags.is_empty() {
        body["tags"] = json!(tags);
    }
    set(body, "maxPods", class.max_pods);
    set(body, "osDiskSizeGB", class.os_disk_size_gb);
    set(body, "osDiskType", text(class.os_disk_type.as_ref()));
    set(body, "osType", text(class.os_type.as_ref()));
    set(body, "enableUltraSSD", class.enable_ultra_ssd);
    set(body, "enableNodePublicIP", class.enable_node_public_ip);
    set(body, "enableFIPS", class.enable_fips);
    set(body, "enableEncryptionAtHost", class.enable_encryption_at_host);
    set(body, "kubeletDiskType", text(class.kubelet_disk_type.as_ref()));
    set(body, "scaleSetPriority", text(class.scale_set_priority.as_ref()));
    set(body, "scaleDownMode", text(class.scale_down_mode.as_ref()));
    set(
        body,
        "spotMaxPrice",
        class.spot_max_price.as_ref().and_then(price),
    );
    set(body, "orchestratorVersion", desired_version(facts, pool)?);
    if let Some(id) = text(class.node_public_ip_prefix_id.as_ref()) {
        body["nodePublicIPPrefixReference"] = json!({"armId": id});
    }
    set(body, "kubeletConfig", class.kubelet_config.as_ref().map(kubelet));
    set(body, "linuxOSConfig", class.linux_os_config.as_ref().map(linux));
    let mut manifest = json!({
        "apiVersion": api_version(facts.plane),
        "kind": "ManagedClustersAgentPool",
        "metadata": {"name": pool.azure_name},
        "spec": spec,
    });
    patch::apply(
        &mut manifest,
        "spec.asoManagedClustersAgentPoolPatches",
        &class.aso_managed_clusters_agent_pool_patches,
    )?;
    Ok(manifest)
}

/// The same pool as a profile inside the cluster's own body, which is how AKS takes pools at creation.
pub fn profile(manifest: &Value) -> Value {
    let mut profile = manifest["spec"].clone();
    if let Some(fields) = profile.as_object_mut() {
        let name = fields.remove("azureName");
        for not_in_a_profile in ["owner", "operatorSpec"] {
            fields.remove(not_in_a_profile);
        }
        fields.insert("name".to_owned(), name.unwrap_or_default());
    }
    profile
}

fn kubelet(config: &KubeletConfig) -> Value {
    json!(config)
}

fn linux(config: &LinuxOsConfig) -> Value {
    let mut body = json!(config);
    if let Some(Value::Object(sysctls)) = body.get_mut("sysctls") {
        for (ours, theirs) in RENAMED {
            if let Some(value) = sysctls.remove(*ours) {
                sysctls.insert((*theirs).to_owned(), value);
            }
        }
    }
    body
}
