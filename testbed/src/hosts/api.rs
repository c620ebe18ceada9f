//! The kinds of the test hosts, as a Cluster API infrastructure provider ships them (v1beta2 contract).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub const GROUP: &str = "infrastructure.cluster.x-k8s.io";
pub const VERSION: &str = "v1beta1";

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "TestHostCluster",
    namespaced,
    status = "TestHostClusterStatus",
    category = "cluster-api"
)]
#[serde(rename_all = "camelCase")]
pub struct TestHostClusterSpec {
    /// Where the workload cluster's API server is; filled in by the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<Endpoint>,
    /// Where hosts can be put, by name; told to Cluster API as places for control planes too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failure_domains: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Endpoint {
    pub host: String,
    pub port: i32,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TestHostClusterStatus {
    pub initialization: Initialization,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failure_domains: Vec<FailureDomain>,
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureDomain {
    pub name: String,
    pub control_plane: bool,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Initialization {
    pub provisioned: bool,
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "TestHostClusterTemplate",
    namespaced,
    category = "cluster-api"
)]
pub struct TestHostClusterTemplateSpec {
    pub template: TestHostClusterTemplateResource,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct TestHostClusterTemplateResource {
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    #[serde(default)]
    pub spec: TestHostClusterSpec,
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "TestHostMachine",
    namespaced,
    status = "TestHostMachineStatus",
    category = "cluster-api"
)]
#[serde(rename_all = "camelCase")]
pub struct TestHostMachineSpec {
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// What the Node offers, by resource name; kwok's defaults unless told.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, String>,
    /// Labels of the Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_labels: BTreeMap<String, String>,
    /// A field that a test may change in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TestHostMachineStatus {
    pub initialization: Initialization,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_domain: Option<String>,
    pub addresses: Vec<Address>,
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Address {
    #[serde(rename = "type")]
    pub type_: String,
    pub address: String,
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "TestHostMachineTemplate",
    namespaced,
    status = "TestHostMachineTemplateStatus",
    category = "cluster-api"
)]
pub struct TestHostMachineTemplateSpec {
    pub template: TestHostMachineTemplateResource,
}

/// What its machines will be like, for who scales from zero; filled in by the provider.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TestHostMachineTemplateStatus {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, String>,
    pub node_info: NodeInfo,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    pub architecture: String,
    pub operating_system: String,
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "TestHostMachinePool",
    namespaced,
    status = "TestHostMachinePoolStatus",
    category = "cluster-api"
)]
#[serde(rename_all = "camelCase", default)]
pub struct TestHostMachinePoolSpec {
    #[serde(rename = "providerIDList", skip_serializing_if = "Vec::is_empty")]
    pub provider_id_list: Vec<String>,
    /// What each Node offers, by resource name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, String>,
    /// Labels of the Nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TestHostMachinePoolStatus {
    pub initialization: Initialization,
    pub ready: bool,
    pub replicas: i32,
    /// By which core knows that it has machines.
    pub infrastructure_machine_kind: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct TestHostMachineTemplateResource {
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    #[serde(default)]
    pub spec: TestHostMachineSpec,
}

/// The smallest control plane provider: one that somebody else runs, and that is always there.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "controlplane.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "TestHostControlPlane",
    namespaced,
    status = "TestHostControlPlaneStatus",
    category = "cluster-api"
)]
pub struct TestHostControlPlaneSpec {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TestHostControlPlaneStatus {
    pub initialization: ControlPlaneInitialization,
    pub external_managed_control_plane: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ControlPlaneInitialization {
    pub control_plane_initialized: bool,
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "controlplane.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "TestHostControlPlaneTemplate",
    namespaced,
    category = "cluster-api"
)]
pub struct TestHostControlPlaneTemplateSpec {
    pub template: TestHostControlPlaneTemplateResource,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct TestHostControlPlaneTemplateResource {
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    #[serde(default)]
    pub spec: TestHostControlPlaneSpec,
}

/// The smallest bootstrap provider: what a host runs is in a Secret that is there already.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "TestHostConfig",
    namespaced,
    status = "TestHostConfigStatus",
    category = "cluster-api"
)]
#[serde(rename_all = "camelCase")]
pub struct TestHostConfigSpec {
    pub data_secret_name: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TestHostConfigStatus {
    pub initialization: DataInitialization,
    pub data_secret_name: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DataInitialization {
    pub data_secret_created: bool,
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "TestHostConfigTemplate",
    namespaced,
    category = "cluster-api"
)]
pub struct TestHostConfigTemplateSpec {
    pub template: TestHostConfigTemplateResource,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct TestHostConfigTemplateResource {
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    pub spec: TestHostConfigSpec,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct TemplateMetadata {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl TemplateMetadata {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

/// The CRDs, with the labels by which Cluster API finds the versions that fulfil its contract.
pub fn crds() -> Vec<Value> {
    [
        TestHostCluster::crd(),
        TestHostClusterTemplate::crd(),
        TestHostMachine::crd(),
        TestHostMachineTemplate::crd(),
        TestHostMachinePool::crd(),
        TestHostConfig::crd(),
        TestHostConfigTemplate::crd(),
        TestHostControlPlane::crd(),
        TestHostControlPlaneTemplate::crd(),
    ]
    .into_iter()
    .map(|crd| {
        let mut object = serde_json::to_value(crd).expect("a CRD is JSON");
        object["metadata"]["labels"] = json!({
            "cluster.x-k8s.io/provider": "infrastructure-testhost",
            "cluster.x-k8s.io/v1beta2": VERSION,
            "clusterctl.cluster.x-k8s.io": "",
        });
        object
    })
    .collect()
}
