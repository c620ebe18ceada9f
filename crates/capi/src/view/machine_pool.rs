//! The view of MachinePool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{MachineTemplate, StatusVersion, machine::NodeReference, resource};
use crate::names::annotation;

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachinePool {
    pub metadata: ObjectMeta,
    pub spec: MachinePoolSpec,
    pub status: MachinePoolStatus,
}

resource!(
    MachinePool,
    "cluster.x-k8s.io",
    "v1beta2",
    "machinepools",
    NamespaceResourceScope
);

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachinePoolSpec {
    pub cluster_name: String,
    pub replicas: Option<i32>,
    pub template: MachineTemplate,
    #[serde(rename = "providerIDList")]
    pub provider_id_list: Vec<String>,
    pub failure_domains: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachinePoolStatus {
    pub conditions: Vec<Condition>,
    pub initialization: super::machine::Initialization,
    pub node_refs: Vec<NodeReference>,
    pub replicas: Option<i32>,
    pub ready_replicas: Option<i32>,
    pub available_replicas: Option<i32>,
    pub up_to_date_replicas: Option<i32>,
    pub versions: Vec<StatusVersion>,
    pub phase: String,
    pub observed_generation: i64,
}

impl MachinePool {
    /// Whether something else (an autoscaler) decides `spec.replicas`, so that the infrastructure's count is
    /// written back instead of being corrected. The value `false` means what it says.
    pub fn replicas_are_managed_externally(&self) -> bool {
        self.metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(annotation::REPLICAS_MANAGED_BY))
            .is_some_and(|value| value != "false")
    }

    pub fn infrastructure_provisioned(&self) -> bool {
        self.status.initialization.infrastructure_provisioned == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_managed_by_false_is_the_same_as_absent() {
        let pool = |value: Option<&str>| MachinePool {
            metadata: ObjectMeta {
                annotations: value
                    .map(|value| [(annotation::REPLICAS_MANAGED_BY.into(), value.into())].into()),
                ..Default::default()
            },
            ..Default::default()
        };
        assert!(!pool(None).replicas_are_managed_externally());
        assert!(!pool(Some("false")).replicas_are_managed_externally());
        assert!(pool(Some("")).replicas_are_managed_externally());
        assert!(pool(Some("external-autoscaler")).replicas_are_managed_externally());
    }
}
