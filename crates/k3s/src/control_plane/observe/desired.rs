//! What the user and the Cluster ask for: pure, from the objects to facts.

use std::collections::BTreeMap;

use kube::ResourceExt;
use slipway_capi::{
    owner,
    view::{Cluster, ObjectReference},
};

use super::super::observed::{ClusterFacts, Desired, RemediationLimits};
use crate::{
    api::{self, CLUSTER_NETWORK_ANNOTATION, KThreesConfigSpec, KThreesControlPlane},
    duration,
};

/// The configuration servers are made with: the spec, with the ranges the cluster was initialised with.
pub fn desired_config(object: &KThreesControlPlane) -> KThreesConfigSpec {
    let mut config = object.spec.config();
    let recorded: BTreeMap<String, String> = object
        .annotations()
        .get(CLUSTER_NETWORK_ANNOTATION)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    if !recorded.is_empty() {
        let server = config.server_config.get_or_insert_default();
        for (key, field) in [
            ("clusterCidr", &mut server.cluster_cidr),
            ("serviceCidr", &mut server.service_cidr),
            ("clusterDomain", &mut server.cluster_domain),
        ] {
            if field.as_deref().unwrap_or_default().is_empty() {
                *field = recorded.get(key).cloned();
            }
        }
    }
    config
}

/// What is to be recorded of the Cluster's network before the first server exists; empty if there is nothing.
pub fn network_record(cluster: &Cluster) -> BTreeMap<&'static str, String> {
    let network = &cluster.spec.cluster_network;
    [
        ("clusterCidr", network.pods.cidr_blocks.join(",")),
        ("serviceCidr", network.services.cidr_blocks.join(",")),
        ("clusterDomain", network.service_domain.clone()),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .collect()
}

/// The infrastructure template, in whichever shape it is given.
pub fn template_reference(object: &KThreesControlPlane) -> ObjectReference {
    let machines = object.spec.machines();
    if let Some(reference) = machines.spec.and_then(|spec| spec.infrastructure_ref) {
        return ObjectReference {
            api_group: reference.api_group,
            kind: reference.kind,
            name: reference.name,
        };
    }
    let reference = machines.infrastructure_ref.unwrap_or_default();
    ObjectReference {
        api_group: owner::group_of(reference.api_version.as_deref().unwrap_or_default()).to_owned(),
        kind: reference.kind.unwrap_or_default(),
        name: reference.name.unwrap_or_default(),
    }
}

pub fn is_initialized(object: &KThreesControlPlane, cluster: Option<&Cluster>) -> bool {
    let status = object.status.as_ref();
    status.is_some_and(|status| status.initialized)
        || status
            .and_then(|status| status.initialization.as_ref())
            .is_some_and(|initialization| initialization.control_plane_initialized == Some(true))
        || object.annotations().contains_key(api::INITIALIZED_ANNOTATION)
        || cluster.is_some_and(Cluster::control_plane_initialized)
}

/// What the user asks for.
pub fn desired(object: &KThreesControlPlane) -> Desired {
    let limits = object.spec.remediation_strategy.clone().unwrap_or_default();
    let default = RemediationLimits::default();
    let period = |text: Option<String>, default| text.as_deref().and_then(duration::parse).unwrap_or(default);
    Desired {
        replicas: usize::try_from(object.spec.desired_replicas()).unwrap_or(0),
        version: object.spec.version.clone(),
        embedded_etcd: object.spec.config().has_embedded_etcd(),
        strategy: object.spec.strategy(),
        max_surge: usize::try_from(object.spec.max_surge()).unwrap_or(1).min(1),
        remediation: RemediationLimits {
            max_retry: limits.max_retry,
            retry_period: period(limits.retry_period, default.retry_period),
            min_healthy_period: period(limits.min_healthy_period, default.min_healthy_period),
        },
    }
}

pub(super) fn cluster_facts(cluster: &Cluster) -> ClusterFacts {
    ClusterFacts {
        deleting: cluster.metadata.deletion_timestamp.is_some(),
        gone: false,
        infrastructure_ready: cluster.infrastructure_provisioned(),
        endpoint_known: cluster.spec.control_plane_endpoint.is_valid(),
        failure_domains: cluster
            .status
            .failure_domains
            .iter()
            .filter(|domain| domain.control_plane == Some(true))
            .map(|domain| domain.name.clone())
            .collect(),
        topology_version: cluster
            .spec
            .topology
            .as_ref()
            .map(|topology| topology.version.clone())
            .filter(|version| !version.is_empty()),
        upgrade_step: cluster
            .annotations()
            .get("topology.internal.cluster.x-k8s.io/upgrade-step")
            .cloned(),
    }
}
