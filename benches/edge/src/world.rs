//! What Cluster API would have made: a Cluster with machines that have their hosts and nodes.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Namespace, Node},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use slipway_edge::{
    api::{GROUP, INFRASTRUCTURE_GROUP, VERSION},
    fleet,
    hooks::observe::POLICY,
    machine::BOOTSTRAPPED_ANNOTATION,
};
use slipway_testbed::{Cluster, Manifest, install};

use super::{
    Arguments, USER,
    site::{OLD, Site},
};

pub const CORE: &str = "cluster.x-k8s.io/v1beta2";
const NAMESPACE: &str = "default";
pub const NAME: &str = "north";
/// So many machines are made at once.
const AT_ONCE: usize = 16;

pub fn infrastructure() -> String {
    format!("{INFRASTRUCTURE_GROUP}/{VERSION}")
}

pub fn objects(client: &Client, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), NAMESPACE, &resource)
}

/// The definitions of Cluster API, and nobody behind them.
pub async fn install_core(cluster: &Cluster) -> Result<()> {
    let mut definitions = cluster.parts().manifest(Manifest::ClusterApi)?;
    definitions.retain(|object| object["kind"] == "CustomResourceDefinition");
    for definition in &mut definitions {
        definition["spec"]["conversion"] = json!({"strategy": "None"});
    }
    install::install(&cluster.client(), &definitions).await?;
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    let namespace = serde_json::from_value(json!({"metadata": {"name": fleet::DEFAULT_NAMESPACE}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    Ok(())
}

pub fn node_info(version: &str) -> Value {
    json!({"architecture": "amd64", "bootID": "", "containerRuntimeVersion": "none://1", "kernelVersion": "none",
        "kubeProxyVersion": version, "kubeletVersion": version, "machineID": "", "operatingSystem": "linux",
        "osImage": "none", "systemUUID": ""})
}

async fn apply(client: &Client, object: &Value) -> Result<DynamicObject> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let name = text(&object["metadata"]["name"]);
    objects(client, &version, &kind)
        .patch(&name, &PatchParams::apply("core").force(), &Patch::Apply(object))
        .await
        .with_context(|| format!("applying {kind} {name}"))
}

async fn set_status(client: &Client, api_version: &str, kind: &str, name: &str, status: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"status": status}));
    let api = objects(client, api_version, kind);
    api.patch_status(name, &PatchParams::default(), &patch)
        .await
        .with_context(|| format!("writing the status of {kind} {name}"))?;
    Ok(())
}

/// Everything but the hosts' agents.
pub async fn create(client: &Client, workload: &Cluster, site: &Site, arguments: &Arguments) -> Result<()> {
    let kubeconfig = workload.kubeconfig_as(USER, Some("system:masters"));
    let concurrent: Value = match arguments.concurrent.parse::<i32>() {
        Ok(number) => json!(number),
        Err(_) => json!(arguments.concurrent),
    };
    let infrastructure = infrastructure();
    for object in [
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{NAME}-kubeconfig"),
            "labels": {"cluster.x-k8s.io/cluster-name": NAME}}, "type": "cluster.x-k8s.io/secret",
            "data": {"value": ByteString(kubeconfig.into_bytes())}}),
        json!({"apiVersion": infrastructure, "kind": "EdgeCluster", "metadata": {"name": NAME},
            "spec": {"controlPlaneEndpoint": {"host": "192.0.2.10", "port": 6443}}}),
        json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": NAME}, "spec": {
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeCluster", "name": NAME}}}),
        json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "UpgradePolicy", "metadata": {"name": "fast"},
            "spec": {"maxConcurrent": concurrent}}),
    ] {
        apply(client, &object).await?;
    }
    let ready =
        json!({"initialization": {"infrastructureProvisioned": true, "controlPlaneInitialized": true}});
    set_status(client, CORE, "Cluster", NAME, ready).await?;
    let image = site.image();
    stream::iter(0..arguments.hosts)
        .map(|number| machine(client, workload.client(), number, &image))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// One machine with its host and its node. It is to run the new image already: core writes that before it calls.
async fn machine(client: &Client, workload: Client, number: usize, image: &Value) -> Result<()> {
    let (name, host, claim) = (
        format!("m-{number}"),
        format!("box-{number}"),
        format!("c-{number}"),
    );
    let id = format!("edge://{NAMESPACE}/{host}/{claim}");
    let of_cluster = json!({"cluster.x-k8s.io/cluster-name": NAME});
    let machine = json!({"apiVersion": CORE, "kind": "Machine", "metadata": {"name": name, "labels": of_cluster,
        "annotations": {(POLICY): "fast"}}, "spec": {"clusterName": NAME, "version": super::site::NEW,
            "bootstrap": {"dataSecretName": "bootstrap"}, "providerID": id,
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeMachine", "name": name}}});
    let made = apply(client, &machine).await?;
    let owner = json!([{"apiVersion": CORE, "kind": "Machine", "name": name, "uid": made.uid().unwrap_or_default(), "controller": true}]);
    let edge_machine = json!({"apiVersion": infrastructure(), "kind": "EdgeMachine", "metadata": {"name": name, "labels": of_cluster,
        "ownerReferences": owner, "annotations": {(BOOTSTRAPPED_ANNOTATION): "true"}},
        "spec": {"hostName": host, "providerID": id, "image": image}});
    apply(client, &edge_machine).await?;
    let edge_host = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "EdgeHost", "metadata": {"name": host},
        "spec": {"claim": {"name": name, "uid": claim}}});
    apply(client, &edge_host).await?;
    let nodes: Api<Node> = Api::all(workload);
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"providerID": id}}))?;
    nodes.create(&PostParams::default(), &node).await?;
    let status =
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": node_info(OLD)}});
    nodes
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    let status = json!({"nodeRef": {"name": name}, "nodeInfo": node_info(OLD),
        "initialization": {"infrastructureProvisioned": true, "bootstrapDataSecretCreated": true}});
    set_status(client, CORE, "Machine", &name, status).await
}

/// Every host answers.
pub async fn until_ready(client: &Client, count: usize) -> Result<()> {
    let hosts = objects(client, &format!("{GROUP}/{VERSION}"), "EdgeHost");
    let mut ready = std::collections::BTreeSet::new();
    let mut events = std::pin::pin!(
        watcher(hosts, watcher::Config::default())
            .default_backoff()
            .applied_objects()
    );
    while ready.len() < count {
        let event = events.next().await.context("the watch goes on")?;
        let Ok(host) = event else { continue };
        let conditions = host.data["status"]["conditions"].as_array().into_iter().flatten();
        if conditions
            .clone()
            .any(|one| one["type"] == "Ready" && one["status"] == "True")
        {
            ready.insert(host.name_any());
        }
    }
    Ok(())
}
