//! From which nodes pods go first: those on their way out, then those that would be given up next.

use slipway_packing::disrupt::deletion_order;
use slipway_packing::labels::CAPACITY_TYPE;
use slipway_packing::model::{Budget, NodePool, OwnerReference, Pod, Taint};
use slipway_packing::requirement::Operator;

use crate::cluster::{
    Cluster, condition, instance_type, offering, pod, pool_with, requirement, with_offerings,
};

fn general(budget: &str, after: &str) -> NodePool {
    let mut pool = pool_with(
        "default",
        vec![requirement(CAPACITY_TYPE, Operator::In, &["on-demand"])],
    );
    pool.spec.disruption.budgets = Some(vec![Budget {
        nodes: budget.to_owned(),
        ..Budget::default()
    }]);
    pool.spec.disruption.consolidate_after = Some(after.to_owned());
    pool
}

fn owned_by(kind: &str, mut pod: Pod) -> Pod {
    pod.metadata.owner_references = vec![OwnerReference {
        api_version: "apps/v1".to_owned(),
        kind: kind.to_owned(),
        name: "web".to_owned(),
        controller: true,
        ..OwnerReference::default()
    }];
    pod
}

/// Nodes by what befell them: usual, dear, drifted, with a pod of nobody, deleted, tainted, unlabelled type, asked to stay.
fn standing(budget: &str, after: &str) -> (Cluster, Vec<String>) {
    let kinds = [("one", 1.0), ("dear", 3.0)].map(|(name, price)| {
        let kind = instance_type(name, &[("cpu", "4"), ("memory", "32Gi"), ("pods", "100")]);
        with_offerings(kind, vec![offering("on-demand", "test-zone-1", price)])
    });
    let mut cluster = Cluster::new(vec![general(budget, after)], kinds.to_vec());
    let mut names = Vec::new();
    for (index, kind) in ["one", "dear", "one", "one", "one", "one", "one", "one"]
        .iter()
        .enumerate()
    {
        let name = cluster.add_node("default", kind, "test-zone-1", "on-demand");
        for half in 0..2 {
            let own = pod(&format!("pod-{index}-{half}"), &[("cpu", "1")]);
            let owner = if index == 3 && half == 0 {
                "StatefulSet"
            } else {
                "ReplicaSet"
            };
            cluster.run(owned_by(owner, own), &name);
        }
        names.push(name);
    }
    let snapshot = &mut cluster.snapshot;
    snapshot.node_claims[2]
        .status
        .conditions
        .push(condition("Drifted", "True"));
    snapshot.node_claims[4].metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    let claim_of = |name: &str, snapshot: &slipway_packing::model::Snapshot| {
        let mut nodes = snapshot.nodes.iter();
        nodes
            .position(|node| node.metadata.name == name)
            .expect("it is there")
    };
    let tainted = claim_of(&names[5], snapshot);
    snapshot.nodes[tainted].spec.taints.push(Taint {
        key: "karpenter.sh/disrupted".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    });
    let unknown = claim_of(&names[6], snapshot);
    snapshot.nodes[unknown].metadata.labels.insert(
        "node.kubernetes.io/instance-type".to_owned(),
        "retired".to_owned(),
    );
    let kept = claim_of(&names[7], snapshot);
    let annotations = &mut snapshot.nodes[kept].metadata.annotations;
    annotations.insert("karpenter.sh/do-not-disrupt".to_owned(), "true".to_owned());
    (cluster, names)
}

#[test]
fn pods_go_first_from_nodes_that_go() {
    let (cluster, names) = standing("100%", "0s");
    let order = deletion_order(&cluster.snapshot);
    let costs = order.costs();
    let costs: Vec<Option<i32>> = names
        .iter()
        .map(|name| costs.get(name.as_str()).copied())
        .collect();
    assert_eq!(
        costs,
        [
            Some(-1),
            Some(-2),
            Some(-3),
            None,
            Some(i32::MIN),
            Some(i32::MIN),
            None,
            None
        ]
    );
}

#[test]
fn no_more_nodes_than_budgets_let_go_are_emptied() {
    // One of them is taken by the node that is on its way out.
    for (budget, after, places) in [
        ("2", "0s", &[2, 1][..]),
        ("1", "0s", &[]),
        ("100%", "Never", &[2]),
    ] {
        let (cluster, names) = standing(budget, after);
        let order = deletion_order(&cluster.snapshot);
        let expected: Vec<&String> = places.iter().map(|place: &usize| &names[*place]).collect();
        assert_eq!(
            order.next.iter().collect::<Vec<_>>(),
            expected,
            "{budget} after {after}"
        );
        assert_eq!(order.going.len(), 2);
    }
}

/// Static NodePools consolidate nothing: there is no next one.
#[test]
fn nodes_of_static_pools_have_no_order() {
    let (mut cluster, _) = standing("100%", "0s");
    cluster.snapshot.node_pools[0].spec.replicas = Some(8);
    assert_eq!(deletion_order(&cluster.snapshot).next, [""; 0]);
}
