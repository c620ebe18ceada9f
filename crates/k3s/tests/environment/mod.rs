//! What surrounds both controllers: an apiserver in memory for the management cluster and one for the workload cluster,
//! the simulated K3s behind it, and the kit's core over its hosts. What must never happen is noted where it happens.

mod clients;
mod fleet;
mod kinds;
mod objects;
mod servers;
mod setup;
mod surroundings;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kube::api::DynamicObject;
use parking_lot::Mutex;
use serde_json::Value;
use slipway_apiserver_sim::{Apiserver, Snapshot};
use slipway_k3s_sim::Model;
use slipway_kit::core::{FakeCore, Settings};
use slipway_runtime::Clock;

pub use self::fleet::Fleet;
pub use self::objects::{
    all, change, condition, condition_of, create, is_absent, patch_status, set_condition,
};
use self::{kinds::kinds, servers::K3sHosts};

pub const NAMESPACE: &str = "fleet";

/// What happened around the controllers, beside the objects.
#[derive(Clone, Default)]
pub struct Recorder {
    /// What must never happen, and did.
    pub violations: Vec<String>,
    /// Hosts that were told to initialise a cluster.
    pub initialised: Vec<String>,
    /// Userdata by host, as it booted with it.
    pub userdata: BTreeMap<String, String>,
    /// The workload cluster's endpoint answers nobody.
    pub unreachable: bool,
    /// Watches of the workload cluster are opened and then say nothing.
    pub mute: bool,
    /// Requests to the workload cluster.
    pub workload_requests: usize,
    /// What core and the hosts last acted on.
    acted_on: Option<Inputs>,
    /// The nodes as the workload cluster was last shown them, and the model's revision then.
    copied: (u64, BTreeMap<String, Value>),
    /// Machines whose address was told.
    addressed: BTreeSet<String>,
    /// The leases as the workload cluster was last shown them.
    leases: BTreeMap<String, jiff::Timestamp>,
    /// The version of the workload cluster whose annotations have been taken.
    taken: u64,
    /// What the first write of each secret said.
    secrets: BTreeMap<String, Value>,
}

/// What core and the hosts act on: where it is the same, they have nothing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Inputs {
    management: u64,
    nodes: Vec<(String, bool)>,
    hosts: usize,
    members: Vec<(u64, bool)>,
    quorum: bool,
    broken: BTreeSet<String>,
    leaves_updates: bool,
    health_check_after: Option<Duration>,
    /// Servers whose health check has run out.
    due: Vec<String>,
}

/// An environment as it was at one moment.
#[derive(Clone)]
pub struct State {
    pub management: Snapshot,
    workload: Snapshot,
    model: Model,
    recorder: Recorder,
    settings: Settings,
}

/// Everything around the controllers. Clones share it.
#[derive(Clone)]
pub struct Environment {
    pub management: Apiserver,
    pub workload: Apiserver,
    pub model: Arc<Mutex<Model>>,
    pub recorder: Arc<Mutex<Recorder>>,
    pub core: FakeCore,
    pub clock: Clock,
}

impl Environment {
    pub fn new(management: Apiserver, clock: Clock) -> Self {
        management.install_kinds(kinds());
        let workload = Apiserver::new(clock);
        let model = Arc::new(Mutex::new(Model::new(clock.now())));
        Self::of(management, workload, model, Arc::default(), clock)
    }

    fn of(
        management: Apiserver,
        workload: Apiserver,
        model: Arc<Mutex<Model>>,
        recorder: Arc<Mutex<Recorder>>,
        clock: Clock,
    ) -> Self {
        let hosts = K3sHosts {
            model: Arc::clone(&model),
            recorder: Arc::clone(&recorder),
            clock,
        };
        Self {
            core: FakeCore::with_hosts(management.clone(), clock, Arc::new(hosts)),
            management,
            workload,
            model,
            recorder,
            clock,
        }
    }

    /// The workload cluster of another environment, seen from here.
    pub fn take_over(&mut self, other: &Self) {
        *self = Self::of(
            self.management.clone(),
            other.workload.clone(),
            Arc::clone(&other.model),
            Arc::clone(&self.recorder),
            other.clock,
        );
    }

    pub fn state(&self) -> State {
        State {
            management: self.management.snapshot(),
            workload: self.workload.snapshot(),
            model: self.model.lock().clone(),
            recorder: self.recorder.lock().clone(),
            settings: self.core.settings.lock().clone(),
        }
    }

    /// An environment that goes on from a state, with a clock that starts when it was taken.
    pub fn resume(management: Apiserver, clock: Clock, state: &State) -> Self {
        management.restore(&state.management);
        let workload = Apiserver::new(clock);
        workload.restore(&state.workload);
        let model = Arc::new(Mutex::new(state.model.clone()));
        let recorder = Arc::new(Mutex::new(state.recorder.clone()));
        let environment = Self::of(management, workload, model, recorder, clock);
        *environment.core.settings.lock() = state.settings.clone();
        environment
    }

    /// One step: the model's time catches up, core and hosts do their part, and what both sides wrote is exchanged.
    /// Where nothing moved since the last one, nothing is done.
    pub async fn step(&self) {
        self.pass_time();
        // Both are read before anything is done: what others write meanwhile is for the next step.
        let (workload, inputs) = (self.workload.version(), self.inputs());
        let mut moved = self.take_changes(workload).await;
        if self.recorder.lock().acted_on.as_ref() != Some(&inputs) {
            self.core.reconcile().await;
            self.recorder.lock().acted_on = Some(inputs);
            moved = true;
        }
        self.show_changes(moved).await;
    }

    /// The model's time catches up.
    fn pass_time(&self) {
        let lost = {
            let mut model = self.model.lock();
            let had = model.has_quorum();
            let passed = self.clock.now().duration_since(model.now);
            model.advance(Duration::try_from(passed).unwrap_or_default());
            had && !model.has_quorum() && model.voters() > 0
        };
        if lost && self.is_desired() {
            self.violation("S-1: a host went, or a learner was promoted, and quorum is lost");
        }
    }

    /// Takes what was written to the workload cluster by this version of it, if that is news.
    async fn take_changes(&self, workload: u64) -> bool {
        let moved = self.recorder.lock().taken != workload;
        if moved {
            self.take_annotations().await;
            self.recorder.lock().taken = workload;
        }
        moved
    }

    /// Shows in both clusters what has changed in the model.
    async fn show_changes(&self, moved: bool) {
        let revision = self.model.lock().revision;
        if moved || self.recorder.lock().copied.0 != revision {
            self.copy_nodes().await;
        }
        self.copy_leases().await;
        self.tell_addresses().await;
    }

    /// Whether the control plane is there to stay.
    fn is_desired(&self) -> bool {
        self.management.look(|objects| {
            objects.iter().any(|object| {
                object["kind"] == "KThreesControlPlane" && object["metadata"]["deletionTimestamp"].is_null()
            })
        })
    }

    fn inputs(&self) -> Inputs {
        let (model, settings) = (self.model.lock(), self.core.settings.lock());
        Inputs {
            management: self.management.version(),
            nodes: model
                .nodes
                .iter()
                .map(|(name, node)| (name.clone(), node.ready))
                .collect(),
            hosts: model.hosts.len(),
            members: model
                .members
                .iter()
                .map(|member| (member.id, member.learner))
                .collect(),
            quorum: model.has_quorum(),
            broken: settings.broken.clone(),
            leaves_updates: settings.leaves_updates,
            health_check_after: settings.health_check_after,
            due: settings.due(self.clock.now()),
        }
    }

    fn violation(&self, what: impl Into<String>) {
        note(&self.recorder, self.clock, what);
    }

    /// Core's last writes of an update in place.
    pub async fn finish_update(&self, machine: &DynamicObject) {
        let machine = serde_json::to_value(machine).expect("an object");
        self.core
            .finish_update(&self.management.objects(), &machine)
            .await;
    }

    /// What holds of the objects at all times: secrets stay what the first host was told, and there is never more than
    /// one server too many.
    pub fn check(&self, objects: &[Value]) -> Result<(), String> {
        let mut recorder = self.recorder.lock();
        if let Some(violation) = recorder.violations.first() {
            return Err(violation.clone());
        }
        let of = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        if !recorder.initialised.is_empty() {
            for secret in of("Secret") {
                let name = secret["metadata"]["name"].as_str().unwrap_or_default();
                if !["edge-ca", "edge-cca", "edge-etcd", "edge-token"].contains(&name) {
                    continue;
                }
                let first = recorder
                    .secrets
                    .entry(name.to_owned())
                    .or_insert_with(|| secret["data"].clone());
                if *first != secret["data"] {
                    return Err(format!(
                        "Secret {name} was made again after a host had been told the first one"
                    ));
                }
            }
        }
        if recorder.initialised.iter().collect::<BTreeSet<_>>().len() > 1 {
            return Err(format!("two hosts initialised: {:?}", recorder.initialised));
        }
        for plane in of("KThreesControlPlane") {
            let replicas = plane["spec"]["replicas"].as_u64().unwrap_or(1);
            let servers = of("Machine")
                .filter(|machine| {
                    !machine["metadata"]["labels"]["cluster.x-k8s.io/control-plane"].is_null()
                        && machine["metadata"]["deletionTimestamp"].is_null()
                })
                .count() as u64;
            // Somebody may have scaled down since.
            if servers > replicas.max(3) + 1 {
                return Err(format!("{servers} servers where {replicas} are desired"));
            }
        }
        Ok(())
    }

    pub fn settled(&self, servers: usize, version: &str) -> bool {
        let model = self.model.lock();
        model.healthy_voters() == servers
            && model.members.len() == servers
            && model
                .hosts
                .values()
                .filter(|host| host.alive && host.server)
                .all(|host| host.version == version)
    }
}

/// Notes what must never happen.
fn note(recorder: &Mutex<Recorder>, clock: Clock, what: impl Into<String>) {
    let what = format!("{}: {}", clock.now(), what.into());
    recorder.lock().violations.push(what);
}
