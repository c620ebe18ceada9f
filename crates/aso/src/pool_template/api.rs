//! AzureASOManagedMachinePoolTemplate: what a ClusterClass makes AzureASOManagedMachinePools from.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{Resources, TemplateMetadata, resources};

/// A template of AzureASOManagedMachinePools.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "AzureASOManagedMachinePoolTemplate",
    plural = "azureasomanagedmachinepooltemplates",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    shortname = "aasommpt",
    category = "cluster-api"
)]
pub struct AzureASOManagedMachinePoolTemplateSpec {
    /// What is made.
    pub template: MachinePoolResource,
}

/// An AzureASOManagedMachinePool to be made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachinePoolResource {
    /// Its labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Its spec.
    #[serde(default)]
    pub spec: MachinePoolResourceSpec,
}

/// The part of an AzureASOManagedMachinePool that is not found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachinePoolResourceSpec {
    /// Accepted because upstream has it; the version of a pool is its MachinePool's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Azure resources in the form of Azure Service Operator, of any kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "resources")]
    pub resources: Resources,
}
