//! Random pods, in groups of equal ones as a deployment makes them. A pod's name is its group's and a number.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::generator::{ARCH, CAPACITY_TYPE, CPUS, FAMILY, HOSTNAME, RACK, TEAM, ZONE, ZONES, requirement};
use super::random::Random;

/// How many volume claims there are to choose from.
pub const CLAIMS: usize = 8;
const APPS: [&str; 4] = ["web", "data", "cache", "batch"];

pub fn waiting(random: &mut Random, features: &BTreeSet<&str>) -> Vec<Value> {
    let mut list: Vec<Value> = Vec::new();
    let required = random.between(1, 40);
    let mut group = 0;
    while list.len() < required {
        let template = template(random, features);
        let name = format!("g{group}");
        for number in 0..random.between(1, 10).min(required - list.len()) {
            let mut pod = template.clone();
            pod["metadata"]["name"] = json!(format!("{name}-{number}"));
            pod["metadata"]["uid"] = json!(format!("{name}-{number:02}"));
            pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
            list.push(pod);
        }
        group += 1;
    }
    list
}

/// A small pod that runs already.
pub fn bound(random: &mut Random, features: &BTreeSet<&str>, node: usize, number: usize) -> Value {
    let name = format!("bound-{node}-{number}");
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name,
                     "labels": {"app": random.pick(&APPS), "version": random.pick(&["1", "2"])}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "150m", "memory": "100Mi"}}}]},
        "status": {"phase": "Running"},
    });
    if features.contains("pod-anti-affinity") && random.chance(30) {
        pod["spec"]["affinity"] = json!({"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [pod_term(random, "nobody")]}});
    }
    if features.contains("ports") && number == 0 && random.chance(30) {
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080, "hostPort": 8080}]);
    }
    pod
}

fn template(random: &mut Random, features: &BTreeSet<&str>) -> Value {
    let app = random.pick(&APPS);
    let namespace = if random.chance(85) || features.contains("volumes") {
        "default"
    } else {
        "other"
    };
    let cpu = random.pick(&["100m", "250m", "500m", "900m", "1500m", "3"]);
    let memory = random.pick(&["64Mi", "256Mi", "1Gi", "3Gi"]);
    let mut requests = json!({"cpu": cpu, "memory": memory});
    if random.chance(5) {
        requests["example.com/gpu"] = json!("1");
    }
    let mut pod = json!({
        "metadata": {"namespace": namespace, "labels": {"app": app, "version": random.pick(&["1", "2"])}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]},
        "status": {"phase": "Pending"},
    });
    let spec = &mut pod["spec"];
    if features.contains("containers") {
        containers(random, spec);
    }
    if features.contains("node-selector") && random.chance(50) {
        let (key, value) = random.pick(&[
            (ZONE, "zone-1"),
            (ZONE, "zone-2"),
            (ARCH, "arm64"),
            (ARCH, "amd64"),
            (CAPACITY_TYPE, "spot"),
            (CAPACITY_TYPE, "on-demand"),
            (FAMILY, "memory"),
            (TEAM, "red"),
            ("karpenter.sh/nodepool", "pool-0"),
        ]);
        spec["nodeSelector"] = json!({key: value});
    }
    let mut node_affinity = json!({});
    if features.contains("node-affinity") && random.chance(50) {
        let terms: Vec<Value> = (0..random.between(1, 3)).map(|_| node_term(random)).collect();
        node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = json!({"nodeSelectorTerms": terms});
    }
    if features.contains("preferred-node-affinity") && random.chance(60) {
        node_affinity["preferredDuringSchedulingIgnoredDuringExecution"] =
            weighted(random, |random| ("preference", node_term(random)));
    }
    let mut affinity = json!({});
    if node_affinity != json!({}) {
        affinity["nodeAffinity"] = node_affinity;
    }
    pod_affinity(random, features, app, &mut affinity);
    if affinity != json!({}) {
        spec["affinity"] = affinity;
    }
    if features.contains("tolerations") && random.chance(70) {
        spec["tolerations"] = json!([random.pick(&[
            json!({"key": "dedicated", "operator": "Equal", "value": "a", "effect": "NoSchedule"}),
            json!({"key": "dedicated", "operator": "Exists"}),
            json!({"operator": "Exists"}),
        ])]);
    }
    let mut constraints = Vec::new();
    for (feature, key) in [
        ("zone-spread", ZONE),
        ("host-spread", HOSTNAME),
        ("rack-spread", RACK),
    ] {
        if features.contains(feature) && random.chance(50) {
            constraints.push(spread(random, key, app));
        }
    }
    if features.contains("zone-spread") && random.chance(10) {
        constraints.push(spread(random, CAPACITY_TYPE, app));
    }
    spec["topologySpreadConstraints"] = Value::Array(constraints);
    if features.contains("ports") && random.chance(40) {
        let port = random.pick(&[8080, 9100, 9200]);
        let mut own = json!({"containerPort": port, "hostPort": port});
        if random.chance(30) {
            own["protocol"] = json!("UDP");
        }
        if random.chance(30) {
            own["hostIP"] = json!(random.pick(&["10.0.0.1", "10.0.0.2"]));
        }
        spec["containers"][0]["ports"] = json!([own]);
    }
    if features.contains("volumes") && namespace == "default" && random.chance(50) {
        let volumes: Vec<Value> = (0..random.between(1, 2))
            .map(|index| {
                let claim = format!("claim-{}", random.between(0, CLAIMS - 1));
                json!({"name": format!("disk-{index}"), "persistentVolumeClaim": {"claimName": claim}})
            })
            .collect();
        spec["volumes"] = Value::Array(volumes);
    }
    if random.chance(15) {
        spec["priority"] = json!(random.pick(&[-10, 0, 1000]));
    }
    pod
}

fn containers(random: &mut Random, spec: &mut Value) {
    let requests = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "128Mi"}});
    let mut first = Vec::new();
    for index in 0..random.between(0, 3) {
        let mut own = json!({"name": format!("first-{index}"),
                             "resources": requests(random.pick(&["50m", "700m", "2"]))});
        if random.chance(40) {
            own["restartPolicy"] = json!("Always");
        }
        first.push(own);
    }
    spec["initContainers"] = Value::Array(first);
    if random.chance(30) {
        spec["overhead"] = json!({"cpu": "120m", "memory": "40Mi"});
    }
    if random.chance(20) {
        spec["resources"] = json!({"requests": {"cpu": random.pick(&["2", "3500m"])}});
    }
}

fn node_term(random: &mut Random) -> Value {
    let choices = [
        requirement(ZONE, "In", &random.some(&ZONES)),
        requirement(ZONE, "NotIn", &[random.pick(&ZONES)]),
        requirement(CPUS, "Gt", &[random.pick(&["1", "3", "7"])]),
        requirement(CPUS, "Lt", &[random.pick(&["5", "9"])]),
        requirement(FAMILY, "In", &random.some(&["compute", "general", "memory"])),
        requirement(FAMILY, "NotIn", &["general"]),
        requirement(CAPACITY_TYPE, "In", &[random.pick(&["spot", "on-demand"])]),
        json!({"key": TEAM, "operator": random.pick(&["Exists", "DoesNotExist"])}),
        requirement(TEAM, "NotIn", &["red"]),
        requirement(RACK, "In", &random.some(&["r1", "r2"])),
        requirement(ARCH, "In", &["arm64"]),
    ];
    let mut expressions = vec![random.pick(&choices)];
    if random.chance(30) {
        expressions.push(random.pick(&choices));
    }
    json!({"matchExpressions": expressions})
}

/// Weights differ: equal ones are ordered at random by Karpenter.
fn weighted(random: &mut Random, one: impl Fn(&mut Random) -> (&'static str, Value)) -> Value {
    let list: Vec<Value> = (0..random.between(1, 3))
        .map(|index| {
            let (field, value) = one(random);
            json!({"weight": random.between(1, 30) + index * 30, field: value})
        })
        .collect();
    Value::Array(list)
}

fn pod_term(random: &mut Random, app: &str) -> Value {
    let other = if app != "nobody" && random.chance(60) {
        app
    } else {
        random.pick(&APPS)
    };
    let mut term = json!({
        "labelSelector": {"matchLabels": {"app": other}},
        "topologyKey": random.pick(&[ZONE, HOSTNAME, HOSTNAME]),
    });
    if random.chance(15) {
        term["namespaces"] = json!(["default", "other"]);
    } else if random.chance(10) {
        term["namespaceSelector"] = json!({"matchLabels": {"tier": "back"}});
    }
    if random.chance(15) {
        term["labelSelector"] =
            json!({"matchExpressions": [{"key": "version", "operator": "In", "values": ["1"]}]});
    }
    term
}

fn pod_affinity(random: &mut Random, features: &BTreeSet<&str>, app: &str, affinity: &mut Value) {
    if features.contains("pod-affinity") && random.chance(50) {
        affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!([pod_term(random, app)]);
    }
    if features.contains("pod-anti-affinity") && random.chance(40) {
        affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!([pod_term(random, app)]);
    }
    if features.contains("preferred-pod-affinity") && random.chance(60) {
        let kind = random.pick(&["podAffinity", "podAntiAffinity"]);
        affinity[kind]["preferredDuringSchedulingIgnoredDuringExecution"] =
            weighted(random, |random| ("podAffinityTerm", pod_term(random, app)));
    }
}

fn spread(random: &mut Random, key: &str, app: &str) -> Value {
    let mut constraint = json!({
        "maxSkew": random.between(1, 3),
        "topologyKey": key,
        "whenUnsatisfiable": if random.chance(75) { "DoNotSchedule" } else { "ScheduleAnyway" },
        "labelSelector": {"matchLabels": {"app": app}},
    });
    if constraint["whenUnsatisfiable"] == "DoNotSchedule" && random.chance(20) {
        constraint["minDomains"] = json!(random.between(1, 4));
    }
    if random.chance(15) {
        constraint["nodeAffinityPolicy"] = json!(random.pick(&["Honor", "Ignore"]));
    }
    if random.chance(15) {
        constraint["nodeTaintsPolicy"] = json!(random.pick(&["Honor", "Ignore"]));
    }
    if random.chance(15) {
        constraint["matchLabelKeys"] = json!(["version"]);
    }
    constraint
}
