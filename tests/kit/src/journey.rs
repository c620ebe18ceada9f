//! Scenarios of the sweep made from journeys: what a user does in a provider's simulated world, often one that stands.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::Value;
use slipway_apiserver_sim::{Apiserver, Snapshot, faults::Faults};
use slipway_runtime::{Clock, controller::Registration};

use crate::sweep::{self, Extent, Report, Scenario, World};

/// What is around a provider's controllers besides the management cluster's apiserver: hosts, Azure, core.
pub trait Surroundings: Send + Sync + Sized + 'static {
    /// How they were at one moment.
    type State: Send + Sync + 'static;

    /// Installs the provider's kinds and begins with nothing.
    fn new(server: &Apiserver, clock: Clock) -> Self;

    /// Goes on from a moment, with the apiserver restored to the same one.
    fn resume(server: &Apiserver, clock: Clock, state: &Self::State) -> Self;

    fn state(&self) -> Self::State;

    /// The controllers of one process; calls to the surroundings go through `faults`.
    fn controllers(self: &Arc<Self>, faults: &Faults) -> Vec<Registration>;

    /// What core and the rest do by themselves while the user acts, for ever.
    fn play(self: &Arc<Self>) -> BoxFuture<'static, ()>;

    /// What must hold after every change.
    fn invariants(&self, objects: &[Value]) -> Result<(), String>;

    /// The end that counts, from objects without times and identities.
    fn end_state(&self, objects: Vec<Value>) -> Value;
}

/// What the user does.
pub type User<S> = for<'a> fn(&'a S, &'a World) -> BoxFuture<'a, ()>;

/// A world that stands and rests, made once by a journey of its own.
pub struct Standing<S: Surroundings> {
    made_by: User<S>,
    made: OnceLock<(Snapshot, S::State)>,
}

impl<S: Surroundings> Standing<S> {
    pub const fn after(made_by: User<S>) -> Self {
        Self {
            made_by,
            made: OnceLock::new(),
        }
    }

    fn get(&'static self) -> &'static (Snapshot, S::State) {
        self.made.get_or_init(|| {
            // In a thread of its own: whoever asks may be in a runtime already.
            let made = std::thread::spawn(|| {
                let journey = Arc::new(Journey::new("a world that stands", self.made_by));
                let scenario: Arc<dyn Scenario> = journey.clone();
                sweep::play(&scenario, |world| {
                    (world.server.snapshot(), journey.surroundings().state())
                })
            });
            made.join().expect("a world comes to stand")
        })
    }
}

/// One journey, to be swept.
pub struct Journey<S: Surroundings> {
    name: &'static str,
    begins_with: Option<&'static Standing<S>>,
    /// How long the controllers have to start and find that all is well, before the user acts and calls meet faults.
    settles: Option<Duration>,
    user: User<S>,
    surroundings: Mutex<Option<Arc<S>>>,
}

impl<S: Surroundings> Journey<S> {
    /// A journey that begins with nothing.
    pub fn new(name: &'static str, user: User<S>) -> Self {
        Self {
            name,
            begins_with: None,
            settles: None,
            user,
            surroundings: Mutex::new(None),
        }
    }

    /// A journey in a world that stands, once the controllers rest in it.
    pub fn from(standing: &'static Standing<S>, name: &'static str, user: User<S>) -> Self {
        Self {
            begins_with: Some(standing),
            settles: Some(Duration::from_mins(5)),
            ..Self::new(name, user)
        }
    }

    /// The controllers start over a world that stands, and leave it as it is.
    pub fn start_over(standing: &'static Standing<S>, name: &'static str) -> Self {
        Self {
            begins_with: Some(standing),
            ..Self::new(name, |_, _| futures::future::ready(()).boxed())
        }
    }

    pub fn sweep(self, extent: Extent) -> Report {
        let scenario: Arc<dyn Scenario> = Arc::new(self);
        sweep::sweep(&scenario, extent)
    }

    /// Sweeps a sample, or everything where that is asked for; nothing diverges.
    pub fn assert_clean(self) -> Report {
        self.assert_clean_by(18)
    }

    /// The same by another sample.
    pub fn assert_clean_by(self, sample: usize) -> Report {
        let scenario: Arc<dyn Scenario> = Arc::new(self);
        let report = sweep::sweep_sampled(&scenario, sample);
        report.assert_clean();
        assert!(report.calls > 10, "calls to every side are counted: {report:?}");
        report
    }

    /// The sweep is not blind to this: without any fault, a failure says so.
    pub fn assert_caught(self, what: &str) {
        let report = self.sweep(Extent::Baseline);
        assert!(
            report.failures.iter().any(|failure| failure.contains(what)),
            "{what}: {report:?}"
        );
    }

    fn surroundings(&self) -> Arc<S> {
        self.surroundings.lock().clone().expect("prepare makes them")
    }
}

impl<S: Surroundings> Scenario for Journey<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn begins_at(&self) -> Timestamp {
        match self.begins_with {
            Some(standing) => standing.get().0.at,
            None => Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 365),
        }
    }

    fn prepare(&self, server: &Apiserver, clock: Clock) {
        let surroundings = match self.begins_with {
            Some(standing) => {
                let (objects, state) = standing.get();
                server.restore(objects);
                S::resume(server, clock, state)
            }
            None => S::new(server, clock),
        };
        *self.surroundings.lock() = Some(Arc::new(surroundings));
    }

    /// Controllers of one provider are reconciled side by side.
    fn is_ordered(&self) -> bool {
        false
    }

    fn another(&self) -> Option<Arc<dyn Scenario>> {
        Some(Arc::new(Self {
            surroundings: Mutex::new(None),
            ..*self
        }))
    }

    fn controllers(&self, world: &World) -> Vec<Registration> {
        self.surroundings().controllers(&world.faults)
    }

    fn user<'a>(&'a self, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let surroundings = self.surroundings();
            tokio::spawn(surroundings.play());
            if let Some(settles) = self.settles {
                tokio::time::sleep(settles).await;
                world.begin();
            }
            (self.user)(&surroundings, world).await;
        }
        .boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        self.surroundings().invariants(objects)
    }

    fn end_state(&self, world: &World) -> Value {
        let objects = world.server.objects().into_iter().map(sweep::normalised);
        self.surroundings().end_state(objects.collect())
    }
}
