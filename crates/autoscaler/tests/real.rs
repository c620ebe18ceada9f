//! A Deployment's pods get nodes from zero and go back to zero, with real Cluster API, kube-scheduler and kwok: the cluster is its
//! own management cluster, and the controllers run under the roles that they declare.

use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_kit::manager::roles;
use slipway_runtime::{Context, Metrics, Settings};
use slipway_testbed::{ManagementCluster, hosts::Hosts, install, wait::until};
use tokio_util::sync::CancellationToken;

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const HOSTS: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
const CLASS: &str = "karpenter.cluster.x-k8s.io/v1alpha1";
const KARPENTER: &str = "karpenter.sh/v1";
const USER: &str = "slipway-autoscaler";
/// Nothing here takes as long, unless it never comes.
const HANG_GUARD: Duration = Duration::from_mins(5);

fn objects(client: &Client, namespace: Option<&str>, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

async fn apply(client: &Client, namespace: &str, manifests: &[Value]) -> Result<()> {
    for manifest in manifests {
        let text = |pointer: &str| {
            manifest
                .pointer(pointer)
                .and_then(Value::as_str)
                .context("a name")
        };
        let (version, kind, name) = (text("/apiVersion")?, text("/kind")?, text("/metadata/name")?);
        let is_global = version == CLASS || version == KARPENTER;
        objects(client, (!is_global).then_some(namespace), version, kind)
            .patch(name, &PatchParams::apply("a-user"), &Patch::Apply(manifest))
            .await
            .with_context(|| format!("applying {kind} {name}"))?;
    }
    Ok(())
}

fn manifests(cluster: &str) -> Vec<Value> {
    let host = |name: &str| json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TestHostMachine", "name": name});
    let control = format!("{cluster}-control");
    let requests = json!({"cpu": "1500m", "memory": "1Gi"});
    vec![
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bootstrap"}, "stringData": {"value": "#!/bin/sh\n"}}),
        json!({"apiVersion": HOSTS, "kind": "TestHostCluster", "metadata": {"name": cluster}, "spec": {}}),
        json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": cluster}, "spec": {"infrastructureRef":
            {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TestHostCluster", "name": cluster}}}),
        // Without a control plane provider, a Machine with this label makes the control plane initialized.
        json!({"apiVersion": HOSTS, "kind": "TestHostMachine", "metadata": {"name": control}, "spec": {}}),
        json!({"apiVersion": CORE, "kind": "Machine", "metadata": {"name": control,
            "labels": {"cluster.x-k8s.io/control-plane": ""}}, "spec": {"clusterName": cluster, "version": "v1.36.3",
            "bootstrap": {"dataSecretName": "bootstrap"}, "infrastructureRef": host(&control)}}),
        json!({"apiVersion": HOSTS, "kind": "TestHostMachineTemplate", "metadata": {"name": "workers"}, "spec": {"template":
            {"spec": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}}}}}),
        json!({"apiVersion": CORE, "kind": "MachineDeployment", "metadata": {"name": "workers", "annotations": {
            "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "0",
            "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "5",
            "capacity.cluster-autoscaler.kubernetes.io/cpu": "4",
            "capacity.cluster-autoscaler.kubernetes.io/memory": "8Gi"}},
            "spec": {"clusterName": cluster, "replicas": 0, "selector": {"matchLabels": {"pool": "workers"}},
            "template": {"metadata": {"labels": {"pool": "workers"}}, "spec": {"clusterName": cluster, "version": "v1.36.3",
                "bootstrap": {"dataSecretName": "bootstrap"}, "infrastructureRef": {
                    "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TestHostMachineTemplate", "name": "workers"}}}}}),
        json!({"apiVersion": CLASS, "kind": "ClusterAPINodeClass", "metadata": {"name": "workers"}, "spec": {}}),
        json!({"apiVersion": KARPENTER, "kind": "NodePool", "metadata": {"name": "workers"}, "spec": {"limits": {"cpu": "40"},
            "template": {"spec": {"requirements": [], "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io",
                "kind": "ClusterAPINodeClass", "name": "workers"}}}}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 5,
            "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "web", "resources": {"requests": requests}}]}}}}),
    ]
}

async fn names(api: &Api<DynamicObject>) -> Result<Vec<String>> {
    let list = api.list(&ListParams::default()).await?;
    Ok(list.items.into_iter().map(|object| object.name_any()).collect())
}

#[tokio::test]
async fn pods_get_nodes_from_zero_and_give_them_back() -> Result<()> {
    let cluster = ManagementCluster::builder()
        .name("autoscaler")
        .cluster_api()
        .kwok()
        .audit_everything_of(USER)
        .start()
        .await?;
    let (client, namespace) = (cluster.client(), "default");
    let packages = slipway_autoscaler::provider().packages;
    let crds = packages[0].crds.iter().map(serde_json::to_value);
    install::install(&client, &crds.collect::<Result<Vec<_>, _>>()?).await?;
    roles::install(&cluster, &packages, USER).await?;
    let hosts = Hosts::start(&cluster, namespace, &cluster).await?;
    hosts.give_kubeconfig("here").await?;

    let stop = CancellationToken::new();
    let context = Context::new(
        cluster.client_as(USER, &[]),
        Settings::default(),
        Metrics::new(),
        stop.clone(),
    );
    for registration in &packages[0].controllers {
        tokio::spawn((registration.run)(context.clone()));
    }
    apply(&client, namespace, &manifests("here")).await?;

    let deployments = objects(&client, Some(namespace), "apps/v1", "Deployment");
    until(&deployments, "web", "run five pods", |deployment| {
        deployment.data["status"]["readyReplicas"] == 5
    })
    .await?;
    let pools = objects(&client, None, KARPENTER, "NodePool");
    let pool = until(&pools, "workers", "count three nodes", |pool| {
        pool.data["status"]["nodes"] == 3
    })
    .await?;
    assert_eq!(
        pool.data["status"]["resources"]["cpu"], "12",
        "two pods on a node of four cores"
    );
    let claims = objects(&client, None, KARPENTER, "NodeClaim");
    for claim in names(&claims).await? {
        until(&claims, &claim, "become ready", |claim| {
            let conditions = claim.data["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
        })
        .await?;
    }
    let machine_deployments = objects(&client, Some(namespace), CORE, "MachineDeployment");
    let workers = machine_deployments.get("workers").await?;
    assert_eq!(workers.data["spec"]["replicas"], 3);
    let nodes: Api<Node> = Api::all(client.clone());
    let labelled =
        ListParams::default().labels("karpenter.sh/initialized=true,karpenter.sh/nodepool=workers");
    assert_eq!(nodes.list(&labelled).await?.items.len(), 3);

    // Back to nothing: the pods go, the claims are deleted, and their Machines go with them.
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    deployments.patch("web", &PatchParams::default(), &none).await?;
    until(&deployments, "web", "have no pods", |deployment| {
        deployment.data["status"]["replicas"].as_i64().unwrap_or(0) == 0
    })
    .await?;
    for claim in names(&claims).await? {
        claims.delete(&claim, &kube::api::DeleteParams::default()).await?;
    }
    until(
        &machine_deployments,
        "workers",
        "have no replicas",
        |deployment| deployment.data["spec"]["replicas"] == 0 && deployment.data["status"]["replicas"] == 0,
    )
    .await?;
    tokio::time::timeout(HANG_GUARD, async {
        while !names(&claims).await?.is_empty() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        anyhow::Ok(())
    })
    .await
    .context("claims are left")??;
    assert_eq!(nodes.list(&labelled).await?.items.len(), 0);
    stop.cancel();

    // The roles were enough.
    let requests = cluster
        .audit()
        .requests(None, |request| request.username() == USER)?;
    let denied: Vec<String> = requests
        .iter()
        .filter(|request| request.was_denied())
        .map(|request| format!("{request:?}"))
        .collect();
    assert_eq!(denied, [""; 0]);
    Ok(())
}
