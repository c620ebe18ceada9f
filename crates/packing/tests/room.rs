//! Room for pods that are not there: what is booked comes first, pods that are there next, and room last; what saves money leaves
//! such room standing, what must go does not ask.

use slipway_packing::disrupt::{Method, disrupt};
use slipway_packing::labels::{BOOKED, ROOM};
use slipway_packing::model::{Budget, InstanceType, NodePool, Plan, Pod};
use slipway_packing::schedule;

use crate::cluster::{Cluster, condition, instance_type, offering, pod, pool, quantities, with_offerings};

fn marked(name: &str, cpu: &str, annotation: &str) -> Pod {
    let mut pod = pod(name, &[("cpu", cpu)]);
    pod.metadata
        .annotations
        .insert(annotation.to_owned(), "true".to_owned());
    pod
}

fn kind(name: &str, cpu: &str, price: f64) -> InstanceType {
    with_offerings(
        instance_type(name, &[("cpu", cpu), ("memory", "32Gi"), ("pods", "100")]),
        vec![offering("on-demand", "test-zone-1", price)],
    )
}

fn free() -> NodePool {
    let mut pool = pool("default");
    pool.spec.disruption.budgets = Some(vec![Budget {
        nodes: "100%".to_owned(),
        ..Budget::default()
    }]);
    pool.spec.disruption.consolidate_after = Some("0s".to_owned());
    pool.spec.disruption.consolidation_policy = "WhenEmptyOrUnderutilized".to_owned();
    pool
}

/// Nodes of four cores, of a pool that may have no more.
fn nodes(count: usize) -> (Cluster, Vec<String>) {
    let mut pool = free();
    let most = count.to_string();
    pool.spec.limits = quantities(&[("nodes", most.as_str())]);
    let mut cluster = Cluster::new(vec![pool], vec![kind("one", "4", 1.0)]);
    cluster.snapshot.options.improvements.exact_node_limits = true;
    cluster.snapshot.options.improvements.replacements_within_limits = true;
    let names = (0..count)
        .map(|_| cluster.add_node("default", "one", "test-zone-1", "on-demand"))
        .collect();
    (cluster, names)
}

fn placed(plan: &Plan) -> Vec<String> {
    let mut pods: Vec<String> = plan.existing.iter().flat_map(|node| node.pods.clone()).collect();
    pods.sort();
    pods
}

/// One node has room for one of three.
#[test]
fn each_chooses_at_its_turn_whatever_its_size() {
    let (cluster, _) = nodes(1);
    let room = marked("room", "3800m", ROOM);
    let usual = pod("usual", &[("cpu", "3")]);
    let booked = marked("booked", "2", BOOKED);
    let ask = |pods: &[&Pod]| {
        let pods: Vec<Pod> = pods.iter().map(|pod| (*pod).clone()).collect();
        placed(&schedule(&cluster.snapshot, &pods))
    };
    assert_eq!(ask(&[&room]), ["default/room"]);
    assert_eq!(ask(&[&room, &usual]), ["default/usual"]);
    assert_eq!(ask(&[&room, &usual, &booked]), ["default/booked"]);
}

/// Two nodes with room for two pods to come, of which one alone has not enough.
#[test]
fn room_is_not_given_up_to_save_money() {
    let (mut cluster, names) = nodes(2);
    cluster.run(pod("pod", &[("cpu", "1")]), &names[0]);
    let ask = |cluster: &Cluster, method| -> usize {
        let outcome = disrupt(&cluster.snapshot, &[], method);
        outcome.commands().map(|command| command.nodes.len()).sum()
    };
    assert_eq!(
        ask(&cluster, Method::SingleNodeConsolidation),
        1,
        "one of them is enough for the pod"
    );
    cluster.snapshot.kept_pods = vec![marked("room-1", "2", ROOM), marked("room-2", "2", ROOM)];
    for method in [Method::SingleNodeConsolidation, Method::MultiNodeConsolidation] {
        assert_eq!(ask(&cluster, method), 0, "{method:?}");
    }
    cluster.snapshot.kept_pods.pop();
    assert_eq!(
        ask(&cluster, Method::SingleNodeConsolidation),
        1,
        "the other node has room for this one too"
    );
}

/// Drift asks nobody: a node that must go, goes, and what replaces it has the room too where there can be one.
#[test]
fn nodes_that_must_go_do_not_wait_for_room() {
    let (mut cluster, names) = nodes(2);
    cluster.run(pod("pod", &[("cpu", "1")]), &names[0]);
    cluster.snapshot.node_claims[0]
        .status
        .conditions
        .push(condition("Drifted", "True"));
    cluster.snapshot.kept_pods = vec![marked("room-1", "3", ROOM), marked("room-2", "3", ROOM)];
    let outcome = disrupt(&cluster.snapshot, &[], Method::Drift);
    let command = outcome.command.expect("it goes");
    assert_eq!(command.nodes, [names[0].clone()]);
}
