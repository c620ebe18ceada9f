//! A K3s cluster moves to another management cluster with `clusterctl move` and back: nothing is replaced, an upgrade
//! works there, at rest nothing is written, the declared rights are enough, and no secret is told.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_testbed::{Cluster, ManagementCluster, Manifest, canary::Canaries, install, rights};

use crate::{
    k3s_fleet::{BOOTSTRAP, CONTROL_PLANE, CORE, Fleet, HOSTS, Simulated},
    k3s_lifecycle::{deleting_leaves_nothing, workers_are_ready},
    k3s_manager::{self, K3sManager, USER, declared_roles},
};

const VERSION: &str = "v1.34.3+k3s1";
const NEXT: &str = "v1.35.2+k3s1";

/// `clusterctl move` carries everything, and the other manager resumes (S-55).
#[tokio::test]
async fn a_cluster_moves_there_and_back() -> Result<()> {
    let tier = Simulated::new();
    let (fleet, (target, manager)) = tokio::try_join!(
        async {
            let manager = k3s_manager::of_shared_cluster().await?;
            let fleet = Fleet::start(Arc::clone(&manager.cluster), "k3s-move", tier.clone()).await?;
            fleet.create(3, 1, VERSION).await?;
            fleet.until_settled(3, VERSION).await?;
            workers_are_ready(&fleet, 1).await?;
            Ok::<_, anyhow::Error>(fleet)
        },
        start_target()
    )?;
    let canaries = secrets_of(&fleet).await?;
    let servers: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
    let hosts = fleet.tier.hosts(&fleet.key());

    for cluster in [&fleet.management, &target] {
        install_inventory(cluster).await?;
    }
    // The hosts' kinds must be there before their objects come.
    slipway_testbed::hosts::Hosts::install(&target).await?;
    move_to(&fleet, &target).await?;

    let moved = Fleet::serve(Arc::clone(&target), fleet.namespace.clone(), tier.clone()).await?;
    drop(fleet);
    moved.until_settled(3, VERSION).await?;
    // In another management cluster they are of another age, so their order says nothing.
    let after: BTreeSet<String> = moved.server_names().await?.into_iter().collect();
    ensure!(
        after == servers,
        "servers were replaced: {servers:?} became {after:?}"
    );
    ensure!(moved.tier.hosts(&moved.key()) == hosts, "no host was touched");

    moved.patch_plane(json!({ "version": NEXT })).await?;
    moved.until_settled(3, NEXT).await?;
    let after: BTreeSet<String> = moved.server_names().await?.into_iter().collect();
    ensure!(servers.is_disjoint(&after), "{servers:?} became {after:?}");
    ensure!(moved.tier.quorum_losses(&moved.key()).unwrap_or(0) == 0);

    at_rest_nothing_is_written(&moved, &manager).await?;
    let mut sightings = canaries.sightings_in_cluster(&moved.client).await?;
    let home = Arc::clone(&k3s_manager::of_shared_cluster().await?.cluster);
    move_to(&moved, &home).await?;
    let namespace = moved.namespace.clone();
    drop(moved);
    let back = Fleet::serve(home, namespace, tier).await?;
    back.until_settled(3, NEXT).await?;
    let home_again: BTreeSet<String> = back.server_names().await?.into_iter().collect();
    ensure!(
        home_again == after,
        "servers were replaced: {after:?} became {home_again:?}"
    );
    sightings.extend(canaries.sightings_in_cluster(&back.client).await?);
    deleting_leaves_nothing(&back).await?;
    sightings.extend(canaries.sightings("the metrics", &manager.metrics().await?));
    let source = k3s_manager::of_shared_cluster().await?;
    for (path, log) in manager.logs()?.into_iter().chain(source.logs()?) {
        ensure!(!log.is_empty());
        sightings.extend(canaries.sightings(&path.to_string_lossy(), &log));
    }
    ensure!(sightings.is_empty(), "secrets are told: {sightings:?}");
    manager.kill();
    rights_are_enough(&target)?;
    drop(manager);
    if let Some(target) = Arc::into_inner(target) {
        target.stop();
    }
    Ok(())
}

/// `clusterctl move`, after which nothing is left where the cluster was.
async fn move_to(fleet: &Fleet, target: &Cluster) -> Result<()> {
    let to = target.kubeconfig().display().to_string();
    let arguments = ["move", "--namespace", &fleet.namespace, "--to-kubeconfig", &to];
    fleet.management.clusterctl(&arguments).await?;
    nothing_stays_behind(fleet).await
}

async fn start_target() -> Result<(Arc<Cluster>, K3sManager)> {
    let builder = ManagementCluster::builder()
        .name("k3s-target")
        .cluster_api()
        .scheduler(false);
    let cluster = Arc::new(builder.audit_everything_of(USER).start().await?);
    let manager = K3sManager::start(Arc::clone(&cluster)).await?;
    Ok((cluster, manager))
}

/// What clusterctl has to know is installed before it moves anything.
async fn install_inventory(cluster: &Cluster) -> Result<()> {
    let provider = |name: &str, type_: &str, version: &str| {
        let namespace = format!("{name}-inventory");
        [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            json!({"apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Provider",
            "metadata": {"name": name, "namespace": namespace, "labels": {
                "clusterctl.cluster.x-k8s.io": "", "clusterctl.cluster.x-k8s.io/core": "inventory",
                "cluster.x-k8s.io/provider": name}},
            "providerName": name.split_once("-k3s").map_or(name, |_| "k3s"), "type": type_, "version": version}),
        ]
    };
    install::install(
        &cluster.client(),
        &cluster.parts().manifest(Manifest::Clusterctl)?,
    )
    .await?;
    let inventory: Vec<Value> = [
        provider("cluster-api", "CoreProvider", "v1.14.2"),
        provider("bootstrap-k3s", "BootstrapProvider", "v0.1.0"),
        provider("control-plane-k3s", "ControlPlaneProvider", "v0.1.0"),
    ]
    .into_iter()
    .flatten()
    .collect();
    install::install(&cluster.client(), &inventory).await?;
    // `clusterctl init` marks the definitions whose objects it moves.
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let mark = Patch::Merge(json!({"metadata": {"labels": {"clusterctl.cluster.x-k8s.io": ""}}}));
    for definition in definitions
        .list(&ListParams::default().labels("cluster.x-k8s.io/provider"))
        .await?
        .items
    {
        definitions
            .patch(&definition.name_any(), &PatchParams::default(), &mark)
            .await?;
    }
    Ok(())
}

/// The secrets of a cluster that its manager handles.
async fn secrets_of(fleet: &Fleet) -> Result<Canaries> {
    let mut canaries = Canaries::default();
    canaries.add("the join token", fleet.secret("token", "value").await?.trim_end());
    for ca in ["ca", "cca", "etcd"] {
        let key = fleet.secret(ca, "tls.key").await?;
        canaries.add(&format!("the key of the CA {ca}"), &key);
    }
    let kubeconfig = kube::config::Kubeconfig::from_yaml(&fleet.secret("kubeconfig", "value").await?)?;
    let kubeconfig = serde_json::to_value(kubeconfig)?;
    let key = kubeconfig["users"][0]["user"]["client-key-data"].as_str();
    canaries.add("the key in the kubeconfig, encoded", key.context("a key")?);
    Ok(canaries)
}

async fn nothing_stays_behind(fleet: &Fleet) -> Result<()> {
    for (version, kind) in [
        (CORE, "Cluster"),
        (CORE, "Machine"),
        (CONTROL_PLANE, "KThreesControlPlane"),
        (BOOTSTRAP, "KThreesConfig"),
        (HOSTS, "TestHostMachine"),
        ("v1", "Secret"),
    ] {
        let left = fleet.of(version, kind).list(&ListParams::default()).await?.items;
        ensure!(left.is_empty(), "{} {kind} stayed behind", left.len());
    }
    Ok(())
}

/// Another manager finds everything as it should be.
async fn at_rest_nothing_is_written(fleet: &Fleet, manager: &K3sManager) -> Result<()> {
    manager.kill();
    let mark = fleet.management.audit().mark()?;
    manager.restart().await?;
    let configs = fleet
        .of(BOOTSTRAP, "KThreesConfig")
        .list(&ListParams::default())
        .await?;
    let objects = [("kthreescontrolplane", 2), ("kthreesconfig", configs.items.len())];
    manager.until_idle(&objects).await?;
    let writes = fleet.management.audit().writes_at_rest(USER, mark)?;
    let shown: Vec<String> = writes.iter().map(ToString::to_string).collect();
    ensure!(shown.is_empty(), "at rest a manager writes nothing: {shown:?}");
    Ok(())
}

/// The declared roles are enough: nothing was denied.
fn rights_are_enough(cluster: &Cluster) -> Result<()> {
    let declared = rights::declared(&declared_roles()?);
    let requests = cluster
        .audit()
        .requests(None, |request| request.username() == USER)?;
    ensure!(
        !requests.is_empty(),
        "the manager's requests are in the audit log"
    );
    let findings = rights::compare(&declared, &requests, &[]);
    let denied: Vec<_> = findings.denied.keys().collect();
    ensure!(denied.is_empty(), "{denied:?}");
    println!(
        "report: k3s rights: {} requests, none denied; {} rights were not needed",
        requests.len(),
        findings.unused.len()
    );
    Ok(())
}
