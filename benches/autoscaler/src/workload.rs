//! The pods, and the machines that are offered for them: the same to both sides.

use anyhow::{Context, Result};
use futures::{TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// The NodePool.
pub const POOL: &str = "general";

/// How many pods are made at a time.
const AT_ONCE: usize = 32;

/// Machines: name, cores, memory and price per hour.
pub const MACHINES: [(&str, u32, &str, f64); 3] = [
    ("small", 4, "16Gi", 0.2),
    ("medium", 8, "32Gi", 0.4),
    ("large", 16, "64Gi", 0.78),
];

/// Pods come in turn of these sizes. Twenty of them, on average, are a large machine.
const PODS: [(&str, &str); 5] = [
    ("250m", "512Mi"),
    ("500m", "1Gi"),
    ("750m", "1Gi"),
    ("1", "2Gi"),
    ("1400m", "4Gi"),
];

pub fn price(machine: &str) -> f64 {
    let known = MACHINES.iter().find(|(name, ..)| *name == machine);
    known.map_or(0.0, |(.., price)| *price)
}

pub fn api(client: &Client, version: &str, kind: &str) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource(version, kind))
}

fn resource(version: &str, kind: &str) -> ApiResource {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// Applies manifests; those without a namespace are the cluster's.
pub async fn apply(client: &Client, manifests: &[Value]) -> Result<()> {
    for manifest in manifests {
        let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str);
        let (version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        let (version, kind, name) = (
            version.context("a version")?,
            kind.context("a kind")?,
            name.context("a name")?,
        );
        let objects = match text("/metadata/namespace") {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource(version, kind)),
            None => api(client, version, kind),
        };
        objects
            .patch(name, &PatchParams::apply("bench"), &Patch::Apply(manifest))
            .await
            .with_context(|| format!("applying {kind} {name}"))?;
    }
    Ok(())
}

/// A NodePool that is never disrupted: only what is made is measured.
pub fn node_pool(class_group: &str, class_kind: &str) -> Value {
    json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": POOL}, "spec": {
        "disruption": {"consolidateAfter": "Never", "budgets": [{"nodes": "0"}]},
        "template": {"spec": {"requirements": [], "expireAfter": "Never",
            "nodeClassRef": {"group": class_group, "kind": class_kind, "name": POOL}}}}})
}

fn pod(number: usize) -> Result<Pod> {
    let (cpu, memory) = PODS[number % PODS.len()];
    let requests = json!({"cpu": cpu, "memory": memory});
    Ok(serde_json::from_value(
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("web-{number}")},
        "spec": {"containers": [{"name": "main", "image": "web", "resources": {"requests": requests}}]}}),
    )?)
}

/// Makes so many pods as fast as the apiserver takes them.
pub async fn create(client: Client, pods: usize) -> Result<()> {
    let api: Api<Pod> = Api::default_namespaced(client);
    stream::iter((0..pods).map(pod))
        .try_for_each_concurrent(AT_ONCE, |pod| {
            let api = &api;
            async move {
                let made = api.create(&PostParams::default(), &pod).await;
                made.map(|_| ()).context("making a pod")
            }
        })
        .await
}
