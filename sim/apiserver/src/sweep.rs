//! The fault sweep: one scenario, every external call, every fault, the same end.
//!
//! A scenario is run without faults to count its calls. Then, for each call and each [`Fault`], it is run again in
//! virtual time until nothing moves, and must end in the same state, with its invariants holding after every
//! change and without storms of calls. Providers write scenarios; the rest is here.

use std::{
    fmt::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;
use slipway_runtime::{Clock, Context, controller::Registration};
use tokio::task::JoinSet;

use crate::{
    Apiserver,
    faults::{Ending, Fault, Faults},
};

/// What a run happens in. A scenario that needs more of a world (ARM, hosts) builds it in
/// [`Scenario::controllers`] from [`World::faults`], so that those calls are counted and faulted too.
#[derive(Clone)]
pub struct World {
    pub server: Apiserver,
    pub clock: Clock,
    pub faults: Faults,
}

impl World {
    /// Waits, in virtual time, until the objects are as wanted. Gives up after a virtual day.
    pub async fn until(&self, what: &str, reached: impl Fn(&[Value]) -> bool) {
        for _ in 0..24 * 60 * 12 {
            if reached(&self.server.objects()) {
                return;
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        panic!("after a day of virtual time still not: {what}");
    }
}

/// A user's journey, and what must always hold on the way.
pub trait Scenario: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// Installs kinds and webhooks, and whatever is there before the controllers start.
    fn prepare(&self, server: &Apiserver);

    /// The controllers of one process. Called anew for each start.
    fn controllers(&self, world: &World) -> Vec<Registration>;

    /// What the user does, with a client that never fails.
    fn user<'a>(&'a self, world: &'a World) -> BoxFuture<'a, ()>;

    /// Which calls meet faults: from this one on. Asked after the run without faults; what comes before is the way to
    /// where the scenario begins, and has a scenario of its own.
    fn first_call(&self) -> usize {
        0
    }

    /// Whether two runs make the same calls in the same order. Several controllers may meet in another order each time;
    /// then only the ends are compared.
    fn is_ordered(&self) -> bool {
        true
    }

    /// What must hold after every change; the error says what does not.
    fn invariants(&self, _objects: &[Value]) -> Result<(), String> {
        Ok(())
    }

    /// The end that counts: what of it differs between two good runs is taken out.
    fn end_state(&self, world: &World) -> Value {
        Value::Array(world.server.objects().into_iter().map(normalised).collect())
    }
}

/// An object without what legitimately differs between two good runs.
pub fn normalised(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in [
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "managedFields",
        ] {
            metadata.remove(field);
        }
        for owner in metadata
            .get_mut("ownerReferences")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(owner) = owner.as_object_mut() {
                owner.remove("uid");
            }
        }
    }
    drop_times(&mut object["status"]);
    object
}

fn drop_times(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|name, _| name != "lastTransitionTime" && name != "observedGeneration");
            map.values_mut().for_each(drop_times);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_times),
        _ => {}
    }
}

/// How one run ended.
struct Run {
    end: Value,
    calls: Vec<String>,
    broken: Option<String>,
}

/// What a sweep came to.
#[derive(Debug, Default)]
pub struct Report {
    pub scenario: &'static str,
    pub calls: usize,
    pub runs: usize,
    pub seconds: f64,
    pub failures: Vec<String>,
}

impl Report {
    /// Prints one line for the whole sweep, and fails the test with every divergence.
    pub fn assert_clean(&self) {
        println!(
            "report: fault sweep {}: {} calls x {} faults, {} runs in {:.1} s, {} divergences",
            self.scenario,
            self.calls,
            Fault::ALL.len(),
            self.runs,
            self.seconds,
            self.failures.len()
        );
        let shown: Vec<&str> = self.failures.iter().take(8).map(String::as_str).collect();
        assert!(
            self.failures.is_empty(),
            "{} of {} runs diverged:\n{}",
            self.failures.len(),
            self.runs,
            shown.join("\n")
        );
    }
}

/// A fault beyond this many calls of the fault-free run, times this, is a storm.
const CALLS_ALLOWED: usize = 4;

/// Runs the scenario under every fault at every call where everything is wanted (`cargo xtask test --full`), and
/// at every n-th point otherwise.
pub fn sweep_sampled(scenario: &Arc<dyn Scenario>, every: usize) -> Report {
    let full = std::env::var_os("SLIPWAY_TEST_FULL").is_some();
    sweep(scenario, if full { 1 } else { every })
}

/// Runs the scenario under every fault at every call. `sample` runs only every n-th point, for quick rounds;
/// `SLIPWAY_SWEEP=call:Fault` runs a single one again.
pub fn sweep(scenario: &Arc<dyn Scenario>, sample: usize) -> Report {
    let started = Instant::now();
    let mut report = Report {
        scenario: scenario.name(),
        ..Report::default()
    };
    let baseline = run_once(scenario, None);
    report.calls = baseline.calls.len();
    report.runs = 1;
    if let Some(broken) = baseline.broken {
        report.failures.push(format!("without any fault: {broken}"));
        return report;
    }
    let again = run_once(scenario, None);
    let other_calls = scenario.is_ordered() && again.calls != baseline.calls;
    if other_calls || again.end != baseline.end {
        let difference = if other_calls {
            first_difference(&baseline.calls, &again.calls)
        } else {
            difference(&baseline.end, &again.end)
        };
        report
            .failures
            .push(format!("two runs without faults differ: {difference}"));
        return report;
    }
    let only = std::env::var("SLIPWAY_SWEEP").ok();
    let mut point = 0;
    let first = scenario.first_call();
    report.calls = baseline.calls.len().saturating_sub(first);
    for call in first..baseline.calls.len() {
        for fault in Fault::ALL {
            point += 1;
            let seed = format!("{call}:{fault}");
            let chosen = match &only {
                Some(only) => *only == seed,
                // Shifted by the call, so that a sample has every fault in it whatever their number.
                None => (point + call) % sample.max(1) == 0,
            };
            if !chosen {
                continue;
            }
            report.runs += 1;
            let run = run_once(scenario, Some((call, fault)));
            if let Some(failure) = judge(&baseline, &run) {
                let line = baseline.calls.get(call).map_or("", String::as_str);
                report
                    .failures
                    .push(format!("SLIPWAY_SWEEP={seed} ({line}): {failure}"));
            }
        }
    }
    report.seconds = started.elapsed().as_secs_f64();
    report
}

fn judge(baseline: &Run, run: &Run) -> Option<String> {
    if let Some(broken) = &run.broken {
        return Some(broken.clone());
    }
    if run.end != baseline.end {
        return Some(format!(
            "another end state: {}",
            difference(&baseline.end, &run.end)
        ));
    }
    let allowed = baseline.calls.len() * CALLS_ALLOWED + 50;
    (run.calls.len() > allowed).then(|| format!("{} calls where {allowed} are allowed", run.calls.len()))
}

fn first_difference(left: &[String], right: &[String]) -> String {
    for index in 0..left.len().max(right.len()) {
        if left.get(index) != right.get(index) {
            return format!("call {index}: {:?} and {:?}", left.get(index), right.get(index));
        }
    }
    "the same calls, another end".to_owned()
}

/// Where two states differ, as JSON pointers.
fn difference(expected: &Value, found: &Value) -> String {
    let mut text = String::new();
    for operation in json_patch::diff(expected, found).0.iter().take(5) {
        let _ = write!(text, "{}; ", serde_json::to_string(operation).unwrap_or_default());
    }
    text
}

/// One run in a runtime of its own, in virtual time.
fn run_once(scenario: &Arc<dyn Scenario>, fault: Option<(usize, Fault)>) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime without threads always builds");
    // A scenario that waits in vain panics: that is this run's result, and the sweep goes on.
    let run = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(drive(Arc::clone(scenario), fault))
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
            broken: Some(text.to_owned()),
        }
    })
}

async fn drive(scenario: Arc<dyn Scenario>, fault: Option<(usize, Fault)>) -> Run {
    let clock = Clock::starting_at(jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_hours(24 * 365));
    let server = Apiserver::new(clock);
    scenario.prepare(&server);
    let faults = match fault {
        Some((call, fault)) => Faults::none().at(call, fault),
        None => Faults::none(),
    };
    let world = World {
        server: server.clone(),
        clock,
        faults: faults.clone(),
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
    settle(&world).await;
    let stormed = faults.calls() > 100_000;
    processes.abort();
    if stormed {
        broken.lock().get_or_insert("the calls never stop".to_owned());
    }
    let broken = broken.lock().take();
    Run {
        end: scenario.end_state(&world),
        calls: faults.log(),
        broken,
    }
}

/// Runs the process under test, and another one after each that a fault ended.
async fn keep_running(scenario: Arc<dyn Scenario>, world: World) {
    for seed in 0.. {
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

/// Waits until nothing has been written for longer than any backoff lasts.
async fn settle(world: &World) {
    for _ in 0..200 {
        let (version, calls) = (world.server.version(), world.faults.calls());
        tokio::time::sleep(Duration::from_mins(35)).await;
        if world.server.version() == version || world.faults.calls() > calls + 100_000 {
            return;
        }
    }
}
