//! EdgeCluster and EdgeClusterTemplate.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slipway_capi::{
    contract::{Endpoint, InfrastructureInitialization, TemplateMetadata},
    view::FailureDomain,
};

use crate::api::rule;

/// The infrastructure of a cluster on edge hosts: its control-plane endpoint.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "EdgeCluster",
    plural = "edgeclusters",
    category = "cluster-api",
    shortname = "ec",
    namespaced,
    status = "EdgeClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = r".metadata.labels['cluster\.x-k8s\.io/cluster-name']"
    ),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        json_path = ".spec.controlPlaneEndpoint.host"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct EdgeClusterSpec {
    /// Where the apiserver is reached: a load balancer that is there already. With a virtual address it is set from that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<Endpoint>,
    /// An address that the servers' agents hold in turn, where there is no load balancer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_address: Option<VirtualAddress>,
}

/// An address that one server at a time holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualAddress {
    /// The address with its prefix length, e.g. 192.0.2.10/24.
    #[schemars(extend("minLength" = 3, "maxLength" = 64))]
    pub address: String,
    /// The network interface of the hosts, e.g. eth0.
    #[schemars(extend("pattern" = "^[A-Za-z0-9_.][A-Za-z0-9_.-]{0,14}$"))]
    pub interface: String,
    /// The apiserver's port (default 6443).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1, "maximum" = 65535))]
    pub port: Option<i32>,
    /// Where an administrator's kubeconfig is on the servers (default: where K3s and kubeadm put it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^/[^\\s]+$", "maxLength" = 512))]
    pub kubeconfig: Option<String>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct EdgeClusterStatus {
    pub initialization: InfrastructureInitialization,
    /// The failure domains of the hosts that machines of this cluster may get.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failure_domains: Vec<FailureDomain>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn rules() -> Value {
    json!([
        rule(
            "!has(oldSelf.controlPlaneEndpoint) || oldSelf.controlPlaneEndpoint.host == '' || (has(self.controlPlaneEndpoint) && \
             self.controlPlaneEndpoint == oldSelf.controlPlaneEndpoint)",
            "controlPlaneEndpoint cannot be changed: every node and kubeconfig has it",
        ),
        rule(
            "!has(oldSelf.virtualAddress) || (has(self.virtualAddress) && self.virtualAddress == oldSelf.virtualAddress)",
            "virtualAddress cannot be changed: every node and kubeconfig has it",
        ),
    ])
}

/// What EdgeClusters of a ClusterClass are made from.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "EdgeClusterTemplate",
    plural = "edgeclustertemplates",
    category = "cluster-api",
    shortname = "ect",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct EdgeClusterTemplateSpec {
    pub template: EdgeClusterTemplateResource,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EdgeClusterTemplateResource {
    pub metadata: TemplateMetadata,
    pub spec: EdgeClusterSpec,
}
