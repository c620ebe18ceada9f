//! Vessel. A fleet makes it.

use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Vessel",
    namespaced,
    status = "VesselStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct VesselSpec {
    pub number: i32,
    /// The schema lets anything in, the type does not: this is how a malformed object comes to be stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub cargo: Option<Cargo>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct Cargo {
    pub tonnes: u32,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VesselStatus {
    pub afloat: bool,
}

fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}
