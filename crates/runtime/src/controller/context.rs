//! What a controller is given: every client of the outside. A test injects each of them.

use std::{fmt, sync::Arc};

use kube::Client;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{run::DynamicWatches, slot::Slot, trigger::Trigger};
use crate::{
    Answers, Clock, Events, Metrics, ObjectKey, Plans, Previews, Random, Settings,
    informer::{Informers, Object, Scope},
    lease::Leadership,
    preview,
    writes::Writes,
};

/// Everything outside that a controller reaches.
#[derive(Clone)]
pub struct Context {
    pub client: Client,
    pub clock: Clock,
    pub random: Random,
    pub metrics: Metrics,
    pub settings: Arc<Settings>,
    pub informers: Informers,
    pub events: Events,
    /// The last plan of every object, served on the diagnostics port.
    pub plans: Plans,
    /// The controllers that say what they would do with an object, asked on the diagnostics port.
    pub previews: Previews,
    /// Questions that providers answer there.
    pub answers: Answers,
    /// Cancelled when the manager stops. A reconcile in work is given time to end.
    pub shutdown: CancellationToken,
    /// Whether this process leads. Clients of other clusters ask it before they write.
    pub leadership: Leadership,
    /// Who this process is in its lease; nobody without one.
    pub identity: Option<Arc<str>>,
    /// What goes on beside the reconciles and has to end before the lease is given back.
    pub background: TaskTracker,
    pub(super) writes: Writes,
    pub(super) slot: Slot,
    pub(super) watches: Option<DynamicWatches>,
}

impl Context {
    /// A context on a client, with everything else as it is in production. Its parts may be replaced.
    pub fn new(client: Client, settings: Settings, metrics: Metrics, shutdown: CancellationToken) -> Self {
        let random = Random::system();
        Self {
            clock: Clock::system(),
            informers: Informers::new(
                client.clone(),
                metrics.clone(),
                random.clone(),
                shutdown.child_token(),
            ),
            events: Events::to_cluster(client.clone(), "slipway", metrics.clone(), shutdown.clone()),
            client,
            random,
            metrics,
            settings: Arc::new(settings),
            plans: Plans::default(),
            previews: Previews::default(),
            answers: Answers::default(),
            shutdown,
            leadership: Leadership::always(),
            identity: None,
            background: TaskTracker::new(),
            writes: Writes::default(),
            slot: Slot::default(),
            watches: None,
        }
    }

    /// A context for tests: randomness by seed, events in memory, default settings.
    pub fn for_tests(client: Client, seed: u64) -> Self {
        let (random, metrics) = (Random::seeded(seed), Metrics::new());
        let shutdown = CancellationToken::new();
        Self {
            clock: Clock::starting_at(jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_hours(24)),
            informers: Informers::new(
                client.clone(),
                metrics.clone(),
                random.fork(),
                shutdown.child_token(),
            ),
            events: Events::in_memory(),
            client,
            random,
            metrics,
            settings: Arc::new(Settings::default()),
            plans: Plans::default(),
            previews: Previews::default(),
            answers: Answers::default(),
            shutdown,
            leadership: Leadership::always(),
            identity: None,
            background: TaskTracker::new(),
            writes: Writes::default(),
            slot: Slot::default(),
            watches: None,
        }
    }

    /// The same over another client, with informers of its own. What is recorded and counted goes where it went.
    pub fn over(&self, client: Client) -> Self {
        let mut context = self.clone();
        context.informers = Informers::new(
            client.clone(),
            self.metrics.clone(),
            self.random.fork(),
            self.shutdown.child_token(),
        );
        context.client = client;
        // The same kinds are asked about in the cluster of the manager alone.
        context.previews = Previews::default();
        context.answers = Answers::default();
        context
    }

    /// The same with a client that refuses every write.
    pub fn reading(&self) -> Self {
        let mut context = self.clone();
        context.client = preview::reading(&self.client);
        context
    }

    /// Where a write that did not go through [`Context::apply`] and its siblings is noted.
    pub fn writes(&self) -> &Writes {
        &self.writes
    }

    /// The slot this reconcile takes among those of its controller.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Starts watching a kind learnt in a reconcile, once; its changes bring the mapped objects back to this
    /// controller. Does nothing outside a reconcile.
    pub fn watch<K: Object>(
        &self,
        dynamic: &K::DynamicType,
        scope: Scope,
        map: impl Fn(&K) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) {
        if let Some(watches) = &self.watches {
            watches.start(&self.informers, dynamic, scope, map);
        }
    }

    /// Brings objects back to this controller, from a task that outlives the reconcile. Nothing outside one.
    pub fn trigger(&self) -> Option<Trigger> {
        self.watches.as_ref().map(DynamicWatches::trigger)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Context")
            .field("settings", &self.settings)
            .field("informers", &self.informers)
            .finish_non_exhaustive()
    }
}
