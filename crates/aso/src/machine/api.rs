//! AzureASOManagedMachine: one VM of a node pool. Made by the pool's controller; nobody needs to write one.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use slipway_azure::machine::MachineStatus;

/// One VM of a node pool.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureASOManagedMachine",
    plural = "azureasomanagedmachines",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    status = "MachineStatus",
    shortname = "aasomm",
    category = "cluster-api",
    printcolumn = r#"{"name": "Cluster", "type": "string", "description": "Cluster to which this AzureASOManagedMachine belongs", "jsonPath": ".metadata.labels.cluster\\.x-k8s\\.io/cluster-name"}"#,
    printcolumn = r#"{"name": "Pool", "type": "string", "description": "MachinePool to which this AzureASOManagedMachine belongs", "jsonPath": ".metadata.labels.cluster\\.x-k8s\\.io/pool-name"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#,
    printcolumn = r#"{"name": "Power", "type": "string", "description": "Power state of the VM", "jsonPath": ".status.powerState"}"#,
    printcolumn = r#"{"name": "Zone", "type": "string", "description": "Zone that the VM stands in", "jsonPath": ".status.failureDomain"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "description": "Kubernetes version that the node runs", "jsonPath": ".status.version"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "priority": 1, "jsonPath": ".status.conditions[?(@.type=='Ready')].message"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "description": "Time duration since creation of this AzureASOManagedMachine", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AzureASOManagedMachineSpec {
    /// The provider id of the node that runs on the VM.
    #[serde(rename = "providerID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [{"rule": "self == oldSelf", "message": "cannot be changed: it says which VM this is"}]))]
    pub provider_id: Option<String>,
}
