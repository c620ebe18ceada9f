//! Any order of what users do and what Cluster API lets happen, each under a sample of all faults: the process dies between two
//! writes, watches lag, break and reorder. Whatever happened, every pod runs in the end, and claims, Machines and replicas are
//! one to one. `SLIPWAY_TEST_FULL=1` plays more schedules.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_kit::{
    journey::Surroundings,
    objects::{delete, find, holds, is_deleting, name, of_kind},
    sweep::{Extent, Scenario, World, sweep},
};
use slipway_runtime::{Clock, controller::Registration};

use super::cluster::{KEPT, Life, count, run};
use crate::world::Random;

const EVENTS: usize = 8;
const APP: &str = "shop";
/// Five nodes of two pods each are the limit, so all of them find room on nodes that are never tidied up.
const MOST_PODS: usize = 6;
/// In a schedule with a budget.
const AVAILABLE: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// So many pods are desired.
    Pods(usize),
    Mood(&'static str),
    /// The MachineDeployment is paused, or goes on.
    Pause(bool),
    /// A claim is deleted once all pods run.
    DeleteClaim,
    /// A claim is deleted whatever is going on.
    DeleteClaimNow,
    /// A health check or somebody deletes a Machine.
    DeleteMachine,
    /// Somebody lowers replicas.
    Lower,
}

/// One schedule. Where a budget is to hold, nobody but the autoscaler takes nodes away.
#[derive(Clone, Debug)]
struct Schedule {
    has_budget: bool,
    events: Vec<(Event, Duration)>,
    pods: usize,
}

impl Schedule {
    fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let has_budget = seed.is_multiple_of(2);
        let mut pods = 1 + AVAILABLE + random.below(MOST_PODS - AVAILABLE);
        let mut events = vec![(Event::Pods(pods), Duration::from_secs(random.below(60) as u64))];
        for _ in 0..EVENTS {
            let event = match random.below(10) {
                0 | 1 => {
                    pods = 1 + AVAILABLE + random.below(MOST_PODS - AVAILABLE);
                    Event::Pods(pods)
                }
                2..=4 => Event::Mood(["", "away", "slow", "erratic", "erratic"][random.below(5)]),
                5 => Event::Pause(random.below(2) == 0),
                6 | 7 if has_budget => Event::DeleteClaim,
                6 | 7 => Event::DeleteClaimNow,
                8 if !has_budget => Event::DeleteMachine,
                9 if !has_budget => Event::Lower,
                _ => Event::Mood(""),
            };
            let waits = [0, 1, 5, 30, 120, 400][random.below(6)];
            events.push((event, Duration::from_secs(waits)));
        }
        Schedule {
            has_budget,
            events,
            pods,
        }
    }
}

struct Played {
    name: &'static str,
    seed: u64,
    schedule: Schedule,
    life: Mutex<Option<Arc<Life>>>,
}

impl Played {
    fn of(seed: u64) -> Self {
        let schedule = Schedule::of(seed);
        Played {
            // A test's few names live as long as it.
            name: format!("autoscaler: schedule {seed} {:?}", schedule.events).leak(),
            seed,
            schedule,
            life: Mutex::new(None),
        }
    }

    fn life(&self) -> Arc<Life> {
        self.life.lock().clone().expect("prepare makes it")
    }

    async fn play(&self, life: &Life, world: &World) {
        life.found(5, "5").await;
        life.budget(APP, 0, if self.schedule.has_budget { AVAILABLE } else { 0 })
            .await;
        let mut random = Random::new(self.seed);
        let mut desired = 0;
        for (event, waits) in &self.schedule.events {
            match event {
                Event::Pods(pods) => {
                    desired = *pods;
                    let kept = json!({"metadata": {"annotations": {KEPT: pods.to_string()}}});
                    life.merge("PodDisruptionBudget", APP, kept).await;
                }
                Event::Mood(mood) => life.feel(mood).await,
                Event::Pause(paused) => pause(life, *paused).await,
                Event::DeleteClaim => {
                    life.feel("").await;
                    pause(life, false).await;
                    // Pods that were given up a moment ago may still be counted by the budget, as by a real one: nothing that is
                    // evicted then is the autoscaler's doing.
                    world
                        .until("all pods run, and are counted", |objects| {
                            let budget = find(objects, "PodDisruptionBudget", APP);
                            let counted =
                                budget.and_then(|budget| budget["status"]["currentHealthy"].as_u64());
                            run(objects, desired) && counted == u64::try_from(desired).ok()
                        })
                        .await;
                    delete_one(life, "NodeClaim", &mut random).await;
                }
                Event::DeleteClaimNow => delete_one(life, "NodeClaim", &mut random).await,
                Event::DeleteMachine => delete_one(life, "Machine", &mut random).await,
                Event::Lower => lower(life).await,
            }
            tokio::time::sleep(*waits).await;
        }
        life.feel("").await;
        pause(life, false).await;
        let pods = self.schedule.pods;
        world
            .until("all pods run, one to one", |objects| {
                run(objects, pods) && one_to_one(objects)
            })
            .await;
    }
}

async fn pause(life: &Life, paused: bool) {
    let paused = if paused { json!("true") } else { json!(null) };
    let annotation = json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": paused}}});
    life.merge("MachineDeployment", "general", annotation).await;
}

async fn delete_one(life: &Life, kind: &str, random: &mut Random) {
    let objects: Vec<Value> = life.server.look(<[Value]>::to_vec);
    let all: Vec<&Value> = of_kind(&objects, kind).filter(|one| !is_deleting(one)).collect();
    if let Some(one) = all.get(random.below(all.len())) {
        delete(&life.server, one).await;
    }
}

async fn lower(life: &Life) {
    let objects: Vec<Value> = life.server.look(<[Value]>::to_vec);
    let deployment = find(&objects, "MachineDeployment", "general").expect("it is there");
    let replicas = deployment["spec"]["replicas"].as_i64().unwrap_or(0);
    let lower = json!({"spec": {"replicas": (replicas - 1).max(0)}});
    life.merge("MachineDeployment", "general", lower).await;
}

/// Every claim is ready, and there is nothing that no claim stands for.
fn one_to_one(objects: &[Value]) -> bool {
    let claims = count(objects, "NodeClaim");
    let replicas: i64 = of_kind(objects, "MachineDeployment")
        .filter_map(|one| one["spec"]["replicas"].as_i64())
        .sum();
    of_kind(objects, "NodeClaim").all(|claim| holds(claim, "Ready") && !is_deleting(claim))
        && count(objects, "Machine") == claims
        && count(objects, "Node") == claims
        && usize::try_from(replicas) == Ok(claims)
}

impl Scenario for Played {
    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&self, server: &Apiserver, clock: Clock) {
        *self.life.lock() = Some(Arc::new(Life::new(server, clock)));
    }

    fn controllers(&self, world: &World) -> Vec<Registration> {
        self.life().controllers(&world.faults)
    }

    fn user<'a>(&'a self, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let life = self.life();
            tokio::spawn(life.play());
            self.play(&life, world).await;
        }
        .boxed()
    }

    fn is_ordered(&self) -> bool {
        false
    }

    fn another(&self) -> Option<Arc<dyn Scenario>> {
        Some(Arc::new(Played::of(self.seed)))
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        self.life().invariants(objects)
    }

    /// How many nodes there are is nobody's promise; that nothing is left over is.
    fn end_state(&self, world: &World) -> Value {
        world.server.look(|objects| {
            let pods: Vec<&str> = of_kind(objects, "Pod").map(name).collect();
            json!({"pods": pods.len(), "run": run(objects, pods.len()), "one to one": one_to_one(objects)})
        })
    }
}

#[test]
fn any_order_of_events_ends_one_to_one() {
    let is_full = std::env::var_os("SLIPWAY_TEST_FULL").is_some();
    let (schedules, runs) = if is_full { (200, 20) } else { (3, 6) };
    let mut played = 0;
    for seed in 0..schedules {
        let scenario: Arc<dyn Scenario> = Arc::new(Played::of(seed));
        let report = sweep(&scenario, Extent::Runs(runs));
        report.assert_clean();
        played += report.runs;
    }
    println!(
        "report: autoscaler: {schedules} schedules of events in {played} runs, all one to one in the end"
    );
}
