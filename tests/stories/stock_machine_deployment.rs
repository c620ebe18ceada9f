//! A stock MachineDeployment on the test hosts: its Machines become ready Nodes, late, broken and dead hosts show as
//! they should, and deleting it takes the Nodes along.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_testbed::{
    hosts::{Failure, HostPhase, Hosts},
    shared,
    wait::{until, until_gone},
};

use crate::support::{apply, is_ready, is_true, objects};

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const HOSTS: &str = "infrastructure.cluster.x-k8s.io/v1beta1";

fn manifests(cluster: &str, replicas: u32) -> Vec<Value> {
    vec![
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bootstrap"},
            "stringData": {"value": "#!/bin/sh\ntrue\n"}}),
        json!({"apiVersion": HOSTS, "kind": "TestHostCluster", "metadata": {"name": cluster}, "spec": {}}),
        json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": cluster}, "spec": {
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TestHostCluster", "name": cluster},
        }}),
        json!({"apiVersion": HOSTS, "kind": "TestHostMachineTemplate", "metadata": {"name": "workers"}, "spec": {
            "template": {"spec": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}, "nodeLabels": {"story": cluster}}},
        }}),
        // Without a control plane provider, a Machine with this label makes the control plane initialized.
        json!({"apiVersion": HOSTS, "kind": "TestHostMachine", "metadata": {"name": format!("{cluster}-control")},
            "spec": {"nodeLabels": {"story": cluster}}}),
        json!({"apiVersion": CORE, "kind": "Machine", "metadata": {"name": format!("{cluster}-control"),
            "labels": {"cluster.x-k8s.io/control-plane": ""}}, "spec": {
            "clusterName": cluster,
            "version": "v1.36.3",
            "bootstrap": {"dataSecretName": "bootstrap"},
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io",
                "kind": "TestHostMachine", "name": format!("{cluster}-control")},
        }}),
        json!({"apiVersion": CORE, "kind": "MachineDeployment", "metadata": {"name": "workers"}, "spec": {
            "clusterName": cluster,
            "replicas": replicas,
            "selector": {"matchLabels": {"pool": "workers"}},
            "template": {"metadata": {"labels": {"pool": "workers"}}, "spec": {
                "clusterName": cluster,
                "version": "v1.36.3",
                "bootstrap": {"dataSecretName": "bootstrap"},
                "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io",
                    "kind": "TestHostMachineTemplate", "name": "workers"},
            }},
        }}),
    ]
}

#[tokio::test]
async fn machines_become_ready_nodes_and_go_again() -> Result<()> {
    let management = shared("capi").await?;
    let workload = shared("workload").await?;
    let namespace = management.namespace("machine-deployment").await?;
    let cluster = namespace.clone();
    let hosts = Hosts::start(&management, &namespace, &workload).await?;
    hosts.give_kubeconfig(&cluster).await?;
    hosts.delay(HostPhase::Join, Duration::from_millis(300));
    let client = management.client();
    apply(&client, &namespace, &manifests(&cluster, 2)).await?;

    let deployments = objects(&client, &namespace, CORE, "MachineDeployment");
    until(&deployments, "workers", "have 2 ready replicas", |deployment| {
        deployment.data["status"]["readyReplicas"] == 2
    })
    .await?;
    let nodes: Api<Node> = Api::all(workload.client());
    let ours = ListParams::default().labels(&format!("story={cluster}"));
    let machines = objects(&client, &namespace, CORE, "Machine");
    let ready = nodes.list(&ours).await?.items;
    assert_eq!(ready.len(), 3, "two workers and the control plane");
    for node in ready {
        assert!(is_ready(&node), "{} is ready", node.name_any());
        let machine = machines.get(&node.name_any()).await?;
        assert_eq!(machine.data["status"]["nodeRef"]["name"], node.name_any());
        assert_eq!(
            machine.data["spec"]["providerID"],
            node.spec
                .clone()
                .context("a spec")?
                .provider_id
                .context("a provider id")?
        );
        let status = node.status.clone().context("a status")?;
        assert_eq!(status.node_info.context("node info")?.kubelet_version, "v1.36.3");
        if !node.name_any().ends_with("-control") {
            assert_eq!(status.allocatable.context("allocatable")?["cpu"].0, "4");
        }
        assert_eq!(
            hosts
                .bootstrap_data(&machine.name_any())
                .context("bootstrap data was read")?,
            b"#!/bin/sh\ntrue\n"
        );
    }

    broken_and_dead_hosts_show(&hosts, &workload, &namespace, &client).await?;

    objects(&client, &namespace, CORE, "Cluster")
        .delete(&cluster, &DeleteParams::default())
        .await?;
    until_gone(&objects(&client, &namespace, CORE, "Cluster"), &cluster).await?;
    assert_eq!(
        nodes.list(&ours).await?.items.len(),
        0,
        "no Node outlives its Machine"
    );
    assert_eq!(machines.list(&ListParams::default()).await?.items.len(), 0);
    Ok(())
}

async fn new_machine(machines: &Api<DynamicObject>, before: &BTreeSet<String>) -> Result<String> {
    let all = machines.list(&ListParams::default()).await?;
    all.into_iter()
        .map(|machine| machine.name_any())
        .find(|name| !before.contains(name))
        .context("a new Machine")
}

async fn broken_and_dead_hosts_show(
    hosts: &Hosts,
    workload: &slipway_testbed::Cluster,
    namespace: &str,
    client: &kube::Client,
) -> Result<()> {
    let machines = objects(client, namespace, CORE, "Machine");
    let host_machines = objects(client, namespace, HOSTS, "TestHostMachine");
    let before = hosts.machines();

    // A third host fails to provision, and says so on its Machine.
    hosts.fail_next(Failure::Provision("the host is on fire".to_owned()));
    objects(client, namespace, CORE, "MachineDeployment")
        .patch(
            "workers",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"replicas": 3}})),
        )
        .await?;
    let deployments = objects(client, namespace, CORE, "MachineDeployment");
    until(&deployments, "workers", "have 3 replicas", |deployment| {
        deployment.data["status"]["replicas"] == 3
    })
    .await?;
    let third = new_machine(&machines, &before).await?;
    until(&host_machines, &third, "fail", |host| {
        host.data["status"]["conditions"][0]["message"] == "the host is on fire"
    })
    .await?;
    until(&machines, &third, "show the failure", |machine| {
        let conditions = machine.data["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|condition| {
            condition["type"] == "InfrastructureReady"
                && condition["status"] == "False"
                && condition["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("on fire"))
        })
    })
    .await?;
    hosts.recover(&third);
    until(&machines, &third, "become ready", |machine| {
        is_true(machine, "Ready")
    })
    .await?;

    // A fourth is there but never joins, until it does.
    let before = hosts.machines();
    hosts.fail_next(Failure::NeverJoins);
    let four = Patch::Merge(json!({"spec": {"replicas": 4}}));
    deployments
        .patch("workers", &PatchParams::default(), &four)
        .await?;
    until(&deployments, "workers", "have 4 replicas", |deployment| {
        deployment.data["status"]["replicas"] == 4
    })
    .await?;
    let fourth = new_machine(&machines, &before).await?;
    until(&machines, &fourth, "wait for its Node", |machine| {
        machine.data["status"]["initialization"]["infrastructureProvisioned"] == true
    })
    .await?;
    let nodes: Api<Node> = Api::all(workload.client());
    assert!(nodes.get_opt(&fourth).await?.is_none());
    hosts.recover(&fourth);
    until(&machines, &fourth, "become ready", |machine| {
        is_true(machine, "Ready")
    })
    .await?;

    // A host dies: Cluster API sees its Node fail; it comes back.
    hosts.kill(&third).await?;
    until(&machines, &third, "notice that its Node died", |machine| {
        !is_true(machine, "NodeReady")
    })
    .await?;
    assert!(!is_ready(&nodes.get(&third).await?));
    hosts.revive(&third).await?;
    until(&machines, &third, "notice that its Node is back", |machine| {
        is_true(machine, "NodeReady")
    })
    .await?;
    Ok(())
}
