//! What surrounds both controllers: an apiserver in memory for the management cluster and one for the workload cluster,
//! the simulated K3s behind it, and the parts Cluster API's core, the health check and the hosts play. What must never
//! happen is noted where it happens.

mod cluster_api;
mod doors;
mod kinds;
mod objects;
mod servers;
mod setting;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use slipway_apiserver_sim::{Apiserver, Snapshot};
use slipway_k3s_sim::Model;
use slipway_runtime::Clock;

use self::kinds::kinds;
pub use self::objects::{
    all, change, condition, condition_of, create, is_absent, patch_status, set_condition,
};

pub const NAMESPACE: &str = "fleet";
const CORE: &str = "cluster.x-k8s.io";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
pub const PENDING_HOOKS: &str = "runtime.cluster.x-k8s.io/pending-hooks";
pub const UPDATE_IN_PROGRESS: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";

/// What happened on the stage, beside the objects.
#[derive(Clone, Default)]
pub struct Book {
    /// Machines whose host never comes up.
    pub broken: BTreeSet<String>,
    /// What must never happen, and did.
    pub violations: Vec<String>,
    /// Hosts that were told to initialise a cluster.
    pub initialised: Vec<String>,
    /// Userdata by host, as it booted with it.
    pub userdata: BTreeMap<String, String>,
    /// The workload cluster's front door is shut.
    pub unreachable: bool,
    /// Watches of the workload cluster are opened and then say nothing.
    pub mute: bool,
    /// Requests to the workload cluster.
    pub workload_requests: usize,
    /// A health check hands silent servers over after this long.
    pub health_check_after: Option<Duration>,
    /// Updates in place are played by core itself: the host is restarted with the machine's version.
    pub plays_updates: bool,
    unhealthy_since: BTreeMap<String, Timestamp>,
    /// What the parts were last played on.
    played: Option<Cue>,
    /// The nodes as the workload cluster was last shown them, and the model's revision then.
    copied: (u64, BTreeMap<String, Value>),
    /// The version of the workload cluster whose annotations have been taken.
    taken: u64,
    /// What the first write of each secret said.
    secrets: BTreeMap<String, Value>,
}

impl Book {
    /// Servers that have been silent for longer than the health check waits.
    fn due(&self, now: Timestamp) -> Vec<String> {
        let Some(after) = self.health_check_after else {
            return Vec::new();
        };
        let after = jiff::SignedDuration::try_from(after).unwrap_or_default();
        let silent = self.unhealthy_since.iter();
        silent
            .filter(|(_, since)| now.duration_since(**since) >= after)
            .map(|(name, _)| name.clone())
            .collect()
    }
}

/// What core and the hosts act on: where it is the same, they have nothing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cue {
    management: u64,
    nodes: Vec<(String, bool)>,
    hosts: usize,
    members: Vec<(u64, bool)>,
    quorum: bool,
    broken: BTreeSet<String>,
    plays_updates: bool,
    health_check_after: Option<Duration>,
    /// Servers whose health check has run out.
    due: Vec<String>,
}

/// A theatre as it stood at one moment.
#[derive(Clone)]
pub struct Scene {
    pub management: Snapshot,
    workload: Snapshot,
    model: Model,
    book: Book,
}

/// Everything around the controllers. Clones share it.
#[derive(Clone)]
pub struct Theatre {
    pub management: Apiserver,
    pub workload: Apiserver,
    pub model: Arc<Mutex<Model>>,
    pub book: Arc<Mutex<Book>>,
    pub clock: Clock,
}

impl Theatre {
    pub fn new(management: Apiserver, clock: Clock) -> Self {
        management.install_kinds(kinds());
        let book = Book {
            plays_updates: true,
            ..Book::default()
        };
        Self {
            management,
            workload: Apiserver::new(clock),
            model: Arc::new(Mutex::new(Model::new(clock.now()))),
            book: Arc::new(Mutex::new(book)),
            clock,
        }
    }

    pub fn scene(&self) -> Scene {
        Scene {
            management: self.management.snapshot(),
            workload: self.workload.snapshot(),
            model: self.model.lock().clone(),
            book: self.book.lock().clone(),
        }
    }

    /// A theatre that goes on from a scene, with a clock that starts when it was taken.
    pub fn resume(management: Apiserver, clock: Clock, scene: &Scene) -> Self {
        management.restore(&scene.management);
        let workload = Apiserver::new(clock);
        workload.restore(&scene.workload);
        Self {
            management,
            workload,
            model: Arc::new(Mutex::new(scene.model.clone())),
            book: Arc::new(Mutex::new(scene.book.clone())),
            clock,
        }
    }

    /// One step: the model's time catches up, core and hosts do their part, and what both sides wrote is exchanged.
    /// Where nothing moved since the last one, nothing is done.
    pub async fn step(&self) {
        {
            let mut model = self.model.lock();
            let passed = self.clock.now().duration_since(model.now);
            model.advance(Duration::try_from(passed).unwrap_or_default());
        }
        // Both are read before anything is done: what others write meanwhile is for the next step.
        let (workload, cue) = (self.workload.version(), self.cue());
        let mut moved = self.book.lock().taken != workload;
        if moved {
            self.take_annotations().await;
            self.book.lock().taken = workload;
        }
        if self.book.lock().played.as_ref() != Some(&cue) {
            self.core().await;
            self.book.lock().played = Some(cue);
            moved = true;
        }
        let revision = self.model.lock().revision;
        if moved || self.book.lock().copied.0 != revision {
            self.copy_nodes().await;
        }
    }

    fn cue(&self) -> Cue {
        let (model, book) = (self.model.lock(), self.book.lock());
        Cue {
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
            broken: book.broken.clone(),
            plays_updates: book.plays_updates,
            health_check_after: book.health_check_after,
            due: book.due(self.clock.now()),
        }
    }

    fn violation(&self, what: impl Into<String>) {
        let what = format!("{}: {}", self.clock.now(), what.into());
        self.book.lock().violations.push(what);
    }

    /// What holds of the objects at all times: secrets stay what the first host was told, and there is never more than
    /// one server too many.
    pub fn check(&self, objects: &[Value]) -> Result<(), String> {
        let mut book = self.book.lock();
        if let Some(violation) = book.violations.first() {
            return Err(violation.clone());
        }
        let of = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        if !book.initialised.is_empty() {
            for secret in of("Secret") {
                let name = secret["metadata"]["name"].as_str().unwrap_or_default();
                if !["edge-ca", "edge-cca", "edge-etcd", "edge-token"].contains(&name) {
                    continue;
                }
                let first = book
                    .secrets
                    .entry(name.to_owned())
                    .or_insert_with(|| secret["data"].clone());
                if *first != secret["data"] {
                    return Err(format!(
                        "Secret {name} was made anew after a host had been told the first one"
                    ));
                }
            }
        }
        if book.initialised.iter().collect::<BTreeSet<_>>().len() > 1 {
            return Err(format!("two hosts initialised: {:?}", book.initialised));
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
                return Err(format!("{servers} servers where {replicas} are wanted"));
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
