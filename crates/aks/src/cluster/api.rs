//! AzureManagedCluster: the infrastructure of a Cluster, which for AKS is the endpoint and the pool a cluster starts with.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{Endpoint, InfrastructureInitialization, PoolClass, V1Beta2Conditions};

/// The infrastructure of one Cluster.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureManagedCluster",
    plural = "azuremanagedclusters",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    status = "AzureManagedClusterStatus",
    shortname = "amc",
    category = "cluster-api",
    printcolumn = r#"{"name": "Cluster", "type": "string", "description": "Cluster to which this AzureManagedCluster belongs", "jsonPath": ".metadata.labels.cluster\\.x-k8s\\.io/cluster-name"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.ready"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "description": "Time duration since creation of this AzureManagedCluster", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AzureManagedClusterSpec {
    /// Where the API server answers; copied from the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<Endpoint>,
    /// The pool that the cluster starts with where no system pool object exists yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_pool_template: Option<DefaultPoolTemplate>,
}

/// The pool a cluster starts with: described here, or in a pool object. Exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DefaultPoolTemplate {
    /// The number of nodes of a pool described here; one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1, "maximum" = 1000))]
    pub replicas: Option<i32>,
    /// The pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<PoolClass>,
    /// An AzureManagedMachinePool of the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_pool_ref: Option<MachinePoolReference>,
}

/// Names an AzureManagedMachinePool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachinePoolReference {
    /// The object's name.
    #[schemars(extend("minLength" = 1))]
    pub name: String,
}

/// What has become of a Cluster's infrastructure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AzureManagedClusterStatus {
    /// Whether the control plane may be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// What has come about once, and stays so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<InfrastructureInitialization>,
    /// Conditions in Kubernetes' own form.
    #[serde(rename = "v1beta2", default, skip_serializing_if = "Option::is_none")]
    pub v1beta2: Option<V1Beta2Conditions>,
}
