//! The snapshot: objects as an apiserver returns them, planned with.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, ReplicaSet},
    core::v1::{Node, Pod, ReplicationController},
};
use serde_json::{Value, json};
use slipway_autoscaler::{
    api::{NodeClaim, NodePool},
    instances::{Catalog, catalog},
    snapshot::Store,
    startup::StartupTaints,
};
use slipway_packing::schedule;

use crate::instances::{shape, usual};

pub fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

pub fn pod(name: &str, cpu: &str, node: Option<&str>) -> Pod {
    let status = if node.is_some() {
        json!({"phase": "Running"})
    } else {
        json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]})
    };
    read(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": node, "containers": [{"name": "main", "ports": [{"containerPort": 80}],
            "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}]},
        "status": status,
    }))
}

fn node(name: &str) -> Node {
    read(json!({
        "metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": {"karpenter.sh/initialized": "true",
            "karpenter.sh/registered": "true", "karpenter.sh/nodepool": "general", "kubernetes.io/hostname": name}},
        "spec": {"providerID": format!("edge://{name}")},
        "status": {"capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"}, "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

fn claim(name: &str, provider_id: Option<&str>) -> NodeClaim {
    let amounts = json!({"cpu": "4", "memory": "16Gi", "pods": "110"});
    read(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": {"karpenter.sh/nodepool": "general"}},
        "spec": {"requirements": [], "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "c"}},
        "status": {"providerID": provider_id, "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Launched", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    }))
}

pub fn pool(name: &str, annotations: &Value) -> NodePool {
    read(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
        "metadata": {"name": name, "uid": name, "resourceVersion": "1", "annotations": annotations},
        "spec": {"limits": {"nodes": "4"}, "template": {"spec": {"requirements": [],
            "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "c"}}}},
    }))
}

fn catalogs() -> BTreeMap<String, Catalog> {
    let made = || catalog(&[shape(&usual("a", &[]))], "general", &BTreeSet::new(), &[]);
    ["general", "frozen"].map(|name| (name.to_owned(), made())).into()
}

pub fn now() -> jiff::Timestamp {
    "2026-11-17T12:00:00Z".parse().expect("a moment")
}

#[test]
fn what_a_cluster_holds_is_planned_with() {
    let mut store = Store::default();
    store.put_node_pool(&pool("general", &json!({}))).expect("a pool");
    store
        .put_node_pool(&pool(
            "frozen",
            &json!({"karpenter.cluster.x-k8s.io/frozen": "true"}),
        ))
        .expect("a pool");
    store.put_node(&node("n1")).expect("a node");
    store
        .put_node_claim(&claim("n1", Some("edge://n1")))
        .expect("a claim");
    store.put_node_claim(&claim("slow", None)).expect("a claim");
    store.put_pod(&pod("runs", "2", Some("n1"))).expect("a pod");
    for number in 0..12 {
        store
            .put_pod(&pod(&format!("waits-{number:02}"), "2", None))
            .expect("a pod");
    }
    let waiting = store.waiting();
    assert_eq!(waiting.len(), 12);
    let snapshot = store.snapshot(&catalogs(), now());
    assert_eq!(
        snapshot
            .node_pools
            .iter()
            .map(|pool| pool.metadata.name.as_str())
            .collect::<Vec<_>>(),
        ["general"]
    );
    let plan = schedule(&snapshot, &waiting);
    let on_nodes: Vec<(&str, usize)> = plan
        .existing
        .iter()
        .map(|node| (node.node.as_str(), node.pods.len()))
        .collect();
    assert_eq!(
        on_nodes.iter().map(|(_, pods)| pods).sum::<usize>(),
        3,
        "one beside the pod that runs, two on the way: {on_nodes:?}"
    );
    assert_eq!(
        plan.new_claims.len(),
        2,
        "a limit of four nodes, one of them on its way, is not exceeded"
    );
    assert_eq!(plan.unschedulable.len(), 12 - 3 - 4);
}

#[test]
fn an_object_is_converted_again_only_if_it_changed_and_forgotten_when_it_goes() {
    let mut store = Store::default();
    let mut waits = pod("a", "2", None);
    store.put_pod(&waits).expect("a pod");
    waits.metadata.name = Some("renamed".to_owned());
    store.put_pod(&waits).expect("a pod");
    assert_eq!(
        store.waiting()[0].metadata.name,
        "a",
        "the same version is the same object"
    );
    waits.metadata.resource_version = Some("2".to_owned());
    store.put_pod(&waits).expect("a pod");
    assert_eq!(store.waiting()[0].metadata.name, "renamed");
    store.remove_pod(&waits);
    assert!(store.waiting().is_empty());
}

#[test]
fn controllers_of_every_kind_have_a_selector() {
    let mut store = Store::default();
    let replica_set: ReplicaSet = read(
        json!({"metadata": {"name": "rs", "uid": "rs"}, "spec": {"selector": {"matchLabels": {"app": "a"}}}}),
    );
    let old: ReplicationController =
        read(json!({"metadata": {"name": "rc", "uid": "rc"}, "spec": {"selector": {"app": "b"}}}));
    store.put_replica_set(&replica_set).expect("a replica set");
    store
        .put_replication_controller(&old)
        .expect("a replication controller");
    let controllers = store.snapshot(&BTreeMap::new(), now()).controllers;
    let found: Vec<(&str, &str)> = controllers
        .iter()
        .map(|controller| {
            (
                controller.kind.as_str(),
                controller
                    .spec
                    .selector
                    .as_ref()
                    .map_or("", |selector| &selector.match_labels["app"]),
            )
        })
        .collect();
    assert_eq!(found, [("ReplicationController", "b"), ("ReplicaSet", "a")]);
}

/// A store with a NodePool, a claim whose node starts or is initialized, with these taints, and a pod that waits.
fn starting(is_initialized: bool, taints: &Value) -> Store {
    let mut starts = node("n1");
    if !is_initialized {
        let labels = starts.metadata.labels.get_or_insert_default();
        labels.remove("karpenter.sh/initialized");
    }
    starts.spec.get_or_insert_default().taints = Some(read(taints.clone()));
    let mut store = Store::default();
    store.put_node_pool(&pool("general", &json!({}))).expect("a pool");
    store.put_node(&starts).expect("a node");
    let claim = claim("n1", Some("edge://n1"));
    store.put_node_claim(&claim).expect("a claim");
    store.put_pod(&pod("waits", "2", None)).expect("a pod");
    store
}

/// While a node starts, taints that others will take away cost no second node. Once it has started they count, because nobody knows
/// when they go; and so does every other taint.
#[test]
fn a_startup_taint_of_somebody_elses_makes_no_second_node() {
    let known = StartupTaints::named(["node.cilium.io/agent-not-ready"]);
    let claims = |is_initialized: bool, key: &str| {
        let store = starting(is_initialized, &json!([{"key": key, "effect": "NoSchedule"}]));
        let mut snapshot = store.snapshot(&catalogs(), now());
        known.forget(&mut snapshot);
        schedule(&snapshot, &store.waiting()).new_claims.len()
    };
    for key in [
        "startup-taint.cluster-autoscaler.kubernetes.io/network",
        "ignore-taint.cluster-autoscaler.kubernetes.io/disk",
        "node.cluster.x-k8s.io/uninitialized",
        "node.cilium.io/agent-not-ready",
    ] {
        assert_eq!((claims(false, key), claims(true, key)), (0, 1), "{key}");
    }
    assert_eq!((claims(false, "dedicated"), claims(true, "dedicated")), (1, 1));
}

fn daemon_set(version: &str, cpu: &str) -> DaemonSet {
    read(
        json!({"metadata": {"name": "agent", "namespace": "default", "uid": "agent", "resourceVersion": version},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": {"metadata": {"labels": {"app": "agent"}},
            "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}}}),
    )
}

/// A DaemonSet that comes or changes takes its share of new nodes from then on, and of those on their way.
#[test]
fn a_changed_daemon_set_counts_from_then_on() {
    let mut store = Store::default();
    store.put_node_pool(&pool("general", &json!({}))).expect("a pool");
    store.put_node_claim(&claim("on-its-way", None)).expect("a claim");
    for number in 0..8 {
        let waits = pod(&format!("waits-{number}"), "1", None);
        store.put_pod(&waits).expect("a pod");
    }
    // Pods on the claim that is on its way, and on each new one.
    let placed = |store: &Store| {
        let plan = schedule(&store.snapshot(&catalogs(), now()), &store.waiting());
        let existing: usize = plan.existing.iter().map(|node| node.pods.len()).sum();
        let new: Vec<usize> = plan.new_claims.iter().map(|claim| claim.pods.len()).collect();
        (existing, new)
    };
    assert_eq!(placed(&store), (4, vec![4]));
    store.sync_daemon_sets([&daemon_set("1", "1")]);
    assert_eq!(placed(&store), (3, vec![3, 2]));
    store.sync_daemon_sets([&daemon_set("2", "2")]);
    assert_eq!(placed(&store), (2, vec![2, 2, 2]));
    store.sync_daemon_sets([]);
    assert_eq!(placed(&store), (4, vec![4]));
}
