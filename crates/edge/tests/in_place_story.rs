//! Machines of a real Cluster API that are updated in place: core and the runtime extension are real, and core calls the replica that
//! stands by. How each upgrade goes is played: `in_place_upsets` has it done.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams},
};
use serde_json::{Value, json};
use slipway_edge::{
    api::{EdgeMachine, GROUP, INFRASTRUCTURE_GROUP, NodeUpgrade, VERSION},
    hooks::can_update::STRATEGY,
    provider,
};
use slipway_kit::manager::roles;
use slipway_testbed::{
    WorkloadCluster,
    hosts::Hosts,
    shared,
    wait::{until_gone_within, until_within},
};

use crate::in_place_world::{
    AFTER, BEFORE, CONTROL_PLANE, CORE, LONG, NEW, OLD, USER, Upgrades, asked, begin, deployment,
    hurried_hosts, manifests, register, template, until_asked,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e7_e17_a_machine_deployment_is_updated_in_place_and_what_cannot_be_is_left_alone() -> Result<()> {
    let hosts = hurried_hosts();
    let workload = shared("workload").await?;
    let story = begin(&hosts, &workload, Upgrades::Played).await?;
    let management = shared("capi").await?;
    let folder = tempfile::tempdir()?;
    let extension = [provider::extension()];
    roles::install(&management, &extension, USER).await?;
    let (_leader, _, _) = story
        .run_extension(&management, &folder.path().join("one"))
        .await?;
    // The first one has the lease, or will: one of the two always stands by, and either answers.
    let (base, ca, metrics) = story
        .run_extension(&management, &folder.path().join("two"))
        .await?;
    let configs = register(&story, &base, &ca).await?;

    let kubeconfig = workload.kubeconfig_as("edge-story", Some("system:masters"));
    story
        .apply(&manifests(&kubeconfig, &format!("{}-control", story.namespace)))
        .await?;
    let deployments = story.api(CORE, "MachineDeployment");
    until_within(
        LONG,
        &deployments,
        "workers",
        "have 2 available machines",
        |deployment| deployment.data["status"]["availableReplicas"] == 2,
    )
    .await?;
    let before = story.workers().await?;
    ensure!(before.len() == 2, "{before:?}");
    story.note_bootstrap_data(before.keys()).await?;

    story.run_upgrades();
    story
        .apply(&[template("workers-b", NEW, 1), deployment("workers-b", AFTER)])
        .await?;
    story.until_upgraded(before.keys(), AFTER).await?;
    until_within(LONG, &deployments, "workers", "count them", |deployment| {
        let status = &deployment.data["status"];
        status["upToDateReplicas"] == 2 && status["availableReplicas"] == 2
    })
    .await?;
    ensure!(
        story.workers().await? == before,
        "the same machines: {before:?}, {:?}",
        story.workers().await?
    );
    let machines: Api<EdgeMachine> = Api::namespaced(story.client.clone(), &story.namespace);
    for name in before.keys() {
        let image = machines.get(name).await?.spec.image.context("an image")?;
        ensure!(image.digest == NEW, "{name} has {image:?}");
    }
    let upgrades: Api<NodeUpgrade> = Api::namespaced(story.client.clone(), &story.namespace);
    ensure!(
        upgrades.list(&ListParams::default()).await?.items.len() == 2,
        "one upgrade for each machine"
    );
    ensure!(
        asked(&metrics, "updatemachine") >= 4,
        "each is begun and told to be done"
    );

    // More processors cannot be had in place: nothing is deleted, nothing is made.
    let questions = asked(&metrics, "canupdatemachineset");
    story
        .apply(&[template("workers-c", OLD, 2), deployment("workers-c", BEFORE)])
        .await?;
    until_asked(&metrics, "canupdatemachineset", questions + 3).await?;
    ensure!(
        story.workers().await? == before,
        "nobody is replaced: {:?}",
        story.workers().await?
    );
    ensure!(
        upgrades.list(&ListParams::default()).await?.items.len() == 2,
        "and nobody upgraded"
    );

    let clusters = story.api(CORE, "Cluster");
    clusters.delete("north", &DeleteParams::default()).await?;
    until_gone_within(LONG, &clusters, "north").await?;
    configs.delete(&story.namespace, &DeleteParams::default()).await?;
    let secrets: Api<Secret> = Api::namespaced(story.client.clone(), &story.namespace);
    ensure!(
        secrets.get_opt("north-kubeconfig").await?.is_some(),
        "what the user made stays"
    );
    Ok(())
}

/// Three servers of the stock provider, with external etcd, as their provider wants them for updates in place.
fn servers(template: &str, version: &str) -> Value {
    json!({"apiVersion": CONTROL_PLANE, "kind": "KubeadmControlPlane", "metadata": {"name": "south"}, "spec": {
        "replicas": 3, "version": version,
        "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}}},
        "machineTemplate": {"metadata": {"annotations": {(STRATEGY): "External"}}, "spec": {
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeMachineTemplate", "name": template}}},
        "kubeadmConfigSpec": {"clusterConfiguration": {"etcd": {"external": {"endpoints": ["https://127.0.0.1:2379"],
            "caFile": "/etc/kubernetes/pki/etcd/ca.crt", "certFile": "/etc/kubernetes/pki/apiserver-etcd-client.crt",
            "keyFile": "/etc/kubernetes/pki/apiserver-etcd-client.key"}}}}}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e17_three_servers_of_a_kubeadm_control_plane_are_updated_in_place() -> Result<()> {
    let management = shared("capi").await?;
    let hosts = hurried_hosts();
    // Control plane nodes are looked at all together, so this story has a workload cluster of its own.
    let workload = WorkloadCluster::builder()
        .name("edge-kubeadm")
        .kwok()
        .start()
        .await?;
    let story = begin(&hosts, &workload, Upgrades::Played).await?;
    let cas = Hosts::start(&management, &story.namespace, &workload).await?;
    cas.give_cas("south").await?;
    let folder = tempfile::tempdir()?;
    roles::install(&management, &[provider::extension()], USER).await?;
    let (base, ca, _) = story.run_extension(&management, folder.path()).await?;
    let configs = register(&story, &base, &ca).await?;
    let infrastructure = format!("{INFRASTRUCTURE_GROUP}/{VERSION}");
    let host = |name: &str| json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "EdgeHost", "metadata": {"name": name}, "spec": {}});
    story
        .apply(&[
            host("box-1"),
            host("box-2"),
            host("box-3"),
            json!({"apiVersion": infrastructure, "kind": "EdgeCluster", "metadata": {"name": "south"},
                "spec": {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": workload.port()}}}),
            template("servers-a", OLD, 1),
            servers("servers-a", "v1.36.2"),
            json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "south"}, "spec": {
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeCluster", "name": "south"},
                "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "south"}}}),
        ])
        .await?;
    let planes = story.api(CONTROL_PLANE, "KubeadmControlPlane");
    let has_three = |plane: &DynamicObject| {
        let status = &plane.data["status"];
        status["availableReplicas"] == 3 && status["upToDateReplicas"] == 3 && status["readyReplicas"] == 3
    };
    until_within(LONG, &planes, "south", "have 3 servers", has_three).await?;
    let before = story.machines("cluster.x-k8s.io/control-plane").await?;
    ensure!(before.len() == 3, "{before:?}");
    story.run_upgrades();
    story
        .apply(&[template("servers-b", NEW, 1), servers("servers-b", "v1.36.3")])
        .await?;
    story.until_upgraded(before.keys(), "v1.36.3").await?;
    until_within(LONG, &planes, "south", "count them", has_three).await?;
    let after = story.machines("cluster.x-k8s.io/control-plane").await?;
    ensure!(after == before, "the same machines: {before:?}, {after:?}");
    let nodes: Api<Node> = Api::all(workload.client());
    for node in nodes.list(&ListParams::default()).await? {
        let version = node
            .status
            .and_then(|status| status.node_info)
            .map(|info| info.kubelet_version);
        ensure!(version.as_deref() == Some("v1.36.3"), "{version:?}");
    }
    let clusters = story.api(CORE, "Cluster");
    clusters.delete("south", &DeleteParams::default()).await?;
    until_gone_within(LONG, &clusters, "south").await?;
    configs.delete(&story.namespace, &DeleteParams::default()).await?;
    workload.stop();
    Ok(())
}
