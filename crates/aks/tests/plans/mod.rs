//! Plans and statuses, as tables: what was observed, and what is then done and said.

mod control_plane;
mod machines;
mod pool;

use std::fmt::Write;

use serde_json::{Value, json};
use slipway_aks::api::{AzureManagedControlPlane, AzureManagedMachinePool};
use slipway_capi::view::MachinePool;

const GROUP: &str = "/subscriptions/sub/resourceGroups/group";
const NETWORK: &str =
    "/subscriptions/sub/resourceGroups/group/providers/Microsoft.Network/virtualNetworks/network";
const CLUSTER: &str =
    "/subscriptions/sub/resourceGroups/group/providers/Microsoft.ContainerService/managedClusters/plane";

fn now() -> jiff::Timestamp {
    "2026-01-01T01:00:00Z".parse().expect("a time")
}

fn plane(metadata: &Value, spec: &Value, status: &Value) -> AzureManagedControlPlane {
    let mut object = json!({
        "metadata": {"name": "plane", "namespace": "default", "creationTimestamp": "2026-01-01T00:59:00Z", "generation": 3},
        "spec": {
            "version": "v1.31.0", "location": "westus", "resourceGroupName": "group", "identityRef": {},
            "virtualNetwork": {"name": "network", "cidrBlock": "10.0.0.0/8", "resourceGroup": "group", "subnet": {"name": "nodes", "cidrBlock": "10.240.0.0/16"}}
        }
    });
    json_patch::merge(&mut object["metadata"], metadata);
    json_patch::merge(&mut object["spec"], spec);
    if !status.is_null() {
        object["status"] = status.clone();
    }
    serde_json::from_value(object).expect("a control plane")
}

fn pool(metadata: &Value, spec: &Value) -> AzureManagedMachinePool {
    let mut object = json!({"metadata": {"name": "pool", "namespace": "default"}, "spec": {"mode": "System", "sku": "small", "name": "pool"}});
    json_patch::merge(&mut object["metadata"], metadata);
    json_patch::merge(&mut object["spec"], spec);
    serde_json::from_value(object).expect("a pool")
}

fn machine_pool(patch: &Value) -> MachinePool {
    let mut object = json!({"metadata": {"name": "pool"}, "spec": {"replicas": 3, "template": {"spec": {"version": "v1.31.0"}}}});
    json_patch::merge(&mut object, patch);
    serde_json::from_value(object).expect("a MachinePool")
}

/// The printed plans of many situations are those of the golden file. `SLIPWAY_TEST_BLESS=1` writes it.
fn golden(file: &str, situations: Vec<(&str, String)>) {
    let mut text = String::new();
    for (title, plan) in situations {
        let plan = plan
            .replace(CLUSTER, "<cluster>")
            .replace(NETWORK, "<network>")
            .replace(GROUP, "<group>");
        let _ = writeln!(text, "## {title}\n{plan}");
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/plans")
        .join(file);
    if std::env::var_os("SLIPWAY_TEST_BLESS").is_some() {
        std::fs::write(&path, &text).expect("the golden file is written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text,
        expected,
        "run with SLIPWAY_TEST_BLESS=1 to accept {}",
        path.display()
    );
}
