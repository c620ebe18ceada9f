//! Three servers of a real KubeadmControlPlane that are updated in place on real agents, from the hook to the kubeadm of the new slot.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams},
};
use serde_json::{Value, json};
use slipway_edge::{
    api::{INFRASTRUCTURE_GROUP, NodeUpgrade, VERSION},
    hooks::can_update::STRATEGY,
    node_upgrade::api::Phase,
    provider,
};
use slipway_kit::manager::roles;
use slipway_testbed::{
    Cluster, WorkloadCluster,
    hosts::Hosts,
    shared,
    wait::{until_gone_within, until_within},
};

use crate::{
    in_place_agents::{BOXES, Site},
    in_place_world::{CONTROL_PLANE, CORE, LONG, Story, USER, Upgrades, begin_on, register},
};

const NAME: &str = "south";
const BEFORE: &str = "v1.36.2";
const AFTER: &str = "v1.36.3";
const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";

/// Three servers of the stock provider, with external etcd, as their provider wants them for updates in place.
fn servers(template: &str, version: &str) -> Value {
    json!({"apiVersion": CONTROL_PLANE, "kind": "KubeadmControlPlane", "metadata": {"name": NAME}, "spec": {
        "replicas": 3, "version": version,
        "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}}},
        "machineTemplate": {"metadata": {"annotations": {(STRATEGY): "External"}}, "spec": {
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeMachineTemplate", "name": template}}},
        "kubeadmConfigSpec": {"clusterConfiguration": {"etcd": {"external": {"endpoints": ["https://127.0.0.1:2379"],
            "caFile": "/etc/kubernetes/pki/etcd/ca.crt", "certFile": "/etc/kubernetes/pki/apiserver-etcd-client.crt",
            "keyFile": "/etc/kubernetes/pki/apiserver-etcd-client.key"}}}}}})
}

fn manifests(site: &Site, port: u16) -> Vec<Value> {
    let infrastructure = format!("{INFRASTRUCTURE_GROUP}/{VERSION}");
    let mut manifests = site.objects();
    manifests.extend([
        json!({"apiVersion": infrastructure, "kind": "EdgeCluster", "metadata": {"name": NAME},
            "spec": {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": port}}}),
        site.template("servers-a", &site.before, 1),
        servers("servers-a", BEFORE),
        json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": NAME}, "spec": {
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeCluster", "name": NAME},
            "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": NAME}}}),
    ]);
    manifests
}

fn has_three(plane: &DynamicObject) -> bool {
    let status = &plane.data["status"];
    status["availableReplicas"] == 3 && status["upToDateReplicas"] == 3 && status["readyReplicas"] == 3
}

/// Nothing of the upgrades is left on nodes and machines, and each host was booted once.
async fn nothing_is_left(story: &Story, site: &Site, workload: &Cluster) -> Result<()> {
    let upgrades: Api<NodeUpgrade> = Api::namespaced(story.client.clone(), &story.namespace);
    let all = upgrades.list(&ListParams::default()).await?.items;
    let done = |upgrade: &NodeUpgrade| {
        upgrade
            .status
            .as_ref()
            .is_some_and(|status| status.phase == Phase::Done)
    };
    ensure!(all.len() == 3 && all.iter().all(done), "{all:?}");
    for node in Api::<Node>::all(workload.client())
        .list(&ListParams::default())
        .await?
    {
        let version = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref())
            .map(|info| info.kubelet_version.clone());
        let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        ensure!(
            version.as_deref() == Some(AFTER) && !is_cordoned,
            "{}: {version:?}, {:?}",
            node.name_any(),
            node.spec
        );
    }
    for machine in story.api(CORE, "Machine").list(&ListParams::default()).await? {
        ensure!(
            !machine.annotations().contains_key(SKIP_REMEDIATION),
            "health checks are let in again: {:?}",
            machine.annotations()
        );
    }
    ensure!(
        site.reboots() == BOXES.map(|name| (name, 1_u64)),
        "{:?}",
        site.reboots()
    );
    Ok(())
}

/// What Cluster API has told kubeadm of the cluster.
async fn configuration(workload: &Cluster) -> Result<String> {
    let maps: Api<ConfigMap> = Api::namespaced(workload.client(), "kube-system");
    let map = maps.get("kubeadm-config").await?;
    let text = map.data.and_then(|mut data| data.remove("ClusterConfiguration"));
    Ok(text.unwrap_or_default())
}

/// E-17: the same three Machines at the next version, and on each host kubeadm of the new slot has upgraded what runs there. Nobody applies
/// the version: Cluster API writes it down for kubeadm before it begins with the first machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e17_three_servers_of_a_kubeadm_control_plane_are_updated_in_place_by_the_kubeadm_of_their_new_slot()
-> Result<()> {
    let management = shared("capi").await?;
    // Control plane nodes are looked at all together, so this story has a workload cluster of its own.
    let workload = WorkloadCluster::builder()
        .name("edge-kubeadm")
        .kwok()
        .start()
        .await?;
    let site = Site::start(&workload, BEFORE, AFTER).await?;
    let story = begin_on(site.port(), &workload, Upgrades::Done).await?;
    site.is_of(&story);
    let cas = Hosts::start(&management, &story.namespace, &workload).await?;
    cas.give_cas(NAME).await?;
    let folder = tempfile::tempdir()?;
    roles::install(&management, &[provider::extension()], USER).await?;
    let (base, ca, _) = story.run_extension(&management, folder.path()).await?;
    let configs = register(&story, &base, &ca).await?;
    story.apply(&manifests(&site, workload.port())).await?;
    let planes = story.api(CONTROL_PLANE, "KubeadmControlPlane");
    until_within(LONG, &planes, NAME, "have 3 servers", has_three).await?;
    let before = story.machines("cluster.x-k8s.io/control-plane").await?;
    ensure!(before.len() == 3, "{before:?}");
    let made = site.calls()?;
    let begins = |call: &str| made.iter().filter(|calls| calls[0].starts_with(call)).count();
    ensure!(
        begins("1.36.2: kubeadm init ") == 1 && begins("1.36.2: kubeadm join ") == 2,
        "{made:?}"
    );

    story
        .apply(&[
            site.template("servers-b", &site.after, 1),
            servers("servers-b", AFTER),
        ])
        .await?;
    story.until_upgraded(before.keys(), AFTER).await?;
    until_within(LONG, &planes, NAME, "count them", has_three).await?;
    let after = story.machines("cluster.x-k8s.io/control-plane").await?;
    ensure!(after == before, "the same machines: {before:?}, {after:?}");
    let calls = site.calls()?;
    ensure!(
        calls
            .iter()
            .all(|calls| calls[1..] == ["1.36.3: kubeadm upgrade node"]),
        "{calls:?}"
    );
    let told = configuration(&workload).await?;
    ensure!(told.contains("kubernetesVersion: v1.36.3\n"), "{told}");
    nothing_is_left(&story, &site, &workload).await?;

    let clusters = story.api(CORE, "Cluster");
    clusters.delete(NAME, &DeleteParams::default()).await?;
    until_gone_within(LONG, &clusters, NAME).await?;
    configs.delete(&story.namespace, &DeleteParams::default()).await?;
    workload.stop();
    Ok(())
}
