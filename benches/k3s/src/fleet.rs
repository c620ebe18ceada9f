//! The clusters: manifests that both sides read alike, and what their control planes complain of.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::Arguments;

pub const NAMESPACE: &str = "default";
/// The last minor whose servers have the role label that cluster-api-k3s looks for.
const VERSION: &str = "v1.33.4+k3s1";

const CORE: &str = "cluster.x-k8s.io";
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";
const HOSTS: &str = "infrastructure.cluster.x-k8s.io";

/// What the names of all clusters begin with.
const PREFIX: &str = "edge-";

/// The webhooks of a manager that has just started may not answer yet.
const TRIES: usize = 60;

pub fn control_planes(client: &Client) -> Api<DynamicObject> {
    objects(client, CONTROL_PLANE, "v1beta2", "KThreesControlPlane")
}

pub fn machine_deployments(client: &Client) -> Api<DynamicObject> {
    objects(client, CORE, "v1beta2", "MachineDeployment")
}

fn objects(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), NAMESPACE, &resource)
}

/// Applies all clusters, some at a time.
pub async fn create(client: &Client, arguments: &Arguments) -> Result<()> {
    stream::iter(0..arguments.clusters)
        .map(|number| one(client, format!("{PREFIX}{number:03}"), arguments))
        .buffer_unordered(8)
        .try_collect()
        .await
}

async fn one(client: &Client, name: String, arguments: &Arguments) -> Result<()> {
    for manifest in manifests(&name, arguments) {
        let text = |field: &str| manifest[field].as_str().unwrap_or_default();
        let (group, version) = text("apiVersion").split_once('/').unwrap_or_default();
        let api = objects(client, group, version, text("kind"));
        let apply = PatchParams::apply("a-user");
        let mut tries = 0;
        while let Err(error) = api.patch(&name, &apply, &Patch::Apply(&manifest)).await {
            tries += 1;
            if tries == TRIES {
                return Err(error).with_context(|| format!("applying {} {name}", text("kind")));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    Ok(())
}

/// One cluster. What cluster-api-k3s's webhooks would fill in is written out, because they do not run here.
fn manifests(name: &str, arguments: &Arguments) -> [Value; 6] {
    let hosts = format!("{HOSTS}/v1beta1");
    let core = format!("{CORE}/v1beta2");
    let metadata = json!({"name": name});
    let cloud = json!({"disableCloudController": true, "cloudProviderName": "external"});
    let template = json!({"apiGroup": HOSTS, "kind": "TestHostMachineTemplate", "name": name});
    [
        json!({"apiVersion": hosts, "kind": "TestHostCluster", "metadata": metadata, "spec": {}}),
        json!({"apiVersion": hosts, "kind": "TestHostMachineTemplate", "metadata": metadata,
            "spec": {"template": {"spec": {}}}}),
        json!({"apiVersion": format!("{CONTROL_PLANE}/v1beta2"), "kind": "KThreesControlPlane", "metadata": metadata,
        "spec": {
            "replicas": arguments.servers,
            "version": VERSION,
            "kthreesConfigSpec": {"serverConfig": cloud},
            "machineTemplate": {"infrastructureRef": {"apiVersion": hosts, "kind": "TestHostMachineTemplate",
                "name": name, "namespace": NAMESPACE}},
        }}),
        json!({"apiVersion": format!("{BOOTSTRAP}/v1beta2"), "kind": "KThreesConfigTemplate", "metadata": metadata,
            "spec": {"template": {"spec": {"serverConfig": cloud}}}}),
        json!({"apiVersion": core, "kind": "Cluster", "metadata": metadata, "spec": {
            "clusterNetwork": {"pods": {"cidrBlocks": ["10.42.0.0/16"]}},
            "infrastructureRef": {"apiGroup": HOSTS, "kind": "TestHostCluster", "name": name},
            "controlPlaneRef": {"apiGroup": CONTROL_PLANE, "kind": "KThreesControlPlane", "name": name},
        }}),
        json!({"apiVersion": core, "kind": "MachineDeployment", "metadata": metadata, "spec": {
            "clusterName": name,
            "replicas": arguments.workers,
            "selector": {"matchLabels": {"pool": name}},
            "template": {"metadata": {"labels": {"pool": name}}, "spec": {
                "clusterName": name,
                "version": VERSION,
                "bootstrap": {"configRef": {"apiGroup": BOOTSTRAP, "kind": "KThreesConfigTemplate", "name": name}},
                "infrastructureRef": template,
            }},
        }}),
    ]
}

/// Which conditions of the control planes and their machines are not met, and how many say it; most often first.
pub async fn what_is_missing(client: &Client) -> Result<Vec<(String, usize)>> {
    let machines = objects(client, CORE, "v1beta1", "Machine");
    let servers = ListParams::default().labels("cluster.x-k8s.io/control-plane");
    let mut said: BTreeMap<String, usize> = BTreeMap::new();
    for (kind, list) in [
        (
            "KThreesControlPlane",
            control_planes(client).list(&ListParams::default()).await?,
        ),
        ("Machine of a server", machines.list(&servers).await?),
    ] {
        for object in list.items {
            let conditions = object.data["status"]["conditions"].as_array();
            for condition in conditions.into_iter().flatten() {
                let text = |field: &str| condition[field].as_str().unwrap_or_default();
                if text("status") != "True" {
                    let (type_, reason) = (text("type"), text("reason"));
                    let message = without_names(text("message"));
                    *said
                        .entry(format!("{kind}: {type_} ({reason}): {message}"))
                        .or_default() += 1;
                }
            }
        }
    }
    let mut said: Vec<_> = said.into_iter().collect();
    said.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    said.truncate(8);
    Ok(said)
}

/// Names differ from cluster to cluster; what is said does not.
fn without_names(message: &str) -> String {
    let words = message
        .split_whitespace()
        .map(|word| if word.starts_with(PREFIX) { "NAME" } else { word });
    let message = words.collect::<Vec<_>>().join(" ");
    match message.char_indices().nth(240) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_several_clusters_is_one_thing() {
        assert_eq!(
            without_names("no answer from edge-007-x2b9k on port 1"),
            "no answer from NAME on port 1"
        );
        assert_eq!(without_names(&"ä".repeat(300)).chars().count(), 241);
    }
}
