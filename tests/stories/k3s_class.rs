//! A K3s cluster of a ClusterClass, with Cluster API's real topology controller: made from templates and a variable,
//! upgraded by one field, changed by another, and deleted.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Context, Result, ensure};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_testbed::wait::until;

use crate::{
    k3s_fleet::{BOOTSTRAP, CONTROL_PLANE, CORE, Fleet, HOSTS, NAME, Simulated, is_true},
    k3s_lifecycle::{deleting_leaves_nothing, workers_are_ready},
    k3s_manager,
    support::apply,
};

const VERSION: &str = "v1.34.3+k3s1";
const NEXT: &str = "v1.35.2+k3s1";
const CLASS: &str = "edge-class";

/// Three servers and a worker of a class; the version is the topology's to say (S-37).
#[tokio::test]
async fn a_cluster_of_a_class_is_made_upgraded_and_changed() -> Result<()> {
    let manager = k3s_manager::of_shared_cluster().await?;
    let fleet = Fleet::start(Arc::clone(&manager.cluster), "k3s-class", Simulated::new()).await?;
    apply(&fleet.client, &fleet.namespace, &class()).await?;
    apply(&fleet.client, &fleet.namespace, &[cluster("first.example.com")]).await?;
    until_made(&fleet).await?;
    fleet.until_settled(3, VERSION).await?;
    workers_are_ready(&fleet, 1).await?;
    until_reconciled(&fleet).await?;
    told_by_variable(&fleet, "first.example.com").await?;
    let before: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();

    patch_topology(&fleet, json!({"version": NEXT})).await?;
    fleet.until_settled(3, NEXT).await?;
    until_reconciled(&fleet).await?;
    workers_run(&fleet, NEXT).await?;
    let after: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
    ensure!(before.is_disjoint(&after), "{before:?} became {after:?}");

    let variables = json!([{"name": "san", "value": "second.example.com"}]);
    patch_topology(&fleet, json!({ "variables": variables })).await?;
    fleet
        .until_plane("be told by the variable", |plane| {
            sans(&plane.data["spec"]["kthreesConfigSpec"]) == ["second.example.com"]
        })
        .await?;
    fleet.until_settled(3, NEXT).await?;
    told_by_variable(&fleet, "second.example.com").await?;

    ensure!(fleet.tier.quorum_losses(&fleet.key()).unwrap_or(0) == 0);
    ensure!(
        fleet
            .tier
            .left_behind(&fleet.key())
            .unwrap_or_default()
            .is_empty()
    );
    deleting_leaves_nothing(&fleet).await
}

/// The templates, and a class over them whose names can be told beforehand.
fn class() -> Vec<Value> {
    let metadata = json!({"name": CLASS});
    let template = |version: &str, kind: &str| json!({"templateRef": {"apiVersion": version, "kind": kind, "name": CLASS}});
    let hosts = template(HOSTS, "TestHostMachineTemplate");
    let mut control_plane = template(CONTROL_PLANE, "KThreesControlPlaneTemplate");
    control_plane["machineInfrastructure"] = hosts.clone();
    control_plane["naming"] = json!({"template": "{{ .cluster.name }}"});
    vec![
        json!({"apiVersion": HOSTS, "kind": "TestHostClusterTemplate", "metadata": metadata,
            "spec": {"template": {"spec": {"failureDomains": ["east", "north", "west"]}}}}),
        json!({"apiVersion": HOSTS, "kind": "TestHostMachineTemplate", "metadata": metadata,
            "spec": {"template": {"spec": {}}}}),
        json!({"apiVersion": CONTROL_PLANE, "kind": "KThreesControlPlaneTemplate", "metadata": metadata,
        "spec": {"template": {"spec": {
            "kthreesConfigSpec": {"serverConfig": {"disableComponents": ["traefik"]}},
            "remediationStrategy": {"retryPeriod": "1s", "minHealthyPeriod": "1s"},
        }}}}),
        json!({"apiVersion": BOOTSTRAP, "kind": "KThreesConfigTemplate", "metadata": metadata,
        "spec": {"template": {"spec": {"agentConfig": {
            "nodeLabels": ["example.com/pool=workers"],
            "nodeTaints": ["example.com/edge=yes:NoSchedule"],
        }}}}}),
        json!({"apiVersion": CORE, "kind": "ClusterClass", "metadata": metadata, "spec": {
            "infrastructure": template(HOSTS, "TestHostClusterTemplate"),
            "controlPlane": control_plane,
            "workers": {"machineDeployments": [{
                "class": "workers",
                "bootstrap": template(BOOTSTRAP, "KThreesConfigTemplate"),
                "infrastructure": hosts,
                "naming": {"template": "{{ .machineDeployment.topologyName }}"},
            }]},
            "variables": [{"name": "san", "required": true, "schema": {"openAPIV3Schema": {"type": "string"}}}],
            "patches": [{"name": "san", "definitions": [{
                "selector": {"apiVersion": CONTROL_PLANE, "kind": "KThreesControlPlaneTemplate",
                    "matchResources": {"controlPlane": true}},
                "jsonPatches": [{"op": "add", "path": "/spec/template/spec/kthreesConfigSpec/serverConfig/tlsSan",
                    "valueFrom": {"template": "[{{ .san }}]"}}],
            }]}],
        }}),
    ]
}

fn cluster(san: &str) -> Value {
    json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": NAME}, "spec": {
        "clusterNetwork": {"pods": {"cidrBlocks": ["10.42.0.0/16"]}},
        "topology": {
            "classRef": {"name": CLASS},
            "version": VERSION,
            "controlPlane": {"replicas": 3},
            "workers": {"machineDeployments": [{"class": "workers", "name": "workers", "replicas": 1}]},
            "variables": [{"name": "san", "value": san}],
        },
    }})
}

async fn patch_topology(fleet: &Fleet, topology: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"topology": topology}}));
    fleet
        .of(CORE, "Cluster")
        .patch(NAME, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// The topology controller has made the control plane and the workers.
async fn until_made(fleet: &Fleet) -> Result<()> {
    until(
        &fleet.of(CORE, "Cluster"),
        NAME,
        "have a control plane",
        |cluster| cluster.data["spec"]["controlPlaneRef"]["name"] == NAME,
    )
    .await?;
    until(
        &fleet.of(CORE, "MachineDeployment"),
        "workers",
        "be made",
        |workers| workers.metadata.uid.is_some(),
    )
    .await?;
    Ok(())
}

/// Nothing that the topology says is left to do.
async fn until_reconciled(fleet: &Fleet) -> Result<()> {
    until(
        &fleet.of(CORE, "Cluster"),
        NAME,
        "be as its topology says",
        |cluster| is_true(cluster, "TopologyReconciled") && !is_true(cluster, "RollingOut"),
    )
    .await?;
    Ok(())
}

fn sans(config: &Value) -> Vec<&str> {
    let sans = config["serverConfig"]["tlsSan"].as_array();
    sans.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What the variable says is in the userdata of every server.
async fn told_by_variable(fleet: &Fleet, san: &str) -> Result<()> {
    for server in fleet.servers().await? {
        let host = fleet.host_of(&server.name_any()).await?;
        let userdata = fleet.hosts.bootstrap_data(&host);
        let userdata = String::from_utf8(userdata.context("a server booted")?)?;
        ensure!(userdata.contains(san), "{} was not told {san}", server.name_any());
        ensure!(
            userdata.contains("traefik"),
            "{} was not told what the template says",
            server.name_any()
        );
    }
    Ok(())
}

async fn workers_run(fleet: &Fleet, version: &str) -> Result<()> {
    until(
        &fleet.of(CORE, "MachineDeployment"),
        "workers",
        "be upgraded",
        |workers| {
            let status = &workers.data["status"];
            workers.data["spec"]["template"]["spec"]["version"] == version
                && ["replicas", "upToDateReplicas", "availableReplicas"]
                    .iter()
                    .all(|count| status[*count] == 1)
        },
    )
    .await?;
    let nodes = fleet.nodes().await?;
    let versions: BTreeSet<&str> = nodes
        .iter()
        .filter_map(|node| Some(node.status.as_ref()?.node_info.as_ref()?.kubelet_version.as_str()))
        .collect();
    ensure!(versions == BTreeSet::from([version]), "{versions:?}");
    Ok(())
}
