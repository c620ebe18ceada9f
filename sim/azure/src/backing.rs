//! Mirrors the nodes of backed clusters into the real API servers behind them: nodes appear, change and vanish there
//! as pools do in Azure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Node as KubernetesNode;
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::{aks::Node, simulator::Simulator};

/// Labels are at most this long.
const LABEL: usize = 63;

/// Runs until stopped: follows changes as they are made, and looks again when one could not be mirrored.
pub async fn follow(simulator: Simulator, changed: Arc<Notify>, mut stopped: watch::Receiver<bool>) {
    let mut clients: BTreeMap<String, (String, Client)> = BTreeMap::new();
    // A state that was read from a file may have been mirrored by nobody yet.
    let mut behind: BTreeSet<String> = simulator.azure().clusters().into_iter().collect();
    loop {
        let backed = {
            let now = simulator.now();
            let mut azure = simulator.azure();
            azure.settle(now);
            for change in azure.take_changes() {
                behind.insert(change.cluster);
            }
            !azure.state().backing.is_empty()
        };
        let mut left = BTreeSet::new();
        for cluster in std::mem::take(&mut behind) {
            let (kubeconfig, nodes) = {
                let azure = simulator.azure();
                let Some(kubeconfig) = azure.backing_of(&cluster) else {
                    continue;
                };
                (kubeconfig.clone(), azure.nodes(&cluster))
            };
            let mirrored = match client(&mut clients, &cluster, &kubeconfig).await {
                Ok(client) => mirror(&client, &cluster, &nodes).await,
                Err(error) => Err(error),
            };
            if let Err(error) = mirrored {
                tracing::warn!(%cluster, %error, "nodes could not be mirrored, trying again");
                left.insert(cluster);
            }
        }
        behind = left;
        // Operations end without a request; a tenth of a second is soon enough for a node to appear.
        let pause = if backed { 100 } else { 1_000 };
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep(Duration::from_millis(pause)) => {}
            _ = stopped.wait_for(|stopped| *stopped) => return,
        }
    }
}

async fn client(
    clients: &mut BTreeMap<String, (String, Client)>,
    cluster: &str,
    kubeconfig: &str,
) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    if let Some((text, client)) = clients.get(cluster)
        && text == kubeconfig
    {
        return Ok(client.clone());
    }
    let parsed = Kubeconfig::from_yaml(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    clients.insert(cluster.to_owned(), (kubeconfig.to_owned(), client.clone()));
    Ok(client)
}

/// Labels every node of a simulated cluster carries, to find them again.
fn mark(cluster: &str) -> String {
    let id = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_URL, cluster.as_bytes());
    id.simple().to_string()
}

async fn mirror(
    client: &Client,
    cluster: &str,
    nodes: &[Node],
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let api: Api<KubernetesNode> = Api::all(client.clone());
    let mark = mark(cluster);
    let existing = api
        .list(&ListParams::default().labels(&format!("azure-sim.slipway.dev/cluster={mark}")))
        .await?;
    for gone in existing
        .iter()
        .filter(|node| !nodes.iter().any(|desired| desired.name == node.name_any()))
    {
        match api.delete(&gone.name_any(), &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error.into()),
        }
    }
    for node in nodes {
        let object = manifest(node, &mark);
        let same = existing.iter().any(|found| {
            found.name_any() == node.name
                && found
                    .annotations()
                    .get("azure-sim.slipway.dev/digest")
                    .map(String::as_str)
                    == object["metadata"]["annotations"]["azure-sim.slipway.dev/digest"].as_str()
        });
        if same {
            continue;
        }
        // A kubelet registers its node ready and with its version. Without, kwok would fill in its own.
        if !existing.iter().any(|found| found.name_any() == node.name) {
            match api
                .create(&PostParams::default(), &serde_json::from_value(object.clone())?)
                .await
            {
                Ok(_) => continue,
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error.into()),
            }
        }
        let apply = PatchParams::apply("azure-sim").force();
        let mut body = object.clone();
        if let Some(body) = body.as_object_mut() {
            body.remove("status");
        }
        api.patch(&node.name, &apply, &Patch::Apply(&body)).await?;
        let status = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node.name},
            "status": object["status"],
        });
        api.patch_status(&node.name, &apply, &Patch::Apply(&status))
            .await?;
    }
    Ok(())
}

fn cut(text: &str) -> String {
    text.chars().take(LABEL).collect()
}

/// A node as AKS's kubelet would register it.
fn manifest(node: &Node, mark: &str) -> Value {
    let os = node.os_type.to_ascii_lowercase();
    let zone = node
        .zone
        .as_ref()
        .map_or_else(|| "0".to_owned(), |zone| format!("{}-{zone}", node.location));
    let mut labels = BTreeMap::from([
        ("azure-sim.slipway.dev/cluster", mark.to_owned()),
        ("agentpool", node.pool.clone()),
        ("kubernetes.azure.com/agentpool", cut(&node.pool)),
        ("kubernetes.azure.com/cluster", cut(&node.node_group)),
        ("kubernetes.azure.com/mode", node.mode.to_ascii_lowercase()),
        ("kubernetes.azure.com/role", "agent".to_owned()),
        ("kubernetes.azure.com/node-image-version", cut(&node.image)),
        ("kubernetes.azure.com/os-sku", "Ubuntu".to_owned()),
        ("kubernetes.io/arch", "amd64".to_owned()),
        ("kubernetes.io/hostname", cut(&node.name)),
        ("kubernetes.io/os", os.clone()),
        ("node.kubernetes.io/instance-type", node.vm_size.clone()),
        ("topology.kubernetes.io/region", node.location.clone()),
        ("topology.kubernetes.io/zone", zone),
    ]);
    for (key, value) in &node.labels {
        labels.insert(key, value.clone());
    }
    let taints: Vec<Value> = node
        .taints
        .iter()
        .filter_map(|taint| {
            let (pair, effect) = taint.rsplit_once(':')?;
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some(json!({"key": key, "value": value, "effect": effect}))
        })
        .collect();
    let cpus = crate::aks::cpus(&node.vm_size);
    let resources = json!({
        "cpu": cpus.to_string(),
        "memory": format!("{}Gi", cpus * 4),
        "pods": "110",
        "ephemeral-storage": "128Gi",
    });
    let conditions: Vec<Value> = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ]
    .iter()
    .map(|(kind, status, reason)| json!({"type": kind, "status": status, "reason": reason, "message": ""}))
    .collect();
    let spec = json!({"providerID": node.provider_id, "taints": taints});
    let status = json!({
        "capacity": resources,
        "allocatable": resources,
        "conditions": conditions,
        "addresses": [
            {"type": "InternalIP", "address": node.address},
            {"type": "Hostname", "address": node.name},
        ],
        "nodeInfo": {
            "kubeletVersion": format!("v{}", node.version),
            "kubeProxyVersion": format!("v{}", node.version),
            "operatingSystem": os,
            "architecture": "amd64",
            "osImage": "Ubuntu 22.04.5 LTS",
            "kernelVersion": "5.15.0-1100-azure",
            "containerRuntimeVersion": "containerd://1.7.29-1",
            "machineID": "", "systemUUID": "", "bootID": "",
        },
    });
    let digest = uuid::Uuid::new_v5(
        &uuid::Uuid::NAMESPACE_OID,
        format!("{}{spec}{status}", json!(labels)).as_bytes(),
    );
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": labels,
            "annotations": {
                // Where kwok runs, it keeps these nodes alive.
                "kwok.x-k8s.io/node": "fake",
                "azure-sim.slipway.dev/digest": digest.to_string(),
            },
        },
        "spec": spec,
        "status": status,
    })
}
