//! How far a claim has come, in tables.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use slipway_autoscaler::{
    api::Deadlines,
    lifecycle::{Facts, Limits, NodeFacts, Progress, inconsistency, progress},
    startup::StartupTaints,
};

use crate::instances::{amounts, taint};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).expect("a moment")
}

pub fn facts(machine: Option<&str>, nodes: &[NodeFacts]) -> Facts {
    Facts {
        created: at(0),
        labels: BTreeMap::from([("karpenter.sh/nodepool".to_owned(), "general".to_owned())]),
        taints: vec![taint("dedicated", "gpu", "NoSchedule")],
        startup_taints: vec![taint("network", "", "NoExecute")],
        foreign_taints: StartupTaints::named(["node.cilium.io/agent-not-ready"]),
        requests: amounts(&[("cpu", "1"), ("nvidia.com/gpu", "1")]),
        capacity: amounts(&[("cpu", "4"), ("memory", "16Gi"), ("example.com/nic", "2")]),
        machine: machine.map(str::to_owned),
        waits_for: "Cluster API has not made its Machine yet".to_owned(),
        nodes: nodes.to_vec(),
        deadlines: Limits::default(),
    }
}

/// A Node that just joined.
pub fn node() -> NodeFacts {
    NodeFacts {
        name: "n".to_owned(),
        taints: vec![taint("karpenter.sh/unregistered", "", "NoExecute")],
        is_ready: true,
        allocatable: amounts(&[("cpu", "4"), ("nvidia.com/gpu", "1")]),
        ..NodeFacts::default()
    }
}

fn reasons(progress: &Progress) -> [&'static str; 3] {
    [
        progress.launched.reason,
        progress.registered.reason,
        progress.initialized.reason,
    ]
}

#[test]
fn from_a_machine_to_an_initialized_node() {
    let soon = at(60);
    let none = progress(&facts(None, &[]), soon);
    assert_eq!(
        reasons(&none),
        ["WaitingForMachine", "NotLaunched", "NotRegistered"]
    );
    assert_eq!(none.launched.message, "Cluster API has not made its Machine yet");
    let machine = progress(&facts(Some("m"), &[]), soon);
    assert_eq!(
        reasons(&machine),
        ["Launched", "NodeNotFound", "NotRegistered"],
        "launched before it has a provider id"
    );
    let twice = progress(&facts(Some("m"), &[node(), node()]), soon);
    assert_eq!(
        reasons(&twice),
        ["Launched", "MultipleNodesFound", "NotRegistered"]
    );
    assert!(twice.change.is_empty(), "neither is touched");
    let joined = progress(&facts(Some("m"), &[node()]), soon);
    assert_eq!(reasons(&joined), ["Launched", "Registered", "Initialized"]);
    assert_eq!(joined.change.labels.len(), 3);
    assert_eq!(joined.change.add_taints.len(), 2);
    assert_eq!(
        joined.change.remove_taints,
        [taint("karpenter.sh/unregistered", "", "NoExecute")]
    );

    let rows: Vec<(&str, NodeFacts)> = vec![
        (
            "NodeNotReady",
            NodeFacts {
                is_ready: false,
                ..node()
            },
        ),
        (
            "StartupTaintsExist",
            NodeFacts {
                taints: vec![taint("network", "", "NoExecute")],
                ..node()
            },
        ),
        (
            "KnownEphemeralTaintsExist",
            NodeFacts {
                taints: vec![taint("node.kubernetes.io/not-ready", "", "NoSchedule")],
                ..node()
            },
        ),
        (
            "ResourceNotRegistered",
            NodeFacts {
                allocatable: amounts(&[("cpu", "4"), ("nvidia.com/gpu", "0")]),
                ..node()
            },
        ),
        // A taint that somebody else adds while the node starts is his to take away, and holds nothing up.
        (
            "Initialized",
            NodeFacts {
                taints: vec![taint("foreign", "", "NoSchedule")],
                ..node()
            },
        ),
    ];
    for (reason, node) in rows {
        let found = progress(&facts(Some("m"), &[node]), soon);
        assert_eq!(found.initialized.reason, reason);
        assert_eq!(
            found.change.labels.contains_key("karpenter.sh/initialized"),
            found.initialized.holds
        );
    }
}

/// Others add taints while a node starts: Cluster API, whoever marks them as Cluster Autoscaler's users do, and those that the flag
/// names. The node is not initialized before they are gone.
#[test]
fn taints_that_others_take_away_are_waited_for() {
    for (key, reason) in [
        (
            "startup-taint.cluster-autoscaler.kubernetes.io/network",
            "KnownEphemeralTaintsExist",
        ),
        (
            "ignore-taint.cluster-autoscaler.kubernetes.io/disk",
            "KnownEphemeralTaintsExist",
        ),
        ("node.cluster.x-k8s.io/uninitialized", "KnownEphemeralTaintsExist"),
        ("readiness.k8s.io/storage", "KnownEphemeralTaintsExist"),
        ("node.cilium.io/agent-not-ready", "KnownEphemeralTaintsExist"),
        ("node.cilium.io/agent-not-ready-at-all", "Initialized"),
    ] {
        let starting = NodeFacts {
            taints: vec![taint(key, "", "NoSchedule")],
            ..node()
        };
        let found = progress(&facts(Some("m"), &[starting]), at(60));
        assert_eq!(found.initialized.reason, reason, "{key}");
    }
}

/// Cluster Autoscaler's label says that a node has devices, so it is not ready before they are there.
#[test]
fn an_accelerator_is_waited_for() {
    let with = |labels: &[(&str, &str)], devices: &str| {
        let mut labelled = node();
        labelled.labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        labelled
            .allocatable
            .extend(amounts(&[("example.com/nic", devices)]));
        progress(&facts(Some("m"), &[labelled]), at(60)).initialized
    };
    let label = [("cluster-api/accelerator", "nic")];
    let waits = with(&label, "0");
    assert_eq!(
        (waits.reason, waits.message.as_str()),
        ("ResourceNotRegistered", "Node n has no example.com/nic yet")
    );
    assert!(with(&label, "2").holds);
    assert!(with(&[], "0").holds, "nobody asked for it");
    let mut by_claim = facts(Some("m"), &[node()]);
    by_claim
        .labels
        .insert("cluster-api/accelerator".to_owned(), "nic".to_owned());
    assert_eq!(
        progress(&by_claim, at(60)).initialized.reason,
        "ResourceNotRegistered"
    );
}

#[test]
fn a_registered_node_is_left_as_it_is() {
    let mut settled = node();
    settled.taints.clear();
    settled.labels = [
        ("karpenter.sh/nodepool", "general"),
        ("karpenter.sh/registered", "true"),
        ("karpenter.sh/initialized", "true"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let found = progress(&facts(Some("m"), &[settled]), at(60));
    assert!(
        found.change.is_empty(),
        "taints that somebody removed do not come back: {:?}",
        found.change
    );
}

#[test]
fn deadlines() {
    let minute = 60;
    let waiting = |machine: Option<&str>, nodes: &[NodeFacts], limits: Limits, now: i64| {
        let found = progress(
            &Facts {
                deadlines: limits,
                ..facts(machine, nodes)
            },
            at(now),
        );
        (found.give_up, found.revisit)
    };
    let usual = Limits::default();
    assert_eq!(
        waiting(None, &[], usual, 4 * minute),
        (None, Some(at(5 * minute)))
    );
    assert_eq!(
        waiting(None, &[], usual, 5 * minute),
        (Some("no Machine stood for it within 300s".to_owned()), None)
    );
    assert_eq!(
        waiting(Some("m"), &[], usual, 14 * minute),
        (None, Some(at(15 * minute)))
    );
    assert_eq!(
        waiting(Some("m"), &[], usual, 15 * minute),
        (Some("its Node did not join within 900s".to_owned()), None)
    );
    assert_eq!(waiting(Some("m"), &[node()], usual, 60 * minute), (None, None));
    // Bare metal takes long, and says so.
    let class = Deadlines {
        launch: Some("Never".to_owned()),
        registration: Some("1h".to_owned()),
    };
    let long = Limits::of(Some(&class), None);
    assert_eq!(waiting(None, &[], long, 1_000 * minute), (None, None));
    assert_eq!(
        waiting(Some("m"), &[], long, 59 * minute),
        (None, Some(at(60 * minute)))
    );
    let by_object = Limits::of(Some(&class), Some(7_200.0));
    assert_eq!(
        by_object.registration,
        Some(Duration::from_hours(2)),
        "the object's own word counts first"
    );
    assert_eq!(Limits::of(None, None), usual);
}

#[test]
fn a_node_gets_karpenters_finalizer_once() {
    let new = progress(&facts(Some("m"), &[node()]), at(60));
    assert!(new.change.add_finalizer);
    let mut registered = node();
    registered
        .labels
        .insert("karpenter.sh/registered".to_owned(), "true".to_owned());
    let later = progress(&facts(Some("m"), &[registered]), at(60));
    assert!(!later.change.add_finalizer, "who took it away has a reason");
}

#[test]
fn a_node_that_has_too_little_is_inconsistent() {
    let has = |cpu: &str| NodeFacts {
        capacity: amounts(&[("cpu", cpu), ("memory", "16Gi")]),
        ..node()
    };
    let expected = amounts(&[("cpu", "4"), ("memory", "16Gi")]);
    assert_eq!(inconsistency(&expected, &has("4")), None);
    assert_eq!(inconsistency(&expected, &has("3600m")), None, "nine tenths");
    assert_eq!(
        inconsistency(&expected, &has("3")).as_deref(),
        Some("Node n has 3 of cpu, and 4 were expected")
    );
}
