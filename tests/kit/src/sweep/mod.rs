//! The fault sweep: one scenario, every external call, every fault, the same end.
//!
//! A scenario is run without faults to count its calls. Then, for each call and each [`Fault`], it is run again in
//! virtual time until nothing moves, and must end in the same state, with its invariants holding after every
//! change and without storms of calls. Providers write scenarios; the rest is here.

mod points;
mod run;

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use slipway_runtime::{Clock, controller::Registration};

use slipway_apiserver_sim::{
    Apiserver,
    faults::{Called, Fault, Faults},
};

pub use points::Extent;
use points::{calls_to_fault, points, seed_of};
use run::{Run, run_once};

/// How many calls are shown of a run that waited in vain.
const SHOWN_CALLS: usize = 100;

/// What a run happens in. A scenario that needs more of a world (ARM, hosts) builds it in
/// [`Scenario::controllers`] from [`World::faults`], so that those calls are counted and faulted too.
#[derive(Clone)]
pub struct World {
    pub server: Apiserver,
    pub clock: Clock,
    pub faults: Faults,
    begins: Arc<AtomicUsize>,
}

impl World {
    /// From here on calls meet faults. What came before is the way to where the scenario begins, and has a scenario of
    /// its own.
    pub fn begin(&self) {
        self.begins.store(self.faults.calls(), Ordering::SeqCst);
    }

    /// Waits, in virtual time, until the objects are as desired. Gives up after a virtual day.
    pub async fn until(&self, what: &str, reached: impl Fn(&[Value]) -> bool) {
        for _ in 0..24 * 60 * 12 {
            if self.server.look(&reached) {
                return;
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        if std::env::var_os("SLIPWAY_SWEEP").is_some() {
            self.tell();
        }
        panic!("after a day of virtual time still not: {what}");
    }

    /// What whoever runs one point again wants to see: the last calls, and which conditions of every object are not met.
    fn tell(&self) {
        let calls = self.faults.log();
        for (index, call) in calls
            .iter()
            .enumerate()
            .skip(calls.len().saturating_sub(SHOWN_CALLS))
        {
            eprintln!("{index:5} at {:5} {}", call.version, call.line);
        }
        self.server.look(|objects| {
            for object in objects {
                let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
                for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
                    if condition["status"] != "True" {
                        eprintln!("{kind} {name}: {condition}");
                    }
                }
            }
            true
        });
    }
}

/// A user's journey, and what must always hold on the way.
pub trait Scenario: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// When it begins. One that goes on from a [`Snapshot`](slipway_apiserver_sim::Snapshot) begins when that was taken.
    fn begins_at(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_hours(24 * 365)
    }

    /// Installs kinds and webhooks, and whatever is there before the controllers start.
    fn prepare(&self, server: &Apiserver, clock: Clock);

    /// The controllers of one process. Called for each start.
    fn controllers(&self, world: &World) -> Vec<Registration>;

    /// What the user does, with a client that never fails.
    fn user<'a>(&'a self, world: &'a World) -> BoxFuture<'a, ()>;

    /// Whether two runs make the same calls in the same order. Several controllers may meet in another order each time;
    /// then only the ends are compared.
    fn is_ordered(&self) -> bool {
        true
    }

    /// The same scenario with a world of its own, for runs side by side. Without one, runs follow each other.
    fn another(&self) -> Option<Arc<dyn Scenario>> {
        None
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

/// What a sweep came to.
#[derive(Debug, Default)]
pub struct Report {
    pub scenario: &'static str,
    /// Calls that meet faults, where everything is run.
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

/// Runs the scenario under every fault at every call where everything is desired (`cargo xtask test --full`,
/// `SLIPWAY_TEST_FULL`), at every n-th with `SLIPWAY_SWEEP_SHARE=k/n`, and otherwise in so many runs.
pub fn sweep_sampled(scenario: &Arc<dyn Scenario>, runs: usize) -> Report {
    sweep(scenario, asked_for().unwrap_or(Extent::Runs(runs)))
}

fn asked_for() -> Option<Extent> {
    if let Ok(share) = std::env::var("SLIPWAY_SWEEP_SHARE") {
        let (part, parts) = share.split_once('/').expect("SLIPWAY_SWEEP_SHARE is k/n");
        let number = |text: &str| text.parse().expect("SLIPWAY_SWEEP_SHARE is k/n");
        return Some(Extent::Share(number(part), number(parts)));
    }
    std::env::var_os("SLIPWAY_TEST_FULL").map(|_| Extent::All)
}

/// Runs the scenario under faults. `SLIPWAY_SWEEP=call:Fault` runs a single one again, and `SLIPWAY_SWEEP=calls` only
/// prints what is called.
pub fn sweep(scenario: &Arc<dyn Scenario>, extent: Extent) -> Report {
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
    let mut calls = calls_to_fault(&baseline.calls, baseline.begins);
    if let Extent::At(beginning) = extent {
        calls.retain(|call| baseline.calls[*call].line.starts_with(beginning));
    }
    report.calls = calls.len();
    let only = std::env::var("SLIPWAY_SWEEP").ok();
    if only.as_deref() == Some("calls") {
        print_calls(&baseline.calls, &calls);
        return report;
    }
    let again = run_once(scenario, None);
    if let Some(difference) = other_run(scenario.as_ref(), &baseline, &again) {
        report
            .failures
            .push(format!("two runs without faults differ: {difference}"));
        return report;
    }
    let chosen = match &only {
        Some(only) => every_named(&baseline.calls, only),
        None => points(&calls, extent, seed_of(scenario.name())),
    };
    report.runs += chosen.len();
    let workers = if extent == Extent::All || matches!(extent, Extent::Share(..)) {
        std::thread::available_parallelism().map_or(1, usize::from)
    } else {
        // The test program already runs its tests side by side.
        1
    };
    report.failures = run_all(scenario, &baseline, &chosen, workers);
    report.seconds = started.elapsed().as_secs_f64();
    report
}

/// The points a seed names.
fn every_named(calls: &[Called], seed: &str) -> Vec<(usize, Fault)> {
    (0..calls.len())
        .flat_map(|call| Fault::ALL.map(|fault| (call, fault)))
        .filter(|(call, fault)| format!("{call}:{fault}") == seed)
        .collect()
}

fn print_calls(calls: &[Called], faulted: &[usize]) {
    for (index, call) in calls.iter().enumerate() {
        let mark = if faulted.contains(&index) { ' ' } else { '-' };
        println!("{mark} {index:5} at {:5} {}", call.version, call.line);
    }
}

/// Runs every point, by several workers where the scenario can be had more than once, and gives what diverged in order.
fn run_all(
    scenario: &Arc<dyn Scenario>,
    baseline: &Run,
    chosen: &[(usize, Fault)],
    workers: usize,
) -> Vec<String> {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = |scenario: &Arc<dyn Scenario>| {
        loop {
            let index = next.fetch_add(1, Ordering::SeqCst);
            let Some((call, fault)) = chosen.get(index) else {
                return;
            };
            let run = run_once(scenario, Some((*call, *fault)));
            if let Some(failure) = judge(baseline, &run) {
                let line = baseline.calls.get(*call).map_or("", |call| call.line.as_str());
                let failure = format!("SLIPWAY_SWEEP={call}:{fault} ({line}): {failure}");
                // A full sweep takes long: what it finds is told when it is found.
                eprintln!("{}: {failure}", scenario.name());
                failures.lock().push((index, failure));
            }
        }
    };
    let others: Vec<Arc<dyn Scenario>> = (1..workers).filter_map(|_| scenario.another()).collect();
    std::thread::scope(|scope| {
        for other in &others {
            scope.spawn(|| work(other));
        }
        work(scenario);
    });
    let mut failures = failures.into_inner();
    failures.sort();
    failures.into_iter().map(|(_, failure)| failure).collect()
}

/// Runs the scenario once without faults and gives what `take` takes from the world at its end.
pub fn play<T>(scenario: &Arc<dyn Scenario>, take: impl FnOnce(&World) -> T) -> T {
    run::play(scenario, take)
}

fn other_run(scenario: &dyn Scenario, baseline: &Run, again: &Run) -> Option<String> {
    if scenario.is_ordered() {
        let lines = |run: &Run| -> Vec<String> { run.calls.iter().map(|call| call.line.clone()).collect() };
        let (left, right) = (lines(baseline), lines(again));
        if let Some(index) = (0..left.len().max(right.len())).find(|at| left.get(*at) != right.get(*at)) {
            let (left, right) = (left.get(index), right.get(index));
            return Some(format!("call {index}: {left:?} and {right:?}"));
        }
    }
    (again.end != baseline.end).then(|| difference(&baseline.end, &again.end))
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

/// Where two states differ, as JSON pointers.
fn difference(expected: &Value, found: &Value) -> String {
    let mut text = String::new();
    for operation in json_patch::diff(expected, found).0.iter().take(5) {
        let _ = write!(text, "{}; ", serde_json::to_string(operation).unwrap_or_default());
    }
    text
}
