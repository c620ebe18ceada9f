//! The machines behind pools: scale sets, their instances, the nodes they become, and the quota they eat.

use serde_json::{Map, Value, json};

use super::{CLUSTER, POOL, pool::ClusterFacts};
use crate::{arm_id::ArmId, azure::Azure, error_response::ErrorResponse, store::Resource};

/// One node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub provider_id: String,
    pub pool: String,
    pub mode: String,
    pub vm_size: String,
    pub os_type: String,
    pub version: String,
    pub image: String,
    pub zone: Option<String>,
    pub address: String,
    pub location: String,
    pub node_group: String,
    pub labels: Vec<(String, String)>,
    /// As AKS spells them: `key=value:Effect`.
    pub taints: Vec<String>,
}

/// Gives a new pool the digits its scale set is named with: the same for all pools of a cluster.
pub fn name_scale_set(azure: &Azure, facts: &ClusterFacts<'_>, hidden: &mut Map<String, Value>) {
    let sum = facts
        .name
        .bytes()
        .fold(azure.state().counter.wrapping_mul(2_654_435_761), |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
        });
    hidden.insert("suffix".to_owned(), format!("{:08}", sum % 100_000_000).into());
    hidden.insert("instances".to_owned(), json!([]));
    hidden.insert("nextInstance".to_owned(), 0.into());
}

fn scale_set_name(pool: &Resource) -> String {
    let suffix = pool
        .hidden
        .get("suffix")
        .and_then(Value::as_str)
        .unwrap_or("00000000");
    if pool.text("osType") == "Windows" {
        return format!("aks{}", pool.name());
    }
    format!("aks-{}-{suffix}-vmss", pool.name())
}

fn instances(pool: &Resource) -> Vec<u64> {
    pool.hidden
        .get("instances")
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_u64).collect())
        .unwrap_or_default()
}

/// Brings the instances of a pool to its count: new ones get new numbers, the youngest go first.
pub fn follow_count(pool: &mut Resource) {
    let is_stopped = super::at(pool.properties(), &["powerState", "code"]) == Some(&json!("Stopped"));
    let desired = if is_stopped {
        0
    } else {
        super::pool::count(pool.properties()) as usize
    };
    let mut own = instances(pool);
    let mut next = pool
        .hidden
        .get("nextInstance")
        .and_then(Value::as_u64)
        .unwrap_or(0);
    own.truncate(desired);
    while own.len() < desired {
        own.push(next);
        next += 1;
    }
    pool.hidden.insert("instances".to_owned(), json!(own));
    pool.hidden.insert("nextInstance".to_owned(), next.into());
}

/// Gives a pool another count, as the cluster autoscaler does.
pub fn set_count(azure: &mut Azure, pool: &str, count: u64) -> bool {
    let key = pool.to_ascii_lowercase();
    let Some(pool) = azure
        .state
        .resources
        .by_key_mut(&key)
        .filter(|pool| pool.kind == POOL)
    else {
        return false;
    };
    pool.properties_mut().insert("count".to_owned(), count.into());
    follow_count(pool);
    let cluster = pool.arm_id().parent();
    if let Some(cluster) = cluster {
        azure.note_change(cluster.key());
    }
    true
}

/// AKS adds a machine to a pool that it upgrades, and takes it away in the end.
pub fn surge(pool: &mut Resource) {
    let is_stopped = super::at(pool.properties(), &["powerState", "code"]) == Some(&json!("Stopped"));
    let mut own = instances(pool);
    if is_stopped || own.is_empty() || pool.hidden.contains_key("surge") {
        return;
    }
    let next = pool
        .hidden
        .get("nextInstance")
        .and_then(Value::as_u64)
        .unwrap_or(0);
    own.push(next);
    pool.hidden.insert("instances".to_owned(), json!(own));
    pool.hidden.insert("nextInstance".to_owned(), (next + 1).into());
    pool.hidden.insert("surge".to_owned(), next.into());
}

/// The machine that was added for an upgrade goes.
pub fn end_surge(pool: &mut Resource) {
    let Some(surge) = pool.hidden.remove("surge").and_then(|surge| surge.as_u64()) else {
        return;
    };
    let mut own = instances(pool);
    own.retain(|instance| *instance != surge);
    pool.hidden.insert("instances".to_owned(), json!(own));
}

/// Gives one machine another power state, as somebody does who stops it.
pub fn set_power(azure: &mut Azure, pool: &str, instance: u64, power: &str) -> bool {
    let key = pool.to_ascii_lowercase();
    let Some(pool) = azure
        .state
        .resources
        .by_key_mut(&key)
        .filter(|pool| pool.kind == POOL && instances(pool).contains(&instance))
    else {
        return false;
    };
    let states = crate::store::object_mut(&mut pool.hidden, "power");
    states.insert(instance.to_string(), power.into());
    true
}

fn address(instance: u64) -> String {
    format!("10.224.{}.{}", instance / 250, instance % 250 + 4)
}

/// How many machines a pool has.
pub fn how_many(pool: &Resource) -> usize {
    instances(pool).len()
}

/// Takes single machines out of a pool by instance number.
pub fn remove_instances(pool: &mut Resource, gone: &[u64]) {
    let own: Vec<u64> = instances(pool)
        .into_iter()
        .filter(|instance| !gone.contains(instance))
        .collect();
    let count = own.len();
    pool.hidden.insert("instances".to_owned(), json!(own));
    pool.properties_mut().insert("count".to_owned(), count.into());
}

/// Instance numbers in base 36, six digits: how nodes are named.
fn node_suffix(instance: u64) -> String {
    let mut digits = Vec::new();
    let mut rest = instance;
    for _ in 0..6 {
        digits.push(char::from_digit((rest % 36) as u32, 36).unwrap_or('0'));
        rest /= 36;
    }
    digits.iter().rev().collect()
}

fn node_group(cluster: &Resource) -> String {
    cluster.text("nodeResourceGroup").to_owned()
}

/// The nodes a cluster has at this moment.
pub fn nodes_of(azure: &Azure, cluster: &str) -> Vec<Node> {
    let resources = &azure.state().resources;
    let Some(cluster) = resources.by_key(&cluster.to_ascii_lowercase()) else {
        return Vec::new();
    };
    let group = node_group(cluster);
    let id = cluster.arm_id();
    resources
        .of_kind(&id.key(), POOL)
        .into_iter()
        .filter(|pool| pool.state != "Creating")
        .flat_map(|pool| {
            let set = scale_set_name(pool);
            let zones: Vec<String> = pool
                .properties()
                .get("availabilityZones")
                .and_then(Value::as_array)
                .map(|zones| zones.iter().filter_map(|zone| zone.as_str().map(str::to_owned)).collect())
                .unwrap_or_default();
            let texts = |key: &str| {
                pool.properties()
                    .get(key)
                    .and_then(Value::as_array)
                    .map(|list| list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect())
                    .unwrap_or_default()
            };
            let labels = pool
                .properties()
                .get("nodeLabels")
                .and_then(Value::as_object)
                .map(|labels| {
                    labels
                        .iter()
                        .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
                        .collect()
                })
                .unwrap_or_default();
            let base = Node {
                name: String::new(),
                provider_id: String::new(),
                pool: pool.name().to_owned(),
                mode: pool.text("mode").to_owned(),
                vm_size: pool.text("vmSize").to_owned(),
                os_type: pool.text("osType").to_owned(),
                version: pool.text("currentOrchestratorVersion").to_owned(),
                image: pool.text("nodeImageVersion").to_owned(),
                zone: None,
                address: String::new(),
                location: cluster.location().to_owned(),
                node_group: group.clone(),
                labels,
                taints: texts("nodeTaints"),
            };
            let provider = format!(
                "azure:///subscriptions/{}/resourceGroups/{}/providers/Microsoft.Compute/virtualMachineScaleSets/{set}/virtualMachines",
                id.subscription,
                group.to_ascii_lowercase()
            );
            instances(pool)
                .into_iter()
                .map(|instance| Node {
                    name: format!("{set}{}", node_suffix(instance)),
                    provider_id: format!("{provider}/{instance}"),
                    address: address(instance),
                    zone: (!zones.is_empty())
                        .then(|| zones[instance as usize % zones.len()].clone()),
                    ..base.clone()
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The clusters whose nodes live in a resource group.
fn clusters_in<'a>(azure: &'a Azure, id: &ArmId) -> Vec<&'a Resource> {
    let Some(group) = &id.group else {
        return Vec::new();
    };
    let key = format!("/subscriptions/{}", id.subscription.to_ascii_lowercase());
    azure
        .state()
        .resources
        .of_kind(&key, CLUSTER)
        .into_iter()
        .filter(|cluster| node_group(cluster).eq_ignore_ascii_case(group))
        .collect()
}

/// Scale sets of a node resource group, as compute shows them.
pub fn scale_sets(azure: &Azure, group: &ArmId) -> Vec<Value> {
    clusters_in(azure, group)
        .into_iter()
        .flat_map(|cluster| {
            let key = cluster.id.to_ascii_lowercase();
            azure
                .state()
                .resources
                .of_kind(&key, POOL)
                .into_iter()
                .filter(|pool| pool.state != "Creating" && pool.text("type") == "VirtualMachineScaleSets")
                .map(|pool| shown_scale_set(cluster, pool))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn scale_set_id(cluster: &Resource, pool: &Resource) -> String {
    format!(
        "/subscriptions/{}/resourceGroups/{}/providers/Microsoft.Compute/virtualMachineScaleSets/{}",
        cluster.arm_id().subscription,
        node_group(cluster),
        scale_set_name(pool)
    )
}

fn shown_scale_set(cluster: &Resource, pool: &Resource) -> Value {
    json!({
        "name": scale_set_name(pool),
        "id": scale_set_id(cluster, pool),
        "type": "Microsoft.Compute/virtualMachineScaleSets",
        "location": cluster.location(),
        "tags": {
            "aks-managed-poolName": pool.name(),
            "aks-managed-orchestrator": format!("Kubernetes:{}", pool.text("currentOrchestratorVersion")),
            "aks-managed-resourceNameSuffix": pool.hidden.get("suffix"),
            "poolName": pool.name(),
        },
        "sku": {"name": pool.text("vmSize"), "tier": "Standard", "capacity": instances(pool).len()},
        "properties": {
            "singlePlacementGroup": false,
            "orchestrationMode": "Uniform",
            "upgradePolicy": {"mode": "Manual"},
            "provisioningState": "Succeeded",
            "overprovision": false,
            "uniqueId": pool.etag,
        },
    })
}

/// One scale set by id.
pub fn scale_set(azure: &Azure, id: &ArmId) -> Option<Value> {
    if !id
        .type_path()
        .eq_ignore_ascii_case("Microsoft.Compute/virtualMachineScaleSets")
    {
        return None;
    }
    scale_sets(azure, id).into_iter().find(|set| {
        set["name"]
            .as_str()
            .is_some_and(|name| name.eq_ignore_ascii_case(id.name()))
    })
}

/// What compute says of a machine that was asked for with its view.
fn instance_view(pool: &Resource, instance: u64) -> Value {
    let states = pool.hidden.get("power").and_then(Value::as_object);
    let power = states
        .and_then(|states| states.get(&instance.to_string())?.as_str())
        .unwrap_or("running");
    json!({"statuses": [
        {"code": "ProvisioningState/succeeded", "level": "Info", "displayStatus": "Provisioning succeeded"},
        {"code": format!("PowerState/{power}"), "level": "Info", "displayStatus": format!("VM {power}")},
    ]})
}

/// The machines of one scale set; `viewed`: with how each runs.
pub fn machines(azure: &Azure, set: &ArmId, viewed: bool) -> Vec<Value> {
    let mut found = Vec::new();
    for cluster in clusters_in(azure, set) {
        for pool in azure
            .state()
            .resources
            .of_kind(&cluster.id.to_ascii_lowercase(), POOL)
        {
            if !scale_set_name(pool).eq_ignore_ascii_case(set.name()) {
                continue;
            }
            let id = scale_set_id(cluster, pool);
            let zones = pool
                .properties()
                .get("availabilityZones")
                .and_then(Value::as_array);
            let zones = zones.filter(|zones| !zones.is_empty());
            found.extend(instances(pool).into_iter().map(|instance| {
                let mut machine = json!({
                    "name": format!("{}_{instance}", scale_set_name(pool)),
                    "id": format!("{id}/virtualMachines/{instance}"),
                    "type": "Microsoft.Compute/virtualMachineScaleSets/virtualMachines",
                    "location": cluster.location(),
                    "instanceId": instance.to_string(),
                    "sku": {"name": pool.text("vmSize"), "tier": "Standard"},
                    "tags": {"aks-managed-poolName": pool.name(), "poolName": pool.name()},
                    "properties": {
                        "latestModelApplied": true,
                        "vmId": uuid::Uuid::new_v5(
                            &uuid::Uuid::NAMESPACE_OID,
                            format!("{id}/{instance}").as_bytes()
                        )
                        .to_string(),
                        "hardwareProfile": {"vmSize": pool.text("vmSize")},
                        "osProfile": {"computerName": format!("{}{}", scale_set_name(pool), node_suffix(instance))},
                        "provisioningState": "Succeeded",
                    },
                });
                if let Some(zones) = zones {
                    machine["zones"] = json!([zones[instance as usize % zones.len()]]);
                }
                if viewed {
                    machine["properties"]["instanceView"] = instance_view(pool, instance);
                }
                machine
            }));
        }
    }
    found
}

/// The machines of a pool, as AKS lists them.
pub fn pool_machines(azure: &Azure, pool_id: &ArmId) -> Vec<Value> {
    let Some(pool) = azure.state().resources.get(pool_id) else {
        return Vec::new();
    };
    let Some(cluster) = pool_id.parent().and_then(|id| azure.state().resources.get(&id)) else {
        return Vec::new();
    };
    let set = scale_set_id(cluster, pool);
    instances(pool)
        .into_iter()
        .map(|instance| {
            let name = format!("{}_{instance}", scale_set_name(pool));
            json!({
                "id": format!("{}/machines/{name}", pool_id.aks_spelling()),
                "name": name,
                "type": "Microsoft.ContainerService/managedClusters/agentPools/machines",
                "properties": {
                    "network": {"ipAddresses": [{"family": "IPv4", "ip": address(instance)}]},
                    "resourceId": format!("{set}/virtualMachines/{instance}"),
                },
            })
        })
        .collect()
}

/// The node resource group goes with its cluster.
pub fn remove_node_group(azure: &mut Azure, cluster: &Resource) {
    let id = ArmId::resource_group(&cluster.arm_id().subscription, &node_group(cluster));
    azure.remove(&id.key());
}

/// vCPUs of a machine size: the first number in its name.
pub fn cpus(size: &str) -> u64 {
    let digits: String = size
        .chars()
        .skip_while(|char| !char.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap_or(2)
}

/// Refuses machines a location has no quota for. `planned` replaces pools with the same id.
pub fn check_quota(
    azure: &Azure,
    cluster: &ArmId,
    planned: &[(ArmId, &Map<String, Value>)],
) -> Result<(), ErrorResponse> {
    let location = azure.location_of(cluster);
    let Some(quota) = azure.settings.cpu_quota.get(&location) else {
        return Ok(());
    };
    let cost = |properties: &Map<String, Value>| {
        let size = properties
            .get("vmSize")
            .and_then(Value::as_str)
            .unwrap_or_default();
        cpus(size) * super::pool::count(properties)
    };
    let subscription = format!("/subscriptions/{}", cluster.subscription.to_ascii_lowercase());
    let used: u64 = azure
        .state()
        .resources
        .of_kind(&subscription, POOL)
        .into_iter()
        .filter(|pool| azure.location_of(&pool.arm_id()) == location)
        .filter(|pool| {
            !planned
                .iter()
                .any(|(id, _)| id.key() == pool.id.to_ascii_lowercase())
        })
        .map(|pool| cost(pool.properties()))
        .sum();
    let desired: u64 = planned.iter().map(|(_, properties)| cost(properties)).sum();
    let left = quota.saturating_sub(used);
    if desired <= left {
        return Ok(());
    }
    Err(ErrorResponse::aks(
        400,
        "ErrCode_InsufficientVCPUQuota",
        format!(
            "Insufficient vcpu quota requested {desired}, remaining {left} for family standardDSv2Family for region {location}. To resolve, please visit https://aka.ms/aks/insufficientvcpuquota to request a quota increase."
        ),
    ))
}
