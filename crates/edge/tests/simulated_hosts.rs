//! Hosts in memory and in virtual time, for worlds that are swept with faults: what an agent accepts and refuses, how long operations
//! take, and what is on a host. `host_suite` holds them and real agents to the same behaviours.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use slipway_agent_api::{
    Class, Problem,
    client::has_ended,
    order::Order,
    proto::{self, Operation, OperationState, StartRequest, start_request::Verb},
};
use slipway_apiserver_sim::faults::{Fate, Faults};
use slipway_edge::hosts::{HostAddress, Hosts};
use slipway_runtime::Clock;
use slipway_slots::Digest;

/// How long a host takes for its bootstrap data, and to be wiped.
const TAKES: Duration = Duration::from_secs(40);

#[derive(Clone, Debug, Default)]
pub struct SimulatedHost {
    generation: u64,
    operations: BTreeMap<String, Known>,
    pub maintenance: Option<String>,
    /// It does not answer.
    pub is_silent: bool,
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
    ends_at: i64,
    fails: bool,
}

/// All of them. Clones share them; each process has faults of its own.
#[derive(Clone)]
pub struct SimulatedHosts {
    pub hosts: Arc<Mutex<BTreeMap<String, SimulatedHost>>>,
    /// What must never happen and did.
    pub violations: Arc<Mutex<Vec<String>>>,
    clock: Clock,
    faults: Faults,
}

fn refused(class: Class, reason: &str) -> Problem {
    Problem::new(class, reason, format!("the host says {reason}"))
}

impl SimulatedHosts {
    pub fn new(clock: Clock) -> Self {
        Self {
            hosts: Arc::default(),
            violations: Arc::default(),
            clock,
            faults: Faults::none(),
        }
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
            ..SimulatedHost::default()
        };
        self.hosts.lock().insert(name.to_owned(), host);
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
        let (mut takes, mut fails) = (TAKES, false);
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
            ends_at: now + i64::try_from(takes.as_millis()).expect("a short time"),
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

/// What has ended by now.
fn settle(host: &mut SimulatedHost, now: i64) {
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
        if matches!(known.verb, Verb::Wipe(_)) {
            host.occupant = None;
        }
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
                booted_slot: "A".to_owned(),
                slots: vec![proto::Slot {
                    name: "A".to_owned(),
                    boot: "good".to_owned(),
                    ..proto::Slot::default()
                }],
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
