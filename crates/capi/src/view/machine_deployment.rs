//! The view of MachineDeployment.

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector, ObjectMeta, Time},
    util::intstr::IntOrString,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{MachineTemplate, StatusVersion, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineDeployment {
    pub metadata: ObjectMeta,
    pub spec: MachineDeploymentSpec,
    pub status: MachineDeploymentStatus,
}

resource!(
    MachineDeployment,
    "cluster.x-k8s.io",
    "v1beta2",
    "machinedeployments",
    NamespaceResourceScope
);

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineDeploymentSpec {
    pub cluster_name: String,
    pub replicas: Option<i32>,
    pub rollout: Rollout,
    pub selector: LabelSelector,
    pub template: MachineTemplate,
    pub paused: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Rollout {
    pub after: Option<Time>,
    pub strategy: RolloutStrategy,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RolloutStrategy {
    #[serde(rename = "type")]
    pub type_: String,
    pub rolling_update: RollingUpdate,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RollingUpdate {
    pub max_unavailable: Option<IntOrString>,
    pub max_surge: Option<IntOrString>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineDeploymentStatus {
    pub conditions: Vec<Condition>,
    pub selector: String,
    pub replicas: Option<i32>,
    pub ready_replicas: Option<i32>,
    pub available_replicas: Option<i32>,
    pub up_to_date_replicas: Option<i32>,
    pub versions: Vec<StatusVersion>,
    pub phase: String,
    pub observed_generation: i64,
}
