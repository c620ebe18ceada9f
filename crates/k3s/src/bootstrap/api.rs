//! KThreesConfig and KThreesConfigTemplate, v1beta2: what one host is told at its first boot.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::conditions::{Condition, V1Beta2Status};

/// KThreesConfigSpec defines the desired state of KThreesConfig.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KThreesConfig",
    plural = "kthreesconfigs",
    namespaced,
    status = "KThreesConfigStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct KThreesConfigSpec {
    /// Files written to the host before k3s is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<File>>,
    /// Commands run before k3s is installed.
    #[serde(rename = "preK3sCommands", skip_serializing_if = "Option::is_none")]
    pub pre_k3s_commands: Option<Vec<String>>,
    /// Commands run after k3s is installed.
    #[serde(rename = "postK3sCommands", skip_serializing_if = "Option::is_none")]
    pub post_k3s_commands: Option<Vec<String>>,
    /// What every node is configured with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_config: Option<AgentConfig>,
    /// What servers are configured with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_config: Option<ServerConfig>,
    /// The k3s version to install; the owning Machine's version if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl KThreesConfigSpec {
    pub fn server(&self) -> ServerConfig {
        self.server_config.clone().unwrap_or_default()
    }

    pub fn agent(&self) -> AgentConfig {
        self.agent_config.clone().unwrap_or_default()
    }

    /// The port of each server's own API.
    pub fn api_port(&self) -> u16 {
        let port = self
            .server_config
            .as_ref()
            .and_then(|server| server.https_listen_port.as_deref());
        port.and_then(|port| port.parse().ok()).unwrap_or(6443)
    }

    /// Whether the servers keep their state in k3s' embedded etcd, so that quorum is ours to guard.
    pub fn has_embedded_etcd(&self) -> bool {
        self.server_config
            .as_ref()
            .is_none_or(|server| server.datastore.is_none())
    }
}

/// Who may join with which token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AgentToken {
    /// Workers join with the token of the servers, as cluster-api-k3s does.
    #[default]
    Shared,
    /// Workers join with a token that cannot join as a server and cannot read the authorities' keys.
    Separate,
}

/// Configuration of the server: each field is one key of k3s' config.yaml.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerConfig {
    /// Flags for kube-apiserver.
    #[serde(rename = "kubeAPIServerArg", skip_serializing_if = "Option::is_none")]
    pub kube_api_server_arg: Option<Vec<String>>,
    /// Flags for kube-controller-manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_controller_manager_args: Option<Vec<String>>,
    /// Flags for kube-scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_scheduler_args: Option<Vec<String>>,
    /// Further names and addresses the serving certificate is valid for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_san: Option<Vec<String>>,
    /// Address k3s listens on (default 0.0.0.0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind_address: Option<String>,
    /// Port k3s listens on (default 6443).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub https_listen_port: Option<String>,
    /// Address the apiserver tells the members of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise_address: Option<String>,
    /// Port the apiserver tells the members of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise_port: Option<String>,
    /// Range of pod addresses (default 10.42.0.0/16).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_cidr: Option<String>,
    /// Range of service addresses (default 10.43.0.0/16).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_cidr: Option<String>,
    /// Address of the cluster's DNS service; inside the service range (default 10.43.0.10).
    #[serde(rename = "clusterDNS", skip_serializing_if = "Option::is_none")]
    pub cluster_dns: Option<String>,
    /// Domain of the cluster (default cluster.local).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_domain: Option<String>,
    /// Packaged components that are not deployed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_components: Option<Vec<String>>,
    /// Deprecated and without effect: use cloudProviderName and disableCloudController.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_external_cloud_provider: Option<bool>,
    /// Whether k3s' own cloud controller manager is off (default true).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_cloud_controller: Option<bool>,
    /// The kubelet's cloud-provider argument (default external; empty for none).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_provider_name: Option<String>,
    /// Registry all system images are taken from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_default_registry: Option<String>,
    /// Image of the etcd proxy (default alpine/socat).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_proxy_image: Option<String>,
    /// Whether workers join with a token of their own. Can be set only when the control plane is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_token: Option<AgentToken>,
    /// An external datastore instead of embedded etcd. Can be set only when the control plane is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datastore: Option<Datastore>,
}

/// An external datastore (etcd, MySQL, PostgreSQL, NATS). Certificates are files the user supplies in `files`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Datastore {
    /// Where the connection string is kept; it usually holds a password.
    pub endpoint_from: FileSource,
    /// Path on the host of the authority the datastore's certificate is checked with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// Path on the host of the client certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<String>,
    /// Path on the host of the client certificate's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
}

/// Configuration of every node, servers included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentConfig {
    /// Labels the node registers with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_labels: Option<Vec<String>>,
    /// Taints the node registers with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_taints: Option<Vec<String>>,
    /// Path on the host of the registry configuration (default /etc/rancher/k3s/registries.yaml).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_registry: Option<String>,
    /// Flags for the kubelet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet_args: Option<Vec<String>>,
    /// Flags for kube-proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_proxy_args: Option<Vec<String>>,
    /// Name of the node (default: the host's name).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The kubelet's provider id; may be a cloud-init expression such as `aws:///{{ ds.meta_data.instance_id }}`.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Whether the host has no way out: k3s, its images and the install script are already there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub air_gapped: Option<bool>,
    /// Where the install script is on an air-gapped host (default /opt/install.sh).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub air_gapped_install_script_path: Option<String>,
}

/// How the contents of a file are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Encoding {
    #[serde(rename = "base64")]
    Base64,
    #[serde(rename = "gzip")]
    Gzip,
    #[serde(rename = "gzip+base64")]
    GzipBase64,
}

impl Encoding {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Base64 => "base64",
            Self::Gzip => "gzip",
            Self::GzipBase64 => "gzip+base64",
        }
    }
}

/// One file on the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Full path on the host.
    pub path: String,
    /// Owner, e.g. root:root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Permissions, e.g. 0640.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// How the content is encoded; the host decodes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// The content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Where the content is read from instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_from: Option<FileSource>,
}

/// Where a value is read from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FileSource {
    /// A secret in the namespace of the object.
    pub secret: SecretKey,
}

/// One key of a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct SecretKey {
    /// Name of the secret.
    pub name: String,
    /// Key in its data.
    pub key: String,
}

/// KThreesConfigStatus defines the observed state of KThreesConfig.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KThreesConfigStatus {
    /// Whether the bootstrap data can be used (v1beta1 contract).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Never written: bootstrap data is in a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_data: Option<String>,
    /// Name of the secret with the bootstrap data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_secret_name: Option<String>,
    /// Why only a change by the user can help, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// Why only a change by the user can help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_message: Option<String>,
    /// The generation this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The state of the object, with severities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Progress of the initialization (v1beta2 contract).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ConfigInitialization>,
    /// The state of the object as metav1 conditions.
    #[serde(rename = "v1beta2", skip_serializing_if = "Option::is_none")]
    pub v1beta2: Option<V1Beta2Status>,
}

/// Progress of the initialization.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigInitialization {
    /// Whether the bootstrap data can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_secret_created: Option<bool>,
}

/// KThreesConfigTemplateSpec defines the desired state of KThreesConfigTemplate.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KThreesConfigTemplate",
    plural = "kthreesconfigtemplates",
    namespaced,
    derive = "PartialEq",
    derive = "Default"
)]
pub struct KThreesConfigTemplateSpec {
    /// The config each machine gets a copy of.
    pub template: KThreesConfigTemplateResource,
}

/// One config to copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KThreesConfigTemplateResource {
    /// Labels and annotations of the copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<crate::control_plane::api::TemplateMetadata>,
    /// Spec of the copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<KThreesConfigSpec>,
}
