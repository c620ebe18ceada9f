//! Many clusters in one management cluster, each with an environment of its own, one core over all their hosts, and both
//! controllers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::api::PostParams;
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_k3s::{
    api::KThreesControlPlane,
    bootstrap,
    control_plane::{self, ControlPlanes},
};
use slipway_k3s_sim::Model;
use slipway_kit::{
    core::{FakeCore, Hosts},
    objects::{holds, of_kind},
};
use slipway_runtime::{Clock, controller::Context, workload::Connector};
use tokio::task::JoinSet;

use super::{Environment, NAMESPACE, create, kinds::kinds, patch_status, servers::K3sHosts};
use crate::driver::OLD;

/// How often core and hosts act.
const PERIOD: Duration = Duration::from_secs(5);

/// The environments by the names of their clusters. Clones share them.
#[derive(Clone, Default)]
struct Clusters(Arc<Mutex<BTreeMap<String, Environment>>>);

impl Clusters {
    fn get(&self, cluster: &str) -> Option<Environment> {
        self.0.lock().get(cluster).cloned()
    }

    fn all(&self) -> Vec<Environment> {
        self.0.lock().values().cloned().collect()
    }

    /// The hosts of the cluster that a machine is of: its name begins with the cluster's.
    fn hosts_of(&self, machine: &str) -> Option<K3sHosts> {
        let (cluster, _) = machine.rsplit_once('-')?;
        let environment = self.get(cluster)?;
        Some(K3sHosts {
            model: environment.model,
            recorder: environment.recorder,
            clock: environment.clock,
        })
    }
}

impl Hosts for Clusters {
    fn has(&self, machine: &str) -> bool {
        self.hosts_of(machine).is_some_and(|hosts| hosts.has(machine))
    }

    fn boot(&self, machine: &str, data: &str) {
        if let Some(hosts) = self.hosts_of(machine) {
            hosts.boot(machine, data);
        }
    }

    fn node(&self, machine: &str) -> Option<bool> {
        self.hosts_of(machine)?.node(machine)
    }

    fn destroy(&self, machine: &str, last: bool) {
        if let Some(hosts) = self.hosts_of(machine) {
            hosts.destroy(machine, last);
        }
    }

    fn upgrade(&self, machine: &str, version: &str) {
        if let Some(hosts) = self.hosts_of(machine) {
            hosts.upgrade(machine, version);
        }
    }
}

pub struct Fleet {
    pub management: Apiserver,
    pub context: Context,
    clock: Clock,
    clusters: Clusters,
    _tasks: JoinSet<()>,
}

impl Fleet {
    /// No cluster yet; core, hosts and both controllers run.
    pub async fn start() -> Self {
        Self::start_with(&Faults::none()).await
    }

    /// The same, with the calls of the controllers counted.
    pub async fn start_with(calls: &Faults) -> Self {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time"));
        let management = Apiserver::new(clock);
        management.install_kinds(kinds());
        let mut context = Context::for_tests(management.client_with(calls.clone()), 7);
        context.clock = clock;
        let clusters = Clusters::default();
        let by_name = clusters.clone();
        let connector: Connector = Arc::new(move |key, config| {
            let environment = by_name.get(key.name()).expect("a cluster");
            (environment.connector(&Faults::none()))(key, config)
        });
        let mut tasks = JoinSet::new();
        for registration in [
            bootstrap::registration(),
            control_plane::registration_of(ControlPlanes::connecting_by(connector)),
        ] {
            let running = (registration.run)(context.clone());
            tasks.spawn(async move { running.await.expect("a controller runs") });
        }
        let core = FakeCore::with_hosts(management.clone(), clock, Arc::new(clusters.clone()));
        tasks.spawn(play(clusters.clone(), management.clone(), core));
        let fleet = Self {
            management,
            context,
            clock,
            clusters,
            _tasks: tasks,
        };
        let common = Environment::new(fleet.management.clone(), clock);
        common.set_up_namespace().await;
        common.create_template("hosts", "small").await;
        fleet
    }

    /// A cluster of one server.
    pub async fn create(&self, name: &str) {
        self.create_from(name, "HostMachineTemplate", "hosts").await;
    }

    /// The same, with another template for its servers.
    pub async fn create_from(&self, name: &str, kind: &str, template: &str) {
        let environment = Environment::of(
            self.management.clone(),
            Apiserver::new(self.clock),
            Arc::new(Mutex::new(Model::new(self.clock.now()))),
            Arc::default(),
            self.clock,
        );
        self.clusters
            .0
            .lock()
            .insert(name.to_owned(), environment.clone());
        let plane =
            json!({"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KThreesControlPlane", "name": name});
        let cluster = create(
            &environment.clusters(),
            json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "controlPlaneEndpoint": {"host": "10.9.9.9", "port": 6443},
                "clusterNetwork": {"pods": {"cidrBlocks": ["10.52.0.0/16"]}},
                "controlPlaneRef": plane,
            }}),
        )
        .await;
        let provisioned = json!({"initialization": {"infrastructureProvisioned": true}});
        patch_status(&environment.clusters(), name, provisioned).await;
        let owner = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": name,
            "uid": cluster.metadata.uid, "controller": true});
        let template = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": kind,
            "name": template});
        let plane: KThreesControlPlane = serde_json::from_value(json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KThreesControlPlane",
            "metadata": {"name": name, "namespace": NAMESPACE, "ownerReferences": [owner]},
            "spec": {"replicas": 1, "version": OLD, "machineTemplate": {"infrastructureRef": template}},
        }))
        .expect("a control plane");
        environment
            .planes()
            .create(&PostParams::default(), &plane)
            .await
            .expect("it is created");
    }

    /// Waits until so many control planes are available.
    pub async fn until_available(&self, planes: usize) {
        let available = |objects: &[Value]| {
            of_kind(objects, "KThreesControlPlane")
                .filter(|plane| holds(plane, "Available"))
                .count()
        };
        for _ in 0..1000 {
            if available(&self.management.objects()) == planes {
                return;
            }
            tokio::time::sleep(PERIOD).await;
        }
        let found = available(&self.management.objects());
        panic!("{found} of {planes} control planes are available");
    }

    /// Clusters whose etcd has its quorum.
    pub fn with_quorum(&self) -> usize {
        let all = self.clusters.all();
        all.iter()
            .filter(|environment| environment.model.lock().has_quorum())
            .count()
    }

    /// What must never happen, and did.
    pub fn violations(&self) -> Vec<String> {
        let all = self.clusters.all();
        all.iter()
            .flat_map(|environment| environment.recorder.lock().violations.clone())
            .collect()
    }
}

/// Core, the hosts and what both clusters show of them, for ever.
async fn play(clusters: Clusters, management: Apiserver, core: FakeCore) {
    let mut acted_on = Vec::new();
    loop {
        let mut versions = vec![management.version()];
        for environment in clusters.all() {
            environment.pass_time();
            let moved = environment.take_changes(environment.workload.version()).await;
            environment.show_changes(moved).await;
            let model = environment.model.lock();
            versions.extend([model.revision, model.hosts.len() as u64]);
        }
        // Where nothing changed, core has nothing to do.
        if versions != acted_on {
            core.reconcile().await;
            acted_on = versions;
        }
        tokio::time::sleep(PERIOD).await;
    }
}
