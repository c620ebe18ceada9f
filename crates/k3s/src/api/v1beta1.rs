//! The older version of the API. Nothing works with it: these types give the CRDs their schema, and objects are
//! converted as JSON.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions::Condition;
use crate::{
    bootstrap::api::File,
    control_plane::api::{LastRemediation, RemediationStrategy, TemplateMetadata},
};

/// KThreesConfigSpec defines the desired state of KThreesConfig.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "KThreesConfig",
    plural = "kthreesconfigs",
    namespaced,
    status = "KThreesConfigStatus"
)]
#[serde(rename_all = "camelCase")]
pub struct KThreesConfigSpec {
    /// Files written to the host before k3s is installed.
    pub files: Option<Vec<File>>,
    /// Commands run before k3s is installed.
    #[serde(rename = "preK3sCommands")]
    pub pre_k3s_commands: Option<Vec<String>>,
    /// Commands run after k3s is installed.
    #[serde(rename = "postK3sCommands")]
    pub post_k3s_commands: Option<Vec<String>>,
    /// What every node is configured with.
    pub agent_config: Option<AgentConfig>,
    /// What servers are configured with.
    pub server_config: Option<ServerConfig>,
    /// The k3s version to install; the owning Machine's version if absent.
    pub version: Option<String>,
}

/// Configuration of the server.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerConfig {
    /// Flags for kube-apiserver.
    #[serde(rename = "kubeAPIServerArg")]
    pub kube_api_server_arg: Option<Vec<String>>,
    /// Flags for kube-controller-manager.
    pub kube_controller_manager_args: Option<Vec<String>>,
    /// Flags for kube-scheduler.
    pub kube_scheduler_args: Option<Vec<String>>,
    /// Further names and addresses the serving certificate is valid for.
    pub tls_san: Option<Vec<String>>,
    /// Address k3s listens on (default 0.0.0.0).
    pub bind_address: Option<String>,
    /// Port k3s listens on (default 6443).
    pub https_listen_port: Option<String>,
    /// Address the apiserver tells the members of the cluster.
    pub advertise_address: Option<String>,
    /// Port the apiserver tells the members of the cluster.
    pub advertise_port: Option<String>,
    /// Range of pod addresses (default 10.42.0.0/16).
    pub cluster_cidr: Option<String>,
    /// Range of service addresses (default 10.43.0.0/16).
    pub service_cidr: Option<String>,
    /// Address of the cluster's DNS service (default 10.43.0.10).
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Option<String>,
    /// Domain of the cluster (default cluster.local).
    pub cluster_domain: Option<String>,
    /// Packaged components that are not deployed.
    pub disable_components: Option<Vec<String>>,
    /// Whether the kubelet gets no cloud-provider=external (default false).
    pub disable_external_cloud_provider: Option<bool>,
}

/// Configuration of every node, servers included.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentConfig {
    /// Labels the node registers with.
    pub node_labels: Option<Vec<String>>,
    /// Taints the node registers with.
    pub node_taints: Option<Vec<String>>,
    /// Path on the host of the registry configuration.
    pub private_registry: Option<String>,
    /// Flags for the kubelet.
    pub kubelet_args: Option<Vec<String>>,
    /// Flags for kube-proxy.
    pub kube_proxy_args: Option<Vec<String>>,
    /// Name of the node (default: the host's name).
    pub node_name: Option<String>,
    /// Whether k3s, its images and /opt/install.sh are already on the host.
    pub air_gapped: Option<bool>,
}

/// KThreesConfigStatus defines the observed state of KThreesConfig.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KThreesConfigStatus {
    /// Whether the bootstrap data can be used.
    pub ready: Option<bool>,
    /// Never written: bootstrap data is in a secret.
    pub bootstrap_data: Option<String>,
    /// Name of the secret with the bootstrap data.
    pub data_secret_name: Option<String>,
    /// Why only a change by the user can help, in one word.
    pub failure_reason: Option<String>,
    /// Why only a change by the user can help.
    pub failure_message: Option<String>,
    /// The generation this status speaks of.
    pub observed_generation: Option<i64>,
    /// The state of the object.
    pub conditions: Option<Vec<Condition>>,
}

/// KThreesConfigTemplateSpec defines the desired state of KThreesConfigTemplate.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "KThreesConfigTemplate",
    plural = "kthreesconfigtemplates",
    namespaced
)]
pub struct KThreesConfigTemplateSpec {
    /// The config each machine gets a copy of.
    pub template: KThreesConfigTemplateResource,
}

/// One config to copy.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KThreesConfigTemplateResource {
    /// Spec of the copy.
    pub spec: Option<KThreesConfigSpec>,
}

/// KThreesControlPlaneSpec defines the desired state of KThreesControlPlane.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "controlplane.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "KThreesControlPlane",
    plural = "kthreescontrolplanes",
    namespaced,
    status = "KThreesControlPlaneStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Initialized", type_ = "boolean", json_path = ".status.initialized"),
    printcolumn(name = "API Server Available", type_ = "boolean", json_path = ".status.ready"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedReplicas"),
    printcolumn(
        name = "Unavailable",
        type_ = "integer",
        json_path = ".status.unavailableReplicas"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct KThreesControlPlaneSpec {
    /// Number of servers (default 1). Odd with embedded etcd.
    pub replicas: Option<i32>,
    /// The k3s version, e.g. v1.34.1+k3s1.
    pub version: String,
    /// The infrastructure template the hosts are made from.
    pub infrastructure_template: ObjectReference,
    /// What every server is configured with.
    #[serde(rename = "kthreesConfigSpec")]
    pub kthrees_config_spec: Option<KThreesConfigSpec>,
    /// Machines older than this are replaced once this time has come.
    pub upgrade_after: Option<Time>,
    /// How long a drain may take; without limit if absent or 0.
    pub node_drain_timeout: Option<String>,
    /// What the machines look like.
    pub machine_template: Option<MachineTemplate>,
    /// How unhealthy machines are replaced.
    pub remediation_strategy: Option<RemediationStrategy>,
}

/// What the machines look like.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MachineTemplate {
    /// Labels and annotations every machine carries.
    pub metadata: Option<TemplateMetadata>,
}

/// KThreesControlPlaneStatus defines the observed state of KThreesControlPlane.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KThreesControlPlaneStatus {
    /// The label selector of the servers, for the scale subresource.
    pub selector: Option<String>,
    /// Number of servers, those being deleted included.
    pub replicas: Option<i32>,
    /// Number of servers that match the spec.
    pub updated_replicas: Option<i32>,
    /// Number of machines that are ready.
    pub ready_replicas: Option<i32>,
    /// Number of desired machines that are not ready.
    pub unavailable_replicas: Option<i32>,
    /// Whether the first server has answered.
    pub initialized: Option<bool>,
    /// Whether the API server takes requests.
    pub ready: Option<bool>,
    /// Why only a change by the user can help, in one word.
    pub failure_reason: Option<String>,
    /// Why only a change by the user can help.
    pub failure_message: Option<String>,
    /// The generation this status speaks of.
    pub observed_generation: Option<i64>,
    /// The state of the object.
    pub conditions: Option<Vec<Condition>>,
    /// The last replacement of an unhealthy machine.
    pub last_remediation: Option<LastRemediation>,
}
