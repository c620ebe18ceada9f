//! An infrastructure provider for tests: Machines become Nodes of a workload cluster, which kwok makes ready, or
//! hosts of a simulated or a real K3s. It runs inside the test, for one namespace, and does wrong or late what the test tells it
//! to.

pub mod api;
mod backend;
mod behaviour;
mod k3s;
mod kwok;
mod node;
mod pool;
mod real_k3s;
mod reconcile;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

pub use backend::{Backend, BackendError, Booting};
pub use behaviour::{Failure, HostPhase};
use futures::{StreamExt, stream};
pub use k3s::SimulatedK3s;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use parking_lot::Mutex;
pub use real_k3s::{RealK3s, Release, ReleaseError, Releases, unavailable};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};

use self::{
    api::{
        TestHostCluster, TestHostConfig, TestHostControlPlane, TestHostMachine, TestHostMachinePool,
        TestHostMachineTemplate,
    },
    behaviour::Behaviour,
    kwok::KwokNodes,
};
use crate::{
    cluster::Cluster,
    install::{self, FIELD_MANAGER, InstallError},
};

/// How many hosts are worked on at a time.
const CONCURRENCY: usize = 16;

/// After a failed call, the host is reconciled again.
const AFTER_ERROR: Duration = Duration::from_millis(200);

/// What is to be reconciled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Cluster(String),
    Machine(String),
    Pool(String),
    Template(String),
    Config(String),
    ControlPlane(String),
}

/// The hosts of one namespace; they end with this value.
pub struct Hosts {
    world: Arc<World>,
    /// The workload cluster, where the hosts are Nodes of one.
    nodes: Option<Arc<KwokNodes>>,
    queue: mpsc::UnboundedSender<Key>,
    _tasks: JoinSet<()>,
}

/// Both sides of the hosts, and what they are told to do.
pub(crate) struct World {
    namespace: String,
    management: Client,
    backend: Arc<dyn Backend>,
    behaviour: Mutex<Behaviour>,
}

/// Cluster API's own kinds, read without a model.
fn core_kind(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", kind))
}

impl Hosts {
    /// Installs the kinds of the hosts into a management cluster.
    pub async fn install(management: &Cluster) -> Result<(), InstallError> {
        install::install(&management.client(), &api::crds()).await
    }

    /// Serves the hosts of `namespace`; their Nodes appear in `workload`, which should run kwok.
    pub async fn start(
        management: &Cluster,
        namespace: &str,
        workload: &Cluster,
    ) -> Result<Hosts, InstallError> {
        let nodes = Arc::new(KwokNodes::of(workload));
        let mut hosts = Hosts::start_on(management, namespace, nodes.clone()).await?;
        hosts.nodes = Some(nodes);
        Ok(hosts)
    }

    /// Serves the hosts of `namespace`; what runs on them is up to `backend`.
    pub async fn start_on(
        management: &Cluster,
        namespace: &str,
        backend: Arc<dyn Backend>,
    ) -> Result<Hosts, InstallError> {
        Hosts::install(management).await?;
        let world = Arc::new(World {
            namespace: namespace.to_owned(),
            management: management.client_as("testbed-hosts", &["system:masters"]),
            backend,
            behaviour: Mutex::default(),
        });
        let (queue, keys) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let machine_key = |machine: &TestHostMachine| vec![Key::Machine(machine.name_any())];
        let cluster_key = |cluster: &TestHostCluster| vec![Key::Cluster(cluster.name_any())];
        tasks.spawn(watch(world.api::<TestHostMachine>(), queue.clone(), machine_key));
        tasks.spawn(watch(world.api::<TestHostCluster>(), queue.clone(), cluster_key));
        let pool_key = |pool: &TestHostMachinePool| vec![Key::Pool(pool.name_any())];
        let template_key = |template: &TestHostMachineTemplate| vec![Key::Template(template.name_any())];
        tasks.spawn(watch(world.api::<TestHostMachinePool>(), queue.clone(), pool_key));
        tasks.spawn(watch(
            world.api::<TestHostMachineTemplate>(),
            queue.clone(),
            template_key,
        ));
        let config_key = |config: &TestHostConfig| vec![Key::Config(config.name_any())];
        tasks.spawn(watch(world.api::<TestHostConfig>(), queue.clone(), config_key));
        let control_plane_key = |one: &TestHostControlPlane| vec![Key::ControlPlane(one.name_any())];
        tasks.spawn(watch(
            world.api::<TestHostControlPlane>(),
            queue.clone(),
            control_plane_key,
        ));
        tasks.spawn(watch(world.core("MachinePool"), queue.clone(), pool_of));
        tasks.spawn(watch(world.core("Machine"), queue.clone(), referenced));
        let everyone = world.clone();
        tasks.spawn(watch(world.core("Cluster"), queue.clone(), move |cluster| {
            let mut keys = referenced(cluster);
            // Whether it is paused, and whether its machines may come.
            let names = everyone
                .behaviour
                .lock()
                .names_in(&everyone.key(&cluster.name_any()));
            keys.extend(names.into_iter().map(Key::Machine));
            keys
        }));
        tasks.spawn(work(world.clone(), keys, queue.clone()));
        Ok(Hosts {
            world,
            nodes: None,
            queue,
            _tasks: tasks,
        })
    }

    /// Makes a stage of every host from now on take `duration`.
    pub fn delay(&self, stage: HostPhase, duration: Duration) {
        self.world.behaviour.lock().delays.insert(stage, duration);
        self.look_at_all();
    }

    /// The next new host fails like this, until it recovers.
    pub fn fail_next(&self, failure: Failure) {
        self.world.behaviour.lock().fail_next(failure);
    }

    /// Ends a host's failure.
    pub fn recover(&self, machine: &str) {
        self.world.behaviour.lock().recover(machine);
        self.look_at(machine);
    }

    /// The names of the hosts that were told to do something.
    pub fn machines(&self) -> BTreeSet<String> {
        self.world.behaviour.lock().names()
    }

    /// The bootstrap data a host has read.
    pub fn bootstrap_data(&self, machine: &str) -> Option<Vec<u8>> {
        self.world.behaviour.lock().bootstrap_data(machine)
    }

    /// The host dies: its Node stops being ready and nothing keeps it alive.
    pub async fn kill(&self, machine: &str) -> Result<(), BackendError> {
        self.set_alive(machine, false).await
    }

    /// The host comes back.
    pub async fn revive(&self, machine: &str) -> Result<(), BackendError> {
        self.set_alive(machine, true).await
    }

    async fn set_alive(&self, machine: &str, alive: bool) -> Result<(), BackendError> {
        let cluster = self.world.behaviour.lock().cluster(machine);
        let cluster =
            cluster.ok_or_else(|| BackendError::Refused(format!("no host {machine} was booted")))?;
        self.world.backend.set_alive(&cluster, machine, alive).await
    }

    fn nodes(&self) -> &KwokNodes {
        self.nodes
            .as_deref()
            .expect("only hosts of a real workload cluster have its secrets to give")
    }

    /// Gives Cluster API the kubeconfig of the workload cluster, for a Cluster without a control plane provider.
    pub async fn give_kubeconfig(&self, cluster: &str) -> Result<(), kube::Error> {
        let data = json!({"value": self.nodes().kubeconfig});
        self.give(cluster, "kubeconfig", data).await
    }

    /// Gives a KubeadmControlPlane with external etcd the CAs it would otherwise make or miss: the workload
    /// cluster's, so that the kubeconfig it writes is trusted there.
    pub async fn give_cas(&self, cluster: &str) -> Result<(), kube::Error> {
        let pair = self.nodes().ca.pair();
        let data = json!({"tls.crt": pair.certificate, "tls.key": pair.key});
        for name in ["ca", "etcd", "apiserver-etcd-client"] {
            self.give(cluster, name, data.clone()).await?;
        }
        Ok(())
    }

    async fn give(&self, cluster: &str, suffix: &str, data: serde_json::Value) -> Result<(), kube::Error> {
        let name = format!("{cluster}-{suffix}");
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": cluster}},
            "type": "cluster.x-k8s.io/secret",
            "stringData": data,
        });
        let secrets: Api<k8s_openapi::api::core::v1::Secret> = self.world.api();
        let apply = PatchParams::apply(FIELD_MANAGER).force();
        secrets.patch(&name, &apply, &Patch::Apply(&secret)).await?;
        Ok(())
    }

    fn look_at(&self, machine: &str) {
        // The worker lives as long as this value.
        let _ = self.queue.send(Key::Machine(machine.to_owned()));
    }

    fn look_at_all(&self) {
        for machine in self.machines() {
            self.look_at(&machine);
        }
    }
}

impl World {
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.management.clone(), &self.namespace)
    }

    /// How a backend knows a Cluster of this namespace.
    pub(crate) fn key(&self, cluster: &str) -> String {
        format!("{}/{cluster}", self.namespace)
    }

    pub(crate) fn core(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.management.clone(), &self.namespace, &core_kind(kind))
    }
}

/// What a Machine or Cluster points at, if it is one of the hosts' kinds.
fn referenced(object: &DynamicObject) -> Vec<Key> {
    let reference = &object.data["spec"]["infrastructureRef"];
    let name = reference["name"].as_str().unwrap_or_default().to_owned();
    match reference["kind"].as_str() {
        Some("TestHostMachine") => vec![Key::Machine(name)],
        Some("TestHostCluster") => vec![Key::Cluster(name)],
        _ => Vec::new(),
    }
}

/// The pool that a MachinePool points at.
fn pool_of(object: &DynamicObject) -> Vec<Key> {
    let reference = &object.data["spec"]["template"]["spec"]["infrastructureRef"];
    match (reference["kind"].as_str(), reference["name"].as_str()) {
        (Some("TestHostMachinePool"), Some(name)) => vec![Key::Pool(name.to_owned())],
        _ => Vec::new(),
    }
}

/// Queues what every change points at.
async fn watch<K>(api: Api<K>, queue: mpsc::UnboundedSender<Key>, keys: impl Fn(&K) -> Vec<Key>)
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let events = watcher(api, watcher::Config::default())
        .default_backoff()
        .applied_objects();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(object) => {
                for key in keys(&object) {
                    let _ = queue.send(key);
                }
            }
            Err(error) => tracing::debug!(%error, "watching for the hosts"),
        }
    }
}

/// Looks at what is queued, batch by batch, so that no host is worked on twice at a time.
async fn work(world: Arc<World>, mut keys: mpsc::UnboundedReceiver<Key>, queue: mpsc::UnboundedSender<Key>) {
    let mut batch = Vec::new();
    while keys.recv_many(&mut batch, 1024).await > 0 {
        let unique: BTreeSet<Key> = batch.drain(..).collect();
        stream::iter(unique)
            .for_each_concurrent(CONCURRENCY, |key| {
                let (world, queue) = (&world, queue.clone());
                async move {
                    let again = match reconcile::reconcile(world, &key).await {
                        Ok(again) => again,
                        Err(error) => {
                            tracing::debug!(%error, ?key, "a host meets an error and tries again");
                            Some(AFTER_ERROR)
                        }
                    };
                    if let Some(after) = again {
                        tokio::spawn(async move {
                            tokio::time::sleep(after).await;
                            let _ = queue.send(key);
                        });
                    }
                }
            })
            .await;
    }
}
