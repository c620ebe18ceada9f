//! AzureASOManagedControlPlaneTemplate: what a ClusterClass makes AzureASOManagedControlPlanes from.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{Resources, TemplateMetadata, resources};

/// A template of AzureASOManagedControlPlanes.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureASOManagedControlPlaneTemplate",
    plural = "azureasomanagedcontrolplanetemplates",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    shortname = "aasomcpt",
    category = "cluster-api"
)]
pub struct AzureASOManagedControlPlaneTemplateSpec {
    /// What is made.
    pub template: ControlPlaneResource,
}

/// An AzureASOManagedControlPlane to be made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ControlPlaneResource {
    /// Its labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Its spec.
    #[serde(default)]
    pub spec: ControlPlaneResourceSpec,
}

/// The part of an AzureASOManagedControlPlane that is not found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ControlPlaneResourceSpec {
    /// The Kubernetes version of the control plane; where it is empty, the ManagedCluster's own counts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Azure resources in the form of Azure Service Operator, of any kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "resources")]
    pub resources: Resources,
}
