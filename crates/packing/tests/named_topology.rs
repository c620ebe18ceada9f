//! The named topology behaviours: spread, affinity and anti-affinity, batch by batch.

use slipway_packing::labels::{ARCHITECTURE, HOSTNAME, ZONE};
use slipway_packing::requirement::Operator;

use crate::cluster::{Cluster, copies, default_types, labelled, pod, pool_with, requirement};
use crate::constraints::{With, node_term, spread, term};

const WEB: &[(&str, &str)] = &[("app", "web")];
const TINY: &[(&str, &str)] = &[("cpu", "10m")];

fn zone(values: &[&str]) -> slipway_packing::requirement::RequirementSpec {
    requirement(ZONE, Operator::In, values)
}

/// 11: an unknown topology key refuses; a constraint without a selector counts nothing.
#[test]
fn unknown_keys_and_missing_selectors() {
    let mut cluster = Cluster::default();
    let unknown = labelled("unknown", TINY, WEB).spread(spread("unknown", 1, WEB));
    let batch = cluster.provision(vec![unknown, labelled("plain", TINY, WEB)]);
    assert_eq!(batch.unscheduled, ["default/unknown"]);
    let mut cluster = Cluster::default();
    let mut constraint = spread(ZONE, 1, WEB);
    constraint.label_selector = None;
    cluster.provision(copies("pod", 2, &labelled("", TINY, WEB).spread(constraint)));
    assert_eq!(cluster.skew(ZONE, WEB), [2]);
}

/// 12: a spread over three zones.
#[test]
fn balances_zones() {
    let mut cluster = Cluster::default();
    cluster.provision(copies(
        "pod",
        4,
        &labelled("", TINY, WEB).spread(spread(ZONE, 1, WEB)),
    ));
    assert_eq!(cluster.skew(ZONE, WEB), [1, 1, 2]);
}

fn in_zone(name: &str, zone: &str) -> slipway_packing::model::Pod {
    labelled(name, &[("cpu", "1.1")], WEB).selecting(ZONE, zone)
}

/// 13 and 14: zones the pool does not offer still count.
#[test]
fn zones_out_of_reach_hold_the_others_back() {
    let mut cluster = Cluster::default();
    cluster.provision(vec![in_zone("first", "test-zone-3")]);
    cluster.snapshot.node_pools[0] = pool_with("default", vec![zone(&["test-zone-1", "test-zone-2"])]);
    let batch = cluster.provision(copies(
        "pod",
        6,
        &labelled("", &[("cpu", "1.1")], WEB).spread(spread(ZONE, 1, WEB)),
    ));
    assert_eq!(cluster.skew(ZONE, WEB), [1, 2, 2]);
    assert_eq!(batch.unscheduled.len(), 2);

    let mut cluster = Cluster::default();
    cluster.provision(vec![
        in_zone("first", "test-zone-1"),
        in_zone("second", "test-zone-2"),
    ]);
    cluster.snapshot.node_pools[0] = pool_with("default", vec![zone(&["test-zone-3"])]);
    let batch = cluster.provision(copies(
        "pod",
        10,
        &labelled("", &[("cpu", "1.1")], WEB).spread(spread(ZONE, 5, WEB)),
    ));
    assert_eq!(cluster.skew(ZONE, WEB), [1, 1, 6]);
    assert_eq!(batch.unscheduled.len(), 4);
}

/// 15: zones that emptied are filled again.
#[test]
fn fills_zones_that_emptied() {
    let mut cluster = Cluster::default();
    let example = labelled("", &[("cpu", "1.1")], WEB).spread(spread(ZONE, 1, WEB));
    cluster.provision(copies("first", 9, &example));
    assert_eq!(cluster.skew(ZONE, WEB), [3, 3, 3]);
    cluster.delete_pods(|_, node| node.metadata.labels[ZONE] != "test-zone-1");
    cluster.provision(copies("second", 3, &example));
    assert_eq!(cluster.skew(ZONE, WEB), [1, 2, 3]);
}

/// 16: too few domains mean an empty one is always missing.
#[test]
fn min_domains() {
    let with_three = |max_skew| {
        let mut constraint = spread(ZONE, max_skew, WEB);
        constraint.min_domains = Some(3);
        labelled("", TINY, WEB).spread(constraint)
    };
    let two_zones = pool_with("default", vec![zone(&["test-zone-1", "test-zone-2"])]);
    let mut cluster = Cluster::new(vec![two_zones], default_types());
    let batch = cluster.provision(copies("pod", 3, &with_three(1)));
    assert_eq!(cluster.skew(ZONE, WEB), [1, 1]);
    assert_eq!(batch.unscheduled.len(), 1);
    let mut cluster = Cluster::default();
    cluster.provision(copies("pod", 11, &with_three(1)));
    assert_eq!(cluster.skew(ZONE, WEB), [3, 4, 4]);
}

/// 17 and 18: spread over hosts.
#[test]
fn spreads_over_hosts() {
    for (max_skew, expected) in [(1, vec![1, 1, 1, 1]), (4, vec![4])] {
        let mut cluster = Cluster::default();
        cluster.provision(copies(
            "pod",
            4,
            &labelled("", TINY, WEB).spread(spread(HOSTNAME, max_skew, WEB)),
        ));
        assert_eq!(cluster.skew(HOSTNAME, WEB), expected);
    }
    for (architectures, nodes) in [(["amd64", "amd64"], 2), (["amd64", "arm64"], 4)] {
        let mut cluster = Cluster::default();
        let mut pods = Vec::new();
        for (app, architecture) in ["one", "two"].into_iter().zip(architectures) {
            let own = [("app", app)];
            let example = labelled("", &[], &own)
                .requiring(vec![node_term(vec![requirement(
                    ARCHITECTURE,
                    Operator::In,
                    &[architecture],
                )])])
                .spread(spread(HOSTNAME, 1, &own));
            pods.extend(copies(app, 2, &example));
        }
        let batch = cluster.provision(pods);
        assert!(batch.unscheduled.is_empty());
        assert_eq!(cluster.node_count(), nodes);
    }
}

/// 19: zone and host constraints hold together, batch after batch.
#[test]
fn zone_and_host_spread_together() {
    let mut cluster = Cluster::default();
    let example = labelled("", TINY, WEB)
        .spread(spread(ZONE, 1, WEB))
        .spread(spread(HOSTNAME, 3, WEB));
    for (batch, (count, expected)) in [
        (2, vec![1, 1]),
        (3, vec![1, 2, 2]),
        (5, vec![3, 3, 4]),
        (11, vec![7, 7, 7]),
    ]
    .into_iter()
    .enumerate()
    {
        cluster.provision(copies(&format!("batch-{batch}"), count, &example));
        assert_eq!(cluster.skew(ZONE, WEB), expected);
        assert!(cluster.skew(HOSTNAME, WEB).iter().all(|count| *count <= 3));
    }
}

/// 20: pods that want to share a host share one, and no more than it holds.
#[test]
fn self_affinity_to_one_host() {
    let mut cluster = Cluster::default();
    let example = labelled("", &[], WEB).near(term(HOSTNAME, WEB));
    let batch = cluster.provision(copies("first", 10, &example));
    assert_eq!(batch.unscheduled.len(), 5);
    assert_eq!(cluster.skew(HOSTNAME, WEB), [5]);
    let batch = cluster.provision(copies("second", 10, &example));
    assert_eq!(batch.unscheduled.len(), 10);
}

/// 21: anti-affinity on hosts and zones.
#[test]
fn anti_affinity_on_hosts_and_zones() {
    let mut cluster = Cluster::default();
    cluster.provision(vec![
        labelled("near", TINY, WEB),
        pod("away", TINY).apart(term(HOSTNAME, WEB)),
    ]);
    assert_ne!(
        cluster.node_of("near").metadata.name,
        cluster.node_of("away").metadata.name
    );
    let mut cluster = Cluster::default();
    cluster.provision(vec![
        in_zone("first", "test-zone-1"),
        in_zone("second", "test-zone-2"),
        in_zone("third", "test-zone-3"),
    ]);
    let batch = cluster.provision(vec![pod("away", TINY).apart(term(ZONE, WEB))]);
    assert_eq!(batch.unscheduled, ["default/away"]);
}

/// 22: a pod that could still be in any zone keeps others out of all; once it is somewhere, out of one.
#[test]
fn undecided_zone_keeps_others_out() {
    let mut cluster = Cluster::default();
    let anywhere = pod("anywhere", &[("cpu", "2")]).apart(term(ZONE, WEB));
    let batch = cluster.provision(vec![anywhere, labelled("kept-out", TINY, WEB)]);
    assert_eq!(batch.unscheduled, ["default/kept-out"]);
    cluster.provision(vec![labelled("kept-out", TINY, WEB)]);
    assert_ne!(
        cluster.label_of("anywhere", ZONE),
        cluster.label_of("kept-out", ZONE)
    );
}

/// 23: zonal anti-affinity fills one zone a batch; with domains committed early, all in one.
#[test]
fn zonal_anti_affinity_batch_by_batch() {
    let example = labelled("", &[("cpu", "2")], WEB).apart(term(ZONE, WEB));
    let mut cluster = Cluster::default();
    for (batch, expected) in [vec![1], vec![1, 1], vec![1, 1, 1], vec![1, 1, 1]]
        .into_iter()
        .enumerate()
    {
        cluster.provision(copies(&format!("batch-{batch}"), 3, &example));
        assert_eq!(cluster.skew(ZONE, WEB), expected);
    }
    let mut cluster = Cluster::default();
    cluster.snapshot.options.improvements.commit_domains_early = true;
    cluster.provision(copies("pod", 4, &example));
    assert_eq!(cluster.skew(ZONE, WEB), [1, 1, 1]);
}

/// 24: affinity to pods that do not exist.
#[test]
fn affinity_to_nobody() {
    let mut cluster = Cluster::default();
    let batch = cluster.provision(copies("pod", 10, &pod("", TINY).near(term(ZONE, WEB))));
    assert_eq!(batch.unscheduled.len(), 10);
    let refusal = &batch.plan.unschedulable[0];
    assert!(
        refusal
            .message
            .contains("pod affinity, key=topology.kubernetes.io/zone"),
        "{}",
        refusal.message
    );
}

/// 25: match label keys tell revisions apart.
#[test]
fn match_label_keys() {
    let mut cluster = Cluster::default();
    let mut constraint = spread(HOSTNAME, 1, WEB);
    constraint.match_label_keys = vec!["revision".to_owned()];
    let mut pods = Vec::new();
    for revision in ["one", "two"] {
        let example =
            labelled("", TINY, &[("app", "web"), ("revision", revision)]).spread(constraint.clone());
        pods.extend(copies(revision, 2, &example));
    }
    cluster.provision(pods);
    assert_eq!(cluster.skew(HOSTNAME, WEB), [2, 2]);
}
