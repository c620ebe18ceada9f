//! Starts a cluster: certificates and ports first, then etcd and kube-apiserver, then everything that needs them,
//! side by side.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Config, runtime::wait::await_condition};
use serde_json::{Value, json};

use super::{
    Cluster, Description, Owned, StartError, kubeconfig,
    programs::{Layout, Manager},
    ready::{self, Probe},
};
use crate::{
    audit,
    certificates::{self, Ca},
    directory::Directory,
    install,
    parts::{Manifest, Part, Parts},
    ports::Port,
    process::{Process, Program},
};

/// Gates that are on, where the manager knows them.
const CORE_GATES: &[&str] = &["ClusterTopology", "InPlaceUpdates", "MachinePool", "RuntimeSDK"];
const BOOTSTRAP_GATES: &[&str] = &["MachinePool"];
const CONTROL_PLANE_GATES: &[&str] = &["ClusterTopology", "InPlaceUpdates", "MachinePool"];

/// Kinds that only make sense for processes inside the cluster.
const INSIDE_ONLY: &[&str] = &["Deployment", "Service", "Certificate", "Issuer"];

/// What the cluster is to be.
#[derive(Clone, Debug)]
pub struct Builder {
    name: String,
    controller_manager: bool,
    scheduler: bool,
    cluster_api: bool,
    gates_off: Vec<&'static str>,
    kubeadm: bool,
    kwok: bool,
    api_port: Option<u16>,
    base: Option<PathBuf>,
    parts: Option<Parts>,
    audited: Vec<String>,
    api_server_arguments: Vec<String>,
    scheduler_arguments: Vec<String>,
}

impl Builder {
    pub(super) fn management() -> Builder {
        Builder {
            name: "management".to_owned(),
            controller_manager: true,
            scheduler: true,
            cluster_api: false,
            gates_off: Vec::new(),
            kubeadm: false,
            kwok: false,
            api_port: None,
            base: None,
            parts: None,
            audited: Vec::new(),
            api_server_arguments: Vec::new(),
            scheduler_arguments: Vec::new(),
        }
    }

    pub(super) fn workload() -> Builder {
        Builder {
            name: "workload".to_owned(),
            controller_manager: false,
            scheduler: false,
            ..Builder::management()
        }
    }

    /// Keeps all requests of this user in the audit log, not only what it writes: what [`crate::rights`] needs.
    pub fn audit_everything_of(mut self, user: impl Into<String>) -> Self {
        self.audited.push(user.into());
        self
    }

    /// Adds an argument to kube-apiserver's own, such as an identity provider or an authorizer.
    pub fn api_server_argument(mut self, argument: impl Into<String>) -> Self {
        self.api_server_arguments.push(argument.into());
        self
    }

    /// Adds an argument to kube-scheduler's own, such as how often it may ask.
    pub fn scheduler_argument(mut self, argument: impl Into<String>) -> Self {
        self.scheduler_arguments.push(argument.into());
        self
    }

    /// Names the cluster in messages and paths.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// With kube-controller-manager: garbage collection, namespace deletion, workload controllers.
    pub fn controller_manager(mut self, on: bool) -> Self {
        self.controller_manager = on;
        self
    }

    pub fn scheduler(mut self, on: bool) -> Self {
        self.scheduler = on;
        self
    }

    /// With Cluster API's core manager, its CRDs, webhooks and RBAC.
    pub fn cluster_api(mut self) -> Self {
        self.cluster_api = true;
        self
    }

    /// With a feature gate of Cluster API's managers off, which is on else.
    pub fn without_gate(mut self, gate: &'static str) -> Self {
        self.gates_off.push(gate);
        self
    }

    /// With the kubeadm bootstrap and control plane managers (and Cluster API's core).
    pub fn kubeadm(mut self) -> Self {
        self.kubeadm = true;
        self.cluster_api = true;
        self
    }

    /// With kwok, which makes nodes annotated `kwok.x-k8s.io/node=fake` ready and runs their pods.
    pub fn kwok(mut self) -> Self {
        self.kwok = true;
        self
    }

    /// The API server's port; a free one unless told.
    pub fn api_port(mut self, port: u16) -> Self {
        self.api_port = Some(port);
        self
    }

    /// Where the cluster's directory is made; the system's temporary directory unless told.
    pub fn directory(mut self, base: impl Into<PathBuf>) -> Self {
        self.base = Some(base.into());
        self
    }

    /// Parts that are built already; else they are looked up, and built if missing.
    pub fn parts(mut self, parts: Parts) -> Self {
        self.parts = Some(parts);
        self
    }

    /// Starts the cluster and waits until all of it is ready.
    pub async fn start(self) -> Result<Cluster, StartError> {
        let parts = match &self.parts {
            Some(parts) => parts.clone(),
            None => tokio::task::spawn_blocking(Parts::ready)
                .await
                .expect("building parts does not panic")?,
        };
        let api_port = match self.api_port {
            Some(port) => Port::take(port)
                .map_err(StartError::Ports)?
                .ok_or(StartError::PortInUse { port })?,
            None => Port::free().map_err(StartError::Ports)?,
        };
        let base = self.base.clone().unwrap_or_else(std::env::temp_dir);
        let directory = Directory::create(&self.name, Some(&base))
            .map_err(|source| StartError::directory(&base, source))?;
        let ca = prepare(directory.path(), &self.audited)?;
        let mut start = Start {
            directory: directory.path().to_owned(),
            server: format!("https://127.0.0.1:{}", api_port.number),
            etcd_port: Port::free().map_err(StartError::Ports)?,
            api_port,
            ports: Vec::new(),
            processes: Vec::new(),
            ca,
            parts,
        };
        match start.run(&self).await {
            Ok(()) => Ok(start.finish(self.name, directory)),
            Err(error) => {
                directory.keep_logs();
                // Processes go before their directory.
                drop(start);
                drop(directory);
                Err(error)
            }
        }
    }
}

/// Writes certificates and settings.
fn prepare(directory: &Path, audited: &[String]) -> Result<Ca, StartError> {
    let pki = directory.join("pki");
    let ca = Ca::new("slipway-testbed")?;
    let server = ca.server()?;
    let (private, public) = certificates::key()?;
    let write = || {
        ca.pair().write(&pki, "ca")?;
        server.write(&pki, "server")?;
        fs::write(pki.join("service-account.key"), private)?;
        fs::write(pki.join("service-account.pub"), public)?;
        let webhook = pki.join("webhook");
        fs::create_dir(&webhook)?;
        server.write(&webhook, "tls")?;
        fs::write(
            directory.join("audit-policy.json"),
            audit::policy(audited).to_string(),
        )
    };
    write().map_err(|source| StartError::directory(directory, source))?;
    Ok(ca)
}

/// A cluster in the making.
struct Start {
    directory: PathBuf,
    server: String,
    api_port: Port,
    etcd_port: Port,
    ports: Vec<Port>,
    processes: Vec<Process>,
    ca: Ca,
    parts: Parts,
}

impl Start {
    async fn run(&mut self, desired: &Builder) -> Result<(), StartError> {
        self.kubeconfig("kubeconfig", "testbed-admin", Some("system:masters"))?;
        let peer_port = self.port()?;
        let etcd = self.spawn(self.layout().etcd(peer_port))?;
        let mut program = self.layout().api_server();
        program
            .arguments
            .extend(desired.api_server_arguments.iter().cloned());
        let api_server = self.spawn(program)?;
        let etcd_port = self.etcd_port.number;
        ready::wait(
            &self.processes[etcd],
            Probe::Http {
                port: etcd_port,
                path: "/health",
            },
        )
        .await?;
        let admin = self.admin(&self.server);
        let probe = Probe::Https {
            config: Box::new(admin.clone()),
            path: "/readyz",
        };
        ready::wait(&self.processes[api_server], probe).await?;

        let mut waits = Vec::new();
        if desired.controller_manager {
            let kubeconfig = self.component_kubeconfig("kube-controller-manager")?;
            let port = self.port()?;
            let index = self.spawn(self.layout().controller_manager(&kubeconfig, port))?;
            waits.push((index, self.serving_probe(port)));
        }
        if desired.scheduler {
            let kubeconfig = self.component_kubeconfig("kube-scheduler")?;
            let port = self.port()?;
            let mut program = self.layout().scheduler(&kubeconfig, port);
            program
                .arguments
                .extend(desired.scheduler_arguments.iter().cloned());
            let index = self.spawn(program)?;
            waits.push((index, self.serving_probe(port)));
        }
        if desired.kwok {
            waits.push(self.kwok()?);
        }
        let mut managers = Vec::new();
        if desired.cluster_api {
            managers.push((Part::ClusterApi, Manifest::ClusterApi, CORE_GATES));
        }
        if desired.kubeadm {
            managers.push((
                Part::KubeadmBootstrap,
                Manifest::KubeadmBootstrap,
                BOOTSTRAP_GATES,
            ));
            managers.push((
                Part::KubeadmControlPlane,
                Manifest::KubeadmControlPlane,
                CONTROL_PLANE_GATES,
            ));
        }
        let client = kube::Client::try_from(admin)?;
        for (part, manifest, gates) in managers {
            let gate = |gate: &&str| format!("{gate}={}", !desired.gates_off.contains(gate));
            let gates: Vec<String> = gates.iter().map(gate).collect();
            waits.push(self.manager(&client, part, manifest, &gates).await?);
        }
        let processes = &self.processes;
        try_join_all(
            waits
                .into_iter()
                .map(|(index, probe)| ready::wait(&processes[index], probe)),
        )
        .await?;

        // The API server makes its own namespaces a moment after it is ready.
        for name in ["default", "kube-system"] {
            let namespaces: Api<Namespace> = Api::all(client.clone());
            let exists = await_condition(namespaces, name, |namespace: Option<&Namespace>| {
                namespace.is_some()
            });
            exists.await.map_err(|error| StartError::PartFailed {
                part: "kube-apiserver".to_owned(),
                what: format!("made no namespace {name}: {error}"),
                log: processes[api_server].log().to_owned(),
                tail: processes[api_server].tail(),
            })?;
        }
        Ok(())
    }

    /// Installs what comes with a manager and starts it, under its own service account's name and rights.
    async fn manager(
        &mut self,
        client: &kube::Client,
        part: Part,
        manifest: Manifest,
        gates: &[String],
    ) -> Result<(usize, Probe), StartError> {
        let (webhook_port, health_port, diagnostics_port) = (self.port()?, self.port()?, self.port()?);
        let mut objects = self.parts.manifest(manifest)?;
        objects.retain(|object| !INSIDE_ONLY.iter().any(|kind| object["kind"] == *kind));
        fill_aggregated_roles(&mut objects);
        install::point_at(
            &mut objects,
            &format!("https://127.0.0.1:{webhook_port}"),
            &self.ca.pair().certificate,
        );
        install::install(client, &objects).await?;

        let (namespace, account) = service_account(&objects);
        let user = format!("system:serviceaccount:{namespace}:{account}");
        let group = format!("system:serviceaccounts:{namespace}");
        let file = format!("{}.kubeconfig", part.name());
        let kubeconfig = self.kubeconfig(&file, &user, Some(&group))?;
        let program = self.layout().manager(&Manager {
            part,
            gates,
            kubeconfig: &kubeconfig,
            webhook_port,
            health_port,
            diagnostics_port,
            namespace: &namespace,
        });
        let index = self.spawn(program)?;
        let probe = Probe::Http {
            port: health_port,
            path: "/readyz",
        };
        Ok((index, probe))
    }

    fn kwok(&mut self) -> Result<(usize, Probe), StartError> {
        let kubeconfig = self.kubeconfig("kwok.kubeconfig", "kwok", Some("system:masters"))?;
        let config = self.directory.join("kwok.yaml");
        let mut documents = vec![json!({
            "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
            "kind": "KwokConfiguration",
            "options": {
                "manageAllNodes": false,
                "manageNodesWithAnnotationSelector": "kwok.x-k8s.io/node=fake",
                "nodeLeaseDurationSeconds": 40,
                // None of these has a default that lets anything move.
                "nodeLeaseParallelism": 4,
                "podPlayStageParallelism": 4,
                "nodePlayStageParallelism": 4,
                "podsOnNodeSyncParallelism": 4,
            },
        })];
        documents.extend(self.parts.manifest(Manifest::KwokStages)?);
        let text: Vec<String> = documents.iter().map(Value::to_string).collect();
        fs::write(&config, text.join("\n---\n")).map_err(|source| StartError::directory(&config, source))?;
        let port = self.port()?;
        let index = self.spawn(self.layout().kwok(&kubeconfig, &config, port))?;
        let probe = Probe::Http {
            port,
            path: "/readyz",
        };
        Ok((index, probe))
    }

    fn layout(&self) -> Layout<'_> {
        Layout {
            parts: &self.parts,
            directory: &self.directory,
            api_port: self.api_port.number,
            etcd_port: self.etcd_port.number,
        }
    }

    fn spawn(&mut self, program: Program) -> Result<usize, StartError> {
        let part = program.name.clone();
        let launcher = self.parts.binary(Part::Launch);
        let process = Process::start(&launcher, &self.directory.join("logs"), program)
            .map_err(|source| StartError::Spawn { part, source })?;
        self.processes.push(process);
        Ok(self.processes.len() - 1)
    }

    fn port(&mut self) -> Result<u16, StartError> {
        let port = Port::free().map_err(StartError::Ports)?;
        let number = port.number;
        self.ports.push(port);
        Ok(number)
    }

    fn component_kubeconfig(&self, component: &str) -> Result<PathBuf, StartError> {
        self.kubeconfig(
            &format!("{component}.kubeconfig"),
            &format!("system:{component}"),
            Some("system:masters"),
        )
    }

    fn kubeconfig(&self, file: &str, user: &str, group: Option<&str>) -> Result<PathBuf, StartError> {
        let path = self.directory.join(file);
        let pair = self.ca.client(user, group)?;
        let text = kubeconfig(&self.server, &self.ca.pair().certificate, user, &pair);
        fs::write(&path, text).map_err(|source| StartError::directory(&path, source))?;
        Ok(path)
    }

    fn admin(&self, server: &str) -> Config {
        let cluster = Cluster {
            description: self.description(String::new()),
            ca: self.ca.clone(),
            parts: self.parts.clone(),
            owned: None,
        };
        let mut config = cluster.config_as("testbed-admin", &["system:masters"]);
        config.cluster_url = server.parse().expect("our own url is valid");
        config
    }

    fn serving_probe(&self, port: u16) -> Probe {
        Probe::Https {
            config: Box::new(self.admin(&format!("https://127.0.0.1:{port}"))),
            path: "/healthz",
        }
    }

    fn description(&self, name: String) -> Description {
        let directory = &self.directory;
        Description {
            name,
            server: self.server.clone(),
            kubeconfig: directory.join("kubeconfig"),
            ca: directory.join("pki/ca.crt"),
            audit_log: directory.join("audit.log"),
            logs: directory.join("logs"),
            directory: directory.clone(),
            parts: self.parts.directory().to_owned(),
            etcd_port: self.etcd_port.number,
            processes: self
                .processes
                .iter()
                .map(|process| (process.name().to_owned(), process.id()))
                .collect::<BTreeMap<_, _>>(),
        }
    }

    fn finish(self, name: String, directory: Directory) -> Cluster {
        let description = self.description(name);
        let mut ports = self.ports;
        ports.extend([self.api_port, self.etcd_port]);
        Cluster {
            description,
            ca: self.ca,
            parts: self.parts,
            owned: Some(Owned {
                processes: self.processes,
                _ports: ports,
                directory,
            }),
        }
    }
}

/// The namespace and name of the account a manager's Deployment would run as.
fn service_account(objects: &[Value]) -> (String, String) {
    let metadata = objects
        .iter()
        .find(|object| object["kind"] == "ServiceAccount")
        .map(|object| &object["metadata"]);
    let field = |name: &str| {
        metadata
            .and_then(|metadata| metadata[name].as_str())
            .unwrap_or("default")
            .to_owned()
    };
    (field("namespace"), field("name"))
}

/// Gives aggregated ClusterRoles their rules at once: the controller that does it starts beside the manager, which
/// would meet closed doors first.
fn fill_aggregated_roles(objects: &mut [Value]) {
    let matches = |role: &Value, selector: &Value| {
        let labels = &role["metadata"]["labels"];
        selector["matchLabels"]
            .as_object()
            .is_some_and(|desired| desired.iter().all(|(key, value)| &labels[key] == value))
    };
    let roles: Vec<Value> = objects
        .iter()
        .filter(|object| object["kind"] == "ClusterRole")
        .cloned()
        .collect();
    for object in objects {
        let Some(selectors) = object.pointer("/aggregationRule/clusterRoleSelectors").cloned() else {
            continue;
        };
        let rules: Vec<Value> = roles
            .iter()
            .filter(|role| {
                let mut selectors = selectors.as_array().into_iter().flatten();
                selectors.any(|selector| matches(role, selector))
            })
            .flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default())
            .collect();
        object["rules"] = Value::Array(rules);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregated_roles_have_the_rules_of_those_they_select() {
        let mut objects = vec![
            json!({"kind": "ClusterRole", "metadata": {"name": "all"}, "aggregationRule":
                {"clusterRoleSelectors": [{"matchLabels": {"to": "all"}}]}}),
            json!({"kind": "ClusterRole", "metadata": {"name": "a", "labels": {"to": "all"}}, "rules": [{"verbs": ["get"]}]}),
            json!({"kind": "ClusterRole", "metadata": {"name": "b"}, "rules": [{"verbs": ["list"]}]}),
        ];
        fill_aggregated_roles(&mut objects);
        assert_eq!(objects[0]["rules"], json!([{"verbs": ["get"]}]));
    }
}
