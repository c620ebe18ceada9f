//! Steps for what is there.

use super::*;
use crate::{
    command::objects::{CLASSIC_CLUSTER, CLASSIC_POOL, INLINE_CLUSTER, INLINE_POOL},
    migrate::{
        MIGRATED_FROM, MIGRATION,
        facts::{HeldSecret, Pair, Pool},
    },
};
use serde_json::{Value, json};

fn object(kind: KindName, name: &str, metadata: &Value) -> Object {
    let mut value = json!({"kind": kind.kind, "metadata": {"name": name, "namespace": "default", "uid": format!("{}-{name}", kind.kind)}});
    for (key, member) in metadata.as_object().into_iter().flatten() {
        value["metadata"][key] = member.clone();
    }
    Object { kind, value }
}

/// A classic cluster with one pool, as its controllers work on it.
fn classic() -> Facts {
    let held = json!({"finalizers": ["f"], "annotations": {"clusterctl.cluster.x-k8s.io/block-move": ""}});
    let pair = |kind: KindName, name: &str, metadata: &Value| Pair {
        classic: Some(object(kind, name, metadata)),
        inline: None,
        refers_to: Some(kind),
        name: name.to_owned(),
    };
    Facts {
        cluster: json!({"metadata": {"name": "fleet", "namespace": "default"}, "spec": {}}),
        infrastructure: pair(CLASSIC_CLUSTER, "fleet", &json!({})),
        plane: pair(CLASSIC_PLANE, "fleet", &held),
        pools: vec![Pool {
            machine_pool: json!({"metadata": {"name": "system"}}),
            pair: pair(CLASSIC_POOL, "system", &held),
        }],
        secrets: vec![HeldSecret {
            name: "fleet-kubeconfig".to_owned(),
            owner: CLASSIC_PLANE.kind.to_owned(),
        }],
        ..Facts::default()
    }
}

fn marked(mut facts: Facts, confirmed: bool) -> Facts {
    let mark = Mark {
        was_paused: false,
        confirmed,
    };
    facts.cluster["metadata"]["annotations"] = json!({(MIGRATION): mark.text()});
    facts
}

/// The same once it was prepared.
fn prepared() -> Facts {
    let mut facts = marked(classic(), false);
    let paused =
        json!({"finalizers": ["f"], "annotations": {"cluster.x-k8s.io/paused": "slipway-migration"}});
    let turn = |pair: &mut Pair, from: KindName, to: KindName| {
        pair.classic = Some(object(from, &pair.name, &paused));
        let made = json!({"annotations": {(MIGRATED_FROM): from.kind}, "finalizers": ["f"]});
        pair.inline = Some(object(to, &pair.name, &made));
        pair.refers_to = Some(to);
    };
    turn(&mut facts.infrastructure, CLASSIC_CLUSTER, INLINE_CLUSTER);
    turn(&mut facts.plane, CLASSIC_PLANE, INLINE_PLANE);
    turn(&mut facts.pools[0].pair, CLASSIC_POOL, INLINE_POOL);
    facts.has_credential = true;
    facts.secrets[0].owner = INLINE_PLANE.kind.to_owned();
    facts
}

fn lines(facts: &Facts, goal: Goal) -> Vec<String> {
    let steps = plan(facts, goal).unwrap();
    steps.iter().map(|step| step.action.to_string()).collect()
}

#[test]
fn nothing_is_swapped_before_what_could_delete_is_paused_by_itself() {
    assert_eq!(
        lines(&classic(), Goal::Prepare),
        [
            "pause the Cluster",
            "wait for AzureManagedMachinePool system, AzureManagedControlPlane fleet",
            "pause AzureManagedMachinePool system",
            "pause AzureManagedControlPlane fleet",
            "pause AzureManagedCluster fleet",
            "copy the credential to Secret fleet-sign-in",
            "make AzureASOManagedCluster fleet, AzureASOManagedControlPlane fleet, AzureASOManagedMachinePool system",
            "hand Secret fleet-kubeconfig to the AzureASOManagedControlPlane",
            "let MachinePool system refer to an AzureASOManagedMachinePool",
            "let the Cluster refer to an AzureASOManagedControlPlane",
            "resume the Cluster",
        ]
    );
    assert_eq!(lines(&prepared(), Goal::Prepare), [""; 0]);
}

#[test]
fn a_confirmation_deletes_what_is_paused_and_held_by_nobody() {
    let steps = lines(&prepared(), Goal::Confirm);
    assert_eq!(
        steps,
        [
            "note that the migration is confirmed",
            "take the finalizers off AzureManagedMachinePool system",
            "delete AzureManagedMachinePool system",
            "take the finalizers off AzureManagedControlPlane fleet",
            "delete AzureManagedControlPlane fleet",
            "take the finalizers off AzureManagedCluster fleet",
            "delete AzureManagedCluster fleet",
            "wait until AzureManagedMachinePool system, AzureManagedControlPlane fleet, AzureManagedCluster fleet are gone",
            "take the note off the Cluster",
        ]
    );
    let mut resumed = marked(prepared(), true);
    resumed.plane.classic = Some(object(CLASSIC_PLANE, "fleet", &json!({"finalizers": ["f"]})));
    assert!(lines(&resumed, Goal::Confirm).contains(&"pause AzureManagedControlPlane fleet".to_owned()));
}

#[test]
fn an_undo_swaps_back_before_it_deletes() {
    assert_eq!(
        lines(&prepared(), Goal::Undo),
        [
            "pause the Cluster",
            "let MachinePool system refer to an AzureManagedMachinePool",
            "let the Cluster refer to an AzureManagedControlPlane",
            "hand Secret fleet-kubeconfig to the AzureManagedControlPlane",
            "pause AzureASOManagedMachinePool system",
            "take the finalizers off AzureASOManagedMachinePool system",
            "delete AzureASOManagedMachinePool system",
            "pause AzureASOManagedControlPlane fleet",
            "take the finalizers off AzureASOManagedControlPlane fleet",
            "delete AzureASOManagedControlPlane fleet",
            "pause AzureASOManagedCluster fleet",
            "take the finalizers off AzureASOManagedCluster fleet",
            "delete AzureASOManagedCluster fleet",
            "wait until AzureASOManagedMachinePool system, AzureASOManagedControlPlane fleet, AzureASOManagedCluster fleet are gone",
            "resume AzureManagedMachinePool system",
            "resume AzureManagedControlPlane fleet",
            "resume AzureManagedCluster fleet",
            "delete Secret fleet-sign-in",
            "resume the Cluster, and take the note off it",
        ]
    );
}

#[test]
fn what_cannot_be_migrated_is_refused_with_what_to_do() {
    let changed = |change: fn(&mut Facts)| {
        let mut facts = classic();
        change(&mut facts);
        facts
    };
    let error = |facts: Facts, goal: Goal| plan(&facts, goal).unwrap_err();
    for (facts, goal, words) in [
        (
            changed(|facts| facts.cluster["spec"]["topology"] = json!({})),
            Goal::Prepare,
            "ClusterClass",
        ),
        (
            changed(|facts| facts.pools.clear()),
            Goal::Prepare,
            "make one with an AzureManagedMachinePool",
        ),
        (
            changed(|facts| facts.plane.refers_to = None),
            Goal::Prepare,
            "no AzureManagedControlPlane",
        ),
        (
            changed(|facts| facts.pools[0].pair.refers_to = None),
            Goal::Prepare,
            "no pool of AKS",
        ),
        (
            changed(|facts| facts.stray = vec![object(CLASSIC_POOL, "lost", &json!({}))]),
            Goal::Prepare,
            "has no MachinePool",
        ),
        (
            changed(|facts| facts.operated = vec!["ManagedCluster fleet".to_owned()]),
            Goal::Prepare,
            "takeover-aks.md",
        ),
        (
            changed(|facts| facts.cluster["metadata"]["deletionTimestamp"] = json!("now")),
            Goal::Prepare,
            "is being deleted",
        ),
        (
            changed(|facts| {
                facts.plane.classic = Some(object(
                    CLASSIC_PLANE,
                    "fleet",
                    &json!({"deletionTimestamp": "now"}),
                ));
            }),
            Goal::Prepare,
            "adopt the AKS cluster",
        ),
        (
            changed(|facts| facts.plane.inline = Some(object(INLINE_PLANE, "fleet", &json!({})))),
            Goal::Prepare,
            "no migration made",
        ),
        (classic(), Goal::Confirm, "begin with slipway migrate fleet"),
        (marked(classic(), false), Goal::Confirm, "not there yet"),
        (classic(), Goal::Undo, "nothing to undo"),
        (marked(prepared(), true), Goal::Undo, "cannot be undone"),
        (marked(prepared(), true), Goal::Prepare, "go on with --confirm"),
    ] {
        let error = error(facts, goal);
        assert!(error.contains(words), "{words}: {error}");
    }
    let mut lost = prepared();
    lost.plane.classic = None;
    assert!(plan(&lost, Goal::Undo).unwrap_err().contains("no way back"));
}
