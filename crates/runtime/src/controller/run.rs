//! Runs a controller: feeds the queue from informers, hands objects to the reconciler a bounded number at a time,
//! and decides by the result when each comes again. A reconcile that panics or hangs harms only its own object.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use kube::Resource;
use parking_lot::Mutex;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use super::{
    Context, Reconciler, Slot, Trigger,
    builder::{Options, is_edit},
    slot::Slots,
};
use crate::{
    Class, Classified, Next, ObjectKey,
    informer::{Delta, Event, Informer, Informers, Object, Origin, Scope},
    metrics::{ClassLabels, ControllerLabel, ResultLabels, StaleLabels},
    preview::{Previewer, Question, Refusal},
    queue::{Item, Priority, Queue},
    writes::{Ledger, Writes},
};

/// How long an object is put off while the caches do not show its own last write. Their change enqueues it
/// earlier; this is for kinds whose changes are not mapped to it.
const STALE_RETRY: Duration = Duration::from_millis(100);

/// The resync of all objects is spread over this share of the period.
const RESYNC_SPREAD: f64 = 0.1;

/// Something whose changes bring objects back.
pub(super) struct Source {
    start: Start,
}

type Start = Box<dyn Fn(&Context, Queue) -> Feed + Send + Sync>;

/// Feeds until the informers stop, and holds what it reads from until it is dropped; `synced` resolves when the first list is in.
pub(super) struct Feed {
    pub task: BoxFuture<'static, ()>,
    pub synced: BoxFuture<'static, ()>,
}

impl Source {
    pub fn new(start: impl Fn(&Context, Queue) -> Feed + Send + Sync + 'static) -> Self {
        Self {
            start: Box::new(start),
        }
    }
}

/// Feeds what another kind's changes are mapped to.
pub(super) fn feed<K: Object>(
    informer: Informer<K>,
    queue: Queue,
    map: impl Fn(&K) -> Vec<ObjectKey> + Send + Sync + 'static,
) -> Feed {
    let mut subscription = informer.subscribe();
    Feed {
        synced: Box::pin(async move { informer.synced().await }),
        task: Box::pin(async move {
            while let Some(change) = subscription.next().await {
                let priority = match change.origin {
                    Origin::Listed => Priority::Low,
                    Origin::Live => Priority::Normal,
                };
                let keys: HashSet<ObjectKey> = change.objects().flat_map(|object| map(object)).collect();
                for key in keys {
                    queue.add(&key, priority);
                }
            }
            // The subscription goes on holding the informer.
            std::future::pending::<()>().await;
        }),
    }
}

/// Feeds the objects a controller works on.
fn feed_own<K: Object>(informer: &Informer<K>, queue: Queue) -> BoxFuture<'static, ()> {
    let mut subscription = informer.subscribe();
    Box::pin(async move {
        while let Some(change) = subscription.next().await {
            queue.add(&change.key, own_priority(&change));
        }
        std::future::pending::<()>().await;
    })
}

fn own_priority<K: Object>(change: &Delta<K>) -> Priority {
    match (change.origin, change.event()) {
        (Origin::Listed, _) => Priority::Low,
        (Origin::Live, Event::Updated { old, new }) if !is_edit(old.as_ref(), new.as_ref()) => {
            Priority::Normal
        }
        (Origin::Live, _) => Priority::High,
    }
}

/// Watches that a reconcile started for its controller.
#[derive(Clone)]
pub(super) struct DynamicWatches {
    queue: Queue,
    tasks: TaskTracker,
    stopped: CancellationToken,
    started: Arc<Mutex<HashSet<(String, Scope)>>>,
}

impl DynamicWatches {
    fn new(queue: Queue, tasks: TaskTracker, stopped: CancellationToken) -> Self {
        Self {
            queue,
            tasks,
            stopped,
            started: Arc::default(),
        }
    }

    pub fn trigger(&self) -> Trigger {
        Trigger::attached(self.queue.clone())
    }

    pub fn start<K: Object>(
        &self,
        informers: &Informers,
        dynamic: &K::DynamicType,
        scope: Scope,
        map: impl Fn(&K) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) {
        let name = format!(
            "{}/{}/{}",
            K::group(dynamic),
            K::version(dynamic),
            K::plural(dynamic)
        );
        if !self.started.lock().insert((name, scope.clone())) {
            return;
        }
        let feed = feed(informers.get_with(dynamic, scope, None), self.queue.clone(), map);
        let stopped = self.stopped.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = feed.task => {}
            }
        });
    }
}

/// One controller at work.
struct Worker<R: Reconciler> {
    name: &'static str,
    reconciler: Arc<R>,
    informer: Informer<R::Object>,
    queue: Queue,
    ledger: Ledger,
    options: Options,
    context: Context,
}

impl<R: Reconciler> Clone for Worker<R> {
    fn clone(&self) -> Self {
        Self {
            name: self.name,
            reconciler: Arc::clone(&self.reconciler),
            informer: self.informer.clone(),
            queue: self.queue.clone(),
            ledger: self.ledger.clone(),
            options: self.options,
            context: self.context.clone(),
        }
    }
}

/// Runs until the context's shutdown, then lets what is in work end.
pub(super) async fn run<R: Reconciler>(
    name: &'static str,
    reconciler: Arc<R>,
    sources: &[Source],
    triggers: &[Trigger],
    options: Options,
    mut context: Context,
) {
    let queue = Queue::new(
        name,
        options.limits,
        context.random.fork(),
        context.metrics.clone(),
    );
    let stopped = context.shutdown.child_token();
    // Feeds hold the informers that reconciles read, so they outlast the last reconcile: one that is in work at shutdown would
    // find nothing in an informer made again, and take that for an empty cluster.
    let fed = CancellationToken::new();
    let _ends_with_this_run = fed.clone().drop_guard();
    let feeds = TaskTracker::new();
    context.watches = Some(DynamicWatches::new(queue.clone(), feeds.clone(), fed.clone()));
    let informer: Informer<R::Object> = context.informers.get(Scope::of_work(&context.settings));
    let mut synced: Vec<BoxFuture<'static, ()>> = Vec::new();
    let mut tasks = vec![feed_own(&informer, queue.clone())];
    for source in sources {
        let feed = (source.start)(&context, queue.clone());
        synced.push(feed.synced);
        tasks.push(feed.task);
    }
    tasks.push(Box::pin(resync(informer.clone(), queue.clone(), context.clone())));
    for task in tasks {
        let fed = fed.clone();
        feeds.spawn(async move {
            tokio::select! {
                () = fed.cancelled() => {}
                () = task => {}
            }
        });
    }
    for trigger in triggers {
        trigger.attach(queue.clone());
    }
    let worker = Worker {
        name,
        reconciler,
        informer: informer.clone(),
        queue: queue.clone(),
        ledger: Ledger::default(),
        options,
        context,
    };
    // Nothing is reconciled before all that a reconcile reads is there.
    let ready = async {
        informer.synced().await;
        futures::future::join_all(synced).await;
    };
    let began = tokio::select! {
        () = stopped.cancelled() => false,
        () = ready => true,
    };
    if began {
        let kind = (R::Object::group(&()), R::Object::kind(&()));
        let _answers = worker
            .context
            .previews
            .register(&kind.0, &kind.1, previewer(&worker));
        worker.dispatch(&stopped).await;
    }
    for trigger in triggers {
        trigger.detach();
    }
    fed.cancel();
    feeds.close();
    feeds.wait().await;
}

/// Says what the worker's reconciler would do with an object.
fn previewer<R: Reconciler>(worker: &Worker<R>) -> Previewer {
    let (reconciler, informer) = (Arc::clone(&worker.reconciler), worker.informer.clone());
    let context = worker.context.reading();
    Arc::new(move |key, question: Question| {
        let (reconciler, informer) = (Arc::clone(&reconciler), informer.clone());
        let context = context.clone();
        boxed(async move {
            let name = format!("{} {key}", R::Object::kind(&()));
            let object = match question.object {
                Some(value) => serde_json::from_value(value)
                    .map(Arc::new)
                    .map_err(|error| Refusal::Unreadable(name.clone(), error.to_string()))?,
                None => informer
                    .get(&key)
                    .ok_or_else(|| Refusal::NoObject(name.clone()))?,
            };
            match reconciler.preview(object, question.unheld, &context).await {
                Ok(Some(preview)) => Ok(preview),
                Ok(None) => Err(Refusal::NotPlanned(name)),
                Err(error) => Err(Refusal::Failed(name, error.to_string())),
            }
        })
    })
}

/// Asks for every object once a period, spread out, after everything else.
async fn resync<K: Object>(informer: Informer<K>, queue: Queue, context: Context) {
    let period = context.settings.sync_period;
    if period.is_zero() {
        return;
    }
    loop {
        sleep(context.random.jitter(period, RESYNC_SPREAD / 2.0)).await;
        for key in informer.keys() {
            let after = period.mul_f64(RESYNC_SPREAD * context.random.fraction());
            queue.add_after(&key, after, Priority::Low);
        }
    }
}

impl<R: Reconciler> Worker<R> {
    fn label(&self) -> ControllerLabel {
        ControllerLabel {
            controller: self.name.to_owned(),
        }
    }

    /// Hands out objects until stopped, then waits for those in work.
    async fn dispatch(&self, stopped: &CancellationToken) {
        self.show_zeroes();
        // What was reconciled, by uid: it is forgotten when it is gone.
        let mut known: HashMap<ObjectKey, Option<String>> = HashMap::new();
        let concurrency = self.context.settings.concurrency(self.name).max(1);
        // Counted up and down: the same controller may run in many clusters.
        let concurrent = self
            .context
            .metrics
            .max_concurrent_reconciles
            .get_or_create_owned(&self.label());
        concurrent.inc_by(concurrency as i64);
        let slots = Slots::new(concurrency);
        let work = TaskTracker::new();
        let abandoned = CancellationToken::new();
        loop {
            let next = async {
                loop {
                    let slot = slots.take().await;
                    tokio::select! {
                        biased;
                        item = self.queue.next() => return (slot, item),
                        // Nothing is to be done, and another goes on with the slot.
                        () = slots.requested() => {}
                    }
                }
            };
            let (slot, item) = tokio::select! {
                () = stopped.cancelled() => break,
                (slot, item) = next => (slot, item),
            };
            let Some(item) = item else { break };
            let Some(object) = self.informer.get(&item.key) else {
                if known.remove(&item.key).is_some() {
                    self.forget(&item.key);
                }
                self.ledger.forget(&item.key);
                self.queue.forget(&item.key);
                self.queue.done(&item, Duration::ZERO);
                continue;
            };
            if self.is_stale(&item) {
                self.queue.give_back(&item, STALE_RETRY);
                continue;
            }
            let uid = object.meta().uid.clone();
            match known.insert(item.key.clone(), uid.clone()) {
                Some(before) if before != uid => self.forget(&item.key),
                _ => {}
            }
            let worker = self.clone();
            let abandoned = abandoned.clone();
            work.spawn(async move { worker.work(item, object, slot, &abandoned).await });
        }
        self.queue.shut_down();
        work.close();
        if timeout(self.options.shutdown_grace, work.wait()).await.is_err() {
            tracing::warn!(
                controller = self.name,
                unfinished = work.len(),
                "Stopping reconciles that did not end in time"
            );
            abandoned.cancel();
            work.wait().await;
        }
        concurrent.dec_by(concurrency as i64);
    }

    /// The queue hands out a key only while it is not in work, so no reconcile of it runs now.
    fn forget(&self, key: &ObjectKey) {
        let forget = AssertUnwindSafe(|| self.reconciler.forget(key, &self.context));
        if catch_unwind(forget).is_err() {
            self.context
                .metrics
                .reconcile_panics
                .get_or_create(&self.label())
                .inc();
            tracing::error!(controller = self.name, object = %key, "Forgetting an object panicked");
        }
    }

    /// A counter that is not there yet makes no rate; all are shown from the start.
    fn show_zeroes(&self) {
        let (metrics, label) = (&self.context.metrics, self.label());
        for result in ["success", "error", "requeue", "requeue_after"] {
            drop(metrics.reconcile_total.get_or_create(&ResultLabels {
                controller: self.name.to_owned(),
                result,
            }));
        }
        for family in [
            &metrics.reconcile_errors,
            &metrics.terminal_reconcile_errors,
            &metrics.reconcile_panics,
            &metrics.reconcile_timeouts,
        ] {
            drop(family.get_or_create(&label));
        }
        drop(metrics.active_workers.get_or_create(&label));
    }

    fn is_stale(&self, item: &Item) -> bool {
        let kinds = self.ledger.unseen(&item.key, &self.context.informers);
        for cached_kind in &kinds {
            let labels = StaleLabels {
                controller: self.name.to_owned(),
                cached_kind: cached_kind.clone(),
            };
            self.context
                .metrics
                .stale_cache_skips
                .get_or_create(&labels)
                .inc();
        }
        !kinds.is_empty()
    }

    async fn work(&self, item: Item, object: Arc<R::Object>, slot: Slot, abandoned: &CancellationToken) {
        let active = self
            .context
            .metrics
            .active_workers
            .get_or_create_owned(&self.label());
        active.inc();
        let started = Instant::now();
        let span = self.span(&item.key);
        let mut handle = self.start(&item.key, object, &slot, &span);
        let ended = tokio::select! {
            ended = &mut handle => Ended::from(ended),
            () = sleep(self.options.reconcile_timeout) => Ended::TimedOut,
            () = abandoned.cancelled() => Ended::Abandoned,
        };
        if matches!(ended, Ended::TimedOut | Ended::Abandoned) {
            handle.abort();
            // Others may go on even if this one does not let go of its thread; the object itself stays in work
            // until it has, because it must never be in work twice.
            slot.end();
            let _ = handle.await;
        }
        let took = started.elapsed();
        span.in_scope(|| self.conclude(&item, ended, took));
        slot.end();
        self.queue.done(&item, took);
        active.dec();
    }

    fn span(&self, key: &ObjectKey) -> tracing::Span {
        tracing::info_span!(
            "reconcile",
            controller = self.name,
            controllerGroup = %R::Object::group(&()),
            controllerKind = %R::Object::kind(&()),
            // Written under the kind's own name by the log formatter, as Cluster API does.
            object = %key,
            namespace = key.namespace().unwrap_or_default(),
            name = key.name(),
            reconcileID = self.context.random.uuid(),
        )
    }

    /// On a task of its own, so that a panic ends there.
    fn start(
        &self,
        key: &ObjectKey,
        object: Arc<R::Object>,
        slot: &Slot,
        span: &tracing::Span,
    ) -> JoinHandle<Result<Next, R::Error>> {
        let reconciler = Arc::clone(&self.reconciler);
        let context = Context {
            writes: Writes::of(self.ledger.clone(), key.clone()),
            slot: slot.clone(),
            ..self.context.clone()
        };
        let reconcile = async move { reconciler.reconcile(object, &context).await };
        tokio::spawn(boxed(reconcile).instrument(span.clone()))
    }

    /// Counts and logs the end of a reconcile, and decides when the object comes again.
    fn conclude(&self, item: &Item, ended: Ended<R::Error>, took: Duration) {
        let metrics = &self.context.metrics;
        metrics
            .reconcile_time
            .get_or_create(&self.label())
            .observe(took.as_secs_f64());
        let result = match ended {
            Ended::Returned(Ok(next)) => {
                self.queue.forget(&item.key);
                match next {
                    Next::OnChange => "success",
                    Next::After(after) => {
                        self.queue.add_after(&item.key, after, Priority::Normal);
                        "requeue_after"
                    }
                }
            }
            Ended::Returned(Err(error)) => self.conclude_error(item, &error),
            Ended::Panicked(message) => {
                metrics.reconcile_panics.get_or_create(&self.label()).inc();
                metrics.reconcile_errors.get_or_create(&self.label()).inc();
                let retry = self.queue.add_rate_limited(&item.key, Priority::Normal);
                tracing::error!(panic = message, ?retry, "Reconcile panicked");
                "error"
            }
            Ended::TimedOut => {
                metrics.reconcile_timeouts.get_or_create(&self.label()).inc();
                metrics.reconcile_errors.get_or_create(&self.label()).inc();
                let retry = self.queue.add_rate_limited(&item.key, Priority::Normal);
                tracing::error!(timeout = ?self.options.reconcile_timeout, ?retry, "Reconcile timed out");
                "error"
            }
            Ended::Abandoned => "error",
        };
        let labels = ResultLabels {
            controller: self.name.to_owned(),
            result,
        };
        metrics.reconcile_total.get_or_create(&labels).inc();
    }

    fn conclude_error(&self, item: &Item, error: &R::Error) -> &'static str {
        let metrics = &self.context.metrics;
        let class = error.class();
        metrics.reconcile_errors.get_or_create(&self.label()).inc();
        let labels = ClassLabels {
            controller: self.name.to_owned(),
            class: class.as_str(),
        };
        metrics.reconcile_errors_by_class.get_or_create(&labels).inc();
        match class {
            Class::Conflict => {
                // Ordinary and soon over; a conflict that lasts backs off like any failure.
                let retry = self.queue.add_rate_limited(&item.key, Priority::Normal);
                tracing::debug!(%error, ?retry, "Reconcile met a conflict");
            }
            Class::Throttled(after) => {
                self.queue.add_after(&item.key, after, Priority::Normal);
                tracing::info!(%error, ?after, "Reconcile was throttled");
            }
            Class::Transient => {
                let retry = self.queue.add_rate_limited(&item.key, Priority::Normal);
                tracing::error!(%error, ?retry, "Reconcile failed");
            }
            Class::Terminal => {
                metrics
                    .terminal_reconcile_errors
                    .get_or_create(&self.label())
                    .inc();
                self.queue.forget(&item.key);
                tracing::error!(%error, "Reconcile failed, waiting for a change");
            }
            Class::Denied => {
                self.queue.forget(&item.key);
                let after = self.context.random.jitter(self.options.denied_retry, 0.1);
                self.queue.add_after(&item.key, after, Priority::Low);
                tracing::error!(%error, ?after, "Reconcile was denied");
            }
        }
        "error"
    }
}

/// Keeps the compiler from carrying a reconcile's whole type through the spawn.
fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> BoxFuture<'static, T> {
    Box::pin(future)
}

enum Ended<E> {
    Returned(Result<Next, E>),
    Panicked(String),
    TimedOut,
    Abandoned,
}

impl<E> From<Result<Result<Next, E>, tokio::task::JoinError>> for Ended<E> {
    fn from(joined: Result<Result<Next, E>, tokio::task::JoinError>) -> Self {
        match joined {
            Ok(result) => Self::Returned(result),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => Self::Panicked(
                    panic
                        .downcast_ref::<&str>()
                        .map(|text| (*text).to_owned())
                        .or_else(|| panic.downcast_ref::<String>().cloned())
                        .unwrap_or_else(|| "without a message".to_owned()),
                ),
                // Only this module aborts a reconcile, and it does not ask for the result then.
                Err(_) => Self::Abandoned,
            },
        }
    }
}
