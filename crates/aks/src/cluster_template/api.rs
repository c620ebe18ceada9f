//! AzureManagedClusterTemplate: what a ClusterClass makes AzureManagedClusters from.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{DefaultPoolTemplate, TemplateMetadata};

/// A template of AzureManagedClusters.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureManagedClusterTemplate",
    plural = "azuremanagedclustertemplates",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    shortname = "amct",
    category = "cluster-api"
)]
pub struct AzureManagedClusterTemplateSpec {
    /// What is made.
    pub template: ClusterResource,
}

/// An AzureManagedCluster to be made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterResource {
    /// Its labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Its spec.
    pub spec: ClusterResourceSpec,
}

/// The part of an AzureManagedCluster that is not found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterResourceSpec {
    /// The pool that the cluster starts with where no system pool object exists yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_pool_template: Option<DefaultPoolTemplate>,
}
