//! Narrow views of Cluster API's kinds: the fields the contract lets a provider read, and no others.
//!
//! A view can be read, listed and watched, but not written: it has no `Serialize`, because writing it back would
//! drop every field it does not know. Writes go through patches and server-side apply ([`crate::apply`]).
//! Every field has a default, so an object that lacks one can still be read.

mod cluster;
mod extension_config;
mod machine;
mod machine_deployment;
mod machine_pool;
mod machine_set;
pub mod v1beta1;

pub use cluster::{
    Cluster, ClusterNetwork, ClusterSpec, ClusterStatus, ControlPlaneStatus, Endpoint, FailureDomain,
    Topology,
};
pub use extension_config::{
    ClientConfig, ExtensionConfig, ExtensionConfigSpec, ExtensionConfigStatus, ExtensionHandler,
    FailurePolicy, ServiceReference,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
pub use machine::{
    Bootstrap, Machine, MachineAddress, MachineDeletion, MachineNodeInfo, MachineSpec, MachineStatus,
    MachineTaint, ReadinessGate,
};
pub use machine_deployment::{MachineDeployment, MachineDeploymentSpec, MachineDeploymentStatus, Rollout};
pub use machine_pool::{MachinePool, MachinePoolSpec, MachinePoolStatus};
pub use machine_set::{MachineSet, MachineSetSpec, MachineSetStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Implements [`kube::Resource`] for a view.
macro_rules! resource {
    ($view:ident, $group:literal, $version:literal, $plural:literal, $scope:ident) => {
        impl kube::Resource for $view {
            type DynamicType = ();
            type Scope = kube::core::$scope;

            fn kind(&(): &()) -> std::borrow::Cow<'_, str> {
                stringify!($view).into()
            }

            fn group(&(): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version(&(): &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural(&(): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use resource;

/// A reference without a version: the version is found by the contract ([`crate::reference`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectReference {
    pub api_group: String,
    pub kind: String,
    pub name: String,
}

impl ObjectReference {}

/// Labels and annotations of objects made from a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct TemplateMetadata {
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub labels: std::collections::BTreeMap<String, String>,
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub annotations: std::collections::BTreeMap<String, String>,
}

/// The Machines a MachineSet, MachineDeployment or MachinePool makes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineTemplate {
    pub metadata: TemplateMetadata,
    pub spec: MachineSpec,
}

/// How many replicas run a version; the list is ordered from the oldest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusVersion {
    pub version: String,
    pub replicas: i32,
}

/// An object that reports conditions in their metav1 form.
pub trait Conditions {
    fn conditions(&self) -> &[Condition];

    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions()
            .iter()
            .find(|condition| condition.type_ == type_)
    }
}

macro_rules! conditions {
    ($($view:ident),*) => {$(
        impl Conditions for $view {
            fn conditions(&self) -> &[Condition] {
                &self.status.conditions
            }
        }
    )*};
}

conditions!(
    Cluster,
    ExtensionConfig,
    Machine,
    MachineDeployment,
    MachinePool,
    MachineSet
);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_with_nothing_in_it_can_be_read() {
        serde_json::from_value::<Cluster>(json!({})).unwrap();
        serde_json::from_value::<Machine>(json!({})).unwrap();
        serde_json::from_value::<MachineSet>(json!({})).unwrap();
        serde_json::from_value::<MachineDeployment>(json!({})).unwrap();
        serde_json::from_value::<MachinePool>(json!({})).unwrap();
        serde_json::from_value::<ExtensionConfig>(json!({})).unwrap();
        serde_json::from_value::<v1beta1::Cluster>(json!({})).unwrap();
        serde_json::from_value::<v1beta1::MachinePool>(json!({})).unwrap();
    }

    #[test]
    fn unknown_fields_are_passed_over() {
        let machine: Machine = serde_json::from_value(json!({
            "metadata": {"name": "a"}, "spec": {"clusterName": "c", "fromTheFuture": {"x": [1]}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "message": ""}]},
        }))
        .unwrap();
        assert_eq!(machine.spec.cluster_name, "c");
        assert_eq!(machine.condition("Ready").unwrap().status, "True");
        assert!(machine.condition("Available").is_none());
    }
}
