//! Changes asked for: rollouts at their time, versions on their way, templates, failure domains.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use kube::{ResourceExt, api::DynamicObject};
use serde_json::json;
use slipway_runtime::{Next, controller::Reconciler};

use crate::{
    driver::{Driver, NEW, OLD},
    environment::{all, change, patch_status},
};

/// S-31: a rollout asked for replaces machines older than its time once that has come, by either field.
#[tokio::test(start_paused = true)]
async fn a_rollout_asked_for_replaces_older_machines_once() {
    let mut driver = Driver::standing(1, NEW).await;
    for field in ["rolloutAfter", "rollout"] {
        let names = driver.names().await;
        let at = driver.context.clock.now() + SignedDuration::from_mins(10);
        let at = Timestamp::from_second(at.as_second())
            .expect("a time")
            .to_string();
        let value = if field == "rollout" {
            json!({"after": at})
        } else {
            json!(at)
        };
        driver.change_plane(json!({field: value})).await;
        driver.rounds(8).await;
        assert_eq!(driver.names().await, names, "{field}: not before its time");
        driver.pass(Duration::from_mins(10)).await;
        driver.rounds(30).await;
        let after = driver.names().await;
        assert!(after.len() == 1 && after != names, "{field}: replaced");
        driver.rounds(20).await;
        assert_eq!(driver.names().await, after, "{field}: once");
    }
}

/// An upgrade says when it begins and ends, and each server that comes or goes says why.
#[tokio::test(start_paused = true)]
async fn events_say_why_servers_come_and_go_and_when_an_upgrade_begins_and_ends() {
    let mut driver = Driver::standing(3, OLD).await;
    driver.change_plane(json!({"version": NEW})).await;
    driver.until_settled(3, NEW).await;
    driver.rounds(4).await;
    let recorded = driver.context.events.recorded();
    let notes = |reason: &str| -> Vec<&str> {
        let events = recorded.iter().filter(|event| event.reason == reason);
        events.map(|event| event.note.as_str()).collect()
    };
    let started = notes("RolloutStarted");
    assert_eq!(started.len(), 1, "{started:?}");
    assert!(
        started[0].contains(OLD) && started[0].contains(NEW),
        "{started:?}"
    );
    assert_eq!(
        notes("RolloutFinished"),
        [format!("no server is out of date any more: {NEW}")]
    );
    let (created, deleted) = (notes("ServerCreated"), notes("Rollout"));
    assert_eq!((created.len(), deleted.len()), (6, 3), "{created:?} {deleted:?}");
    for note in created {
        assert!(note.contains(": ") && note.contains("(Machine edge-"), "{note}");
    }
    for note in deleted {
        assert!(
            note.starts_with("delete Machine edge-") && note.contains(NEW),
            "{note}"
        );
    }
}

/// S-32: a server whose certificates end soon is replaced where that is asked for; the others stay.
#[tokio::test(start_paused = true)]
async fn a_server_whose_certificates_end_is_replaced() {
    let mut driver = Driver::standing(3, NEW).await;
    let names = driver.names().await;
    let soon = driver.context.clock.now() + SignedDuration::from_hours(24 * 20);
    let patch = json!({"metadata": {"annotations":
        {"machine.cluster.x-k8s.io/certificates-expiry": soon.to_string()}}});
    change(&driver.machines(), &names[1], &patch).await;
    driver.rounds(6).await;
    assert_eq!(driver.names().await, names, "nobody asked for it");
    driver
        .change_plane(json!({"rolloutBefore": {"certificatesExpiryDays": 30}}))
        .await;
    driver.rounds(40).await;
    driver.until_settled(3, NEW).await;
    let after = driver.names().await;
    assert!(!after.contains(&names[1]), "the one that ends is replaced");
    assert!(
        after.contains(&names[0]) && after.contains(&names[2]),
        "the others stay"
    );
}

/// S-37: while a ClusterClass is about to bring a version nothing is scaled; its present step is not waited for.
#[tokio::test(start_paused = true)]
async fn a_version_on_its_way_from_the_topology_is_waited_for() {
    let mut driver = Driver::standing(1, OLD).await;
    let patch = json!({"spec": {"topology": {"version": NEW}}});
    change(&driver.clusters(), "edge", &patch).await;
    driver.change_plane(json!({"replicas": 3})).await;
    driver.rounds(6).await;
    assert_eq!(driver.servers().await.len(), 1);
    let told = driver.plane_condition("ScalingUp").await;
    assert!(
        told["message"]
            .as_str()
            .unwrap_or_default()
            .contains(&format!("waiting for the version {NEW} to be propagated")),
        "{told}"
    );
    let step = json!({"metadata": {"annotations": {"topology.internal.cluster.x-k8s.io/upgrade-step": OLD}}});
    change(&driver.clusters(), "edge", &step).await;
    driver.until_settled(3, OLD).await;
}

/// S-61: servers spread over the failure domains, and stay spread through a rollout.
#[tokio::test(start_paused = true)]
async fn servers_spread_over_failure_domains() {
    let mut driver = Driver::new(3, OLD).await;
    let domain = |name: &str, control_plane: bool| json!({"name": name, "controlPlane": control_plane});
    patch_status(
        &driver.clusters(),
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
    driver.until_settled(3, OLD).await;
    assert_eq!(domains(driver.servers().await), ["a", "b", "c"]);
    driver.change_plane(json!({"version": NEW})).await;
    driver.until_settled(3, NEW).await;
    assert_eq!(domains(driver.servers().await), ["a", "b", "c"]);
}

/// S-33: labels, annotations, taints and gates reach machine, configuration and host, and what leaves the template
/// leaves them; the hook and what others wrote stays.
#[tokio::test(start_paused = true)]
async fn what_leaves_the_template_leaves_the_objects() {
    let mut driver = Driver::standing(1, NEW).await;
    let name = driver.names().await.remove(0);
    let theirs = json!({"metadata": {"labels": {"theirs": "stays"}}});
    change(&driver.machines(), &name, &theirs).await;
    let template = json!({"metadata": {"labels": {"tier": "gold", "rack": "7"}, "annotations": {"note": "a"}},
        "spec": {"taints": [{"key": "edge", "effect": "NoSchedule", "propagation": "Always"}],
            "readinessGates": [{"conditionType": "Calibrated"}], "deletion": {"nodeDrainTimeoutSeconds": 60}}});
    driver.change_plane(json!({"machineTemplate": template})).await;
    driver.rounds(3).await;
    let machine = driver.machine(&name).await;
    assert_eq!(machine.data["spec"]["taints"][0]["key"], "edge");
    assert_eq!(
        machine.data["spec"]["readinessGates"][0]["conditionType"],
        "Calibrated"
    );
    assert_eq!(machine.data["spec"]["deletion"]["nodeDrainTimeoutSeconds"], 60);
    let labels = |object: &kube::api::ObjectMeta| object.labels.clone().unwrap_or_default();
    let config = driver.configs().get(&name).await.expect("the config");
    let host = driver.infra_machines().get(&name).await.expect("the host");
    for metadata in [&machine.metadata, &config.metadata, &host.metadata] {
        assert_eq!(labels(metadata)["tier"], "gold");
        assert_eq!(metadata.annotations.clone().unwrap_or_default()["note"], "a");
    }
    let version = driver.management.version();
    driver.rounds(3).await;
    assert_eq!(driver.management.version(), version, "at rest nothing is written");

    let template = json!({"metadata": {"labels": {"rack": null}, "annotations": {"note": null}},
        "spec": {"taints": null, "deletion": null}});
    driver.change_plane(json!({"machineTemplate": template})).await;
    driver.rounds(3).await;
    let machine = driver.machine(&name).await;
    let config = driver.configs().get(&name).await.expect("the config");
    let host = driver.infra_machines().get(&name).await.expect("the host");
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
    assert_eq!(driver.names().await, vec![name], "nothing is replaced");
}

/// A template or a kind that does not exist is said where a user reads it, leaves nothing half made and is not asked for in a
/// loop; when it comes, the servers do.
#[tokio::test(start_paused = true)]
async fn a_missing_template_is_said_and_waited_for() {
    let mut driver = Driver::standing(1, NEW).await;
    let configs = all(&driver.configs()).await.len();
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
        driver.change_plane(machines).await;
        driver.rounds(2).await;
        let plane = driver.planes().get("edge").await.expect("the control plane");
        let next = driver
            .control_plane
            .reconcile(Arc::new(plane), &driver.context)
            .await
            .expect("what a user has to mend is no failure of ours");
        assert_eq!(next, Next::After(Duration::from_mins(1)));
        let rolling = driver.plane_condition("RollingOut").await;
        let message = rolling["message"].as_str().unwrap_or_default();
        assert!(message.contains(problem), "{rolling}");
        assert_eq!(
            all(&driver.configs()).await.len(),
            configs,
            "nothing is half made"
        );
    }
    driver.create_template("nowhere", "small").await;
    driver.rounds(40).await;
    driver.until_settled(1, NEW).await;
}
