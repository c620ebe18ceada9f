//! Static NodePools: what is created and what goes so that they hold what they say, and drift that ends.

use slipway_packing::disrupt::{Decision, Method};
use slipway_packing::labels::{CAPACITY_TYPE, DO_NOT_DISRUPT, ZONE};
use slipway_packing::model::{NodeClaim, NodePool, Offering, OwnerReference};
use slipway_packing::requirement::Operator;
use slipway_packing::static_pools::{Replicas, replicas};

use crate::cluster::{
    Cluster, condition, instance_type, offering, pod, pool_with, quantities, requirement, with_offerings,
};
use crate::judged::disrupt;

fn static_pool(count: i64, limit: Option<&str>) -> NodePool {
    let mut pool = pool_with("fixed", vec![requirement(ZONE, Operator::In, &["test-zone-2"])]);
    pool.spec.replicas = Some(count);
    if let Some(limit) = limit {
        pool.spec.limits = quantities(&[("nodes", limit)]);
    }
    pool.spec.disruption.budgets = Some(vec![]);
    pool
}

fn cluster(pool: NodePool, nodes: usize) -> (Cluster, Vec<String>) {
    let kinds = vec![
        with_offerings(
            instance_type("dear", &[("cpu", "8")]),
            vec![offering("on-demand", "test-zone-2", 2.0)],
        ),
        with_offerings(
            instance_type("cheap", &[("cpu", "4")]),
            vec![
                offering("on-demand", "test-zone-1", 0.1),
                offering("spot", "test-zone-2", 0.5),
                Offering {
                    available: false,
                    ..offering("on-demand", "test-zone-2", 0.2)
                },
            ],
        ),
        with_offerings(
            instance_type("elsewhere", &[("cpu", "4")]),
            vec![offering("on-demand", "test-zone-1", 0.1)],
        ),
    ];
    let mut cluster = Cluster::new(vec![pool], kinds);
    let names = (0..nodes)
        .map(|_| cluster.add_node("fixed", "dear", "test-zone-2", "on-demand"))
        .collect();
    (cluster, names)
}

/// Replicas, the limit, nodes there, how many of them are being replaced and deleted: what is created, deleted and missing.
#[test]
fn a_static_pool_holds_as_many_nodes_as_it_says() {
    for (count, limit, nodes, replaced, deleting, expected) in [
        (3, None, 0, 0, 0, (3, 0, 0)),
        (3, None, 3, 0, 0, (0, 0, 0)),
        (3, None, 5, 0, 0, (0, 2, 0)),
        (0, None, 2, 0, 0, (0, 2, 0)),
        (5, Some("4"), 2, 0, 0, (2, 0, 1)),
        (5, Some("2"), 2, 0, 0, (0, 0, 3)),
        // A node that is being deleted takes its place as long as it is there.
        (3, Some("3"), 3, 0, 1, (0, 0, 1)),
        (3, None, 3, 0, 1, (1, 0, 0)),
        // Replacements are on their way: neither one more nor one less.
        (3, None, 3, 1, 0, (0, 0, 0)),
        (3, None, 4, 1, 0, (0, 0, 0)),
    ] {
        let (mut cluster, names) = cluster(static_pool(count, limit), nodes);
        let snapshot = &mut cluster.snapshot;
        snapshot
            .deleting_nodes
            .extend(names.iter().take(replaced).cloned());
        for claim in snapshot.node_claims.iter_mut().rev().take(deleting) {
            claim.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        }
        let found = replicas(snapshot, "fixed");
        assert_eq!(
            (found.create.len(), found.delete.len(), found.missing),
            expected,
            "{count} of {nodes} with {limit:?}, {replaced} replaced, {deleting} deleting"
        );
        for claim in &found.create {
            assert_eq!(
                claim.instance_types,
                ["cheap", "dear"],
                "the cheapest that can be had first"
            );
            assert_eq!(
                (
                    claim.cheapest_zone.as_str(),
                    claim.cheapest_capacity_type.as_str()
                ),
                ("test-zone-2", "spot")
            );
        }
    }
}

#[test]
fn a_pool_that_is_not_ready_or_goes_creates_nothing_and_others_are_left_alone() {
    let mut unready = static_pool(2, None);
    unready.status.conditions.push(condition("Ready", "False"));
    assert_eq!(
        replicas(&cluster(unready, 0).0.snapshot, "fixed"),
        Replicas::default()
    );
    let mut going = static_pool(2, None);
    going.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    assert_eq!(
        replicas(&cluster(going, 3).0.snapshot, "fixed"),
        Replicas::default()
    );
    let mut dynamic = static_pool(2, None);
    dynamic.spec.replicas = None;
    assert_eq!(
        replicas(&cluster(dynamic, 3).0.snapshot, "fixed"),
        Replicas::default()
    );
    let mut impossible = static_pool(2, None);
    impossible
        .spec
        .template
        .spec
        .requirements
        .push(requirement(CAPACITY_TYPE, Operator::In, &["reserved"]));
    assert_eq!(replicas(&cluster(impossible, 0).0.snapshot, "fixed").missing, 2);
}

/// Never launched first, then empty, then what is moved most easily, and last what asks to be left alone.
#[test]
fn what_is_least_missed_goes_first() {
    let (mut cluster, names) = cluster(static_pool(0, None), 4);
    let mut asks = pod("asks", &[("cpu", "1")]);
    asks.metadata
        .annotations
        .insert(DO_NOT_DISRUPT.to_owned(), "true".to_owned());
    cluster.run(asks, &names[0]);
    cluster.run(pod("one", &[("cpu", "1")]), &names[1]);
    cluster.run(pod("two", &[("cpu", "1")]), &names[1]);
    cluster.run(pod("three", &[("cpu", "1")]), &names[2]);
    let mut daemon = pod("daemon", &[("cpu", "1")]);
    daemon.metadata.owner_references.push(OwnerReference {
        api_version: "apps/v1".to_owned(),
        kind: "DaemonSet".to_owned(),
        name: "logs".to_owned(),
        ..OwnerReference::default()
    });
    cluster.run(daemon, &names[3]);
    let mut unlaunched = NodeClaim::default();
    unlaunched.metadata.name = "unlaunched".to_owned();
    unlaunched.metadata.labels = cluster.snapshot.node_claims[0].metadata.labels.clone();
    cluster.snapshot.node_claims.push(unlaunched);
    let claim_of = |index: usize| cluster.snapshot.node_claims[index].metadata.name.clone();
    let order = [
        "unlaunched".to_owned(),
        claim_of(3),
        claim_of(2),
        claim_of(1),
        claim_of(0),
    ];
    let mut snapshot = cluster.snapshot.clone();
    for left in 0..=5 {
        snapshot.node_pools[0].spec.replicas = Some(left);
        let found = replicas(&snapshot, "fixed");
        assert_eq!(found.delete, order[..5 - left as usize]);
    }
}

/// Round after round a drifted node is replaced by a new one, never more than the limit allows, until none is left.
#[test]
fn drift_of_a_static_pool_ends() {
    let (mut cluster, _) = cluster(static_pool(5, Some("7")), 5);
    for claim in &mut cluster.snapshot.node_claims {
        claim.status.conditions.push(condition("Drifted", "True"));
    }
    let mut rounds = Vec::new();
    loop {
        let outcome = disrupt(&cluster.snapshot, &[], Method::StaticDrift);
        if outcome.command.is_none() {
            break;
        }
        rounds.push(outcome.commands().count());
        for command in outcome.commands() {
            assert_eq!(command.decision, Decision::Replace);
            cluster.add_node("fixed", "cheap", "test-zone-2", "spot");
        }
        assert!(cluster.node_count() <= 7);
        let going: Vec<&String> = outcome.commands().flat_map(|command| &command.nodes).collect();
        cluster
            .snapshot
            .nodes
            .retain(|node| !going.contains(&&node.metadata.name));
        cluster
            .snapshot
            .node_claims
            .retain(|claim| !going.contains(&&claim.status.node_name));
    }
    assert_eq!(rounds, [2, 2, 1]);
    assert_eq!(cluster.node_count(), 5);
    assert_eq!(replicas(&cluster.snapshot, "fixed"), Replicas::default());
}
