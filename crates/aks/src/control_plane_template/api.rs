//! AzureManagedControlPlaneTemplate: what a ClusterClass makes AzureManagedControlPlanes from.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{ControlPlaneClass, TemplateMetadata};

/// A template of AzureManagedControlPlanes.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureManagedControlPlaneTemplate",
    plural = "azuremanagedcontrolplanetemplates",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    shortname = "amcpt",
    category = "cluster-api"
)]
pub struct AzureManagedControlPlaneTemplateSpec {
    /// What is made.
    pub template: ControlPlaneResource,
}

/// An AzureManagedControlPlane to be made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ControlPlaneResource {
    /// Its labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Its spec.
    pub spec: ControlPlaneClass,
}
