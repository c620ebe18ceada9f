//! AzureManagedMachinePoolTemplate: what a ClusterClass makes AzureManagedMachinePools from.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{PoolClass, TemplateMetadata};

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
