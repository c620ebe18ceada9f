//! The example that `slipway up` applies: a cluster as inline resources, on the simulated Azure that the other Azure provider
//! starts.

use serde_json::{Value, json};
use slipway_runtime::provider::Example;

use crate::{access::OF_NAMESPACE, api::GROUP};

const NAMESPACE: &str = "demo-inline";
const NAME: &str = "demo-inline";
const VERSION: &str = "v1.33.3";

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1beta1"), "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec,
    })
}

fn aks(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "containerservice.azure.com/v1api20240901", "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    })
}

/// A cluster that becomes ready in about half a minute.
pub fn example() -> Example {
    let reference = |kind: &str, name: &str| json!({"apiGroup": GROUP, "kind": kind, "name": name});
    let group = json!({
        "apiVersion": "resources.azure.com/v1api20200601", "kind": "ResourceGroup",
        "metadata": {"name": NAME}, "spec": {"location": "westus3"},
    });
    let cluster = json!({
        "owner": {"name": NAME}, "location": "westus3", "dnsPrefix": NAME, "identity": {"type": "SystemAssigned"},
        "networkProfile": {"networkPlugin": "azure"},
    });
    let pool = json!({
        "azureName": "inline", "owner": {"name": NAME}, "mode": "System", "type": "VirtualMachineScaleSets",
        "vmSize": "Standard_D2s_v3",
    });
    let objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": OF_NAMESPACE, "namespace": NAMESPACE},
            "stringData": {
                "AZURE_SUBSCRIPTION_ID": "00000000-0000-0000-0000-000000000001",
                "AZURE_TENANT_ID": "11111111-1111-1111-1111-111111111111",
                "AZURE_CLIENT_ID": "22222222-2222-2222-2222-222222222222",
                "AZURE_CLIENT_SECRET": "the simulated Azure takes any",
            },
        }),
        object("AzureASOManagedCluster", NAME, &json!({"resources": [group]})),
        object(
            "AzureASOManagedControlPlane",
            NAME,
            &json!({"version": VERSION, "resources": [aks("ManagedCluster", NAME, &cluster)]}),
        ),
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {
                "clusterNetwork": {"services": {"cidrBlocks": ["192.168.0.0/16"]}},
                "controlPlaneRef": reference("AzureASOManagedControlPlane", NAME),
                "infrastructureRef": reference("AzureASOManagedCluster", NAME),
            },
        }),
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"clusterName": NAME, "replicas": 1, "template": {"spec": {
                "clusterName": NAME, "version": VERSION, "bootstrap": {"dataSecretName": ""},
                "infrastructureRef": reference("AzureASOManagedMachinePool", NAME),
            }}},
        }),
        object(
            "AzureASOManagedMachinePool",
            NAME,
            &json!({"resources": [aks("ManagedClustersAgentPool", NAME, &pool)]}),
        ),
    ];
    Example {
        title: "An AKS cluster as inline Azure resources, on the simulated Azure",
        objects,
        becomes: vec![(2, "Ready"), (3, "Ready"), (6, "Ready"), (4, "Available")],
        follows: &[],
    }
}
