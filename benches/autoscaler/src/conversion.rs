//! What the autoscaler pays for its picture of a large cluster, without any cluster: objects as an apiserver returns them become
//! packing's model.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use slipway_autoscaler::{api::NodeClaim, snapshot::Store};

/// Pods of each node.
const PODS: usize = 10;
const ROUNDS: usize = 5;

struct Objects {
    nodes: Vec<Node>,
    claims: Vec<NodeClaim>,
    pods: Vec<Pod>,
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).context("an object of the measurement")
}

fn objects(nodes: usize) -> Result<Objects> {
    let metadata = |name: &str| {
        json!({"name": name, "namespace": "default", "uid": name, "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"karpenter.sh/nodepool": "general",
            "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true", "kubernetes.io/hostname": name,
            "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "z1"}})
    };
    let amounts = json!({"cpu": "16", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "110"});
    let mut made = Objects {
        nodes: Vec::new(),
        claims: Vec::new(),
        pods: Vec::new(),
    };
    for number in 0..nodes {
        let name = format!("node-{number}");
        let id = format!("edge://{name}");
        made.nodes.push(read(json!({"metadata": metadata(&name), "spec": {"providerID": id},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}}))?);
        made.claims.push(read(json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": metadata(&name),
            "spec": {"requirements": [], "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io",
                "kind": "ClusterAPINodeClass", "name": "general"}},
            "status": {"providerID": id, "nodeName": name, "capacity": amounts, "allocatable": amounts, "conditions": [
                {"type": "Launched", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))?);
        for pod in 0..PODS {
            made.pods.push(read(json!({"metadata": metadata(&format!("web-{number}-{pod}")),
                "spec": {"nodeName": name, "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists",
                    "effect": "NoExecute", "tolerationSeconds": 300}],
                    "containers": [{"name": "main", "image": "web", "ports": [{"containerPort": 80}],
                    "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}}]},
                "status": {"phase": "Running"}}))?);
        }
    }
    Ok(made)
}

/// As the provisioner does it before it plans.
fn sync(store: &mut Store, objects: &Objects) {
    store.sync_nodes(&objects.nodes);
    store.sync_node_claims(&objects.claims);
    store.sync_pods(&objects.pods);
}

fn milliseconds(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64() * 1000.0
}

/// The middle one, with the lowest and the highest.
fn spread(mut rounds: Vec<f64>) -> Value {
    rounds.sort_by(f64::total_cmp);
    let rounded = |value: f64| (value * 10.0).round() / 10.0;
    let (lowest, highest) = (rounds[0], rounds[rounds.len() - 1]);
    json!({"median": rounded(rounds[rounds.len() / 2]), "lowest": rounded(lowest), "highest": rounded(highest)})
}

pub fn measure(nodes: usize) -> Result<Value> {
    let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut objects = objects(nodes)?;
    let now = "2026-11-18T12:00:00Z".parse().context("a moment")?;
    for round in 0..ROUNDS {
        let mut store = Store::default();
        let mut note = |what, spent| times.entry(what).or_default().push(spent);
        note("all_ms", milliseconds(|| sync(&mut store, &objects)));
        note("nothing_changed_ms", milliseconds(|| sync(&mut store, &objects)));
        for pod in objects.pods.iter_mut().step_by(100) {
            pod.metadata.resource_version = Some(format!("2-{round}"));
        }
        note(
            "one_percent_of_pods_changed_ms",
            milliseconds(|| sync(&mut store, &objects)),
        );
        note(
            "snapshot_ms",
            milliseconds(|| drop(store.snapshot(&BTreeMap::new(), now))),
        );
    }
    let times: BTreeMap<&str, Value> = times
        .into_iter()
        .map(|(what, rounds)| (what, spread(rounds)))
        .collect();
    Ok(json!({"nodes": nodes, "claims": nodes, "pods": objects.pods.len(), "rounds": ROUNDS, "times": times}))
}
