//! The templates that a ClusterClass refers to.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ControlPlaneClass, DefaultPoolTemplate, PoolClass};

/// Labels and annotations of what is made from a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    /// The labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

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

/// A template of AzureManagedMachinePools.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureManagedMachinePoolTemplate",
    plural = "azuremanagedmachinepooltemplates",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    shortname = "ammpt",
    category = "cluster-api"
)]
pub struct AzureManagedMachinePoolTemplateSpec {
    /// What is made.
    pub template: PoolResource,
}

/// An AzureManagedMachinePool to be made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolResource {
    /// Its labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Its spec.
    pub spec: PoolClass,
}
