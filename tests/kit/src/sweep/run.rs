//! One run of a scenario: a runtime of its own, virtual time, and processes that come back after each fault that ends them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::Value;
use slipway_apiserver_sim::{
    Apiserver,
    faults::{Called, Ending, Fault, Faults},
};
use slipway_runtime::{Clock, Context};
use tokio::{runtime::Runtime, task::JoinSet};

use super::{Scenario, World};

/// How one run ended.
pub struct Run {
    pub end: Value,
    pub calls: Vec<Called>,
    /// The first call that meets faults.
    pub begins: usize,
    pub broken: Option<String>,
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime without threads always builds")
}

/// One run in a runtime of its own, in virtual time.
pub fn run_once(scenario: &Arc<dyn Scenario>, fault: Option<(usize, Fault)>) -> Run {
    let runtime = runtime();
    // A scenario that waits in vain panics: that is this run's result, and the sweep goes on.
    let run = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(drive(Arc::clone(scenario), fault, |world, broken| Run {
            end: scenario.end_state(world),
            calls: world.faults.log(),
            begins: world.begins.load(Ordering::SeqCst),
            broken,
        }))
    }));
    runtime.shutdown_background();
    run.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or(panic.downcast_ref::<&str>().copied())
            .unwrap_or("the scenario panicked");
        Run {
            end: Value::Null,
            calls: Vec::new(),
            begins: 0,
            broken: Some(text.to_owned()),
        }
    })
}

/// One run without faults, for what it leads to.
pub fn play<T>(scenario: &Arc<dyn Scenario>, take: impl FnOnce(&World) -> T) -> T {
    let runtime = runtime();
    let taken = runtime.block_on(drive(Arc::clone(scenario), None, |world, broken| {
        assert_eq!(broken, None, "{} without any fault", scenario.name());
        take(world)
    }));
    runtime.shutdown_background();
    taken
}

async fn drive<T>(
    scenario: Arc<dyn Scenario>,
    fault: Option<(usize, Fault)>,
    end: impl FnOnce(&World, Option<String>) -> T,
) -> T {
    let clock = Clock::starting_at(scenario.begins_at());
    let server = Apiserver::new(clock);
    scenario.prepare(&server, clock);
    let faults = match fault {
        Some((call, fault)) => Faults::none().at(call, fault),
        None => Faults::none(),
    };
    let world = World {
        server: server.clone(),
        clock,
        faults: faults.clone(),
        begins: Arc::default(),
    };
    let broken = Arc::new(Mutex::new(None));
    server.observe_changes({
        let (scenario, broken) = (Arc::clone(&scenario), Arc::clone(&broken));
        move |objects| {
            if let Err(what) = scenario.invariants(objects) {
                broken.lock().get_or_insert(format!("invariant broken: {what}"));
            }
        }
    });
    let processes = tokio::spawn(keep_running(Arc::clone(&scenario), world.clone()));
    scenario.user(&world).await;
    if !settle(&world).await {
        broken.lock().get_or_insert("it never comes to rest".to_owned());
    }
    processes.abort();
    let broken = broken.lock().take();
    end(&world, broken)
}

/// Runs the process under test, and another one after each that a fault ended.
async fn keep_running(scenario: Arc<dyn Scenario>, world: World) {
    for seed in 0.. {
        let world = World {
            faults: world.faults.of_another_process(),
            ..world.clone()
        };
        let client = world.server.client_with(world.faults.clone());
        let mut context = Context::for_tests(client, seed);
        context.clock = world.clock;
        let shutdown = context.shutdown.clone();
        let mut tasks = JoinSet::new();
        for registration in scenario.controllers(&world) {
            tasks.spawn((registration.run)(context.clone()));
        }
        drop(context);
        match world.faults.ending().await {
            Ending::Crash => tasks.abort_all(),
            Ending::LeadershipLost => shutdown.cancel(),
        }
        while tasks.join_next().await.is_some() {}
        shutdown.cancel();
        // The next process starts after the lease of this one ran out.
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

/// Longer than any backoff lasts: the queue's longest is a thousand seconds.
const QUIET_MINUTES: usize = 20;

/// Waits until nothing has been written for longer than any backoff lasts. `false` where that never comes.
async fn settle(world: &World) -> bool {
    let (mut version, mut quiet) = (world.server.version(), 0);
    for _ in 0..200 * QUIET_MINUTES {
        // Counted, not measured: a clock that jumps is no quiet time.
        tokio::time::sleep(Duration::from_mins(1)).await;
        if world.faults.calls() > MANY_CALLS {
            return false;
        }
        quiet += 1;
        if world.server.version() != version {
            (version, quiet) = (world.server.version(), 0);
        }
        if quiet == QUIET_MINUTES {
            return true;
        }
    }
    false
}

/// Nothing here needs so many.
const MANY_CALLS: usize = 100_000;
