//! HostImage.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector},
    util::intstr::IntOrString,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{api::Image, window::Window};

/// Images that hosts keep in their caches. Hosts that come later get them too; an image that is taken off the list, and a host
/// that is not selected any more, is let go of.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "edge.slipway.dev",
    version = "v1alpha1",
    kind = "HostImage",
    plural = "hostimages",
    category = "edge",
    shortname = "hi",
    namespaced,
    status = "HostImageStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Hosts", type_ = "integer", json_path = ".status.hosts"),
    printcolumn(name = "Complete", type_ = "integer", json_path = ".status.complete"),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.running"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failed"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct HostImageSpec {
    /// The images.
    #[schemars(extend("minItems" = 1, "maxItems" = 64))]
    pub images: Vec<CachedImage>,
    /// Which hosts; all of the namespace if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_selector: Option<LabelSelector>,
    /// On how many hosts at once, as a number or a share of them (default 1). 0 stops it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<IntOrString>,
    /// When hosts may begin to fetch; always if empty. What has begun is finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32))]
    pub windows: Vec<Window>,
    /// Nothing new is begun.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// A Secret with the registry's credentials, in the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub pull_secret_name: Option<String>,
}

/// One image, and where it is taken to once it is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CachedImage {
    #[serde(flatten)]
    pub image: Image,
    /// Where container images go to; node images stay in the cache.
    #[serde(default)]
    pub delivery: DeliverTo,
}

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum DeliverTo {
    #[default]
    Nowhere,
    K3s,
    Containerd,
}

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct HostImageStatus {
    /// How many hosts are selected.
    pub hosts: usize,
    /// How many of them have every image.
    pub complete: usize,
    pub running: usize,
    pub failed: usize,
    /// What failed on which host, the first fifty by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<HostFailure>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct HostFailure {
    pub host: String,
    pub image: String,
    pub message: String,
}
