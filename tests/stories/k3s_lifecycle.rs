//! K3s clusters with Cluster API's real core: created with one and three servers and workers, upgraded across three
//! minors, rolled back halfway, paused, a server deleted by hand, and deleted until nothing is left.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::json;
use slipway_testbed::wait::{until, until_gone, until_gone_within, until_within};

use crate::{
    k3s_fleet::{CORE, Fleet, HOSTS, NAME, Simulated, Tier, condition, is_true},
    k3s_manager::{self, USER},
    support::is_ready,
};

const MINORS: [&str; 4] = ["v1.33.5+k3s1", "v1.34.3+k3s1", "v1.35.2+k3s1", "v1.36.3+k3s1"];

async fn fleet(name: &str, tier: Arc<dyn Tier>) -> Result<Fleet> {
    let manager = k3s_manager::of_shared_cluster().await?;
    Fleet::start(Arc::clone(&manager.cluster), name, tier).await
}

/// One server and two workers (S-17), upgraded by way of a second server (S-36), paused (S-59) and deleted (S-60).
#[tokio::test]
async fn one_server_and_its_workers() -> Result<()> {
    let fleet = fleet("k3s-one", Simulated::new()).await?;
    fleet.create(1, 2, MINORS[0]).await?;
    fleet.until_settled(1, MINORS[0]).await?;
    workers_are_ready(&fleet, 2).await?;
    fleet.patch_plane(json!({ "version": MINORS[1] })).await?;
    fleet.until_settled(1, MINORS[1]).await?;
    ensure!(fleet.tier.quorum_losses(&fleet.key()).unwrap_or(0) == 0);
    pausing_holds_everything(&fleet).await?;
    deleting_leaves_nothing(&fleet).await
}

/// Three servers, each in a place of its own (S-61), and a worker, from one minor to the third after it, through the
/// change of role labels (S-34) and never without quorum; then a server is deleted by hand (S-7).
#[tokio::test]
async fn three_servers_upgrade_across_three_minors() -> Result<()> {
    let fleet = fleet("k3s-upgrade", Simulated::new()).await?;
    fleet.create(3, 1, MINORS[0]).await?;
    fleet.until_settled(3, MINORS[0]).await?;
    servers_are_spread(&fleet).await?;
    for version in &MINORS[1..] {
        let before: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
        fleet.patch_plane(json!({ "version": version })).await?;
        fleet.until_settled(3, version).await?;
        let after: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
        ensure!(before.is_disjoint(&after), "every server was replaced");
    }
    workers_are_ready(&fleet, 1).await?;
    a_deleted_server_is_replaced(&fleet, MINORS[3]).await?;
    ensure!(fleet.tier.quorum_losses(&fleet.key()).unwrap_or(0) == 0);
    deleting_leaves_nothing(&fleet).await
}

/// An upgrade that is taken back when half of it is done (S-35).
#[tokio::test]
async fn an_upgrade_is_rolled_back_halfway() -> Result<()> {
    let fleet = fleet("k3s-rollback", Simulated::new()).await?;
    fleet.create(3, 0, MINORS[1]).await?;
    fleet.until_settled(3, MINORS[1]).await?;
    goes_back_halfway(&fleet, MINORS[1], MINORS[2]).await?;
    ensure!(fleet.tier.quorum_losses(&fleet.key()).unwrap_or(0) == 0);
    Ok(())
}

/// Upgrades three servers until one is of the next version, and then has them go back.
pub async fn goes_back_halfway(fleet: &Fleet, present: &str, next: &str) -> Result<()> {
    fleet.patch_plane(json!({ "version": next })).await?;
    let version = |machine: &DynamicObject| machine.data["spec"]["version"].clone();
    fleet
        .until_servers("be upgraded halfway", |servers| {
            let upgraded = servers.iter().filter(|one| version(one) == next);
            servers.iter().any(|one| version(one) == present)
                && upgraded.filter(|one| is_true(one, "Ready")).count() > 0
        })
        .await?;
    fleet.patch_plane(json!({ "version": present })).await?;
    fleet.until_settled(3, present).await?;
    let nodes = fleet.nodes().await?;
    let versions: BTreeSet<&str> = nodes
        .iter()
        .filter_map(|node| Some(node.status.as_ref()?.node_info.as_ref()?.kubelet_version.as_str()))
        .collect();
    ensure!(versions == BTreeSet::from([present]), "{versions:?}");
    ensure!(
        fleet
            .tier
            .left_behind(&fleet.key())
            .unwrap_or_default()
            .is_empty()
    );
    Ok(())
}

pub async fn workers_are_ready(fleet: &Fleet, workers: usize) -> Result<()> {
    let deployments = fleet.of(CORE, "MachineDeployment");
    until_within(
        fleet.tier.deadline(),
        &deployments,
        "workers",
        "have its replicas",
        |deployment| deployment.data["status"]["availableReplicas"] == workers,
    )
    .await?;
    let clusters = fleet.of(CORE, "Cluster");
    until(&clusters, NAME, "be available", |cluster| {
        is_true(cluster, "Available")
    })
    .await?;
    let nodes = fleet.nodes().await?;
    let labelled: Vec<_> = nodes
        .iter()
        .filter(|node| {
            node.labels()
                .get("example.com/pool")
                .is_some_and(|pool| pool == "workers")
        })
        .collect();
    ensure!(
        labelled.len() == workers,
        "the workers' labels are on their nodes"
    );
    for node in &labelled {
        let spec = node.spec.as_ref().context("a spec")?;
        let taints = spec.taints.iter().flatten();
        ensure!(taints.filter(|taint| taint.key == "example.com/edge").count() == 1);
        let id = spec.provider_id.as_deref().unwrap_or_default();
        ensure!(id.starts_with("testhost://"), "{id:?}");
    }
    ensure!(nodes.iter().all(is_ready), "every node is ready");
    Ok(())
}

/// Each server is in a failure domain of its own.
pub async fn servers_are_spread(fleet: &Fleet) -> Result<()> {
    let servers = fleet.servers().await?;
    let domains: BTreeSet<&str> = servers
        .iter()
        .filter_map(|server| server.data["spec"]["failureDomain"].as_str())
        .collect();
    ensure!(
        domains == BTreeSet::from(["east", "north", "west"]),
        "{domains:?}"
    );
    Ok(())
}

/// `kubectl delete machine`: the member leaves etcd before its host goes, and another server takes its place.
pub async fn a_deleted_server_is_replaced(fleet: &Fleet, version: &str) -> Result<()> {
    let servers = fleet.server_names().await?;
    let victim = servers.first().context("a server")?;
    let namespace = format!("--namespace={}", fleet.namespace);
    let deletion = ["delete", "machine", victim, &namespace, "--wait=false"];
    fleet.management.kubectl(&deletion).await?;
    fleet.until_gone(victim).await?;
    fleet.until_settled(3, version).await?;
    ensure!(!fleet.server_names().await?.contains(victim));
    let left_behind = fleet.tier.left_behind(&fleet.key()).unwrap_or_default();
    ensure!(
        left_behind.is_empty(),
        "{left_behind:?} went while etcd counted on them"
    );
    Ok(())
}

/// While the Cluster is paused nothing is written but that it is, whatever the user changes.
async fn pausing_holds_everything(fleet: &Fleet) -> Result<()> {
    let pause = |paused: bool| Patch::Merge(json!({"spec": {"paused": paused}}));
    let clusters = fleet.of(CORE, "Cluster");
    clusters
        .patch(NAME, &PatchParams::default(), &pause(true))
        .await?;
    fleet
        .until_plane("be paused", |plane| is_true(plane, "Paused"))
        .await?;
    let configs = fleet.of("bootstrap.cluster.x-k8s.io/v1beta2", "KThreesConfig");
    for config in configs.list(&ListParams::default()).await?.items {
        until(&configs, &config.name_any(), "be paused", |config| {
            is_true(config, "Paused")
        })
        .await?;
    }

    let mark = fleet.management.audit().mark()?;
    let changed = fleet.patch_plane(json!({"replicas": 3})).await?;
    fleet
        .until_plane("have seen the change", |plane| {
            let seen = condition(plane, "Paused").map(|paused| &paused["observedGeneration"]);
            seen == Some(&json!(changed.metadata.generation))
        })
        .await?;
    let written: Vec<String> = fleet
        .management
        .audit()
        .writes_at_rest(USER, mark)?
        .iter()
        .map(ToString::to_string)
        .filter(|write| write.contains(&fleet.namespace))
        .filter(|write| !write.contains("kthreescontrolplanes/status"))
        .collect();
    ensure!(written.is_empty(), "{written:?}");
    ensure!(fleet.servers().await?.len() == 1);

    fleet.patch_plane(json!({"replicas": 1})).await?;
    clusters
        .patch(NAME, &PatchParams::default(), &pause(false))
        .await?;
    fleet
        .until_plane("go on", |plane| !is_true(plane, "Paused"))
        .await?;
    fleet.until_settled(1, MINORS[1]).await
}

pub async fn deleting_leaves_nothing(fleet: &Fleet) -> Result<()> {
    let clusters = fleet.of(CORE, "Cluster");
    clusters.delete(NAME, &DeleteParams::default()).await?;
    until_gone_within(fleet.tier.deadline(), &clusters, NAME).await?;
    let left = fleet.tier.hosts(&fleet.key());
    ensure!(left.is_empty(), "hosts are left: {left:?}");
    for (version, kind) in [
        (CORE, "Machine"),
        (CORE, "MachineDeployment"),
        ("controlplane.cluster.x-k8s.io/v1beta2", "KThreesControlPlane"),
        ("bootstrap.cluster.x-k8s.io/v1beta2", "KThreesConfig"),
        (HOSTS, "TestHostMachine"),
        (HOSTS, "TestHostCluster"),
    ] {
        let api = fleet.of(version, kind);
        // Owned objects go with their owner, in the garbage collector's time.
        for object in api.list(&ListParams::default()).await?.items {
            until_gone(&api, &object.name_any()).await?;
        }
    }
    let secrets: Api<Secret> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    for secret in secrets.list(&ListParams::default()).await?.items {
        until_gone(&secrets, &secret.name_any()).await?;
    }
    let maps: Api<ConfigMap> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    let maps = maps.list(&ListParams::default()).await?.items;
    let left: Vec<String> = maps
        .iter()
        .map(ResourceExt::name_any)
        .filter(|name| name != "kube-root-ca.crt")
        .collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}
