//! A running cluster: how to talk to it, as whom, and what it logged. Owns its processes and its directory,
//! unless it was attached to, in which case someone else does.

mod builder;
mod error;
mod etcd;
mod programs;
pub(crate) mod ready;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use base64::{Engine, prelude::BASE64_STANDARD};
pub use builder::Builder;
pub use error::StartError;
use http::HeaderValue;
use k8s_openapi::api::{
    core::v1::Namespace,
    rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule},
};
use kube::{
    Api, Client, Config,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    config::AuthInfo,
};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    audit::AuditLog,
    certificates::{Ca, Pair},
    directory::Directory,
    install::{self, FIELD_MANAGER, InstallError},
    parts::{Part, Parts},
    ports::Port,
    process::Process,
};

/// A cluster that Cluster API runs in: with controller-manager and scheduler.
pub struct ManagementCluster;

impl ManagementCluster {
    pub fn builder() -> Builder {
        Builder::management()
    }
}

/// A cluster that Cluster API would manage: etcd and kube-apiserver only.
pub struct WorkloadCluster;

impl WorkloadCluster {
    pub fn builder() -> Builder {
        Builder::workload()
    }
}

/// What another process needs to use a running cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    pub name: String,
    /// `https://127.0.0.1:PORT`
    pub server: String,
    pub kubeconfig: PathBuf,
    /// The certificate authority; its key is beside it.
    pub ca: PathBuf,
    pub audit_log: PathBuf,
    pub logs: PathBuf,
    pub directory: PathBuf,
    pub parts: PathBuf,
    /// Where etcd answers on 127.0.0.1.
    pub etcd_port: u16,
    /// Process ids by the name of the part.
    pub processes: BTreeMap<String, u32>,
}

/// A running cluster.
pub struct Cluster {
    description: Description,
    ca: Ca,
    parts: Parts,
    owned: Option<Owned>,
}

/// Dropped in this order: first the processes (newest first), then what they used.
struct Owned {
    processes: Vec<Process>,
    _ports: Vec<Port>,
    directory: Directory,
}

impl Drop for Owned {
    fn drop(&mut self) {
        while let Some(process) = self.processes.pop() {
            drop(process);
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("running {command}: {source}")]
    Start { command: String, source: io::Error },
    #[error("{command} failed ({status}): {stderr}")]
    Failed {
        command: String,
        status: std::process::ExitStatus,
        stderr: String,
    },
}

impl Cluster {
    /// Uses a cluster that another process runs.
    pub fn attach(description: Description) -> io::Result<Cluster> {
        let pki = description.ca.parent().unwrap_or(Path::new("/"));
        Ok(Cluster {
            ca: Ca::from_pair(Pair::read(pki, "ca")?),
            parts: Parts::at(&description.parts),
            description,
            owned: None,
        })
    }

    pub fn name(&self) -> &str {
        &self.description.name
    }

    pub fn description(&self) -> &Description {
        &self.description
    }

    pub fn server(&self) -> &str {
        &self.description.server
    }

    /// The port of the API server on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.server()
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok())
            .unwrap_or_default()
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.description.kubeconfig
    }

    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The certificate authority of the cluster, with its key.
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    pub fn audit(&self) -> AuditLog {
        AuditLog::new(&self.description.audit_log)
    }

    /// A client that may do everything. Call it on the runtime that will use it.
    pub fn client(&self) -> Client {
        self.client_as("testbed-admin", &["system:masters"])
    }

    /// A client that is `user` in `groups`, with the rights RBAC gives them.
    pub fn client_as(&self, user: &str, groups: &[&str]) -> Client {
        Client::try_from(self.config_as(user, groups)).expect("a config from our own certificates is valid")
    }

    /// The configuration behind [`Cluster::client_as`]; kube's hidden retries are off.
    pub fn config_as(&self, user: &str, groups: &[&str]) -> Config {
        let mut config = Config::new(self.server().parse().expect("our own url is valid"));
        config.root_cert = Some(vec![der(&self.ca.pair().certificate)]);
        config.default_retry = false;
        config.headers.push((
            http::header::USER_AGENT,
            HeaderValue::from_static("slipway-testbed"),
        ));
        config.auth_info = match groups {
            [] | [_] => self.certified(user, groups.first().copied()),
            // A certificate has room for one group; more go by impersonation.
            _ => AuthInfo {
                impersonate: Some(user.to_owned()),
                impersonate_groups: Some(groups.iter().map(|group| (*group).to_owned()).collect()),
                ..self.certified("testbed-admin", Some("system:masters"))
            },
        };
        config
    }

    /// A client that is `user` and may do exactly what `rules` say.
    pub async fn client_with_rules(&self, user: &str, rules: Vec<PolicyRule>) -> Result<Client, kube::Error> {
        let client = self.client();
        let name = format!("testbed:{user}");
        let role = ClusterRole {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            rules: Some(rules),
            ..ClusterRole::default()
        };
        let apply = PatchParams::apply(FIELD_MANAGER).force();
        Api::<ClusterRole>::all(client.clone())
            .patch(&name, &apply, &Patch::Apply(&with_kind(&role, "ClusterRole")))
            .await?;
        self.bind(&client, user, &name).await?;
        Ok(self.client_as(user, &[]))
    }

    async fn bind(&self, client: &Client, user: &str, cluster_role: &str) -> Result<(), kube::Error> {
        let name = format!("testbed:{user}:{cluster_role}");
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": cluster_role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        });
        Api::<ClusterRoleBinding>::all(client.clone())
            .patch(
                &name,
                &PatchParams::apply(FIELD_MANAGER).force(),
                &Patch::Apply(&binding),
            )
            .await?;
        Ok(())
    }

    /// A kubeconfig for `user`, for a process of its own.
    pub fn kubeconfig_as(&self, user: &str, group: Option<&str>) -> String {
        let pair = self.ca.client(user, group).expect("our own CA signs");
        kubeconfig(self.server(), &self.ca.pair().certificate, user, &pair)
    }

    /// A new namespace whose name starts with `prefix`: what isolates tests that share a cluster.
    pub async fn namespace(&self, prefix: &str) -> Result<String, kube::Error> {
        let namespace = Namespace {
            metadata: ObjectMeta {
                generate_name: Some(format!("{prefix}-")),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let created = Api::<Namespace>::all(self.client())
            .create(&PostParams::default(), &namespace)
            .await?;
        Ok(created
            .metadata
            .name
            .expect("the API server names what it creates"))
    }

    /// Installs objects whose webhooks and conversions are served at `url` (`https://127.0.0.1:PORT`), trusted by
    /// `ca` (PEM).
    pub async fn install(&self, mut objects: Vec<Value>, url: &str, ca: &str) -> Result<(), InstallError> {
        install::point_at(&mut objects, url, ca);
        install::install(&self.client(), &objects).await
    }

    /// Runs kubectl against this cluster and returns what it printed.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String, CommandError> {
        let mut command = tokio::process::Command::new(self.parts.binary(Part::Kubernetes));
        command.arg("kubectl");
        self.run(command, "kubectl", arguments).await
    }

    /// Runs clusterctl against this cluster and returns what it printed.
    pub async fn clusterctl(&self, arguments: &[&str]) -> Result<String, CommandError> {
        let mut command = tokio::process::Command::new(self.parts.binary(Part::Clusterctl));
        command
            .env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")
            .env("XDG_CONFIG_HOME", &self.description.directory);
        self.run(command, "clusterctl", arguments).await
    }

    async fn run(
        &self,
        mut command: tokio::process::Command,
        name: &str,
        arguments: &[&str],
    ) -> Result<String, CommandError> {
        let words = || format!("{name} {}", arguments.join(" "));
        let output = command
            .args(arguments)
            .env("KUBECONFIG", self.kubeconfig())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|source| CommandError::Start {
                command: words(),
                source,
            })?;
        if !output.status.success() {
            return Err(CommandError::Failed {
                command: words(),
                status: output.status,
                stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A process of this cluster, if it is ours: to kill it or start it again.
    pub fn process(&self, name: &str) -> Option<&Process> {
        self.owned
            .as_ref()?
            .processes
            .iter()
            .find(|process| process.name() == name)
    }

    /// Starts a process of this cluster again; an API server is waited for.
    pub async fn restart(&self, name: &str) -> Result<(), StartError> {
        let process = self.process(name).ok_or_else(|| StartError::Spawn {
            part: name.to_owned(),
            source: io::Error::other("this cluster runs no such process, or another process owns it"),
        })?;
        process.restart().map_err(|source| StartError::Spawn {
            part: name.to_owned(),
            source,
        })?;
        if name == "kube-apiserver" {
            let config = Box::new(self.config_as("testbed-admin", &["system:masters"]));
            let path = "/readyz";
            ready::wait(process, ready::Probe::Https { config, path }).await?;
        }
        Ok(())
    }

    /// Makes etcd forget all but the newest state. The API server keeps the latest changes in memory and serves watches
    /// from there; one started with `--watch-cache=false` does not.
    pub async fn compact(&self) -> io::Result<()> {
        etcd::compact(self.description.etcd_port).await
    }

    /// Keeps the logs when the cluster stops.
    pub fn keep_logs(&self) {
        if let Some(owned) = &self.owned {
            owned.directory.keep_logs();
        }
    }

    /// Writes the description where another process can find it.
    pub fn describe(&self) -> io::Result<PathBuf> {
        let path = self.description.directory.join("description.json");
        fs::write(&path, serde_json::to_string_pretty(&self.description)?)?;
        Ok(path)
    }

    /// Stops every process and removes the directory: all went well. Dropping the cluster stops it too but leaves the
    /// logs for an hour, because a test that fails drops it.
    pub fn stop(mut self) {
        if let Some(owned) = &mut self.owned {
            owned.directory.all_went_well();
        }
    }

    fn certified(&self, user: &str, group: Option<&str>) -> AuthInfo {
        let pair = self.ca.client(user, group).expect("our own CA signs");
        AuthInfo {
            client_certificate_data: Some(BASE64_STANDARD.encode(pair.certificate)),
            client_key_data: Some(SecretString::from(BASE64_STANDARD.encode(pair.key))),
            ..AuthInfo::default()
        }
    }
}

/// A kubeconfig with everything inline.
fn kubeconfig(server: &str, ca: &str, user: &str, pair: &Pair) -> String {
    let encode = |text: &str| BASE64_STANDARD.encode(text);
    format!(
        "apiVersion: v1
kind: Config
current-context: testbed
clusters:
- name: testbed
  cluster:
    server: {server}
    certificate-authority-data: {}
contexts:
- name: testbed
  context:
    cluster: testbed
    user: {user:?}
users:
- name: {user:?}
  user:
    client-certificate-data: {}
    client-key-data: {}
",
        encode(ca),
        encode(&pair.certificate),
        encode(&pair.key),
    )
}

fn der(pem: &str) -> Vec<u8> {
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    BASE64_STANDARD.decode(body).expect("our own PEM is valid")
}

fn with_kind(object: &impl Serialize, kind: &str) -> Value {
    let mut value = serde_json::to_value(object).expect("a Kubernetes object is JSON");
    value["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
    value["kind"] = json!(kind);
    value
}
