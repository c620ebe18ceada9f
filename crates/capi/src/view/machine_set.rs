//! The view of MachineSet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{MachineTemplate, StatusVersion, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineSet {
    pub metadata: ObjectMeta,
    pub spec: MachineSetSpec,
    pub status: MachineSetStatus,
}

resource!(
    MachineSet,
    "cluster.x-k8s.io",
    "v1beta2",
    "machinesets",
    NamespaceResourceScope
);

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineSetSpec {
    pub cluster_name: String,
    pub replicas: Option<i32>,
    pub selector: LabelSelector,
    pub template: MachineTemplate,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineSetStatus {
    pub conditions: Vec<Condition>,
    pub selector: String,
    pub replicas: Option<i32>,
    pub ready_replicas: Option<i32>,
    pub available_replicas: Option<i32>,
    pub up_to_date_replicas: Option<i32>,
    pub versions: Vec<StatusVersion>,
    pub observed_generation: i64,
}
