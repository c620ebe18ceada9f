//! Cluster and MachinePool as management clusters older than Cluster API 1.11 serve them. They are read in their
//! own shape and turned into the v1beta2 views at once, so that no controller knows two shapes.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    ClusterNetwork, Endpoint, FailureDomain, ObjectReference, StatusVersion, TemplateMetadata,
    machine::NodeReference, resource,
};

/// A reference with a version, as v1beta1 stored them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct VersionedReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
}

impl From<VersionedReference> for ObjectReference {
    fn from(reference: VersionedReference) -> Self {
        Self {
            api_group: crate::owner::group_of(&reference.api_version).to_owned(),
            kind: reference.kind,
            name: reference.name,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Cluster {
    pub metadata: ObjectMeta,
    pub spec: ClusterSpec,
    pub status: ClusterStatus,
}

resource!(
    Cluster,
    "cluster.x-k8s.io",
    "v1beta1",
    "clusters",
    NamespaceResourceScope
);

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterSpec {
    pub paused: bool,
    pub cluster_network: ClusterNetwork,
    pub control_plane_endpoint: Endpoint,
    pub control_plane_ref: Option<VersionedReference>,
    pub infrastructure_ref: Option<VersionedReference>,
    pub topology: Option<Topology>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Topology {
    pub class: String,
    pub class_namespace: String,
    pub version: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterStatus {
    pub failure_domains: BTreeMap<String, FailureDomainSpec>,
    pub phase: String,
    pub infrastructure_ready: bool,
    pub control_plane_ready: bool,
    pub conditions: Vec<crate::condition::legacy::LegacyCondition>,
    pub observed_generation: i64,
    #[serde(rename = "v1beta2")]
    pub v1beta2: V1Beta2Status,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FailureDomainSpec {
    pub control_plane: bool,
    pub attributes: BTreeMap<String, String>,
}

/// What v1beta1 objects already carry of v1beta2.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct V1Beta2Status {
    pub conditions: Vec<Condition>,
}

impl From<Cluster> for super::Cluster {
    fn from(cluster: Cluster) -> Self {
        let Cluster {
            metadata,
            spec,
            status,
        } = cluster;
        let control_plane_initialized = status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "ControlPlaneInitialized" && condition.status == "True");
        Self {
            metadata,
            spec: super::ClusterSpec {
                paused: Some(spec.paused),
                cluster_network: spec.cluster_network,
                control_plane_endpoint: spec.control_plane_endpoint,
                control_plane_ref: spec.control_plane_ref.map(Into::into),
                infrastructure_ref: spec.infrastructure_ref.map(Into::into),
                topology: spec.topology.map(|topology| super::Topology {
                    class_ref: super::cluster::ClassReference {
                        name: topology.class,
                        namespace: topology.class_namespace,
                    },
                    version: topology.version,
                }),
            },
            status: super::ClusterStatus {
                conditions: status.v1beta2.conditions,
                initialization: super::cluster::Initialization {
                    infrastructure_provisioned: Some(status.infrastructure_ready),
                    // v1beta1 has this as a condition only.
                    control_plane_initialized: Some(control_plane_initialized),
                },
                failure_domains: status
                    .failure_domains
                    .into_iter()
                    .map(|(name, domain)| FailureDomain {
                        name,
                        control_plane: Some(domain.control_plane),
                        attributes: domain.attributes,
                    })
                    .collect(),
                phase: status.phase,
                observed_generation: status.observed_generation,
                ..Default::default()
            },
        }
    }
}

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
    "v1beta1",
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
    pub min_ready_seconds: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineTemplate {
    pub metadata: TemplateMetadata,
    pub spec: MachineSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineSpec {
    pub cluster_name: String,
    pub bootstrap: Bootstrap,
    pub infrastructure_ref: VersionedReference,
    pub version: Option<String>,
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
    pub failure_domain: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Bootstrap {
    pub config_ref: Option<VersionedReference>,
    pub data_secret_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachinePoolStatus {
    pub node_refs: Vec<NodeReference>,
    pub replicas: i32,
    pub ready_replicas: i32,
    pub available_replicas: i32,
    pub phase: String,
    pub bootstrap_ready: bool,
    pub infrastructure_ready: bool,
    pub observed_generation: i64,
    pub versions: Vec<StatusVersion>,
    #[serde(rename = "v1beta2")]
    pub v1beta2: V1Beta2Status,
}

impl From<MachineSpec> for super::MachineSpec {
    fn from(spec: MachineSpec) -> Self {
        Self {
            cluster_name: spec.cluster_name,
            bootstrap: super::Bootstrap {
                config_ref: spec.bootstrap.config_ref.map(Into::into),
                data_secret_name: spec.bootstrap.data_secret_name,
            },
            infrastructure_ref: spec.infrastructure_ref.into(),
            version: spec.version.unwrap_or_default(),
            provider_id: spec.provider_id.unwrap_or_default(),
            failure_domain: spec.failure_domain.unwrap_or_default(),
            ..Default::default()
        }
    }
}

impl From<MachinePool> for super::MachinePool {
    fn from(pool: MachinePool) -> Self {
        let MachinePool {
            metadata,
            spec,
            status,
        } = pool;
        let mut machine: super::MachineSpec = spec.template.spec.into();
        // v1beta2 moved it from the pool to its machines.
        machine.min_ready_seconds = spec.min_ready_seconds;
        Self {
            metadata,
            spec: super::MachinePoolSpec {
                cluster_name: spec.cluster_name,
                replicas: spec.replicas,
                template: super::MachineTemplate {
                    metadata: spec.template.metadata,
                    spec: machine,
                },
                provider_id_list: spec.provider_id_list,
                failure_domains: spec.failure_domains,
            },
            status: super::MachinePoolStatus {
                conditions: status.v1beta2.conditions,
                initialization: super::machine::Initialization {
                    infrastructure_provisioned: Some(status.infrastructure_ready),
                    bootstrap_data_secret_created: Some(status.bootstrap_ready),
                },
                node_refs: status.node_refs,
                replicas: Some(status.replicas),
                ready_replicas: Some(status.ready_replicas),
                available_replicas: Some(status.available_replicas),
                versions: status.versions,
                phase: status.phase,
                observed_generation: status.observed_generation,
                ..Default::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_older_cluster_becomes_the_newer_view() {
        let v1beta1: Cluster = serde_json::from_value(json!({
            "metadata": {"name": "edge"},
            "spec": {
                "paused": true,
                "infrastructureRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
                    "kind": "AzureManagedCluster", "name": "edge"},
                "topology": {"class": "small", "version": "v1.33.1"},
            },
            "status": {
                "infrastructureReady": true,
                "failureDomains": {"1": {"controlPlane": true}},
                "conditions": [{"type": "ControlPlaneInitialized", "status": "True"}],
            },
        }))
        .unwrap();
        let cluster = super::super::Cluster::from(v1beta1);
        assert!(cluster.is_paused());
        assert!(cluster.infrastructure_provisioned());
        assert!(cluster.control_plane_initialized());
        let reference = cluster.spec.infrastructure_ref.unwrap();
        assert_eq!(reference.api_group, "infrastructure.cluster.x-k8s.io");
        assert_eq!(cluster.spec.topology.unwrap().class_ref.name, "small");
        assert_eq!(cluster.status.failure_domains[0].name, "1");
    }

    #[test]
    fn an_older_pool_keeps_its_template_and_providers() {
        let v1beta1: MachinePool = serde_json::from_value(json!({
            "spec": {
                "clusterName": "edge", "replicas": 3, "minReadySeconds": 5, "providerIDList": ["a", "b"],
                "template": {"metadata": {"labels": {"x": "y"}}, "spec": {"version": "v1.33.1",
                    "infrastructureRef": {"apiVersion": "a.b/v1", "kind": "Pool", "name": "p"}}},
            },
            "status": {"infrastructureReady": true, "replicas": 2},
        }))
        .unwrap();
        let pool = super::super::MachinePool::from(v1beta1);
        assert_eq!(pool.spec.replicas, Some(3));
        assert_eq!(pool.spec.provider_id_list, ["a", "b"]);
        assert_eq!(pool.spec.template.spec.version, "v1.33.1");
        assert_eq!(pool.spec.template.spec.min_ready_seconds, Some(5));
        assert_eq!(pool.spec.template.spec.infrastructure_ref.api_group, "a.b");
        assert_eq!(pool.status.replicas, Some(2));
        assert!(pool.infrastructure_provisioned());
    }
}
