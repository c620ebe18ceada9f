//! `/etc/rancher/k3s/config.yaml`: what k3s itself reads on each role's host.

use std::collections::BTreeMap;

use super::{
    render::{jinja_literal, literal_unless_template},
    yaml,
};
use crate::api::{AgentConfig, KThreesConfigSpec, ServerConfig};

pub const PATH: &str = "/etc/rancher/k3s/config.yaml";

/// The suites of the apiserver: the modern ones, and two that load balancers without forward secrecy need.
const CIPHER_SUITES: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
];

enum Entry {
    Flag,
    Text(String),
    /// Text cloud-init's templating must not touch: a secret may hold any character.
    Secret(String),
    List(Vec<String>),
}

/// The keys of one config.yaml, in the order they are written.
#[derive(Default)]
pub struct K3sConfig {
    entries: BTreeMap<&'static str, Entry>,
}

impl K3sConfig {
    fn flag(&mut self, key: &'static str, value: bool) {
        if value {
            self.entries.insert(key, Entry::Flag);
        }
    }

    fn text(&mut self, key: &'static str, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.entries.insert(key, Entry::Text(value.to_owned()));
        }
    }

    fn secret(&mut self, key: &'static str, value: &str) {
        if !value.is_empty() {
            self.entries.insert(key, Entry::Secret(value.to_owned()));
        }
    }

    fn list(&mut self, key: &'static str, value: Vec<String>) {
        if !value.is_empty() {
            self.entries.insert(key, Entry::List(value));
        }
    }

    pub fn to_yaml(&self) -> String {
        let mut out = String::new();
        for (key, entry) in &self.entries {
            out.push_str(key);
            match entry {
                Entry::Flag => out.push_str(": true\n"),
                Entry::Text(text) => {
                    out.push_str(": ");
                    out.push_str(&literal_unless_template(text, key.len() + 2));
                    out.push('\n');
                }
                Entry::Secret(text) => {
                    out.push_str(": ");
                    out.push_str(&jinja_literal(&yaml::scalar(text, key.len() + 2)));
                    out.push('\n');
                }
                Entry::List(items) => {
                    out.push_str(":\n");
                    for item in items {
                        out.push_str("- ");
                        out.push_str(&literal_unless_template(item, 2));
                        out.push('\n');
                    }
                }
            }
        }
        out
    }
}

/// What every role shares.
fn common(server: &ServerConfig, agent: &AgentConfig, token: &str) -> K3sConfig {
    let mut config = K3sConfig::default();
    config.secret("token", token);
    let mut kubelet = agent.kubelet_args.clone().unwrap_or_default();
    if let Some(provider_id) = agent.provider_id.as_deref().filter(|id| !id.is_empty()) {
        kubelet.push(format!("provider-id={provider_id}"));
    }
    kubelet.extend(cloud_provider(server));
    config.list("kubelet-arg", kubelet);
    config.list("node-label", agent.node_labels.clone().unwrap_or_default());
    config.list("node-taint", agent.node_taints.clone().unwrap_or_default());
    config.text("private-registry", agent.private_registry.as_deref());
    config.list(
        "kube-proxy-arg",
        agent.kube_proxy_args.clone().unwrap_or_default(),
    );
    config.text("node-name", agent.node_name.as_deref());
    config
}

fn cloud_provider(server: &ServerConfig) -> Option<String> {
    server
        .cloud_provider_name
        .as_deref()
        .filter(|name| !name.is_empty())
        .map(|name| format!("cloud-provider={name}"))
}

/// The secrets and addresses a server's configuration needs besides its spec.
pub struct ServerFacts<'facts> {
    pub endpoint_host: &'facts str,
    pub token: &'facts str,
    pub agent_token: Option<&'facts str>,
    pub datastore_endpoint: Option<&'facts str>,
}

/// A server that starts the cluster (`join` is `None`) or joins it at a URL.
pub fn server(spec: &KThreesConfigSpec, facts: &ServerFacts<'_>, join: Option<&str>) -> K3sConfig {
    let server = spec.server();
    let mut config = common(&server, &spec.agent(), facts.token);
    let with = |list: &Option<Vec<String>>, more: Vec<String>| {
        let mut list = list.clone().unwrap_or_default();
        list.extend(more);
        list
    };
    config.flag(
        "disable-cloud-controller",
        server.disable_cloud_controller.unwrap_or(true),
    );
    config.flag("cluster-init", join.is_none() && spec.has_embedded_etcd());
    config.text("server", join.filter(|_| spec.has_embedded_etcd()));
    config.list(
        "kube-apiserver-arg",
        with(
            &server.kube_api_server_arg,
            vec![
                "anonymous-auth=true".into(),
                format!("tls-cipher-suites={}", CIPHER_SUITES.join(",")),
            ],
        ),
    );
    config.list(
        "tls-san",
        with(&server.tls_san, vec![facts.endpoint_host.to_owned()]),
    );
    config.list(
        "kube-controller-manager-arg",
        with(
            &server.kube_controller_manager_args,
            cloud_provider(&server).into_iter().collect(),
        ),
    );
    config.list(
        "kube-scheduler-arg",
        server.kube_scheduler_args.clone().unwrap_or_default(),
    );
    config.text("bind-address", server.bind_address.as_deref());
    config.text("https-listen-port", server.https_listen_port.as_deref());
    config.text("advertise-address", server.advertise_address.as_deref());
    config.text("advertise-port", server.advertise_port.as_deref());
    config.text("cluster-cidr", server.cluster_cidr.as_deref());
    config.text("service-cidr", server.service_cidr.as_deref());
    config.text("cluster-dns", server.cluster_dns.as_deref());
    config.text("cluster-domain", server.cluster_domain.as_deref());
    config.list("disable", server.disable_components.clone().unwrap_or_default());
    config.text(
        "system-default-registry",
        server.system_default_registry.as_deref(),
    );
    if let Some(agent_token) = facts.agent_token {
        config.secret("agent-token", agent_token);
    }
    if let Some(datastore) = &server.datastore {
        config.secret("datastore-endpoint", facts.datastore_endpoint.unwrap_or_default());
        config.text("datastore-cafile", datastore.ca_file.as_deref());
        config.text("datastore-certfile", datastore.cert_file.as_deref());
        config.text("datastore-keyfile", datastore.key_file.as_deref());
    }
    config
}

/// A worker that joins at a URL.
pub fn worker(spec: &KThreesConfigSpec, token: &str, join: &str) -> K3sConfig {
    let mut config = common(&spec.server(), &spec.agent(), token);
    config.text("server", Some(join));
    config
}
