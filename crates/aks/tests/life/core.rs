//! The part that Cluster API's core plays, on an apiserver in memory.

use std::time::Duration;

use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;

use super::world::{CORE, api, merge, remove};

/// What core does by itself, over and over: owners, labels, what the contract lets it copy, and deletion in order.
pub async fn core(server: Apiserver) {
    let mut seen = 0;
    loop {
        // What nobody changed needs nothing done.
        if server.version() != seen {
            seen = server.version();
            core_once(&server).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn own(server: &Apiserver, kind: &str, object: &DynamicObject, owner: &Value, controller: bool) {
    let name = object.metadata.name.clone().unwrap_or_default();
    if object.metadata.owner_references.is_some() || object.metadata.deletion_timestamp.is_some() {
        return;
    }
    let patch = json!({"metadata": {
        "labels": {"cluster.x-k8s.io/cluster-name": "fleet"},
        "ownerReferences": [{"apiVersion": format!("{CORE}/v1beta2"), "kind": owner["kind"],
            "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "controller": controller}],
    }});
    let _ = api(server, kind)
        .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
}

async fn core_once(server: &Apiserver) {
    let list = |kind: &'static str| async move {
        api(server, kind)
            .list(&ListParams::default())
            .await
            .expect("a list")
            .items
    };
    let Some(cluster) = list("Cluster").await.into_iter().next() else {
        return;
    };
    let cluster = serde_json::to_value(&cluster).expect("json");
    let deleting = !cluster["metadata"]["deletionTimestamp"].is_null();
    if cluster["spec"]["paused"] == true {
        return;
    }
    if !deleting && cluster["metadata"]["finalizers"].is_null() {
        merge(
            server,
            "Cluster",
            "fleet",
            json!({"metadata": {"finalizers": ["cluster.cluster.x-k8s.io"]}}),
        )
        .await;
    }
    for kind in ["AzureManagedCluster", "AzureManagedControlPlane"] {
        for object in list(kind).await {
            own(
                server,
                kind,
                &object,
                &cluster,
                kind == "AzureManagedControlPlane",
            )
            .await;
        }
    }
    let pools = list("AzureManagedMachinePool").await;
    for machine_pool in list("MachinePool").await {
        let value = serde_json::to_value(&machine_pool).expect("json");
        let name = machine_pool.metadata.name.clone().unwrap_or_default();
        let pool = pools
            .iter()
            .find(|pool| pool.metadata.name.as_deref() == Some(name.as_str()));
        if deleting || machine_pool.metadata.deletion_timestamp.is_some() {
            if machine_pool.metadata.deletion_timestamp.is_none() {
                remove(server, "MachinePool", &name).await;
            }
            match pool {
                Some(pool) if pool.metadata.deletion_timestamp.is_none() => {
                    remove(server, "AzureManagedMachinePool", &name).await;
                }
                Some(_) => {}
                None => {
                    merge(
                        server,
                        "MachinePool",
                        &name,
                        json!({"metadata": {"finalizers": null}}),
                    )
                    .await;
                }
            }
            continue;
        }
        if machine_pool.metadata.finalizers.is_none() {
            merge(
                server,
                "MachinePool",
                &name,
                json!({"metadata": {"finalizers": ["machinepool.cluster.x-k8s.io"]}}),
            )
            .await;
        }
        if let Some(pool) = pool {
            own(server, "AzureManagedMachinePool", pool, &value, true).await;
        }
    }
    if deleting && list("MachinePool").await.is_empty() {
        for kind in ["AzureManagedControlPlane", "AzureManagedCluster"] {
            let found = list(kind).await;
            if let Some(object) = found.first() {
                if object.metadata.deletion_timestamp.is_none() {
                    remove(server, kind, "fleet").await;
                }
                return;
            }
        }
        merge(
            server,
            "Cluster",
            "fleet",
            json!({"metadata": {"finalizers": null}}),
        )
        .await;
    }
}
