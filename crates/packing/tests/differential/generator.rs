//! Random small clusters in the workload format: pools, priced instance types, nodes with what runs on them, daemons and
//! volumes. The pods that wait come from `pods`.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::pods;
use super::random::Random;

pub const ZONE: &str = "topology.kubernetes.io/zone";
pub const HOSTNAME: &str = "kubernetes.io/hostname";
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
pub const TYPE: &str = "node.kubernetes.io/instance-type";
pub const ARCH: &str = "kubernetes.io/arch";
pub const CPUS: &str = "example.com/cpus";
pub const FAMILY: &str = "example.com/family";
pub const RACK: &str = "example.com/rack";
pub const TEAM: &str = "example.com/team";
pub const DRIVER: &str = "disk.csi.example";
pub const ZONES: [&str; 3] = ["zone-1", "zone-2", "zone-3"];

/// What a workload exercises. Each is drawn on its own, so that a difference can be traced to few of them.
pub const FEATURES: [&str; 20] = [
    "pool-requirements",
    "pool-taints",
    "limits",
    "min-values",
    "unavailable",
    "nodes",
    "daemons",
    "node-selector",
    "node-affinity",
    "preferred-node-affinity",
    "tolerations",
    "zone-spread",
    "host-spread",
    "rack-spread",
    "pod-affinity",
    "pod-anti-affinity",
    "preferred-pod-affinity",
    "ports",
    "volumes",
    "containers",
];

/// What later seeds exercise besides. Earlier ones stay what they were, and with them what is recorded.
pub const LATER_FEATURES: [&str; 4] = ["reservations", "node-limits", "unmanaged", "leaving"];
pub const LATER_FROM: u64 = 1_000_000;
pub const RESERVATION: &str = "karpenter.sh/reservation-id";

pub struct Generated {
    pub workload: Value,
    pub features: BTreeSet<&'static str>,
}

pub fn requirement(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": operator, "values": values})
}

pub fn generate(seed: u64) -> Generated {
    let random = &mut Random::new(seed);
    let density = random.pick(&[10, 25, 40]);
    let features: BTreeSet<&'static str> = FEATURES.into_iter().filter(|_| random.chance(density)).collect();
    let types = instance_types(random, &features);
    let pools = pools(random, &features);
    let mut by_pool = Map::new();
    for pool in &pools {
        let name = pool["metadata"]["name"].as_str().unwrap_or_default();
        let offered = if random.chance(70) {
            types.clone()
        } else {
            random.some(&types)
        };
        by_pool.insert(name.to_owned(), Value::Array(offered));
    }
    let mut workload = json!({
        "nodePools": pools,
        "instanceTypes": by_pool,
        "namespaces": [
            {"metadata": {"name": "default", "labels": {"tier": "front"}}},
            {"metadata": {"name": "other", "labels": {"tier": "back"}}},
        ],
        "options": {
            "wellKnownLabels": [CPUS, FAMILY],
            "preferencePolicy": if random.chance(10) { "Ignore" } else { "Respect" },
            "minValuesPolicy": if random.chance(20) { "BestEffort" } else { "Strict" },
        },
    });
    if features.contains("volumes") {
        volumes(random, &mut workload);
    }
    if features.contains("daemons") {
        workload["daemonSets"] = daemons(random);
    }
    if features.contains("nodes") {
        nodes(random, &types, &features, &mut workload);
    }
    workload["pods"] = Value::Array(pods::waiting(random, &features));
    let mut features = features;
    if seed >= LATER_FROM {
        later(random, &mut features, &mut workload);
    }
    Generated { workload, features }
}

fn later(random: &mut Random, features: &mut BTreeSet<&'static str>, workload: &mut Value) {
    features.extend(LATER_FEATURES.into_iter().filter(|_| random.chance(30)));
    if features.contains("reservations") {
        reservations(random, workload);
    }
    if features.contains("node-limits") {
        for pool in workload["nodePools"].as_array_mut().into_iter().flatten() {
            if random.chance(60) {
                pool["spec"]["limits"]["nodes"] = json!(random.between(0, 6).to_string());
            }
        }
    }
    let names = |workload: &Value| -> Vec<Value> {
        let nodes = workload["nodes"].as_array().into_iter().flatten();
        nodes.map(|node| node["metadata"]["name"].clone()).collect()
    };
    if features.contains("leaving") {
        let all = names(workload);
        if !all.is_empty() {
            workload["deletingNodes"] = Value::Array(random.some(&all));
        }
    }
    if features.contains("unmanaged") {
        unmanaged(random, workload);
    }
}

/// Some types are also offered out of reservations, which several types and zones may share.
fn reservations(random: &mut Random, workload: &mut Value) {
    if let Some(known) = workload["options"]["wellKnownLabels"].as_array_mut() {
        known.push(json!(RESERVATION));
    }
    let room: Vec<usize> = (0..3).map(|_| random.between(0, 3)).collect();
    // The same types are offered by several pools: what is reserved is reserved for all of them.
    let mut chosen: Map<String, Value> = Map::new();
    for kinds in workload["instanceTypes"]
        .as_object_mut()
        .into_iter()
        .flat_map(|pools| pools.values_mut())
    {
        for kind in kinds.as_array_mut().into_iter().flatten() {
            let name = kind["name"].as_str().unwrap_or_default().to_owned();
            if !chosen.contains_key(&name) {
                let zones = kind["requirements"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .find(|own| own["key"] == ZONE)
                    .and_then(|own| own["values"].as_array().cloned())
                    .unwrap_or_default();
                let offered = if random.chance(35) && !zones.is_empty() {
                    let number = random.between(0, room.len() - 1);
                    json!({"id": format!("reservation-{number}"), "room": room[number], "zone": random.pick(&zones)})
                } else {
                    Value::Null
                };
                chosen.insert(name.clone(), offered);
            }
            let reserved = &chosen[&name];
            if reserved.is_null() {
                continue;
            }
            let id = reserved["id"].as_str().unwrap_or_default();
            if let Some(requirements) = kind["requirements"].as_array_mut() {
                for own in requirements.iter_mut().filter(|own| own["key"] == CAPACITY_TYPE) {
                    if let Some(values) = own["values"].as_array_mut() {
                        values.push(json!("reserved"));
                    }
                }
                requirements.push(requirement(RESERVATION, "In", &[id]));
            }
            if let Some(offerings) = kind["offerings"].as_array_mut() {
                offerings.push(json!({
                    "requirements": [
                        requirement(ZONE, "In", &[reserved["zone"].as_str().unwrap_or_default()]),
                        requirement(CAPACITY_TYPE, "In", &["reserved"]),
                        requirement(RESERVATION, "In", &[id]),
                    ],
                    "price": 0.000_001,
                    "available": true,
                    "reservationCapacity": reserved["room"],
                }));
            }
        }
    }
}

/// Nodes nobody here made: they have no claim and belong to no pool.
fn unmanaged(random: &mut Random, workload: &mut Value) {
    for index in 0..random.between(1, 3) {
        let name = format!("node-own-{index}");
        let cpus = random.pick(&[1, 4, 8]);
        let amounts = json!({"cpu": cpus.to_string(), "memory": format!("{}Gi", cpus * 4), "pods": "30",
                             "ephemeral-storage": "40Gi"});
        let mut node = json!({
            "metadata": {"name": name, "uid": name, "labels": {
                HOSTNAME: name, ZONE: random.pick(&ZONES), ARCH: "amd64", "kubernetes.io/os": "linux"}},
            "spec": {"providerID": format!("elsewhere://{index}")},
            "status": {"capacity": amounts, "allocatable": amounts,
                       "conditions": [{"type": "Ready", "status": "True"}]},
        });
        if random.chance(30) {
            node["spec"]["taints"] = json!([{"key": "dedicated", "value": "a", "effect": "NoSchedule"}]);
        }
        match workload["nodes"].as_array_mut() {
            Some(nodes) => nodes.push(node),
            None => workload["nodes"] = json!([node]),
        }
    }
}

fn instance_types(random: &mut Random, features: &BTreeSet<&str>) -> Vec<Value> {
    let zones = &ZONES[..random.between(1, 3)];
    // With equal prices everywhere the cost does not depend on how Karpenter breaks a tie between zones.
    let zone_price = if random.chance(30) { 0.0003 } else { 0.0 };
    (0..random.between(3, 20))
        .map(|index| {
            let cpus = random.pick(&[1, 2, 4, 8, 16]);
            let family = random.pick(&["compute", "general", "memory"]);
            let memory = cpus
                * match family {
                    "compute" => 2,
                    "general" => 4,
                    _ => 8,
                };
            let arch = if random.chance(85) { "amd64" } else { "arm64" };
            let zones = if random.chance(75) {
                zones.to_vec()
            } else {
                random.some(zones)
            };
            let capacity_types: &[&str] = if random.chance(70) {
                &["spot", "on-demand"]
            } else {
                &["on-demand"]
            };
            let base = f64::from(cpus) * 0.04 + f64::from(memory) * 0.005 + index as f64 * 0.0011;
            let mut offerings = Vec::new();
            for (place, zone) in zones.iter().enumerate() {
                for capacity_type in capacity_types {
                    let share = if *capacity_type == "spot" { 0.37 } else { 1.0 };
                    offerings.push(json!({
                        "requirements": [
                            requirement(ZONE, "In", &[zone]),
                            requirement(CAPACITY_TYPE, "In", &[capacity_type]),
                        ],
                        "price": ((base * share + place as f64 * zone_price) * 1e6).round() / 1e6,
                        "available": !(features.contains("unavailable") && random.chance(25)),
                    }));
                }
            }
            let name = format!("t{index}");
            let mut capacity = json!({
                "cpu": cpus.to_string(),
                "memory": format!("{memory}Gi"),
                "pods": random.pick(&[5, 12, 110]).to_string(),
                "ephemeral-storage": "40Gi",
            });
            if random.chance(20) {
                capacity["example.com/gpu"] = json!("2");
            }
            let mut kind = json!({
                "name": name,
                "requirements": [
                    requirement(TYPE, "In", &[&name]),
                    requirement(ARCH, "In", &[arch]),
                    requirement("kubernetes.io/os", "In", &["linux"]),
                    requirement(ZONE, "In", &zones),
                    requirement(CAPACITY_TYPE, "In", capacity_types),
                    requirement(CPUS, "In", &[&cpus.to_string()]),
                    requirement(FAMILY, "In", &[family]),
                ],
                "capacity": capacity,
                "overhead": {"kubeReserved": {"cpu": "80m", "memory": "200Mi"}},
                "offerings": offerings,
            });
            if features.contains("volumes") && random.chance(50) {
                kind["volumeAttachmentLimits"] = json!({DRIVER: random.between(1, 4)});
            }
            kind
        })
        .collect()
}

fn pools(random: &mut Random, features: &BTreeSet<&str>) -> Vec<Value> {
    (0..random.between(1, 3))
        .map(|index| {
            let mut requirements = Vec::new();
            if features.contains("pool-requirements") {
                if random.chance(40) {
                    requirements.push(requirement(CAPACITY_TYPE, "In", &random.some(&["spot", "on-demand"])));
                }
                if random.chance(30) {
                    requirements.push(requirement(ZONE, "In", &random.some(&ZONES)));
                }
                if random.chance(30) {
                    requirements.push(requirement(ARCH, "In", &["amd64"]));
                }
                if random.chance(30) {
                    let (operator, bound) = random.pick(&[("Gt", "1"), ("Lt", "16"), ("Gt", "3"), ("Lt", "9")]);
                    requirements.push(requirement(CPUS, operator, &[bound]));
                }
                if random.chance(25) {
                    requirements.push(requirement(FAMILY, random.pick(&["In", "NotIn"]), &["memory"]));
                }
            }
            if features.contains("min-values") {
                let key = random.pick(&[TYPE, FAMILY, CPUS]);
                if !requirements.iter().any(|own| own["key"] == key) {
                    let mut own = json!({"key": key, "operator": "Exists"});
                    own["minValues"] = json!(random.between(1, 3));
                    requirements.push(own);
                }
            }
            if features.contains("rack-spread") || random.chance(15) {
                requirements.push(requirement(RACK, "In", &random.some(&["r1", "r2", "r3"])));
            }
            let mut spec = json!({"requirements": requirements});
            if features.contains("pool-taints") {
                let mut taints = Vec::new();
                if random.chance(50) {
                    taints.push(json!({"key": "dedicated", "value": random.pick(&["a", "b"]), "effect": "NoSchedule"}));
                }
                if random.chance(30) {
                    taints.push(json!({"key": "soft", "value": "x", "effect": "PreferNoSchedule"}));
                }
                spec["taints"] = Value::Array(taints);
                if random.chance(30) {
                    spec["startupTaints"] = json!([{"key": "starting", "effect": "NoExecute"}]);
                }
            }
            let mut labels = Map::new();
            if random.chance(40) {
                labels.insert(TEAM.to_owned(), json!(random.pick(&["red", "blue"])));
            }
            let mut pool = json!({
                "metadata": {"name": format!("pool-{index}"), "uid": format!("pool-{index}")},
                "spec": {"template": {"metadata": {"labels": labels}, "spec": spec}},
            });
            if random.chance(60) {
                pool["spec"]["weight"] = json!(random.between(1, 100));
            }
            if features.contains("limits") {
                let limit = if random.chance(70) {
                    json!({"cpu": random.between(4, 40).to_string()})
                } else {
                    json!({"memory": format!("{}Gi", random.between(8, 120))})
                };
                pool["spec"]["limits"] = limit;
            }
            pool
        })
        .collect()
}

fn daemons(random: &mut Random) -> Value {
    let list: Vec<Value> = (0..random.between(1, 3))
        .map(|index| {
            let mut spec = json!({"containers": [{"name": "main", "resources": {"requests": {
                "cpu": random.pick(&["50m", "150m", "400m"]), "memory": "64Mi"}}}]});
            if random.chance(50) {
                spec["tolerations"] = json!([{"operator": "Exists"}]);
            }
            if random.chance(30) {
                spec["nodeSelector"] = json!({ARCH: "amd64"});
            }
            if random.chance(20) {
                spec["containers"][0]["ports"] = json!([{"containerPort": 9100, "hostPort": 9100}]);
            }
            if random.chance(25) {
                spec["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [
                        requirement(FAMILY, "NotIn", &[random.pick(&["compute", "general"])])]}]}}});
            }
            let name = format!("daemon-{index}");
            json!({
                "metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {"template": {"metadata": {"labels": {"daemon": name}}, "spec": spec}},
            })
        })
        .collect();
    Value::Array(list)
}

fn volumes(random: &mut Random, workload: &mut Value) {
    workload["storageClasses"] = json!([
        {"metadata": {"name": "anywhere"}, "provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"},
        {"metadata": {"name": "zonal"}, "provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer",
         "allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": random.some(&ZONES)}]}]},
    ]);
    let mut claims = Vec::new();
    let mut volumes = Vec::new();
    for index in 0..pods::CLAIMS {
        let name = format!("claim-{index}");
        let mut spec = json!({"storageClassName": random.pick(&["anywhere", "zonal"])});
        if random.chance(40) {
            let volume = format!("volume-{index}");
            spec["volumeName"] = json!(volume);
            let mut terms =
                vec![json!({"matchExpressions": [requirement(ZONE, "In", &[random.pick(&ZONES)])]})];
            if random.chance(30) {
                terms.push(json!({"matchExpressions": [requirement(ZONE, "In", &[random.pick(&ZONES)])]}));
            }
            volumes.push(json!({
                "metadata": {"name": volume, "uid": volume},
                "spec": {"csi": {"driver": DRIVER, "volumeHandle": volume},
                         "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
            }));
        }
        claims.push(json!({
            "metadata": {"name": name, "namespace": "default", "uid": name,
                         "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": spec,
            "status": {"phase": "Bound"},
        }));
    }
    workload["persistentVolumeClaims"] = Value::Array(claims);
    workload["persistentVolumes"] = Value::Array(volumes);
}

/// Nodes of the pools with pods on them, and claims whose node has not come yet.
fn nodes(random: &mut Random, types: &[Value], features: &BTreeSet<&str>, workload: &mut Value) {
    let (mut nodes, mut claims, mut bound, mut csi) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for index in 0..random.between(1, 6) {
        let pools = workload["nodePools"].as_array().cloned().unwrap_or_default();
        let pool = random.pick(&pools);
        let kind = random.pick(types);
        let offering = random.pick(kind["offerings"].as_array().map_or(&[][..], Vec::as_slice));
        let name = format!("node-{index}");
        let provider = format!("example://{index}");
        let taints = pool["spec"]["template"]["spec"]["taints"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let mut labels = Map::new();
        for own in kind["requirements"].as_array().into_iter().flatten() {
            labels.insert(
                own["key"].as_str().unwrap_or_default().to_owned(),
                own["values"][0].clone(),
            );
        }
        for own in offering["requirements"].as_array().into_iter().flatten() {
            labels.insert(
                own["key"].as_str().unwrap_or_default().to_owned(),
                own["values"][0].clone(),
            );
        }
        for (key, value) in pool["spec"]["template"]["metadata"]["labels"]
            .as_object()
            .into_iter()
            .flatten()
        {
            labels.insert(key.clone(), value.clone());
        }
        for own in pool["spec"]["template"]["spec"]["requirements"]
            .as_array()
            .into_iter()
            .flatten()
        {
            if own["key"] == RACK {
                labels.insert(RACK.to_owned(), own["values"][0].clone());
            }
        }
        labels.insert(
            "karpenter.sh/nodepool".to_owned(),
            pool["metadata"]["name"].clone(),
        );
        let amount = |text: &str| text.parse::<i64>().unwrap_or_default();
        let cpus = amount(kind["capacity"]["cpu"].as_str().unwrap_or("0"));
        let memory = amount(
            kind["capacity"]["memory"]
                .as_str()
                .unwrap_or("0")
                .trim_end_matches("Gi"),
        );
        let mut allocatable = kind["capacity"].clone();
        allocatable["cpu"] = json!(format!("{}m", cpus * 1000 - 80));
        allocatable["memory"] = json!(format!("{}Mi", memory * 1024 - 200));
        let on_the_way = random.chance(25);
        let conditions: Vec<Value> = ["Launched", "Registered", "Initialized"]
            .iter()
            .map(|condition| {
                let done = !on_the_way || *condition == "Launched";
                json!({"type": condition, "status": if done { "True" } else { "False" }, "reason": "Example",
                       "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        let mut claim = json!({
            "metadata": {"name": format!("held-{index}"), "uid": format!("held-{index}"), "labels": labels},
            "spec": {"taints": taints, "requirements": []},
            "status": {"providerID": provider, "capacity": kind["capacity"], "allocatable": allocatable,
                       "conditions": conditions},
        });
        if !on_the_way {
            claim["status"]["nodeName"] = json!(name);
            labels.insert("karpenter.sh/registered".to_owned(), json!("true"));
            labels.insert("karpenter.sh/initialized".to_owned(), json!("true"));
            labels.insert(HOSTNAME.to_owned(), json!(name));
            nodes.push(json!({
                "metadata": {"name": name, "uid": name, "labels": labels},
                "spec": {"providerID": provider, "taints": taints},
                "status": {"capacity": kind["capacity"], "allocatable": allocatable,
                           "conditions": [{"type": "Ready", "status": "True"}]},
            }));
            // What runs takes at most half, so that no node is over full.
            for number in 0..random.between(0, 2.min(cpus as usize)) {
                let mut pod = pods::bound(random, features, index, number);
                pod["spec"]["nodeName"] = json!(name);
                bound.push(pod);
            }
            if features.contains("volumes") && random.chance(60) {
                csi.push(json!({"metadata": {"name": name}, "spec": {"drivers": [
                    {"name": DRIVER, "nodeID": name, "topologyKeys": [], "allocatable": {"count": random.between(1, 3)}}]}}));
            }
        }
        claims.push(claim);
    }
    workload["nodes"] = Value::Array(nodes);
    workload["nodeClaims"] = Value::Array(claims);
    workload["boundPods"] = Value::Array(bound);
    workload["csiNodes"] = Value::Array(csi);
}
