//! What the stories share: reading and writing objects without a model of them.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use slipway_testbed::Cluster;

/// The objects of one kind in one namespace.
pub fn objects(client: &Client, namespace: &str, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Applies manifests to a namespace, as a user would.
pub async fn apply(client: &Client, namespace: &str, manifests: &[Value]) -> Result<()> {
    for manifest in manifests {
        let text = |value: &Value| {
            value
                .as_str()
                .map(str::to_owned)
                .context("a manifest names itself")
        };
        let name = text(&manifest["metadata"]["name"])?;
        let (version, kind) = (text(&manifest["apiVersion"])?, text(&manifest["kind"])?);
        objects(client, namespace, &version, &kind)
            .patch(&name, &PatchParams::apply("a-user"), &Patch::Apply(manifest))
            .await
            .with_context(|| format!("applying {kind} {name}"))?;
    }
    Ok(())
}

/// A node on which kwok lets pods run that nobody runs.
pub async fn add_fake_host(cluster: &Cluster) -> Result<()> {
    let room = json!({"cpu": "32", "memory": "64Gi", "pods": "110"});
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "host", "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "status": {"allocatable": room, "capacity": room},
    }))?;
    Api::<Node>::all(cluster.client())
        .create(&PostParams::default(), &node)
        .await?;
    Ok(())
}

/// Whether a v1beta2 condition is True.
pub fn is_true(object: &DynamicObject, condition: &str) -> bool {
    object.data["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|one| one["type"] == condition && one["status"] == "True")
}

pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
