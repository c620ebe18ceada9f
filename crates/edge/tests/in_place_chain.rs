//! A KubeadmControlPlane of a ClusterClass that is brought over two minor versions by one change of its topology. Cluster API's core, its
//! topology controller and the kubeadm control-plane provider are real; over which versions it goes is what `GenerateUpgradePlan` of the
//! runtime extension answers, and each server is updated in place at each of them. How each upgrade goes is played.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use anyhow::{Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_edge::{
    api::{GROUP, INFRASTRUCTURE_GROUP, NodeUpgrade, VERSION},
    hooks::{can_update::STRATEGY, observe::POLICY},
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
    CONTROL_PLANE, CORE, LONG, Story, USER, asked, begin, hurried_hosts, is_true, register_with,
};

const NAME: &str = "west";
const VERSIONS: [&str; 3] = ["v1.34.2", "v1.35.4", "v1.36.3"];
/// The image is the one of the version that the control plane is to have now.
const IMAGE: &str = "{{ range .nodeImages }}{{ if eq .version $.builtin.controlPlane.version }}
reference: {{ .reference }}
digest: \"{{ .digest }}\"
{{ end }}{{ end }}";

fn digest(number: usize) -> String {
    format!("sha256:{number:064x}")
}

/// A class of servers with an etcd of their own elsewhere, as their provider wants them for updates in place.
fn class(port: u16) -> Vec<Value> {
    let infrastructure = format!("{INFRASTRUCTURE_GROUP}/{VERSION}");
    let metadata = json!({"name": NAME});
    let template = |version: &str, kind: &str| json!({"templateRef": {"apiVersion": version, "kind": kind, "name": NAME}});
    let mut control_plane = template(CONTROL_PLANE, "KubeadmControlPlaneTemplate");
    control_plane["machineInfrastructure"] = template(&infrastructure, "EdgeMachineTemplate");
    control_plane["naming"] = json!({"template": "{{ .cluster.name }}"});
    let image = json!({"type": "object", "properties": {"version": {"type": "string"}, "reference": {"type": "string"},
        "digest": {"type": "string"}}});
    vec![
        json!({"apiVersion": infrastructure, "kind": "EdgeClusterTemplate", "metadata": metadata, "spec": {"template": {
            "spec": {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": port}}}}}),
        json!({"apiVersion": infrastructure, "kind": "EdgeMachineTemplate", "metadata": metadata,
            "spec": {"template": {"spec": {"minimum": {"processors": 1}}}}}),
        json!({"apiVersion": CONTROL_PLANE, "kind": "KubeadmControlPlaneTemplate", "metadata": metadata, "spec": {"template": {
            "spec": {
                "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}}},
                "machineTemplate": {"metadata": {"annotations": {(STRATEGY): "External"}}},
                "kubeadmConfigSpec": {"clusterConfiguration": {"etcd": {"external": {"endpoints": ["https://127.0.0.1:2379"],
                    "caFile": "/etc/kubernetes/pki/etcd/ca.crt", "certFile": "/etc/kubernetes/pki/apiserver-etcd-client.crt",
                    "keyFile": "/etc/kubernetes/pki/apiserver-etcd-client.key"}}}}}}}}),
    ]
    .into_iter()
    .chain([json!({"apiVersion": CORE, "kind": "ClusterClass", "metadata": metadata, "spec": {
        "infrastructure": template(&infrastructure, "EdgeClusterTemplate"),
        "controlPlane": control_plane,
        "variables": [{"name": "nodeImages", "required": true, "schema": {"openAPIV3Schema": {"type": "array", "items": image}}}],
        "patches": [{"name": "image", "definitions": [{
            "selector": {"apiVersion": infrastructure, "kind": "EdgeMachineTemplate", "matchResources": {"controlPlane": true}},
            "jsonPatches": [{"op": "add", "path": "/spec/template/spec/image", "valueFrom": {"template": IMAGE}}],
        }]}]}})])
    .collect()
}

fn cluster() -> Value {
    let images: Vec<Value> = (0..)
        .zip(VERSIONS)
        .map(|(number, version)| {
            json!({"version": version, "reference": "registry.example.com/nodes/kubeadm", "digest": digest(number)})
        })
        .collect();
    json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": NAME, "annotations": {(POLICY): "chain"}}, "spec": {
        "topology": {"classRef": {"name": NAME}, "version": VERSIONS[0], "controlPlane": {"replicas": 3},
            "variables": [{"name": "nodeImages", "value": images}]}}})
}

/// The versions that the control plane was ever told, in the order in which it was.
fn remember(planes: Api<DynamicObject>) -> Arc<Mutex<Vec<String>>> {
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&told);
    let events = watcher(planes, watcher::Config::default());
    tokio::spawn(async move {
        let mut events = std::pin::pin!(events.default_backoff().applied_objects());
        while let Some(event) = events.next().await {
            let Ok(plane) = event else { continue };
            let version = plane.data["spec"]["version"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let mut seen = seen.lock();
            if seen.last() != Some(&version) {
                seen.push(version);
            }
        }
    });
    told
}

/// The image and the version of every NodeUpgrade there was.
async fn upgrades(story: &Story) -> Result<BTreeMap<(String, String), usize>> {
    let all: Api<NodeUpgrade> = Api::namespaced(story.client.clone(), &story.namespace);
    let mut found = BTreeMap::new();
    for upgrade in all.list(&ListParams::default()).await? {
        *found
            .entry((upgrade.spec.version, upgrade.spec.image.digest))
            .or_default() += 1;
    }
    Ok(found)
}

/// E-17, E-58: three servers go over two minor versions, one after the other and in place; the version between is the policy's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e17_e58_a_kubeadm_control_plane_of_a_class_goes_over_two_minor_versions_in_place() -> Result<()> {
    let management = shared("capi").await?;
    let hosts = hurried_hosts();
    // Control plane nodes are looked at all together, so this story has a workload cluster of its own.
    let workload = WorkloadCluster::builder()
        .name("edge-chain")
        .kwok()
        .start()
        .await?;
    let story = begin(&hosts, &workload).await?;
    let cas = Hosts::start(&management, &story.namespace, &workload).await?;
    cas.give_cas(NAME).await?;
    let folder = tempfile::tempdir()?;
    roles::install(&management, &[provider::extension()], USER).await?;
    let gate = ["--feature-gates=EdgeUpgradePlans=true"];
    let (base, ca, metrics) = story
        .run_extension_with(&management, folder.path(), &gate)
        .await?;
    let configs = register_with(&story, &base, &ca, 4).await?;
    let edge = format!("{GROUP}/{VERSION}");
    let host =
        |name: &str| json!({"apiVersion": edge, "kind": "EdgeHost", "metadata": {"name": name}, "spec": {}});
    let policy = json!({"apiVersion": edge, "kind": "UpgradePolicy", "metadata": {"name": "chain"},
        "spec": {"knownVersions": [VERSIONS[1]]}});
    let mut class = class(workload.port());
    let handler = format!("generate-upgrade-plan.{}", story.namespace);
    if let Some(class) = class.last_mut() {
        class["spec"]["upgrade"] = json!({"external": {"generateUpgradePlanExtension": handler}});
    }
    story
        .apply(&[host("box-1"), host("box-2"), host("box-3"), policy])
        .await?;
    story.apply(&class).await?;
    let planes = story.api(CONTROL_PLANE, "KubeadmControlPlane");
    let told = remember(planes.clone());
    story.apply(&[cluster()]).await?;
    let has_three = |plane: &DynamicObject| {
        let status = &plane.data["status"];
        status["availableReplicas"] == 3 && status["upToDateReplicas"] == 3 && status["readyReplicas"] == 3
    };
    until_within(LONG, &planes, NAME, "have 3 servers", has_three).await?;
    let before = story.machines("cluster.x-k8s.io/control-plane").await?;
    ensure!(before.len() == 3, "{before:?}");

    story.run_upgrades();
    let clusters = story.api(CORE, "Cluster");
    let version = json!({"spec": {"topology": {"version": VERSIONS[2]}}});
    clusters
        .patch(NAME, &PatchParams::default(), &Patch::Merge(version))
        .await?;
    story.until_upgraded(before.keys(), VERSIONS[2]).await?;
    until_within(LONG, &planes, NAME, "count them", has_three).await?;
    until_within(LONG, &clusters, NAME, "be as its topology says", |cluster| {
        is_true(cluster, "TopologyReconciled")
    })
    .await?;
    let after = story.machines("cluster.x-k8s.io/control-plane").await?;
    ensure!(after == before, "the same machines: {before:?}, {after:?}");
    ensure!(*told.lock() == VERSIONS, "{:?}", told.lock());
    ensure!(
        asked(&metrics, "generateupgradeplan") > 0,
        "core has asked for the plan"
    );
    // The extension deletes what is done when the next begins, so those of the last version are there.
    let last = BTreeMap::from([((VERSIONS[2].to_owned(), digest(2)), 3)]);
    ensure!(upgrades(&story).await? == last, "{:?}", upgrades(&story).await?);
    let nodes: Api<Node> = Api::all(workload.client());
    let versions: BTreeSet<Option<String>> = nodes
        .list(&ListParams::default())
        .await?
        .into_iter()
        .map(|node| Some(node.status?.node_info?.kubelet_version))
        .collect();
    ensure!(
        versions == BTreeSet::from([Some(VERSIONS[2].to_owned())]),
        "{versions:?}"
    );

    clusters.delete(NAME, &DeleteParams::default()).await?;
    until_gone_within(LONG, &clusters, NAME).await?;
    configs.delete(&story.namespace, &DeleteParams::default()).await?;
    workload.stop();
    Ok(())
}
