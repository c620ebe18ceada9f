//! Both controllers on the driver: the journeys of a control plane, with quorum watched at every step.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use slipway_k3s::bootstrap;
use slipway_runtime::{Settings, informer::WATCH_FILTER_LABEL};

use super::{
    driver::{Driver, NEW, OLD},
    environment::{NAMESPACE, all, change, condition, is_absent},
};

/// S-7, S-15, S-17, S-25, S-36, S-41, S-63: three servers come up one after the other from userdata we made, are
/// upgraded with a surge of one, and report it under both contracts; then all of it is deleted.
#[tokio::test(start_paused = true)]
async fn three_servers_come_up_are_upgraded_and_deleted() {
    let mut driver = Driver::standing(3, OLD).await;
    let status = driver.plane_status().await;
    assert!(status.initialized && status.ready);
    assert_eq!(
        status
            .initialization
            .and_then(|initialization| initialization.control_plane_initialized),
        Some(true)
    );
    assert_eq!(
        (status.replicas, status.ready_replicas, status.available_replicas),
        (Some(3), Some(3), Some(3))
    );
    assert_eq!(
        (status.updated_replicas, status.up_to_date_replicas),
        (Some(3), Some(3))
    );
    assert_eq!(status.version.as_deref(), Some(OLD));
    let available = status
        .v1beta2
        .and_then(|v1beta2| v1beta2.conditions)
        .unwrap_or_default();
    assert!(
        available
            .iter()
            .any(|condition| condition.type_ == "Available" && condition.status == "True"),
        "{available:?}"
    );

    // Secrets of the right type, owned by the control plane.
    for name in [
        "edge-ca",
        "edge-cca",
        "edge-etcd",
        "edge-token",
        "edge-kubeconfig",
    ] {
        let secret = driver
            .secrets()
            .get(name)
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(secret.type_.as_deref(), Some("cluster.x-k8s.io/secret"), "{name}");
        assert_eq!(secret.owner_references()[0].kind, "KThreesControlPlane", "{name}");
    }
    let locks: Api<ConfigMap> = Api::namespaced(driver.management.client(), NAMESPACE);
    assert!(is_absent(&locks, "edge-lock").await, "the lock is released");

    driver.change_plane(json!({"version": NEW})).await;
    driver.until_settled(3, NEW).await;
    let refused = driver
        .patch_plane(json!({"spec": {"version": "v1.36.0+k3s1"}}))
        .await
        .expect_err("two are not");
    assert!(refused.to_string().contains("skips a minor version"), "{refused}");

    driver
        .planes()
        .delete("edge", &DeleteParams::default())
        .await
        .expect("it is deleted");
    driver.rounds(20).await;
    assert!(
        is_absent(&driver.planes(), "edge").await,
        "the control plane is gone"
    );
    assert!(all(&driver.machines()).await.is_empty());
}

/// S-39, S-45, S-48: a server that dies is told and, once the health check hands it over, replaced.
#[tokio::test(start_paused = true)]
async fn a_dead_server_is_healed() {
    let mut driver = Driver::standing(3, NEW).await;
    let victim = driver.names().await.remove(1);
    driver.model.lock().kill(&victim);
    driver.rounds(6).await;
    let machine = driver.machines().get(&victim).await.expect("it is still there");
    for type_ in ["AgentHealthy", "EtcdMemberHealthy"] {
        assert_eq!(condition(&machine, type_)["status"], "False", "{machine:?}");
    }
    driver.hand_over(&victim).await;
    driver.until_settled(3, NEW).await;
    assert!(is_absent(&driver.machines(), &victim).await);
    let status = driver.plane_status().await;
    assert_eq!(status.last_remediation.expect("it is recorded").machine, victim);
}

/// S-59: a paused cluster is left alone but for the condition that says so.
#[tokio::test(start_paused = true)]
async fn a_paused_cluster_is_left_alone() {
    let mut driver = Driver::new(1, NEW).await;
    let pause = json!({"spec": {"paused": true}});
    change(&driver.clusters(), "edge", &pause).await;
    driver.rounds(4).await;
    assert!(all(&driver.machines()).await.is_empty());
    assert!(all(&driver.secrets()).await.is_empty());
    let plane = driver.planes().get("edge").await.expect("it");
    let told = plane
        .status
        .and_then(|status| status.v1beta2)
        .and_then(|v1beta2| v1beta2.conditions)
        .unwrap_or_default();
    assert!(
        told.iter()
            .any(|condition| condition.type_ == "Paused" && condition.status == "True"),
        "{told:?}"
    );
}

/// S-12: a CA that is lost after initialisation is not made again, and nothing joins without it.
#[tokio::test(start_paused = true)]
async fn a_lost_ca_is_not_made_again() {
    let mut driver = Driver::standing(1, NEW).await;
    driver
        .secrets()
        .delete("edge-etcd", &DeleteParams::default())
        .await
        .expect("it is lost");
    driver.change_plane(json!({"replicas": 3})).await;
    driver.rounds(6).await;
    assert!(is_absent(&driver.secrets(), "edge-etcd").await);
    assert_eq!(all(&driver.machines()).await.len(), 1);
    let status = driver.plane_status().await;
    let told = status.conditions.unwrap_or_default();
    let certificates = told
        .iter()
        .find(|condition| condition.type_ == "CertificatesAvailable")
        .expect("the condition");
    assert_eq!(certificates.status, "False");
    assert!(
        certificates
            .message
            .as_deref()
            .unwrap_or_default()
            .contains("edge-etcd"),
        "{certificates:?}"
    );
}

/// S-54: the kubeconfig follows the endpoint; S-55: secrets a config owned become the control plane's.
#[tokio::test(start_paused = true)]
async fn secrets_follow_the_endpoint_and_their_owner() {
    let mut driver = Driver::standing(1, NEW).await;
    let first = all(&driver.configs()).await.remove(0);
    let stray = json!({"metadata": {"ownerReferences": [{"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
        "kind": "KThreesConfig", "name": first.name_any(), "uid": first.metadata.uid, "controller": true}]}});
    change(&driver.secrets(), "edge-token", &stray).await;
    let moved = json!({"spec": {"controlPlaneEndpoint": {"host": "10.8.8.8"}}});
    change(&driver.clusters(), "edge", &moved).await;
    driver.round().await;
    let token = driver.secrets().get("edge-token").await.expect("it");
    assert_eq!(token.owner_references()[0].kind, "KThreesControlPlane");
    let kubeconfig = driver.secrets().get("edge-kubeconfig").await.expect("it");
    let text = String::from_utf8(kubeconfig.data.expect("data")["value"].0.clone()).expect("text");
    assert!(text.contains("https://10.8.8.8:6443"), "the endpoint moved");
}

/// S-58: a running installation of the community provider is taken over: no machine is replaced, no secret rewritten,
/// hooks and the fields of the v1beta2 contract are added.
#[tokio::test(start_paused = true)]
async fn a_running_installation_is_taken_over_without_a_replacement() {
    let mut driver = Driver::standing(3, OLD).await;
    let before = driver.names().await;
    let kept = driver.secret_contents().await;
    // As that provider leaves its objects: no hook of ours, no record of ours, the version in every config, empty
    // lists instead of absent ones, and a status without the v1beta2 fields.
    for name in &before {
        let patch = json!({"metadata": {"annotations": {
            "pre-terminate.delete.hook.machine.cluster.x-k8s.io/k3s-cleanup": null}}});
        change(&driver.machines(), name, &patch).await;
        let patch = json!({"spec": {"version": OLD, "files": [], "serverConfig": {"clusterCidr": null}}});
        change(&driver.configs(), name, &patch).await;
        let patch = json!({"status": {"initialization": null, "v1beta2": null}});
        driver
            .configs()
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .expect("a config");
    }
    let patch = json!({"metadata": {"annotations": {
        "controlplane.cluster.x-k8s.io/kthrees-cluster-network": null,
        "controlplane.cluster.x-k8s.io/kthrees-initialized": null}}});
    driver.patch_plane(patch).await.expect("the control plane");
    let patch = json!({"status": {"initialization": null, "v1beta2": null, "versions": null, "upToDateReplicas": null,
        "availableReplicas": null}});
    driver
        .planes()
        .patch_status("edge", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .expect("the control plane");
    driver.rounds(12).await;
    let machines = all(&driver.machines()).await;
    let after: Vec<String> = machines.iter().map(ResourceExt::name_any).collect();
    assert_eq!(after, before, "no machine is replaced");
    assert!(machines.iter().all(|machine| {
        machine
            .annotations()
            .keys()
            .any(|key| key.ends_with("/k3s-cleanup"))
    }));
    assert_eq!(driver.secret_contents().await, kept);
    let status = driver.plane_status().await;
    assert_eq!(status.up_to_date_replicas, Some(3));
    assert_eq!(
        status
            .initialization
            .and_then(|initialization| initialization.control_plane_initialized),
        Some(true)
    );
    for config in all(&driver.configs()).await {
        let created = config
            .status
            .and_then(|status| status.initialization)
            .and_then(|status| status.data_secret_created);
        assert_eq!(created, Some(true), "the v1beta2 contract's field is filled in");
    }
}

/// S-33: labels, annotations and timeouts reach running machines and replace none.
#[tokio::test(start_paused = true)]
async fn labels_and_timeouts_are_carried_to_running_machines() {
    let mut driver = Driver::standing(1, NEW).await;
    let name = driver.names().await.remove(0);
    let patch = json!({"spec": {"machineTemplate": {"metadata": {"labels": {"tier": "gold"}, "annotations": {"note": "a"}},
        "nodeDrainTimeout": "5m"}}});
    driver.patch_plane(patch).await.expect("it is changed");
    driver.rounds(4).await;
    let machines = all(&driver.machines()).await;
    assert_eq!(machines.len(), 1);
    assert_eq!(machines[0].name_any(), name, "nothing is replaced");
    assert_eq!(machines[0].labels()["tier"], "gold");
    assert_eq!(machines[0].annotations()["note"], "a");
    assert_eq!(
        machines[0].data["spec"]["deletion"]["nodeDrainTimeoutSeconds"],
        300
    );
}

/// S-21: a file whose secret is missing is told, and written once it is there.
#[tokio::test(start_paused = true)]
async fn a_file_waits_for_its_secret() {
    let mut driver = Driver::new(1, NEW).await;
    let patch = json!({"spec": {"kthreesConfigSpec": {"files": [{"path": "/etc/license",
        "contentFrom": {"secret": {"name": "license", "key": "text"}}}]}}});
    driver.patch_plane(patch).await.expect("it is changed");
    driver.rounds(3).await;
    let config = all(&driver.configs()).await.remove(0);
    let told = config
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    let available = told
        .iter()
        .find(|condition| condition.type_ == "DataSecretAvailable")
        .expect("the condition");
    assert_eq!(
        available.message.as_deref(),
        Some("file /etc/license: Secret license does not exist")
    );
    let license =
        serde_json::from_value(json!({"metadata": {"name": "license"}, "data": {"text": "bGljZW5zZQ=="}}))
            .expect("a secret");
    driver
        .secrets()
        .create(&PostParams::default(), &license)
        .await
        .expect("it is created");
    driver.until_settled(1, NEW).await;
    let data = driver
        .secrets()
        .get(&config.metadata.name.expect("a name"))
        .await
        .expect("the data");
    let userdata = String::from_utf8(data.data.expect("data")["value"].0.clone()).expect("text");
    assert!(
        userdata.contains("-   path: /etc/license\n    content: |\n      license\n"),
        "{userdata}"
    );
}

/// S-21: with `--namespace` and `--watch-filter`, too, a config hears of the secret it waits for.
#[tokio::test(start_paused = true)]
async fn a_config_hears_of_its_secret_where_the_manager_may_look() {
    let driver = Driver::standing(1, NEW).await;
    driver.create_worker("worker", NEW).await;
    let waiting = json!({"metadata": {"labels": {WATCH_FILTER_LABEL: "ours"}}, "spec": {"files": [
        {"path": "/etc/license", "contentFrom": {"secret": {"name": "license", "key": "text"}}}]}});
    change(&driver.configs(), "worker", &waiting).await;
    driver.step().await;
    let mut context = driver.context.clone();
    context.settings = Arc::new(Settings {
        namespace: Some(NAMESPACE.to_owned()),
        watch_filter: Some("ours".to_owned()),
        ..Settings::default()
    });
    let shutdown = context.shutdown.clone();
    let running = tokio::spawn((bootstrap::registration().run)(context));

    let status = async || driver.configs().get("worker").await.expect("it").status;
    driver.pass(Duration::from_secs(20)).await;
    let told = json!(status().await).to_string();
    assert!(told.contains("Secret license does not exist"), "{told}");
    // In both forms, and of severity Info too.
    let told = status().await.expect("a status");
    let v1beta1 = told.conditions.unwrap_or_default();
    assert!(
        v1beta1
            .iter()
            .any(|one| one.type_ == "Ready" && one.severity.as_deref() == Some("Info")),
        "{v1beta1:?}"
    );
    let v1beta2 = told
        .v1beta2
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    assert!(
        v1beta2
            .iter()
            .any(|one| one.type_ == "Ready" && one.status == "False"),
        "{v1beta2:?}"
    );
    let license =
        serde_json::from_value(json!({"metadata": {"name": "license"}, "data": {"text": "bGljZW5zZQ=="}}))
            .expect("a secret");
    driver
        .secrets()
        .create(&PostParams::default(), &license)
        .await
        .expect("it is created");
    // Long before everything is reconciled again.
    driver.pass(Duration::from_secs(20)).await;
    let done = status().await.expect("a status");
    assert_eq!(done.data_secret_name.as_deref(), Some("worker"), "{done:?}");
    shutdown.cancel();
    running.await.expect("no panic").expect("no error");
}
