//! The view of ExtensionConfig: where a runtime extension is reached, and which hooks it handles.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use schemars::JsonSchema;
use serde::Deserialize;

use super::resource;

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ExtensionConfig {
    pub metadata: ObjectMeta,
    pub spec: ExtensionConfigSpec,
    pub status: ExtensionConfigStatus,
}

resource!(
    ExtensionConfig,
    "runtime.cluster.x-k8s.io",
    "v1beta2",
    "extensionconfigs",
    ClusterResourceScope
);

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ExtensionConfigSpec {
    pub client_config: ClientConfig,
    /// Absent and empty both select every namespace.
    pub namespace_selector: Option<LabelSelector>,
    pub settings: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientConfig {
    pub url: Option<String>,
    pub service: Option<ServiceReference>,
    /// PEM, encoded as base64 by the apiserver's JSON.
    pub ca_bundle: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceReference {
    pub namespace: String,
    pub name: String,
    pub path: Option<String>,
    pub port: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ExtensionConfigStatus {
    pub conditions: Vec<Condition>,
    pub handlers: Vec<ExtensionHandler>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ExtensionHandler {
    /// `<handler>.<ExtensionConfig>`.
    pub name: String,
    pub request_hook: RequestHook,
    pub timeout_seconds: i32,
    pub failure_policy: FailurePolicy,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RequestHook {
    pub api_version: String,
    pub hook: String,
}

/// What a failed call means: an error, or an empty success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    Ignore,
    /// Also what an unknown policy is read as: it never pretends success.
    #[default]
    #[serde(other)]
    Fail,
}
