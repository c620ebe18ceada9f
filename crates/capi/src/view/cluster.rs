//! The view of Cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ObjectReference, StatusVersion, resource};

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
    "v1beta2",
    "clusters",
    NamespaceResourceScope
);

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterSpec {
    pub paused: Option<bool>,
    pub cluster_network: ClusterNetwork,
    pub control_plane_endpoint: Endpoint,
    pub control_plane_ref: Option<ObjectReference>,
    pub infrastructure_ref: Option<ObjectReference>,
    pub topology: Option<Topology>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterNetwork {
    pub api_server_port: Option<i32>,
    pub services: NetworkRanges,
    pub pods: NetworkRanges,
    pub service_domain: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkRanges {
    pub cidr_blocks: Vec<String>,
}

/// Where the workload cluster's apiserver is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Endpoint {
    pub host: String,
    pub port: i32,
}

impl Endpoint {
    /// Whether it can be connected to: both parts are needed.
    pub fn is_valid(&self) -> bool {
        !self.host.is_empty() && self.port != 0
    }

    /// The URL of the apiserver; IPv6 addresses are put into brackets.
    pub fn url(&self) -> String {
        if self.host.contains(':') && !self.host.starts_with('[') {
            format!("https://[{}]:{}", self.host, self.port)
        } else {
            format!("https://{}:{}", self.host, self.port)
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Topology {
    pub class_ref: ClassReference,
    pub version: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ClassReference {
    pub name: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterStatus {
    pub conditions: Vec<Condition>,
    pub initialization: Initialization,
    pub control_plane: ControlPlaneStatus,
    pub failure_domains: Vec<FailureDomain>,
    pub phase: String,
    pub observed_generation: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Initialization {
    pub infrastructure_provisioned: Option<bool>,
    pub control_plane_initialized: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ControlPlaneStatus {
    pub desired_replicas: Option<i32>,
    pub replicas: Option<i32>,
    pub up_to_date_replicas: Option<i32>,
    pub ready_replicas: Option<i32>,
    pub available_replicas: Option<i32>,
    pub versions: Vec<StatusVersion>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FailureDomain {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<bool>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

impl Cluster {
    /// Whether the infrastructure of the cluster itself (network, load balancer) stands.
    pub fn infrastructure_provisioned(&self) -> bool {
        self.status.initialization.infrastructure_provisioned == Some(true)
    }

    /// Whether the control plane has once answered; it never goes back.
    pub fn control_plane_initialized(&self) -> bool {
        self.status.initialization.control_plane_initialized == Some(true)
    }

    pub fn is_paused(&self) -> bool {
        self.spec.paused == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_needs_host_and_port() {
        let endpoint = |host: &str, port| Endpoint {
            host: host.into(),
            port,
        };
        assert!(!endpoint("", 6443).is_valid());
        assert!(!endpoint("a", 0).is_valid());
        assert!(endpoint("a", 1).is_valid());
        assert_eq!(endpoint("10.0.0.1", 6443).url(), "https://10.0.0.1:6443");
        assert_eq!(endpoint("fd00::1", 6443).url(), "https://[fd00::1]:6443");
    }
}
