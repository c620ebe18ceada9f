//! Whose machines they are: after a move to another management cluster, adopted, or another's.

use kube::{ResourceExt, api::DeleteParams};
use serde_json::json;
use slipway_kit::clusterctl::put_down;

use crate::{
    driver::{Driver, NEW, OLD},
    environment::{NAMESPACE, all, change, create, is_absent, patch_status},
};

/// S-55: what `clusterctl move` carries, specs without status under new uids, is enough to go on: no machine is replaced,
/// nothing is initialised again, no secret is made.
#[tokio::test(start_paused = true)]
async fn a_moved_cluster_goes_on_where_it_was() {
    let driver = Driver::standing(3, OLD).await;
    let names = driver.names().await;
    let pause = |paused: bool| json!({"spec": {"paused": paused}});
    change(&driver.clusters(), "edge", &pause(true)).await;
    let objects = driver.management.objects();

    let mut target = Driver::empty();
    target.take_over(&driver);
    target.set_up_namespace().await;
    // Owners come before what they own, as clusterctl orders them.
    let order = [
        "Cluster",
        "HostMachineTemplate",
        "KThreesControlPlane",
        "Machine",
        "KThreesConfig",
        "HostMachine",
        "Secret",
    ];
    let moved: Vec<_> = order
        .iter()
        .flat_map(|kind| objects.iter().filter(move |object| object["kind"] == *kind))
        .cloned()
        .collect();
    put_down(&target.management, &moved).await;
    patch_status(
        &target.clusters(),
        "edge",
        json!({"initialization": {"infrastructureProvisioned": true}}),
    )
    .await;
    let before = target.secret_contents().await;
    target.rounds(3).await;
    change(&target.clusters(), "edge", &pause(false)).await;
    target.rounds(12).await;
    assert_eq!(target.names().await, names, "no machine is replaced");
    assert!(
        target.recorder.lock().initialised.is_empty(),
        "nothing is initialised again"
    );
    assert_eq!(target.secret_contents().await, before);
    let status = target.plane_status().await;
    assert!(status.initialized && status.ready);
    assert_eq!(
        (status.ready_replicas, status.up_to_date_replicas),
        (Some(3), Some(3))
    );
    for config in all(&target.configs()).await {
        let status = config.status.expect("a status");
        assert_eq!(status.ready, Some(true));
    }
    // And it can still be worked with.
    target.change_plane(json!({"version": NEW})).await;
    target.until_settled(3, NEW).await;
}

/// S-57: machines that lost their owner are adopted; machines of another owner are refused with a condition.
#[tokio::test(start_paused = true)]
async fn machines_are_adopted_and_mixed_ownership_is_refused() {
    let mut driver = Driver::standing(3, NEW).await;
    let names = driver.names().await;
    for name in &names {
        let patch = json!({"metadata": {"ownerReferences": null}});
        change(&driver.machines(), name, &patch).await;
    }
    driver.rounds(4).await;
    assert_eq!(driver.names().await, names, "none is replaced");
    for machine in driver.servers().await {
        let owner = machine.owner_references().first().cloned().expect("an owner");
        assert_eq!(
            (owner.kind.as_str(), owner.controller),
            ("KThreesControlPlane", Some(true))
        );
    }
    assert_eq!(driver.plane_condition("MachinesOwned").await["status"], "True");

    let foreign = json!({"metadata": {"ownerReferences": [{"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmControlPlane", "name": "other", "uid": "another", "controller": true}]}});
    change(&driver.machines(), &names[0], &foreign).await;
    driver.change_plane(json!({"version": "v1.34.2+k3s1"})).await;
    driver.rounds(8).await;
    assert_eq!(
        driver.names().await,
        names,
        "nothing is done beside another owner"
    );
    let told = driver.plane_condition("MachinesOwned").await;
    assert_eq!(told["reason"], "MixedOwnership", "{told}");
    assert!(
        told["message"].as_str().unwrap_or_default().contains(&names[0]),
        "{told}"
    );
}

/// S-57: a machine too far away in version is refused, and the condition says which.
#[tokio::test(start_paused = true)]
async fn a_machine_of_a_distant_version_is_not_adopted() {
    let mut driver = Driver::new(1, NEW).await;
    let orphan = create(
        &driver.machines(),
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": "orphan", "namespace": NAMESPACE, "labels": {
                "cluster.x-k8s.io/cluster-name": "edge", "cluster.x-k8s.io/control-plane": ""}},
            "spec": {"clusterName": "edge", "version": "v1.31.1+k3s1", "bootstrap": {"configRef": {
                "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KThreesConfig", "name": "orphan"}}}}),
    )
    .await;
    driver.rounds(4).await;
    assert_eq!(
        driver.names().await,
        vec![orphan.name_any()],
        "and none is made beside it"
    );
    let told = driver.plane_condition("MachinesOwned").await;
    assert_eq!(told["reason"], "AdoptionRefused");
    assert!(
        told["message"].as_str().unwrap_or_default().contains("orphan"),
        "{told}"
    );
}

/// A control plane whose Cluster is gone keeps no finalizer: core does not finish its Machines any more.
#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_gone_keeps_no_finalizer() {
    let driver = Driver::standing(1, NEW).await;
    let patch = json!({"metadata": {"finalizers": null}});
    change(&driver.clusters(), "edge", &patch).await;
    let parameters = DeleteParams::default();
    driver
        .clusters()
        .delete("edge", &parameters)
        .await
        .expect("the Cluster goes");
    driver
        .planes()
        .delete("edge", &parameters)
        .await
        .expect("the control plane goes");
    driver.reconcile_all().await;
    assert!(is_absent(&driver.planes(), "edge").await);
}
