//! Hosts in memory and in virtual time, for worlds that are swept with faults: what an agent accepts and refuses, how long operations
//! take, and what is on a host. `host_suite` holds them and real agents to the same behaviours.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use slipway_agent_api::{
    Class, Problem,
    client::has_ended,
    order::Order,
    proto::{
        self, Operation, OperationState, StartRequest, UpgradeState, kubernetes_step::Step,
        start_request::Verb,
    },
};
use slipway_apiserver_sim::{
    Apiserver,
    faults::{Fate, Faults},
};
use slipway_edge::{
    hosts::{HostAddress, Hosts},
    provider,
};
use slipway_kit::core::kinds;
use slipway_runtime::Clock;
use slipway_slots::Digest;

/// How long things take on a host.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Bootstrap data, being wiped, an image, a slot.
    pub order: Duration,
    /// It is away for so long when it reboots, after it was told to.
    pub reboot: Duration,
}

impl Pace {
    /// As hosts are, for worlds in virtual time.
    const LIFELIKE: Self = Self {
        order: Duration::from_secs(40),
        reboot: Duration::from_mins(2),
    };
    /// For stories that somebody waits for.
    pub const HURRIED: Self = Self {
        order: Duration::from_millis(500),
        reboot: Duration::from_secs(2),
    };
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("a short time")
}

/// The images of this world, by the digests that orders name, and the versions that are in them.
pub const OLD: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000aa";
pub const NEW: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000bb";
pub const OLD_VERSION: &str = "v1.34.2+k3s1";
pub const NEW_VERSION: &str = "v1.34.3+k3s1";

/// What slots call an image.
pub fn signed(digest: &str) -> String {
    digest.replacen("sha256:0", "sha256:f", 1)
}

pub fn version_of(digest: &str) -> &'static str {
    if digest == OLD { OLD_VERSION } else { NEW_VERSION }
}

#[derive(Clone, Debug, Default)]
pub struct SimulatedHost {
    generation: u64,
    operations: BTreeMap<String, Known>,
    /// In its cache, with who has pinned it.
    pub images: BTreeMap<String, BTreeSet<String>>,
    /// What slot A and slot B hold, by the digests of orders.
    slots: [Option<String>; 2],
    booted: usize,
    upgrades: Vec<proto::Upgrade>,
    pub quarantined: BTreeMap<String, String>,
    /// Images that nobody can use.
    pub unusable: BTreeSet<String>,
    /// The new slot does not come up.
    pub does_not_boot: bool,
    /// What runs on it after an upgrade is never ready.
    pub never_ready: bool,
    /// How often it was told to boot another slot.
    pub arms: usize,
    pub maintenance: Option<String>,
    /// It does not answer.
    pub is_silent: bool,
    /// A cloud has switched it off.
    pub is_off: bool,
    /// It was told to hold the address of its cluster without a lease.
    pub holds_alone: bool,
    pub processors: u32,
    /// The provider id of the machine whose data is on it.
    pub occupant: Option<String>,
    /// How often bootstrap data was begun, by provider id.
    pub bootstraps: BTreeMap<String, usize>,
}

#[derive(Clone, Debug)]
struct Known {
    operation: Operation,
    digest: Digest,
    verb: Verb,
    /// When it goes away to reboot, if it does.
    away_from: Option<i64>,
    ends_at: i64,
    fails: bool,
}

/// All of them. Clones share them; each process has faults of its own.
#[derive(Clone)]
pub struct SimulatedHosts {
    pub hosts: Arc<Mutex<HostStates>>,
    /// What must never happen and did.
    pub violations: Arc<Mutex<Vec<String>>>,
    clock: Clock,
    pace: Pace,
    faults: Faults,
}

/// The hosts of a world, by name, as they are kept while it stands still.
pub type HostStates = BTreeMap<String, SimulatedHost>;

fn refused(class: Class, reason: &str) -> Problem {
    Problem::new(class, reason, format!("the host says {reason}"))
}

impl SimulatedHosts {
    pub fn new(clock: Clock) -> Self {
        Self {
            hosts: Arc::default(),
            violations: Arc::default(),
            clock,
            pace: Pace::LIFELIKE,
            faults: Faults::none(),
        }
    }

    /// Hosts of these sizes in a world that begins: core's definitions and the provider's are installed.
    pub fn in_world(server: &Apiserver, clock: Clock, sizes: &[(&str, u32)]) -> Self {
        let hosts = Self::new(clock);
        for (name, processors) in sizes {
            hosts.add(name, *processors);
        }
        let package = provider::infrastructure(Arc::new(hosts.clone()));
        server.install(&kinds::of_core(), &[], &[]);
        server.install(&package.crds, &package.conversion, &package.admission);
        hosts
    }

    pub fn resumed(clock: Clock, state: &HostStates) -> Self {
        let hosts = Self::new(clock);
        hosts.hosts.lock().clone_from(state);
        hosts
    }

    pub fn state(&self) -> HostStates {
        self.hosts.lock().clone()
    }

    pub fn at_pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    pub fn through(&self, faults: &Faults) -> Self {
        Self {
            faults: faults.clone(),
            ..self.clone()
        }
    }

    pub fn add(&self, name: &str, processors: u32) {
        let host = SimulatedHost {
            processors,
            slots: [Some(OLD.to_owned()), None],
            ..SimulatedHost::default()
        };
        self.hosts.lock().insert(name.to_owned(), host);
    }

    /// A host as it is now.
    pub fn look(&self, name: &str) -> Option<SimulatedHost> {
        let now = self.clock.now().as_millisecond();
        let mut hosts = self.hosts.lock();
        let host = hosts.get_mut(name)?;
        settle(host, now);
        Some(host.clone())
    }

    /// A person who works on the host, or does not any more.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut SimulatedHost)) {
        let mut hosts = self.hosts.lock();
        change(hosts.get_mut(name).expect("a host of that name"));
    }

    /// One call, which may meet a fault on its way there and back.
    async fn call<T>(
        &self,
        host: &HostAddress,
        what: &str,
        writes: bool,
        answer: impl FnOnce(&mut SimulatedHost) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let unreachable = || {
            Problem::new(
                Class::Transient,
                "Unreachable",
                format!("host {} does not answer", host.name),
            )
        };
        let answer = || {
            let now = self.clock.now().as_millisecond();
            let mut hosts = self.hosts.lock();
            let found = hosts.get_mut(&host.name).filter(|host| !host.is_silent);
            let found = found.ok_or_else(unreachable)?;
            settle(found, now);
            if found.is_away(now) {
                return Err(unreachable());
            }
            answer(found)
        };
        match self
            .faults
            .external(&format!("{what} {}", host.name), writes)
            .await
        {
            Fate::Pass => answer(),
            Fate::Refuse(_) | Fate::Lose => Err(unreachable()),
            Fate::LoseAnswer => {
                let _ = answer();
                Err(unreachable())
            }
            Fate::Hang => std::future::pending().await,
            Fate::HangAnswer => {
                let _ = answer();
                tokio::time::sleep(Duration::from_mins(1)).await;
                Err(unreachable())
            }
        }
    }

    fn begin(&self, host: &mut SimulatedHost, order: &Order, now: i64) -> Operation {
        let (mut takes, mut fails, mut away_from) = (self.pace.order, false, None);
        if let Verb::RunBootstrap(run) = &order.verb {
            let data = String::from_utf8_lossy(&run.data);
            fails = data.contains("false");
            if data.contains("sleep") {
                takes = Duration::from_mins(10);
            }
            let id = run.provider_id.clone();
            if let Some(other) = host.occupant.as_ref().filter(|other| **other != id) {
                self.violations
                    .lock()
                    .push(format!("{} is bootstrapped for {id} over {other}", order.host));
            }
            *host.bootstraps.entry(id.clone()).or_default() += 1;
            host.occupant = Some(id);
        }
        if let Verb::HoldAddress(hold) = &order.verb {
            takes = Duration::ZERO;
            host.holds_alone |= hold.lease.as_ref().is_some_and(|lease| lease.first);
        }
        if matches!(order.verb, Verb::Arm(_) | Verb::Rollback(_)) {
            away_from = Some(now + milliseconds(takes));
            takes += self.pace.reboot;
        }
        if let Some(problem) = host.begin_upgrade(&order.verb) {
            let operation = Operation {
                id: order.id.clone(),
                verb: order.nature().name.to_owned(),
                state: OperationState::Failed.into(),
                accepted_at: now,
                ended_at: now,
                message: problem.message.clone(),
                problem: Some(problem.to_proto()),
                ..Operation::default()
            };
            let known = Known {
                operation: operation.clone(),
                digest: order.digest,
                verb: order.verb.clone(),
                away_from: None,
                ends_at: now,
                fails: true,
            };
            host.operations.insert(order.id.clone(), known);
            return operation;
        }
        let operation = Operation {
            id: order.id.clone(),
            verb: order.nature().name.to_owned(),
            generation: order.generation,
            state: OperationState::Running.into(),
            accepted_at: now,
            ..Operation::default()
        };
        let known = Known {
            operation: operation.clone(),
            digest: order.digest,
            verb: order.verb.clone(),
            away_from,
            ends_at: now + milliseconds(takes),
            fails,
        };
        host.operations.insert(order.id.clone(), known);
        operation
    }

    /// As agents do it: the host, the generation, the id, maintenance, what runs.
    fn accept(
        &self,
        host: &mut SimulatedHost,
        name: &str,
        request: StartRequest,
    ) -> Result<Operation, Problem> {
        let order = Order::check(request)?;
        if order.host != name {
            return Err(refused(Class::Terminal, "OtherHost"));
        }
        if order.generation < host.generation {
            return Err(refused(Class::Conflict, "StaleGeneration"));
        }
        if let Some(known) = host.operations.get(&order.id) {
            if known.digest != order.digest {
                return Err(refused(Class::Terminal, "IdReused"));
            }
            host.generation = order.generation;
            return Ok(known.operation.clone());
        }
        let nature = order.nature();
        if nature.disturbs && host.maintenance.is_some() {
            return Err(refused(Class::Conflict, "Maintenance"));
        }
        let running = |known: &Known| {
            !has_ended(&known.operation) && slipway_agent_api::order::nature(&known.verb).exclusive
        };
        if nature.exclusive && host.operations.values().any(running) {
            return Err(refused(Class::Conflict, "Busy"));
        }
        host.generation = order.generation;
        Ok(self.begin(host, &order, self.clock.now().as_millisecond()))
    }
}

impl SimulatedHost {
    /// It reboots: from a while after it was told to until that has ended.
    pub fn is_away(&self, now: i64) -> bool {
        self.is_off
            || self.operations.values().any(|known| {
                let is_away = known
                    .away_from
                    .is_some_and(|from| (from..known.ends_at).contains(&now));
                is_away && !has_ended(&known.operation)
            })
    }

    /// Whether it fetches an image for a job.
    pub fn fetches(&self, job: &str) -> bool {
        self.operations.values().any(|known| {
            matches!(known.verb, Verb::Ensure(_))
                && known.operation.id.contains(job)
                && !has_ended(&known.operation)
        })
    }

    /// The verbs of its operations, by when they were taken.
    pub fn ran(&self) -> Vec<String> {
        let mut ran: Vec<_> = self.operations.values().map(|known| &known.operation).collect();
        ran.sort_by_key(|operation| operation.accepted_at);
        ran.iter().map(|operation| operation.verb.clone()).collect()
    }

    /// Which versions kubeadm was told to apply; nothing where it was told to take the cluster's.
    pub fn applied(&self) -> Vec<String> {
        let step = |known: &Known| match &known.verb {
            Verb::KubernetesStep(proto::KubernetesStep {
                step: Some(Step::KubeadmUpgrade(upgrade)),
            }) => Some(upgrade.apply_version.clone()),
            _ => None,
        };
        self.operations.values().filter_map(step).collect()
    }

    /// A cloud starts it with a disk of this image. One that does not boot stays away.
    pub fn boots(&mut self, digest: &str) {
        self.slots = [Some(digest.to_owned()), None];
        self.booted = 0;
        self.is_off = self.does_not_boot && digest != OLD;
    }

    /// The image that runs, by the digest of orders.
    pub fn runs(&self) -> &str {
        self.slots[self.booted].as_deref().unwrap_or_default()
    }

    /// What it holds for an upgrade: a slot, or an image in its cache.
    pub fn holds(&self, upgrade: &str) -> bool {
        let holds_slot = self.upgrades.iter().any(|known| {
            known.id == upgrade && matches!(known.state(), UpgradeState::Writing | UpgradeState::Prepared)
        });
        holds_slot || self.images.values().any(|owners| owners.contains(upgrade))
    }

    fn shown_slots(&self) -> Vec<proto::Slot> {
        let slot = |(number, held): (usize, &Option<String>)| proto::Slot {
            name: ["A", "B"][number].to_owned(),
            boot: if number == self.booted {
                "good"
            } else {
                "unbootable"
            }
            .to_owned(),
            image: held.as_deref().map(signed).unwrap_or_default(),
            version: held.as_deref().map(version_of).unwrap_or_default().to_owned(),
            kubelet_version: held.as_deref().map(version_of).unwrap_or_default().to_owned(),
            digests: held.iter().cloned().collect(),
        };
        self.slots.iter().enumerate().map(slot).collect()
    }

    fn upgrade(&mut self, id: &str) -> Option<&mut proto::Upgrade> {
        self.upgrades.iter_mut().rfind(|known| known.id == id)
    }

    /// What happens as soon as an order is taken; the problem of one that fails at once.
    fn begin_upgrade(&mut self, verb: &Verb) -> Option<Problem> {
        match verb {
            Verb::Ensure(ensure) => {
                let image = ensure.image.as_ref();
                if image.is_some_and(|image| self.unusable.contains(&image.digest)) {
                    return Some(refused(Class::Terminal, "NotUsable"));
                }
            }
            Verb::Prepare(prepare) => {
                if !self.images.contains_key(&prepare.digest) {
                    return Some(refused(Class::Terminal, "NotCached"));
                }
                if self.quarantined.contains_key(&prepare.digest) {
                    return Some(refused(Class::Terminal, "ImageRefused"));
                }
                let is_held = |known: &proto::Upgrade| {
                    known.id != prepare.upgrade
                        && matches!(
                            known.state(),
                            UpgradeState::Writing | UpgradeState::Prepared | UpgradeState::Armed
                        )
                };
                if self.upgrades.iter().any(is_held) {
                    return Some(refused(Class::Transient, "Refused"));
                }
                self.slots[1 - self.booted] = Some(prepare.digest.clone());
                self.upgrades.push(proto::Upgrade {
                    id: prepare.upgrade.clone(),
                    image: signed(&prepare.digest),
                    version: version_of(&prepare.digest).to_owned(),
                    slot: ["A", "B"][1 - self.booted].to_owned(),
                    state: UpgradeState::Writing.into(),
                    reason: String::new(),
                    digests: vec![prepare.digest.clone()],
                });
            }
            Verb::Arm(arm) => {
                let Some(upgrade) = self.upgrade(&arm.upgrade) else {
                    return Some(refused(Class::Terminal, "Refused"));
                };
                if upgrade.state() == UpgradeState::Prepared {
                    upgrade.set_state(UpgradeState::Armed);
                    self.arms += 1;
                }
            }
            _ => {}
        }
        None
    }

    /// What an order has done when it ends.
    fn end(&mut self, verb: &Verb) {
        match verb {
            Verb::Wipe(_) => {
                self.occupant = None;
                self.holds_alone = false;
            }
            Verb::Ensure(ensure) => {
                let digest = ensure.image.as_ref().map(|image| image.digest.clone());
                let owners = self.images.entry(digest.unwrap_or_default()).or_default();
                owners.insert(ensure.pin_owner.clone());
            }
            Verb::Unpin(unpin) => {
                if let Some(owners) = self.images.get_mut(&unpin.digest) {
                    owners.remove(&unpin.owner);
                }
            }
            Verb::Prepare(prepare) => {
                if let Some(upgrade) = self.upgrade(&prepare.upgrade) {
                    upgrade.set_state(UpgradeState::Prepared);
                }
            }
            Verb::GiveUp(given_up) => {
                let upgrade = self.upgrade(&given_up.upgrade);
                if let Some(upgrade) = upgrade
                    .filter(|known| matches!(known.state(), UpgradeState::Writing | UpgradeState::Prepared))
                {
                    upgrade.set_state(UpgradeState::GivenUp);
                }
            }
            Verb::Arm(arm) => self.boot_other(&arm.upgrade),
            Verb::Rollback(rollback) => {
                let image = self.runs().to_owned();
                self.upgrades.push(proto::Upgrade {
                    id: format!("rollback-{}", self.upgrades.len()),
                    image: signed(&image),
                    state: UpgradeState::RolledBack.into(),
                    reason: rollback.reason.clone(),
                    ..proto::Upgrade::default()
                });
                self.quarantined.insert(image, rollback.reason.clone());
                self.booted = 1 - self.booted;
            }
            _ => {}
        }
    }

    fn boot_other(&mut self, id: &str) {
        let (does_not_boot, target) = (self.does_not_boot, 1 - self.booted);
        let image = self.slots[target].clone().unwrap_or_default();
        let Some(upgrade) = self.upgrade(id) else {
            return;
        };
        if does_not_boot {
            let reason = "slot B did not come up in 3 tries";
            upgrade.set_state(UpgradeState::RolledBack);
            reason.clone_into(&mut upgrade.reason);
            self.quarantined.insert(image, reason.to_owned());
        } else {
            upgrade.set_state(UpgradeState::Confirmed);
            self.booted = target;
        }
    }
}

/// What has ended by now.
fn settle(host: &mut SimulatedHost, now: i64) {
    let mut ended = Vec::new();
    for known in host.operations.values_mut() {
        if has_ended(&known.operation) || known.ends_at > now {
            continue;
        }
        known.operation.ended_at = known.ends_at;
        if known.fails {
            known.operation.set_state(OperationState::Failed);
            "command 1 of 1 exited with 1".clone_into(&mut known.operation.message);
            continue;
        }
        known.operation.set_state(OperationState::Succeeded);
        ended.push((known.ends_at, known.verb.clone()));
    }
    ended.sort_by_key(|(at, _)| *at);
    for (_, verb) in ended {
        host.end(&verb);
    }
}

#[async_trait]
impl Hosts for SimulatedHosts {
    async fn inventory(&self, host: &HostAddress) -> Result<proto::Host, Problem> {
        self.call(host, "GetHost", false, |found| {
            Ok(proto::Host {
                name: host.name.clone(),
                boot_id: "1".to_owned(),
                generation: found.generation,
                maintenance: found.maintenance.as_ref().map(|reason| proto::Maintenance {
                    by: "ada".to_owned(),
                    reason: reason.clone(),
                    since: 1,
                }),
                hardware: Some(proto::Hardware {
                    architecture: "x86_64".to_owned(),
                    processors: found.processors,
                    memory_bytes: u64::from(found.processors) << 30,
                    ..proto::Hardware::default()
                }),
                booted_slot: ["A", "B"][found.booted].to_owned(),
                slots: found.shown_slots(),
                upgrades: found.upgrades.clone(),
                quarantined: found
                    .quarantined
                    .iter()
                    .map(|(digest, reason)| proto::QuarantinedImage {
                        digest: signed(digest),
                        reason: reason.clone(),
                        digests: vec![digest.clone()],
                    })
                    .collect(),
                addresses: vec![format!("198.18.0.{}", found.processors)],
                ..proto::Host::default()
            })
        })
        .await
    }

    async fn operation(&self, host: &HostAddress, id: &str) -> Result<Option<Operation>, Problem> {
        self.call(host, "GetOperation", false, |found| {
            Ok(found.operations.get(id).map(|known| known.operation.clone()))
        })
        .await
    }

    async fn operations(&self, host: &HostAddress) -> Result<Vec<Operation>, Problem> {
        self.call(host, "ListOperations", false, |found| {
            Ok(found
                .operations
                .values()
                .map(|known| known.operation.clone())
                .collect())
        })
        .await
    }

    async fn images(&self, host: &HostAddress) -> Result<Vec<proto::Image>, Problem> {
        self.call(host, "ListImages", false, |found| {
            let image = |(digest, owners): (&String, &BTreeSet<String>)| proto::Image {
                digest: digest.clone(),
                slot_image: signed(digest),
                users: owners
                    .iter()
                    .map(|owner| proto::ImageUser {
                        kind: "pin".to_owned(),
                        name: owner.clone(),
                        until: 0,
                    })
                    .collect(),
                ..proto::Image::default()
            };
            Ok(found.images.iter().map(image).collect())
        })
        .await
    }

    async fn start(&self, host: &HostAddress, order: StartRequest) -> Result<Operation, Problem> {
        self.call(host, "Start", true, |found| self.accept(found, &host.name, order))
            .await
    }

    async fn cancel(&self, host: &HostAddress, id: &str, generation: u64) -> Result<Operation, Problem> {
        self.call(host, "CancelOperation", true, |found| {
            if generation < found.generation {
                return Err(refused(Class::Conflict, "StaleGeneration"));
            }
            found.generation = generation;
            let now = self.clock.now().as_millisecond();
            let known = found.operations.get_mut(id);
            let known = known.ok_or_else(|| refused(Class::Terminal, "UnknownOperation"))?;
            if !has_ended(&known.operation) {
                known.operation.set_state(OperationState::Cancelled);
                known.operation.ended_at = now;
            }
            Ok(known.operation.clone())
        })
        .await
    }

    fn forget(&self, _: &str) {}
}
