//! The manifests of a fleet: the same for everybody who is measured.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};

pub const NAMESPACE: &str = "default";
pub const SUBSCRIPTION: &str = "00000000-0000-0000-0000-000000000001";
pub const TENANT: &str = "11111111-1111-1111-1111-111111111111";
const CORE: &str = "cluster.x-k8s.io";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
const VERSION: &str = "v1.33.5";

pub fn api(client: &Client, kind: &str) -> Api<DynamicObject> {
    let kind = if kind.starts_with("Azure") {
        GroupVersionKind::gvk(INFRASTRUCTURE, "v1beta1", kind)
    } else if kind == "Secret" {
        GroupVersionKind::gvk("", "v1", kind)
    } else {
        GroupVersionKind::gvk(CORE, "v1beta2", kind)
    };
    Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind))
}

/// What all clusters sign in with.
fn identity() -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "identity"},
            "stringData": {"clientSecret": "the simulated Azure takes any"},
        }),
        json!({
            "apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureClusterIdentity",
            "metadata": {"name": "identity"},
            "spec": {
                "type": "ServicePrincipal", "tenantID": TENANT, "allowedNamespaces": {},
                "clientID": "22222222-2222-2222-2222-222222222222",
                "clientSecret": {"name": "identity", "namespace": NAMESPACE},
            },
        }),
    ]
}

fn cluster(number: usize, pools: usize) -> Vec<Value> {
    let name = format!("fleet-{number:04}");
    let reference = |kind: &str, name: &str| json!({"apiGroup": INFRASTRUCTURE, "kind": kind, "name": name});
    let mut objects = vec![
        json!({
            "apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureManagedCluster",
            "metadata": {"name": name}, "spec": {},
        }),
        json!({
            "apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureManagedControlPlane",
            "metadata": {"name": name},
            "spec": {
                "subscriptionID": SUBSCRIPTION, "resourceGroupName": name, "location": "westus3", "version": VERSION,
                "identityRef": {
                    "apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureClusterIdentity",
                    "name": "identity", "namespace": NAMESPACE,
                },
            },
        }),
        json!({
            "apiVersion": format!("{CORE}/v1beta2"), "kind": "Cluster", "metadata": {"name": name},
            "spec": {
                "clusterNetwork": {"services": {"cidrBlocks": ["192.168.0.0/16"]}},
                "infrastructureRef": reference("AzureManagedCluster", &name),
                "controlPlaneRef": reference("AzureManagedControlPlane", &name),
            },
        }),
    ];
    for pool in 0..pools {
        let (mode, short) = if pool == 0 {
            ("System", "system".to_owned())
        } else {
            ("User", format!("user{pool}"))
        };
        let object = format!("{name}-{short}");
        objects.push(json!({
            "apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureManagedMachinePool",
            "metadata": {"name": object},
            "spec": {"name": short, "mode": mode, "sku": "Standard_D2s_v3"},
        }));
        objects.push(json!({
            "apiVersion": format!("{CORE}/v1beta2"), "kind": "MachinePool", "metadata": {"name": object},
            "spec": {
                "clusterName": name, "replicas": 1,
                "template": {"spec": {
                    "clusterName": name, "version": VERSION, "bootstrap": {"dataSecretName": ""},
                    "infrastructureRef": reference("AzureManagedMachinePool", &object),
                }},
            },
        }));
    }
    objects
}

/// Applies everything.
pub async fn create(client: &Client, clusters: usize, pools: usize) -> Result<()> {
    for object in identity() {
        one(client, &object).await?;
    }
    stream::iter(0..clusters)
        .map(|number| async move {
            for object in cluster(number, pools) {
                one(client, &object).await?;
            }
            Ok(())
        })
        .buffer_unordered(8)
        .try_for_each(|()| async { Ok(()) })
        .await
}

async fn one(client: &Client, object: &Value) -> Result<()> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let read: DynamicObject = serde_json::from_value(object.clone())?;
    api(client, kind)
        .create(&PostParams::default(), &read)
        .await
        .with_context(|| format!("creating {kind} {}", object["metadata"]["name"]))?;
    Ok(())
}
