//! A second object that names the same Azure resources comes at every step of every journey, where a step is a request to
//! Azure. Whatever happens, nothing of an owner is written or deleted by the other.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use serde_json::Value;
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_azure_sim::State;
use slipway_kit::{
    journey::{Journey, Standing, Surroundings, User},
    sweep::{Extent, World},
};
use slipway_runtime::{Clock, controller::Registration};

use super::{
    ownership::{apply_rival, remove_rival, rival},
    surroundings::Life,
    sweep,
};

/// The request at which the rival comes; the test below runs its journeys one after the other.
static STEP: AtomicUsize = AtomicUsize::new(usize::MAX);
/// How many requests the last journey made.
static REQUESTS: AtomicUsize = AtomicUsize::new(0);
/// How often the rival came in the middle of a journey.
static CAME: AtomicUsize = AtomicUsize::new(0);

/// The surroundings of the sweep, in which a rival comes.
pub struct Beside(Arc<Life>);

impl Surroundings for Beside {
    type State = State;

    fn new(server: &Apiserver, clock: Clock) -> Self {
        Self(Arc::new(
            Life::new(server, clock).expecting_rival_at(STEP.load(Ordering::SeqCst)),
        ))
    }

    fn resume(server: &Apiserver, clock: Clock, state: &State) -> Self {
        let life = Life::resume(server, clock, state);
        Self(Arc::new(life.expecting_rival_at(STEP.load(Ordering::SeqCst))))
    }

    fn state(&self) -> State {
        self.0.state()
    }

    fn controllers(self: &Arc<Self>, faults: &Faults) -> Vec<Registration> {
        self.0.controllers(faults)
    }

    fn play(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        self.0.play()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        self.0.invariants(objects)
    }

    fn end_state(&self, _: Vec<Value>) -> Value {
        // Who came first decides what is left of the rival's own; what must hold are the invariants.
        self.0.end_state(Vec::new())["violation"].clone()
    }
}

/// What the user does, beside a rival that comes at its step, stays a while and is deleted.
async fn beside(life: &Life, world: &World, user: User<Life>) {
    let mut journey = user(life, world);
    tokio::select! {
        biased;
        () = life.rival_is_due() => {
            CAME.fetch_add(1, Ordering::SeqCst);
            apply_rival(&world.server).await;
            journey.await;
        }
        () = &mut journey => apply_rival(&world.server).await,
    }
    REQUESTS.store(life.requests(), Ordering::SeqCst);
    tokio::time::sleep(Duration::from_mins(20)).await;
    remove_rival(&world.server).await;
    world
        .until("the rival is gone", |objects| rival(objects).is_none())
        .await;
}

macro_rules! beside {
    ($name:ident, $journey:path) => {
        fn $name<'a>(surroundings: &'a Beside, world: &'a World) -> BoxFuture<'a, ()> {
            beside(&surroundings.0, world, $journey).boxed()
        }
    };
}

beside!(creation, sweep::creation);
beside!(scale, sweep::scale);
beside!(pool, sweep::pool);
beside!(upgrade, sweep::upgrade);
beside!(moved, sweep::moved);
beside!(deletion, sweep::deletion);
beside!(left_alone, sweep::left_alone);

fn standing<'a>(surroundings: &'a Beside, world: &'a World) -> BoxFuture<'a, ()> {
    sweep::creation(&surroundings.0, world)
}

static FLEET: Standing<Beside> = Standing::after(standing);

fn journeys() -> Vec<(&'static str, Journey<Beside>)> {
    vec![
        ("created", Journey::new("AKS: created beside a rival", creation)),
        (
            "scaled",
            Journey::from(&FLEET, "AKS: scaled beside a rival", scale),
        ),
        (
            "a pool comes and goes",
            Journey::from(&FLEET, "AKS: a pool beside a rival", pool),
        ),
        (
            "upgraded",
            Journey::from(&FLEET, "AKS: upgraded beside a rival", upgrade),
        ),
        (
            "left alone",
            Journey::from(&FLEET, "AKS: left alone beside a rival", left_alone),
        ),
        ("moved", Journey::from(&FLEET, "AKS: moved beside a rival", moved)),
        (
            "deleted",
            Journey::from(&FLEET, "AKS: deleted beside a rival", deletion),
        ),
    ]
}

#[test]
fn a_rival_at_every_step_of_every_journey_writes_nothing_of_another() {
    let full = std::env::var_os("SLIPWAY_TEST_FULL").is_some();
    let mut runs = 0;
    let mut failures = Vec::new();
    for index in 0..journeys().len() {
        STEP.store(usize::MAX, Ordering::SeqCst);
        let (name, journey) = journeys().swap_remove(index);
        failures.extend(journey.sweep(Extent::Baseline).failures);
        let requests = REQUESTS.load(Ordering::SeqCst);
        assert!(requests > 5, "{name}: {requests}");
        let steps: Vec<usize> = if full {
            (1..=requests).collect()
        } else {
            vec![requests / 3, requests * 3 / 4]
        };
        for step in steps {
            STEP.store(step, Ordering::SeqCst);
            let (_, journey) = journeys().swap_remove(index);
            let report = journey.sweep(Extent::Baseline);
            runs += 1;
            failures.extend(
                report
                    .failures
                    .into_iter()
                    .map(|failure| format!("{name}, step {step}: {failure}")),
            );
        }
    }
    let came = CAME.load(Ordering::SeqCst);
    println!(
        "report: rivals: {} journeys, {runs} steps, the rival came {came} times, {} foreign writes or divergences",
        journeys().len(),
        failures.len()
    );
    assert!(came >= runs, "{came} of {runs}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
