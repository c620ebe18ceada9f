//! The example that `slipway up` applies: a cluster with a system and a user pool, on the simulated Azure.

use serde_json::{Value, json};
use slipway_runtime::provider::{Example, Simulator};

use crate::{api::GROUP, provider::TOKEN_FILE};

const NAMESPACE: &str = "default";
const NAME: &str = "demo-aks";

/// The simulated Azure, thirty times as fast as the recorded one, with an API server behind its clusters.
pub fn simulator() -> Simulator {
    Simulator {
        program: "azure-sim",
        needs_workload: true,
        arguments: |surroundings| {
            let kubeconfig = surroundings.workload.display().to_string();
            ["--speed", "30", "--backing", &kubeconfig]
                .map(str::to_owned)
                .into()
        },
        environment: |said, volumes| {
            let address = format!("https://{}/", text(said, "https"));
            vec![
                ("AZURE_RESOURCE_MANAGER_ENDPOINT", address.clone()),
                ("AZURE_AUTHORITY_HOST", address),
                ("AZURE_CERTIFICATE_AUTHORITIES", text(said, "caFile").to_owned()),
                (
                    "AZURE_FEDERATED_TOKEN_FILE",
                    format!("{}{TOKEN_FILE}", volumes.display()),
                ),
            ]
        },
        flags: |_| Vec::new(),
        addresses: |said| {
            let admin = text(said, "admin");
            vec![
                ("Azure", format!("https://{}/", text(said, "https"))),
                ("Azure's CA", text(said, "caFile").to_owned()),
                ("Azure, proxy", format!("http://{}", text(said, "proxy"))),
                (
                    "Azure, admin",
                    format!("http://{admin}/  (requests, faults, clock, state, summary)"),
                ),
                ("Azure, health", format!("http://{admin}/healthz")),
            ]
        },
    }
}

fn text<'a>(said: &'a Value, field: &str) -> &'a str {
    said[field].as_str().unwrap_or_default()
}

fn pool(name: &str, mode: &str) -> [Value; 2] {
    [
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool",
            "metadata": {"name": format!("{NAME}-{name}"), "namespace": NAMESPACE},
            "spec": {"clusterName": NAME, "replicas": 1, "template": {"spec": {
                "clusterName": NAME, "version": "v1.33.3", "bootstrap": {"dataSecretName": ""},
                "infrastructureRef": {
                    "apiGroup": GROUP, "kind": "AzureManagedMachinePool", "name": format!("{NAME}-{name}"),
                },
            }}},
        }),
        json!({
            "apiVersion": format!("{GROUP}/v1beta1"), "kind": "AzureManagedMachinePool",
            "metadata": {"name": format!("{NAME}-{name}"), "namespace": NAMESPACE},
            "spec": {"mode": mode, "name": name, "sku": "Standard_D2s_v3"},
        }),
    ]
}

/// A cluster that becomes ready in about half a minute.
pub fn example() -> Example {
    let reference = |kind: &str| json!({"apiGroup": GROUP, "kind": kind, "name": NAME});
    let mut objects = vec![
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": format!("{NAME}-identity"), "namespace": NAMESPACE},
            "stringData": {"clientSecret": "the simulated Azure takes any"},
        }),
        json!({
            "apiVersion": format!("{GROUP}/v1beta1"), "kind": "AzureClusterIdentity",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {
                "type": "ServicePrincipal", "allowedNamespaces": {},
                "tenantID": "11111111-1111-1111-1111-111111111111",
                "clientID": "22222222-2222-2222-2222-222222222222",
                "clientSecret": {"name": format!("{NAME}-identity"), "namespace": NAMESPACE},
            },
        }),
        json!({
            "apiVersion": format!("{GROUP}/v1beta1"), "kind": "AzureManagedControlPlane",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {
                "version": "v1.33.3", "location": "westus3", "resourceGroupName": NAME,
                "subscriptionID": "00000000-0000-0000-0000-000000000001",
                "identityRef": {"kind": "AzureClusterIdentity", "name": NAME},
            },
        }),
        json!({
            "apiVersion": format!("{GROUP}/v1beta1"), "kind": "AzureManagedCluster",
            "metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": {},
        }),
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {
                "clusterNetwork": {"services": {"cidrBlocks": ["192.168.0.0/16"]}},
                "controlPlaneRef": reference("AzureManagedControlPlane"),
                "infrastructureRef": reference("AzureManagedCluster"),
            },
        }),
    ];
    objects.extend(pool("system", "System"));
    objects.extend(pool("work", "User"));
    Example {
        title: "An AKS cluster with two node pools, on the simulated Azure",
        objects,
        becomes: vec![
            (2, "Ready"),
            (3, "Ready"),
            (6, "Ready"),
            (8, "Ready"),
            (4, "Available"),
        ],
        follows: &[],
    }
}
