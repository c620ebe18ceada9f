//! Fleet. It is stored as v1beta2; v1beta1 calls its vessels ships and has no harbour.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub const GROUP: &str = "infrastructure.cluster.x-k8s.io";

#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Fleet",
    namespaced,
    status = "FleetStatus",
    derive = "Default",
    derive = "PartialEq",
    label("cluster.x-k8s.io/v1beta2", "v1beta2")
)]
#[serde(rename_all = "camelCase")]
pub struct FleetSpec {
    /// How many vessels there are to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vessels: Option<i32>,
    /// Where they lie. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harbour: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FleetStatus {
    pub initialization: Initialization,
    pub vessels: i32,
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Initialization {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<bool>,
}

/// The version that came first.
pub mod v1beta1 {
    use super::{CustomResource, Deserialize, FleetStatus, JsonSchema, Serialize};

    #[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
    #[kube(
        group = "infrastructure.cluster.x-k8s.io",
        version = "v1beta1",
        kind = "Fleet",
        namespaced,
        status = "FleetStatus",
        derive = "PartialEq",
        label("cluster.x-k8s.io/v1beta2", "v1beta2")
    )]
    #[serde(rename_all = "camelCase")]
    pub struct FleetSpec {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ships: Option<i32>,
    }
}
