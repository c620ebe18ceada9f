use std::fmt::Write as _;

use serde_json::{Value, json};
use slipway_insight::{
    Basis, Happening, Node, Objects, Part, State, Tree, events, fleet, of_part, timeline, tree,
};

use crate::world::{CORE, TOY, catalogue, cluster, id, made, now, workers};

fn shown(node: &Node, depth: usize, text: &mut String) {
    let name = if node.count > 1 {
        format!("{}×{}", node.id.kind, node.count)
    } else {
        node.id.to_string()
    };
    writeln!(
        text,
        "{}{name} {}",
        "  ".repeat(depth),
        node.judgement.state.word()
    )
    .expect("text can be written");
    for child in &node.children {
        shown(child, depth + 1, text);
    }
}

fn text(tree: &Tree) -> String {
    let mut text = String::new();
    shown(&tree.root, 0, &mut text);
    text
}

fn below() -> Vec<Value> {
    vec![
        made(TOY, "Sea", "one").of_cluster().says(&["Ready=True"]).0,
        made(TOY, "Fleet", "one")
            .of_cluster()
            .with("/spec/version", json!("v1.34.1"))
            .says(&["Ready=True"])
            .0,
    ]
}

fn seen(mut objects: Vec<Value>, conditions: &[&str]) -> (Objects, Tree) {
    objects.push(cluster(conditions));
    let objects = Objects::new(objects);
    let tree = tree(&objects, &catalogue(), &id(CORE, "Cluster", "one"), now()).expect("it is there");
    (objects, tree)
}

#[test]
fn everything_is_in_the_tree_once_and_what_is_alike_is_one_line() {
    let well: &[&str] = &["Ready=True", "Available=True"];
    let mut objects = below();
    objects.extend(workers(&[
        ("a", well),
        ("b", well),
        ("c", &["Ready=False/Odd broken"]),
    ]));
    // Of a kind that nobody registered, with an owner in the tree, and one without.
    objects.push(
        made("addons.example.dev", "Flag", "red")
            .owned_by("Machine", "a")
            .0,
    );
    objects.push(made("addons.example.dev", "Flag", "lost").of_cluster().0);
    let (_, tree) = seen(objects, &["Available=True"]);
    let expected = "\
Cluster/one ready
  Sea/one ready
  Fleet/one ready
  MachineDeployment/work ready
    MachineSet/work-1 ready
      Machine/a ready
        Boat/a ready
        Flag/red ready
      Machine/b ready
        Boat/b ready
      Machine/c waiting
        Boat/c ready
  Flag/lost ready
";
    assert_eq!(text(&tree), expected);
    let expected = "\
Cluster/one ready
  Sea/one ready
  Fleet/one ready
  MachineDeployment/work ready
    Machine×2 ready
    Machine/c waiting
";
    assert_eq!(text(&tree.noteworthy()), expected);
}

#[test]
fn what_has_a_place_is_seen_across_clusters_the_worst_first() {
    let well: &[&str] = &["Ready=True"];
    let mut objects = below();
    objects.extend(workers(&[
        ("a", well),
        ("b", well),
        ("c", &["Ready=False/Odd broken"]),
    ]));
    let (objects, _) = seen(objects, &["Available=True"]);
    let shown = |part| {
        let nodes = of_part(&objects, &catalogue(), part, now());
        let names = nodes
            .iter()
            .map(|node| (node.id.name.clone(), node.count, node.children.len()));
        names.collect::<Vec<_>>()
    };
    assert_eq!(shown(Part::Workers), [("work".to_owned(), 1, 2)]);
    assert_eq!(
        shown(Part::Machine),
        [("c".to_owned(), 1, 0), (String::new(), 2, 0)]
    );
    assert!(shown(Part::Host).is_empty());
}

#[test]
fn what_is_named_and_not_there_is_shown() {
    let objects = vec![made(TOY, "Fleet", "one").says(&["Ready=True"]).0];
    let (_, tree) = seen(objects, &["Available=False/NotAvailable"]);
    let sea = &tree.root.children[0];
    assert!(sea.missing && sea.noteworthy);
    assert_eq!(
        (sea.judgement.state, sea.by.as_str()),
        (State::Stuck, "spec.infrastructureRef")
    );
    assert_eq!(tree.root.waits_for, std::slice::from_ref(&sea.id));
}

#[test]
fn a_rollout_has_progress_and_an_estimate_by_its_pace() {
    let mut objects = below();
    let well: &[&str] = &["Ready=True@11:50:00"];
    objects.extend(workers(&[
        ("a", well),
        ("b", &["Ready=True@11:55:00"]),
        ("c", &["Ready=False/Sailing@11:56:00"]),
    ]));
    let rolling = made(CORE, "MachineDeployment", "work")
        .of_cluster()
        .with(
            "/spec",
            json!({"replicas": 3, "template": {"spec": {"version": "v1.34.1"}}}),
        )
        .with(
            "/status",
            json!({"replicas": 3, "readyReplicas": 2, "upToDateReplicas": 2}),
        )
        .says(&["Available=True", "RollingOut=True/RollingOut@11:45:00"])
        .0;
    objects.retain(|object| object["kind"] != "MachineDeployment");
    objects.push(rolling);
    let (objects, tree) = seen(objects, &["Available=True"]);
    let work = &tree.root.children[2];
    let progress = work.progress.as_ref().expect("progress");
    assert_eq!((progress.done, progress.total), (2, 3));
    assert_eq!(progress.text, "2 of 3 machines up to date");
    // Two came in ten minutes.
    assert_eq!(
        progress.eta.basis,
        Basis::Unknown,
        "five minutes after the last it is due"
    );
    assert_eq!(progress.eta.why, "it is slower than before, when each took 300 s");
    assert_eq!(work.judgement.state, State::Progressing);
    let all = fleet(&objects, &catalogue(), now());
    let row = &all.rows[0];
    assert_eq!((row.worker_machines.ready, row.worker_machines.desired), (2, 3));
    assert_eq!(row.progress.as_ref().map(|progress| progress.done), Some(2));
    assert_eq!(
        (
            all.roll_up.clusters,
            all.roll_up.ready,
            all.roll_up.machines.desired
        ),
        (1, 1, 3)
    );
}

#[test]
fn what_is_being_deleted_says_what_keeps_it() {
    let mut objects = below();
    objects[1]["metadata"]["deletionTimestamp"] = json!("2026-01-01T11:30:00Z");
    objects[1]["metadata"]["finalizers"] = json!(["toy.dev/anchor"]);
    let (_, tree) = seen(objects, &["Available=True"]);
    let fleet = &tree.root.children[1];
    assert!(fleet.judgement.deleting && fleet.noteworthy);
    assert_eq!(fleet.judgement.state, State::Progressing);
    assert_eq!(fleet.judgement.message, "it is kept by toy.dev/anchor");
}

#[test]
fn a_newer_spec_that_nobody_looked_at_is_news() {
    let mut objects = below();
    objects[1]["metadata"]["generation"] = json!(3);
    objects[1]["status"]["observedGeneration"] = json!(2);
    let (_, tree) = seen(objects, &["Available=True"]);
    assert_eq!(tree.root.children[1].judgement.reason, "NotObserved");
}

#[test]
fn what_is_well_without_being_true_is_well() {
    let objects = vec![
        made(TOY, "Sea", "one").says(&["Sailed=False/Moored"]).0,
        made(TOY, "Fleet", "one").says(&["Ready=True"]).0,
    ];
    let (_, tree) = seen(objects, &["Available=True"]);
    assert_eq!(tree.root.children[0].judgement.state, State::Ready);
}

#[test]
fn a_timeline_has_conditions_events_and_writers_in_order() {
    let mut objects = below();
    objects[0]["metadata"]["managedFields"] = json!([
        {"manager": "kubectl", "operation": "Update", "time": "2026-01-01T11:10:00Z"},
        {"manager": "manager", "subresource": "status", "time": "2026-01-01T11:11:00Z"},
    ]);
    objects.push(json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "shop"},
        "involvedObject": {"apiVersion": format!("{TOY}/v1"), "kind": "Sea", "name": "one", "namespace": "shop"},
        "reason": "Rising", "message": "the tide comes", "type": "Warning", "count": 3,
        "lastTimestamp": "2026-01-01T11:20:00Z",
    }));
    objects.push(json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "other", "namespace": "shop"},
        "involvedObject": {"kind": "Sea", "name": "two", "namespace": "shop"},
        "lastTimestamp": "2026-01-01T11:20:00Z",
    }));
    let (mut objects, tree) = seen(objects, &["Available=True@11:15:00"]);
    // Of all events there are those whose object is here.
    let titles = |objects: &Objects| {
        events(objects)
            .entries
            .into_iter()
            .map(|entry| entry.title)
            .collect::<Vec<_>>()
    };
    assert_eq!(titles(&objects), ["Rising"]);
    let found: Vec<_> = timeline(&objects, &tree)
        .entries
        .into_iter()
        .filter(|entry| {
            entry.what != Happening::Created && entry.at > "2026-01-01T11:05:00Z".parse().expect("a time")
        })
        .map(|entry| (entry.object.kind, entry.title, entry.warning))
        .collect();
    let expected = [
        ("Sea", "written by kubectl", false),
        ("Cluster", "Available: True", false),
        ("Sea", "Rising", true),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(kind, title, warning)| ((*kind).to_owned(), (*title).to_owned(), *warning))
        .collect();
    assert_eq!(found, expected);
    objects.remove(&slipway_insight::Id::new("", "Event", "shop", "e"));
    assert!(titles(&objects).is_empty());
}

#[test]
fn no_field_of_a_spec_that_nobody_registered_comes_out() {
    let canary = "canary-7f3a";
    let mut objects = below();
    for object in &mut objects {
        object["spec"]["password"] = json!(canary);
        object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = json!(canary);
    }
    objects.push(json!({"apiVersion": "v1", "kind": "Secret", "data": {"value": canary},
        "metadata": {"name": "one-kubeconfig", "namespace": "shop", "labels": {"cluster.x-k8s.io/cluster-name": "one"},
            "ownerReferences": [{"uid": "Cluster/one"}]}}));
    let (objects, tree) = seen(objects, &["Available=True"]);
    let said = serde_json::to_string(&tree).expect("JSON")
        + &serde_json::to_string(&timeline(&objects, &tree)).expect("JSON")
        + &serde_json::to_string(&fleet(&objects, &catalogue(), now())).expect("JSON");
    assert!(!said.contains(canary) && !said.contains("Secret"), "{said}");
}

#[test]
fn a_tree_is_the_same_after_it_was_sent() {
    let (_, tree) = seen(below(), &["Available=True"]);
    let sent = serde_json::to_value(&tree).expect("JSON");
    assert_eq!(sent["root"]["kind"], "Cluster");
    assert_eq!(sent["root"]["state"], "ready");
    let read: Tree = serde_json::from_value(sent.clone()).expect("the same");
    assert_eq!(serde_json::to_value(&read).expect("JSON"), sent);
}
