//! Changes asked for: rollouts at their time, versions on their way, templates, failure domains.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use kube::{ResourceExt, api::DynamicObject};
use serde_json::json;
use slipway_runtime::{Next, controller::Reconciler};

use crate::{
    stage::{NEW, OLD, Stage},
    theatre::{all, change, patch_status},
};

/// S-31: a rollout asked for replaces machines older than its time once that has come, by either field.
#[tokio::test(start_paused = true)]
async fn a_rollout_asked_for_replaces_older_machines_once() {
    let mut stage = Stage::standing(1, NEW).await;
    for field in ["rolloutAfter", "rollout"] {
        let names = stage.names().await;
        let at = stage.context.clock.now() + SignedDuration::from_mins(10);
        let at = Timestamp::from_second(at.as_second())
            .expect("a time")
            .to_string();
        let value = if field == "rollout" {
            json!({"after": at})
        } else {
            json!(at)
        };
        stage.change_plane(json!({field: value})).await;
        stage.rounds(8).await;
        assert_eq!(stage.names().await, names, "{field}: not before its time");
        stage.pass(Duration::from_mins(10)).await;
        stage.rounds(30).await;
        let after = stage.names().await;
        assert!(after.len() == 1 && after != names, "{field}: replaced");
        stage.rounds(20).await;
        assert_eq!(stage.names().await, after, "{field}: once");
    }
}

/// S-32: a server whose certificates end soon is replaced where that is asked for; the others stay.
#[tokio::test(start_paused = true)]
async fn a_server_whose_certificates_end_is_replaced() {
    let mut stage = Stage::standing(3, NEW).await;
    let names = stage.names().await;
    let soon = stage.context.clock.now() + SignedDuration::from_hours(24 * 20);
    let patch = json!({"metadata": {"annotations":
        {"machine.cluster.x-k8s.io/certificates-expiry": soon.to_string()}}});
    change(&stage.machines(), &names[1], &patch).await;
    stage.rounds(6).await;
    assert_eq!(stage.names().await, names, "nobody asked for it");
    stage
        .change_plane(json!({"rolloutBefore": {"certificatesExpiryDays": 30}}))
        .await;
    stage.rounds(40).await;
    stage.until_settled(3, NEW).await;
    let after = stage.names().await;
    assert!(!after.contains(&names[1]), "the one that ends is replaced");
    assert!(
        after.contains(&names[0]) && after.contains(&names[2]),
        "the others stay"
    );
}

/// S-37: while a ClusterClass is about to bring a version nothing is scaled; its present step is not waited for.
#[tokio::test(start_paused = true)]
async fn a_version_on_its_way_from_the_topology_is_waited_for() {
    let mut stage = Stage::standing(1, OLD).await;
    let patch = json!({"spec": {"topology": {"version": NEW}}});
    change(&stage.clusters(), "edge", &patch).await;
    stage.change_plane(json!({"replicas": 3})).await;
    stage.rounds(6).await;
    assert_eq!(stage.servers().await.len(), 1);
    let told = stage.plane_condition("ScalingUp").await;
    assert!(
        told["message"]
            .as_str()
            .unwrap_or_default()
            .contains(&format!("waiting for the version {NEW} to be propagated")),
        "{told}"
    );
    let step = json!({"metadata": {"annotations": {"topology.internal.cluster.x-k8s.io/upgrade-step": OLD}}});
    change(&stage.clusters(), "edge", &step).await;
    stage.until_settled(3, OLD).await;
}

/// S-61: servers spread over the failure domains, and stay spread through a rollout.
#[tokio::test(start_paused = true)]
async fn servers_spread_over_failure_domains() {
    let mut stage = Stage::new(3, OLD).await;
    let domain = |name: &str, control_plane: bool| json!({"name": name, "controlPlane": control_plane});
    patch_status(
        &stage.clusters(),
        "edge",
        json!({"failureDomains": [domain("a", true), domain("b", true), domain("c", true), domain("d", false)]}),
    )
    .await;
    let domains = |machines: Vec<DynamicObject>| -> Vec<String> {
        let mut found: Vec<String> = machines
            .iter()
            .map(|machine| {
                machine.data["spec"]["failureDomain"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect();
        found.sort();
        found
    };
    stage.until_settled(3, OLD).await;
    assert_eq!(domains(stage.servers().await), ["a", "b", "c"]);
    stage.change_plane(json!({"version": NEW})).await;
    stage.until_settled(3, NEW).await;
    assert_eq!(domains(stage.servers().await), ["a", "b", "c"]);
}

/// S-33: labels, annotations, taints and gates reach machine, configuration and host, and what leaves the template
/// leaves them; the hook and what others wrote stays.
#[tokio::test(start_paused = true)]
async fn what_leaves_the_template_leaves_the_objects() {
    let mut stage = Stage::standing(1, NEW).await;
    let name = stage.names().await.remove(0);
    let theirs = json!({"metadata": {"labels": {"theirs": "stays"}}});
    change(&stage.machines(), &name, &theirs).await;
    let template = json!({"metadata": {"labels": {"tier": "gold", "rack": "7"}, "annotations": {"note": "a"}},
        "spec": {"taints": [{"key": "edge", "effect": "NoSchedule", "propagation": "Always"}],
            "readinessGates": [{"conditionType": "Calibrated"}], "deletion": {"nodeDrainTimeoutSeconds": 60}}});
    stage.change_plane(json!({"machineTemplate": template})).await;
    stage.rounds(3).await;
    let machine = stage.machine(&name).await;
    assert_eq!(machine.data["spec"]["taints"][0]["key"], "edge");
    assert_eq!(
        machine.data["spec"]["readinessGates"][0]["conditionType"],
        "Calibrated"
    );
    assert_eq!(machine.data["spec"]["deletion"]["nodeDrainTimeoutSeconds"], 60);
    let labels = |object: &kube::api::ObjectMeta| object.labels.clone().unwrap_or_default();
    let config = stage.configs().get(&name).await.expect("the config");
    let host = stage.hosts().get(&name).await.expect("the host");
    for metadata in [&machine.metadata, &config.metadata, &host.metadata] {
        assert_eq!(labels(metadata)["tier"], "gold");
        assert_eq!(metadata.annotations.clone().unwrap_or_default()["note"], "a");
    }
    let version = stage.management.version();
    stage.rounds(3).await;
    assert_eq!(stage.management.version(), version, "at rest nothing is written");

    let template = json!({"metadata": {"labels": {"rack": null}, "annotations": {"note": null}},
        "spec": {"taints": null, "deletion": null}});
    stage.change_plane(json!({"machineTemplate": template})).await;
    stage.rounds(3).await;
    let machine = stage.machine(&name).await;
    let config = stage.configs().get(&name).await.expect("the config");
    let host = stage.hosts().get(&name).await.expect("the host");
    for metadata in [&machine.metadata, &config.metadata, &host.metadata] {
        assert_eq!(labels(metadata)["tier"], "gold");
        assert!(!labels(metadata).contains_key("rack"), "{metadata:?}");
        assert!(
            !metadata
                .annotations
                .clone()
                .unwrap_or_default()
                .contains_key("note")
        );
    }
    assert_eq!(labels(&machine.metadata)["theirs"], "stays");
    assert!(
        machine
            .annotations()
            .contains_key("pre-terminate.delete.hook.machine.cluster.x-k8s.io/k3s-cleanup")
    );
    assert_eq!(stage.names().await, vec![name], "nothing is replaced");
}

/// A template or a kind that does not exist is said where a user reads it, leaves nothing half made and is not asked for in a
/// loop; when it comes, the servers do.
#[tokio::test(start_paused = true)]
async fn a_missing_template_is_said_and_waited_for() {
    let mut stage = Stage::standing(1, NEW).await;
    let configs = all(&stage.configs()).await.len();
    for (kind, name, problem) in [
        ("Nothing", "hosts", "the kind Nothing of the group"),
        (
            "HostMachineTemplate",
            "nowhere",
            "HostMachineTemplate nowhere does not exist",
        ),
    ] {
        let reference = json!({"kind": kind, "name": name});
        let machines = json!({"machineTemplate": {"infrastructureRef": reference}});
        stage.change_plane(machines).await;
        stage.rounds(2).await;
        let plane = stage.planes().get("edge").await.expect("the control plane");
        let next = stage
            .control_plane
            .reconcile(Arc::new(plane), &stage.context)
            .await
            .expect("what a user has to mend is no failure of ours");
        assert_eq!(next, Next::After(Duration::from_mins(1)));
        let rolling = stage.plane_condition("RollingOut").await;
        let message = rolling["message"].as_str().unwrap_or_default();
        assert!(message.contains(problem), "{rolling}");
        assert_eq!(all(&stage.configs()).await.len(), configs, "nothing is half made");
    }
    stage.create_template("nowhere", "small").await;
    stage.rounds(40).await;
    stage.until_settled(1, NEW).await;
}
