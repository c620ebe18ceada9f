//! Which pods get which deletion cost, and whose cost it is.

use jiff::Timestamp;
use serde_json::{Value, json};
use slipway_autoscaler::{
    deletion_cost::plan::{Write, plan},
    watched::Observed,
};

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const OWN: &str = "karpenter.cluster.x-k8s.io/pod-deletion-cost";

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().expect("a moment")
}

fn pod(name: &str, node: &str, owner: &str, annotations: &Value) -> Value {
    let version = if owner == "Job" { "batch/v1" } else { "apps/v1" };
    json!({"metadata": {"name": name, "namespace": "default", "uid": name, "annotations": annotations,
            "ownerReferences": [{"apiVersion": version, "kind": owner, "name": "web", "controller": true}]},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running"}})
}

/// So many nodes of a NodePool that lets all of them go, with these pods.
fn observed(nodes: usize, pods: &[Value]) -> Observed {
    let named = |index: usize| format!("node-{index:03}");
    let labels = |index: usize| {
        json!({"karpenter.sh/nodepool": "general", "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
            "karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "z",
            "node.kubernetes.io/instance-type": "one", "kubernetes.io/hostname": named(index)})
    };
    let amounts = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    let node = |index: usize| {
        json!({"metadata": {"name": named(index), "labels": labels(index)}, "spec": {"providerID": named(index)},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}})
    };
    let claim = |index: usize| {
        // The first one is on its way out.
        let deleted = (index == 0).then_some("2026-01-01T11:59:00Z");
        json!({"metadata": {"name": format!("claim-{index:03}"), "labels": labels(index), "deletionTimestamp": deleted},
            "spec": {}, "status": {"providerID": named(index), "nodeName": named(index)}})
    };
    let of_label = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let snapshot = json!({
        "nodePools": [{"metadata": {"name": "general"}, "spec": {"disruption": {"budgets": [{"nodes": "100%"}], "consolidateAfter": "0s"},
            "template": {"spec": {"requirements": []}}}}],
        "instanceTypes": {"general": [{"name": "one", "capacity": amounts,
            "requirements": [of_label("node.kubernetes.io/instance-type", "one")],
            "offerings": [{"price": 1.0, "available": true, "requirements": [of_label("topology.kubernetes.io/zone", "z"),
                of_label("karpenter.sh/capacity-type", "on-demand")]}]}]},
        "nodes": (0..nodes).map(node).collect::<Vec<_>>(),
        "nodeClaims": (0..nodes).map(claim).collect::<Vec<_>>(),
        "boundPods": pods,
        "options": {"now": now().to_string()},
    });
    Observed {
        snapshot: serde_json::from_value(snapshot).expect("a cluster"),
        ..Observed::default()
    }
}

fn told(writes: &[Write]) -> Vec<(&str, Option<i32>)> {
    writes
        .iter()
        .map(|write| (write.name.as_str(), write.cost))
        .collect()
}

#[test]
fn pods_get_the_cost_of_their_node_and_what_others_wrote_is_theirs() {
    let none = json!({});
    let ours = |cost: &str| json!({COST: cost, OWN: cost});
    let cluster = observed(
        3,
        &[
            pod("on-its-way", "node-000", "ReplicaSet", &none),
            pod("of-a-job", "node-000", "Job", &none),
            pod("first", "node-001", "ReplicaSet", &none),
            pod("as-it-was", "node-001", "ReplicaSet", &ours("-2")),
            pod("moved-up", "node-002", "ReplicaSet", &ours("-7")),
            pod("its-owners", "node-002", "ReplicaSet", &json!({COST: "100"})),
            // Its owner has changed what was written here.
            pod(
                "taken-over",
                "node-002",
                "ReplicaSet",
                &json!({COST: "100", OWN: "-7"}),
            ),
        ],
    );
    let planned = plan(&cluster, true, now());
    assert_eq!(
        told(&planned.writes),
        [
            ("on-its-way", Some(i32::MIN)),
            ("first", Some(-2)),
            ("moved-up", Some(-1))
        ]
    );
    assert_eq!(planned.nodes["general"], 3);
    assert_eq!(
        planned.to_string(),
        "give Pod default/on-its-way the deletion cost -2147483648\n\
         give Pod default/first the deletion cost -2\n\
         give Pod default/moved-up the deletion cost -1\n"
    );
}

#[test]
fn what_was_written_is_taken_away_where_it_no_longer_holds() {
    let ours = json!({COST: "-1", OWN: "-1"});
    let mut cluster = observed(2, &[pod("kept", "node-001", "ReplicaSet", &ours)]);
    cluster.snapshot.node_pools[0]
        .spec
        .disruption
        .budgets
        .as_mut()
        .expect("one")[0]
        .nodes = "0".to_owned();
    assert_eq!(told(&plan(&cluster, true, now()).writes), [("kept", None)]);
    // The gate is off.
    let cluster = observed(
        2,
        &[
            pod("kept", "node-001", "ReplicaSet", &ours),
            pod("new", "node-001", "ReplicaSet", &json!({})),
        ],
    );
    assert_eq!(told(&plan(&cluster, false, now()).writes), [("kept", None)]);
}

#[test]
fn nodes_that_go_first_are_written_first_and_not_all_at_once() {
    let pods = (0..70).map(|index| {
        pod(
            &format!("pod-{index}"),
            &format!("node-{index:03}"),
            "ReplicaSet",
            &json!({}),
        )
    });
    let planned = plan(&observed(70, &pods.collect::<Vec<_>>()), true, now());
    assert!(planned.is_cut);
    assert_eq!(planned.writes.len(), 1 + 50);
    assert_eq!(planned.writes[0].cost, Some(i32::MIN));
    assert_eq!(planned.writes[1].cost, Some(-69));
}

#[test]
fn nothing_is_written_beside_another_autoscaler() {
    let mut cluster = observed(1, &[pod("on-its-way", "node-000", "ReplicaSet", &json!({}))]);
    cluster.rival = Some(slipway_autoscaler::safety::Rival {
        who: "Cluster Autoscaler",
        lease: "kube-system/cluster-autoscaler".to_owned(),
        holder: "another".to_owned(),
        until: "2026-01-01T12:01:00Z".parse().expect("a moment"),
    });
    let planned = plan(&cluster, true, now());
    assert!(
        planned.waits.is_some() && planned.writes.is_empty(),
        "{planned:?}"
    );
}
