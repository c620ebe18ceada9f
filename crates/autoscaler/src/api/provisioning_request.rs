//! ProvisioningRequest: capacity for all pods of a job, or for none. The kind is Cluster Autoscaler's.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Whether there is capacity now; nothing is made for it.
pub const CHECK_CAPACITY: &str = "check-capacity.autoscaling.x-k8s.io";
/// Capacity is made, all of it or none.
pub const BEST_EFFORT_ATOMIC: &str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";

/// Capacity for so many pods like those of templates. It never changes.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "autoscaling.x-k8s.io",
    version = "v1",
    kind = "ProvisioningRequest",
    namespaced,
    shortname = "provreq",
    shortname = "provreqs",
    status = "ProvisioningRequestStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningRequestSpec {
    /// The pods.
    #[schemars(schema_with = "schema::pod_sets")]
    pub pod_sets: Vec<PodSet>,
    /// `check-capacity.autoscaling.x-k8s.io`: say whether there is capacity, and keep it for a while.
    /// `best-effort-atomic-scale-up.autoscaling.x-k8s.io`: make it, all of it or none.
    #[schemars(schema_with = "schema::provisioning_class")]
    pub provisioning_class_name: String,
    /// `ValidUntilSeconds`: how long it is tried, since the request was made. `noRetry`: `true`, and a check is made once.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::provisioning_parameters")]
    pub parameters: BTreeMap<String, String>,
}

/// So many pods of one template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSet {
    pub count: i32,
    pub pod_template_ref: PodTemplateReference,
}

/// A PodTemplate of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodTemplateReference {
    #[serde(default)]
    pub name: String,
}

/// What has become of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningRequestStatus {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// What classes of other providers tell their users.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::provisioning_details")]
    pub provisioning_class_details: BTreeMap<String, String>,
}
