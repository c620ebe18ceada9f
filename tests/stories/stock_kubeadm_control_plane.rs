//! A stock KubeadmControlPlane with external etcd on the test hosts: it initializes, scales to three, serves workers
//! that join by kubeadm, and goes again.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_testbed::{
    WorkloadCluster,
    hosts::Hosts,
    shared,
    wait::{until, until_gone},
};

use crate::support::{apply, is_ready, is_true, objects};

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io/v1beta2";
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1beta2";
const HOSTS: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
const VERSION: &str = "v1.36.3";

fn manifests() -> Vec<Value> {
    let infrastructure = |kind: &str, name: &str| json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": kind, "name": name});
    vec![
        json!({"apiVersion": HOSTS, "kind": "TestHostCluster", "metadata": {"name": "edge"}, "spec": {}}),
        json!({"apiVersion": HOSTS, "kind": "TestHostMachineTemplate", "metadata": {"name": "hosts"},
            "spec": {"template": {"spec": {}}}}),
        json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "edge"}, "spec": {
            "clusterNetwork": {"pods": {"cidrBlocks": ["10.244.0.0/16"]}},
            "infrastructureRef": infrastructure("TestHostCluster", "edge"),
            "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "edge"},
        }}),
        json!({"apiVersion": CONTROL_PLANE, "kind": "KubeadmControlPlane", "metadata": {"name": "edge"}, "spec": {
            "replicas": 1,
            "version": VERSION,
            "machineTemplate": {"spec": {"infrastructureRef": infrastructure("TestHostMachineTemplate", "hosts")}},
            "kubeadmConfigSpec": {"clusterConfiguration": {"etcd": {"external": {
                "endpoints": ["https://127.0.0.1:2379"],
                "caFile": "/etc/kubernetes/pki/etcd/ca.crt",
                "certFile": "/etc/kubernetes/pki/apiserver-etcd-client.crt",
                "keyFile": "/etc/kubernetes/pki/apiserver-etcd-client.key",
            }}}},
        }}),
        json!({"apiVersion": BOOTSTRAP, "kind": "KubeadmConfigTemplate", "metadata": {"name": "workers"},
            "spec": {"template": {"spec": {"joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": [{"name": "v", "value": "1"}]}}}}}}),
        json!({"apiVersion": CORE, "kind": "MachineDeployment", "metadata": {"name": "workers"}, "spec": {
            "clusterName": "edge",
            "replicas": 1,
            "selector": {"matchLabels": {"pool": "workers"}},
            "template": {"metadata": {"labels": {"pool": "workers"}}, "spec": {
                "clusterName": "edge",
                "version": VERSION,
                "bootstrap": {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfigTemplate", "name": "workers"}},
                "infrastructureRef": infrastructure("TestHostMachineTemplate", "hosts"),
            }},
        }}),
    ]
}

#[tokio::test]
async fn a_control_plane_initializes_scales_and_goes() -> Result<()> {
    let management = shared("capi").await?;
    // Control plane nodes are looked at all together, so this story has a workload cluster of its own.
    let workload = WorkloadCluster::builder().name("kubeadm").kwok().start().await?;
    let namespace = management.namespace("kubeadm").await?;
    let hosts = Hosts::start(&management, &namespace, &workload).await?;
    hosts.give_cas("edge").await?;
    let client = management.client();
    apply(&client, &namespace, &manifests()).await?;

    let control_planes = objects(&client, &namespace, CONTROL_PLANE, "KubeadmControlPlane");
    let has = |count: u32| {
        move |control_plane: &kube::api::DynamicObject| {
            let status = &control_plane.data["status"];
            status["readyReplicas"] == count
                && status["availableReplicas"] == count
                && is_true(control_plane, "Available")
        }
    };
    until(&control_planes, "edge", "be available with 1 replica", has(1)).await?;
    let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
    control_planes
        .patch("edge", &PatchParams::default(), &scale)
        .await?;
    until(&control_planes, "edge", "be available with 3 replicas", has(3)).await?;
    let deployments = objects(&client, &namespace, CORE, "MachineDeployment");
    until(&deployments, "workers", "have a ready replica", |deployment| {
        deployment.data["status"]["readyReplicas"] == 1
    })
    .await?;
    let clusters = objects(&client, &namespace, CORE, "Cluster");
    let cluster = until(&clusters, "edge", "be available", |cluster| {
        is_true(cluster, "Available")
    })
    .await?;
    assert_eq!(
        cluster.data["spec"]["controlPlaneEndpoint"]["port"],
        workload.port()
    );

    let nodes: Api<Node> = Api::all(workload.client());
    let all = nodes.list(&ListParams::default()).await?.items;
    assert_eq!(all.len(), 4);
    assert!(all.iter().all(is_ready));
    let control = ListParams::default().labels("node-role.kubernetes.io/control-plane");
    assert_eq!(nodes.list(&control).await?.items.len(), 3);

    // The kubeconfig that the control plane provider wrote opens the real API server.
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let kubeconfig = secrets.get("edge-kubeconfig").await?.data.context("data")?["value"]
        .0
        .clone();
    let file = workload
        .description()
        .directory
        .join("from-the-secret.kubeconfig");
    std::fs::write(&file, kubeconfig)?;
    let listed = workload
        .kubectl(&[
            "--kubeconfig",
            &file.to_string_lossy(),
            "get",
            "nodes",
            "-o",
            "name",
        ])
        .await?;
    assert_eq!(listed.lines().count(), 4);

    let described = management
        .clusterctl(&["describe", "cluster", "edge", "--namespace", &namespace])
        .await?;
    for kind in ["KubeadmControlPlane", "TestHostCluster", "MachineDeployment"] {
        assert!(described.contains(kind), "{described}");
    }

    clusters.delete("edge", &DeleteParams::default()).await?;
    until_gone(&clusters, "edge").await?;
    assert_eq!(nodes.list(&ListParams::default()).await?.items.len(), 0);
    workload.stop();
    Ok(())
}
