//! AzureASOManagedClusterTemplate: what a ClusterClass makes AzureASOManagedClusters from.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{Resources, TemplateMetadata, resources};

/// A template of AzureASOManagedClusters.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureASOManagedClusterTemplate",
    plural = "azureasomanagedclustertemplates",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    shortname = "aasomct",
    category = "cluster-api"
)]
pub struct AzureASOManagedClusterTemplateSpec {
    /// What is made.
    pub template: ClusterResource,
}

/// An AzureASOManagedCluster to be made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterResource {
    /// Its labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Its spec.
    #[serde(default)]
    pub spec: ClusterResourceSpec,
}

/// The part of an AzureASOManagedCluster that is not found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterResourceSpec {
    /// Azure resources in the form of Azure Service Operator, of any kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "resources")]
    pub resources: Resources,
}
