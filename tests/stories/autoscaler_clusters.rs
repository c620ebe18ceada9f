//! Ten workload clusters that one autoscaler scales from their management cluster, one of them dead. The management cluster is a real
//! kube-apiserver with Cluster API's core, the K3s provider and the autoscaler as processes, each under the roles it declares. The workload
//! clusters are simulated K3s, because ten real apiservers are 15 GB: hosts boot into them by real bootstrap data, and the
//! story plays their kube-scheduler.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use serde_json::{Value, json};
use slipway_kit::manager::{Manager, Setup, roles};
use slipway_testbed::{
    Cluster, ManagementCluster, install,
    wait::{until_gone_within, until_within},
};

use crate::{
    k3s_fleet::{BOOTSTRAP, CORE, Fleet, HOSTS, NAME, Simulated, Tier, condition},
    k3s_manager::K3sManager,
    support::apply,
};

const BINARY: &str = env!("CARGO_BIN_EXE_slipway-all");
const USER: &str = "slipway-autoscaler";
const VERSION: &str = "v1.36.3+k3s1";
const CLUSTERS: usize = 10;
const CHOSEN: &str = "slipway.dev/autoscaled";
/// The MachineDeployment that is scaled.
const WORKERS: &str = "scaled";

#[tokio::test]
async fn ten_clusters_from_one_manager_one_of_them_dead() -> Result<()> {
    let management = ManagementCluster::builder()
        .name("autoscaler-clusters")
        .cluster_api()
        .audit_everything_of(USER);
    let management = Arc::new(management.start().await?);
    let k3s = K3sManager::start(Arc::clone(&management)).await?;
    let tier: Arc<dyn Tier> = Simulated::new();
    let founding = (0..CLUSTERS).map(|number| found(&management, &tier, number));
    let fleets = try_join_all(founding).await?;
    let (dead, alive) = fleets.split_first().context("there are clusters")?;
    // It dies before anybody has connected to it.
    let server = dead.server_names().await?.remove(0);
    dead.kill(&server).await?;
    let manager = start(&management).await?;
    for fleet in &fleets {
        choose(fleet, true).await?;
    }
    try_join_all(alive.iter().map(|fleet| until_said(fleet, "Running"))).await?;
    until_said(dead, "ApiServerUnreachable").await?;
    try_join_all(alive.iter().map(is_scaled)).await?;
    ensure!(replicas(dead).await? == 0);
    // It comes back, and is scaled like the others.
    dead.revive(&server).await?;
    until_said(dead, "Running").await?;
    is_scaled(dead).await?;
    goes_to_zero(&alive[0]).await?;
    // One is not chosen any more, and one is deleted: nothing of theirs is held.
    choose(&alive[1], false).await?;
    let gone = &alive[2];
    let clusters = gone.of(CORE, "Cluster");
    clusters.delete(NAME, &DeleteParams::default()).await?;
    until_gone_within(gone.tier.deadline(), &clusters, NAME).await?;
    let of = |number: usize| move |value: f64| (value - number as f64).abs() < 0.5;
    manager
        .until_metric("slipway_workload_clusters", "", of(CLUSTERS - 2))
        .await?;
    let told = manager.metrics().await?;
    for (fleet, is_told) in [(&alive[1], false), (gone, false), (&alive[3], true)] {
        let label = format!("cluster=\"{}\"", fleet.key());
        ensure!(told.contains(&label) == is_told, "{label} in:\n{told}");
    }
    until_within(
        alive[1].tier.deadline(),
        &alive[1].of(CORE, "Cluster"),
        NAME,
        "say nothing",
        |cluster| condition(cluster, "AutoscalerRunning").is_none(),
    )
    .await?;
    let denied = management
        .audit()
        .requests(None, |request| request.username() == USER && request.was_denied())?;
    ensure!(denied.is_empty(), "{} was refused", denied[0]);
    drop(k3s);
    Ok(())
}

/// The autoscaler, with its kinds in the management cluster as its chart has them, and bound to what it needs for Clusters.
async fn start(management: &Arc<Cluster>) -> Result<Manager> {
    let package = slipway_autoscaler::provider().packages.remove(0);
    let crds = package.crds.iter().map(serde_json::to_value);
    let crds = crds.collect::<Result<Vec<_>, _>>()?;
    install::install(&management.client(), &crds).await?;
    let role = package.objects[0]["metadata"]["name"].clone();
    roles::install(management, &[package], USER).await?;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": role}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}]});
    install::install(&management.client(), &[binding]).await?;
    let folder = management.description().directory.join("autoscaler");
    let chosen = format!("--autoscaler-clusters={CHOSEN}");
    let setup = Setup::new(management, Path::new(BINARY), &folder, USER, None)?.with([
        "--providers=autoscaler",
        chosen.as_str(),
        "--autoscaler-install-crds",
        "--leader-elect=false",
    ]);
    setup.start("autoscaler").await
}

/// A cluster of one server, and workers of which there is none yet.
async fn found(management: &Arc<Cluster>, tier: &Arc<dyn Tier>, number: usize) -> Result<Fleet> {
    let fleet = Fleet::start(
        Arc::clone(management),
        &format!("scaled-{number}"),
        Arc::clone(tier),
    )
    .await?;
    fleet.create(1, 0, VERSION).await?;
    let annotations = json!({
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "0",
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "3",
        "capacity.cluster-autoscaler.kubernetes.io/cpu": "4",
        "capacity.cluster-autoscaler.kubernetes.io/memory": "8Gi",
        "capacity.cluster-autoscaler.kubernetes.io/price": "0.2",
    });
    let template = |group: &str, kind: &str| json!({"apiGroup": group, "kind": kind, "name": WORKERS});
    let (bootstrap, hosts) = ("bootstrap.cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io");
    let manifests = [
        json!({"apiVersion": BOOTSTRAP, "kind": "KThreesConfigTemplate", "metadata": {"name": WORKERS},
            "spec": {"template": {"spec": {}}}}),
        json!({"apiVersion": HOSTS, "kind": "TestHostMachineTemplate", "metadata": {"name": WORKERS},
            "spec": {"template": {"spec": {}}}}),
        json!({"apiVersion": CORE, "kind": "MachineDeployment", "metadata": {"name": WORKERS, "annotations": annotations},
            "spec": {"clusterName": NAME, "replicas": 0, "selector": {"matchLabels": {"pool": WORKERS}},
            "template": {"metadata": {"labels": {"pool": WORKERS}}, "spec": {"clusterName": NAME, "version": VERSION,
                "bootstrap": {"configRef": template(bootstrap, "KThreesConfigTemplate")},
                "infrastructureRef": template(hosts, "TestHostMachineTemplate")}}}}),
    ];
    apply(&fleet.client, &fleet.namespace, &manifests).await?;
    fleet.until_settled(1, VERSION).await?;
    Ok(fleet)
}

async fn choose(fleet: &Fleet, is_chosen: bool) -> Result<()> {
    let value = is_chosen.then_some("");
    let patch = Patch::Merge(json!({"metadata": {"labels": {CHOSEN: value}}}));
    let clusters = fleet.of(CORE, "Cluster");
    clusters.patch(NAME, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until the Cluster says for this reason whether it is scaled.
async fn until_said(fleet: &Fleet, reason: &str) -> Result<()> {
    let what = format!("say {reason}");
    until_within(
        fleet.tier.deadline(),
        &fleet.of(CORE, "Cluster"),
        NAME,
        &what,
        |cluster| condition(cluster, "AutoscalerRunning").is_some_and(|one| one["reason"] == reason),
    )
    .await
    .with_context(|| fleet.key())?;
    Ok(())
}

fn everywhere(client: &Client, version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    Api::all_with(
        client.clone(),
        &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)),
    )
}

async fn replicas(fleet: &Fleet) -> Result<i64> {
    let workers = fleet.of(CORE, "MachineDeployment").get(WORKERS).await?;
    Ok(workers.data["spec"]["replicas"].as_i64().unwrap_or(0))
}

/// Pods of two cores wait in the cluster, and get a node of four by its own NodePool.
async fn is_scaled(fleet: &Fleet) -> Result<()> {
    let client = fleet.workload().await?;
    let class = json!({"apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
        "metadata": {"name": "general"}, "spec": {}});
    let pool = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "general"}, "spec": {
        "disruption": {"consolidateAfter": "Never"}, "template": {"spec": {"requirements": [], "nodeClassRef": {
            "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "general"}}}}});
    for (object, kind) in [(class, "ClusterAPINodeClass"), (pool, "NodePool")] {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        everywhere(&client, version, kind)
            .create(&PostParams::default(), &serde_json::from_value(object.clone())?)
            .await
            .with_context(|| format!("making a {kind} in {}", fleet.key()))?;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    for name in ["web-1", "web-2"] {
        pods.create(&PostParams::default(), &pod(name)?).await?;
        // As kube-scheduler says of pods that fit nowhere.
        let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let told = Patch::Merge(json!({"status": {"phase": "Pending", "conditions": conditions}}));
        pods.patch_status(name, &PatchParams::default(), &told).await?;
    }
    let deadline = fleet.tier.deadline();
    until_within(
        deadline,
        &fleet.of(CORE, "MachineDeployment"),
        WORKERS,
        "have a replica",
        |workers| workers.data["spec"]["replicas"] == 1,
    )
    .await
    .with_context(|| fleet.key())?;
    let claims = everywhere(&client, "karpenter.sh/v1", "NodeClaim");
    let made = claims.list(&ListParams::default()).await?.items;
    ensure!(made.len() == 1, "{} claims in {}", made.len(), fleet.key());
    until_within(deadline, &claims, &made[0].name_any(), "be ready", |claim| {
        condition(claim, "Ready").is_some_and(|one| one["status"] == "True")
    })
    .await
    .with_context(|| fleet.key())?;
    Ok(())
}

fn pod(name: &str) -> Result<Pod> {
    let requests = json!({"cpu": "1500m", "memory": "1Gi"});
    // Not on the server, which has room for it.
    let selector = json!({"karpenter.sh/nodepool": "general"});
    let pod: Value = json!({"metadata": {"name": name}, "spec": {"nodeSelector": selector,
        "containers": [{"name": "main", "image": "web", "resources": {"requests": requests}}]}});
    Ok(serde_json::from_value(pod)?)
}

/// Its pods and its claim go, and Machine and Node with them.
async fn goes_to_zero(fleet: &Fleet) -> Result<()> {
    let client = fleet.workload().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    for name in ["web-1", "web-2"] {
        pods.delete(name, &DeleteParams::default()).await?;
    }
    let claims = everywhere(&client, "karpenter.sh/v1", "NodeClaim");
    let claim = claims
        .list(&ListParams::default())
        .await?
        .items
        .remove(0)
        .name_any();
    let mine = ListParams::default().labels("pool=scaled");
    let machine = fleet
        .of(CORE, "Machine")
        .list(&mine)
        .await?
        .items
        .remove(0)
        .name_any();
    claims.delete(&claim, &DeleteParams::default()).await?;
    let deadline = fleet.tier.deadline();
    until_gone_within(deadline, &claims, &claim).await?;
    until_gone_within(deadline, &fleet.of(CORE, "Machine"), &machine).await?;
    ensure!(replicas(fleet).await? == 0);
    Ok(())
}
