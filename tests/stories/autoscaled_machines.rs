//! A pool of AKS whose nodes are Machines, scaled from nothing and back by our autoscaler: in the workload cluster, with the management
//! cluster elsewhere, and with Cluster Autoscaler's annotations for the sizes.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use serde_json::{Value, json};
use slipway_runtime::{Context, Metrics, Settings, settings::Flags};
use slipway_testbed::{install, wait::until};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    aks_world::{World, pool, system},
    pool_machines::classic,
};

const NAME: &str = "byours";
const POOL: &str = "byourswork";
const KARPENTER: &str = "karpenter.sh/v1";
const CLASS: &str = "karpenter.cluster.x-k8s.io/v1alpha1";
const LOOK_AGAIN: Duration = Duration::from_millis(500);

fn cluster_scoped(client: &Client, version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::all_with(client.clone(), &resource)
}

/// The autoscaler's controllers at work in the workload cluster.
async fn autoscaler(world: &World) -> Result<JoinSet<anyhow::Result<()>>> {
    let package = slipway_autoscaler::provider().packages.remove(0);
    let crds = package.crds.iter().map(serde_json::to_value);
    let crds: Vec<Value> = crds.collect::<Result<_, _>>()?;
    let client = world.workload.client();
    install::install(&client, &crds).await?;
    let kubeconfig = world.management.kubeconfig();
    let settings = Settings {
        flags: Flags::default().with("cluster-api-kubeconfig", kubeconfig.to_string_lossy()),
        ..Settings::default()
    };
    let context = Context::new(client, settings, Metrics::new(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    for registration in package.controllers {
        tasks.spawn((registration.run)(context.clone()));
    }
    Ok(tasks)
}

/// Pods of which each fills a node of the pool.
async fn add_pod(client: &Client, name: &str) -> Result<()> {
    let pod: Pod = serde_json::from_value(
        json!({"metadata": {"name": name, "labels": {"app": NAME}}, "spec": {
        "nodeSelector": {"karpenter.sh/nodepool": NAME}, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "web",
            "resources": {"requests": {"cpu": "1200m", "memory": "1Gi"}}}]}}),
    )?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.create(&PostParams::default(), &pod).await?;
    Ok(())
}

async fn until_running(client: &Client, name: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let running = until(&pods, name, "run", |pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running")
    })
    .await?;
    running.spec.and_then(|spec| spec.node_name).context("a node")
}

/// From nothing to two nodes, each with its claim and its Machine; then one claim goes, and the VM with it that it stood for.
pub async fn scaled_by_ours(world: &World) -> Result<()> {
    let fleet = world.fleet(NAME).await?.backed()?;
    let nodes = classic(&fleet);
    let work = pool(POOL, "User", 0, json!({}));
    fleet.create(&json!({}), &[system("byourssys"), work]).await?;
    nodes.switch(POOL, Some("true")).await?;
    let sizes = json!({"metadata": {"annotations": {
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "0",
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "3"}}});
    fleet.merge(&fleet.machine_pools(), POOL, sizes).await?;
    until(&nodes.pools(), POOL, "say what a node has", |pool| {
        pool.data["status"]["capacity"]["cpu"] == "2"
    })
    .await?;
    let client = world.workload.client();
    let mut autoscaler = autoscaler(world).await?;
    let asked = [
        json!({"apiVersion": CLASS, "kind": "ClusterAPINodeClass", "metadata": {"name": NAME}, "spec": {
            "clusterName": NAME, "namespace": NAME,
            "scalableResource": {"group": "cluster.x-k8s.io", "kind": "MachinePool"}}}),
        json!({"apiVersion": KARPENTER, "kind": "NodePool", "metadata": {"name": NAME}, "spec": {
            "disruption": {"consolidateAfter": "Never"},
            "template": {"spec": {"requirements": [], "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io",
                "kind": "ClusterAPINodeClass", "name": NAME}}}}}),
    ];
    for object in &asked {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        cluster_scoped(&client, text("apiVersion"), text("kind"))
            .patch(NAME, &PatchParams::apply("a-user"), &Patch::Apply(object))
            .await?;
    }
    for pod in ["one", "two"] {
        add_pod(&client, pod).await?;
    }
    let (first, second) = (
        until_running(&client, "one").await?,
        until_running(&client, "two").await?,
    );
    let mut there = [first.clone(), second.clone()];
    there.sort();
    ensure!(nodes.until_whole(POOL, 2).await? == there);
    let claims = cluster_scoped(&client, KARPENTER, "NodeClaim");
    let claim = claim_of(&claims, &first).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.delete("one", &DeleteParams::default()).await?;
    claims.delete(&claim, &DeleteParams::default()).await?;
    nodes.until_goes(&first).await?;
    ensure!(
        nodes.until_whole(POOL, 1).await? == [second],
        "the VM of the claim goes"
    );
    ensure!(nodes.deleted() == 1);
    let pool = fleet.machine_pools().get(POOL).await?;
    ensure!(
        pool.data["spec"]["replicas"] == 1,
        "the pool makes no other: {}",
        pool.data["spec"]
    );
    // To nothing.
    pods.delete("two", &DeleteParams::default()).await?;
    for claim in claims.list(&ListParams::default()).await? {
        claims.delete(&claim.name_any(), &DeleteParams::default()).await?;
    }
    nodes.until_whole(POOL, 0).await?;
    autoscaler.abort_all();
    while autoscaler.join_next().await.is_some() {}
    fleet.delete().await
}

/// The claim that a node stands for, once its status says so.
async fn claim_of(claims: &Api<DynamicObject>, node: &str) -> Result<String> {
    for _ in 0..240 {
        let all = claims.list(&ListParams::default()).await?.items;
        if let Some(claim) = all.iter().find(|claim| claim.data["status"]["nodeName"] == node) {
            return Ok(claim.name_any());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    bail!("no claim stands for node {node}")
}
