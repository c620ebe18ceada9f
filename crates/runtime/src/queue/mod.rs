//! The work queue of a controller. An object is in it at most once and in work at most once; what is asked for
//! while it is in work is not lost but comes after. See `docs/runtime.md` for what the queue promises.

#[cfg(test)]
mod model_test;
mod state;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use self::state::{Popped, State};
use crate::{
    Metrics, ObjectKey, Random,
    metrics::{QueueLabels, QueueSample},
};

/// What goes first when several objects are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// The first list and the resync: nobody waits for these.
    Low,
    /// Consequences: a child changed, a wait is over, a failure is tried again.
    Normal,
    /// Somebody changed the object itself, just now.
    High,
}

impl Priority {
    pub(crate) const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];

    fn level(self) -> usize {
        self as usize
    }

    /// The value of the `priority` label, on controller-runtime's scale.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Low => "-100",
            Self::Normal => "0",
            Self::High => "100",
        }
    }
}

/// An overall rate: so many a second on average, and at most `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    pub burst: u32,
}

/// How fast a queue hands out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The wait after an object's first failure; it doubles with each further one.
    pub first_retry: Duration,
    pub longest_retry: Duration,
    /// By which share of itself a wait may be shorter or longer.
    pub jitter: f64,
    /// An object is not handed out again sooner than this after it was.
    pub min_interval: Duration,
    /// For all objects together; unlimited if absent.
    pub rate: Option<Rate>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            first_retry: Duration::from_millis(5),
            longest_retry: Duration::from_secs(1000),
            jitter: 0.1,
            min_interval: Duration::ZERO,
            rate: None,
        }
    }
}

/// An object handed out for work.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub key: ObjectKey,
    pub priority: Priority,
    /// How long it was ready before it was handed out.
    pub waited: Duration,
}

/// A queue, shared by its clones.
#[derive(Clone)]
pub struct Queue {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<Guarded>,
    changed: Notify,
    drained: Notify,
    metrics: Metrics,
    labels: QueueLabels,
}

struct Guarded {
    state: State,
    shut_down: bool,
}

impl Queue {
    pub fn new(name: &str, limits: Limits, random: Random, metrics: Metrics) -> Self {
        let inner = Arc::new(Inner {
            state: Mutex::new(Guarded {
                state: State::new(limits, random),
                shut_down: false,
            }),
            changed: Notify::new(),
            drained: Notify::new(),
            metrics,
            labels: QueueLabels {
                name: name.to_owned(),
                controller: name.to_owned(),
            },
        });
        let weak = Arc::downgrade(&inner);
        inner
            .metrics
            .measure_queue(&inner.labels, move || Some(weak.upgrade()?.measure()));
        Self { inner }
    }

    /// Asks for an object now.
    pub fn add(&self, key: &ObjectKey, priority: Priority) {
        self.add_after(key, Duration::ZERO, priority);
    }

    /// Asks for an object after a while. If it is asked for more than once, the earliest time counts.
    pub fn add_after(&self, key: &ObjectKey, after: Duration, priority: Priority) {
        let now = Instant::now();
        {
            let mut guarded = self.inner.state.lock();
            if guarded.shut_down {
                return;
            }
            let due = now
                .checked_add(after)
                .unwrap_or(now + Duration::from_hours(24 * 365));
            guarded.state.add(key, priority, due, now);
        }
        self.inner.count_add(!after.is_zero());
        self.inner.changed.notify_one();
    }

    /// Asks for an object again after a failure: later with each one until [`Queue::forget`]. Answers after how
    /// long.
    pub fn add_rate_limited(&self, key: &ObjectKey, priority: Priority) -> Duration {
        let delay = {
            let mut guarded = self.inner.state.lock();
            if guarded.shut_down {
                return Duration::ZERO;
            }
            guarded.state.add_rate_limited(key, priority, Instant::now())
        };
        self.inner.count_add(true);
        self.inner.changed.notify_one();
        delay
    }

    /// The object succeeded, or is gone: its next failure is its first.
    pub fn forget(&self, key: &ObjectKey) {
        self.inner.state.lock().state.forget(key);
    }

    /// How often the object failed in a row.
    pub fn failures(&self, key: &ObjectKey) -> u32 {
        self.inner.state.lock().state.failures(key)
    }

    /// The next object to work on; nothing after a shutdown. May be dropped without losing an object. Each object
    /// taken must be given to [`Queue::done`] or [`Queue::give_back`].
    pub async fn next(&self) -> Option<Item> {
        loop {
            // Registered before looking, so that what is added in between wakes this taker.
            let changed = self.inner.changed.notified();
            let taken = {
                let mut guarded = self.inner.state.lock();
                if guarded.shut_down {
                    return None;
                }
                guarded.state.take(Instant::now())
            };
            match taken {
                Popped::Item(item) => {
                    self.inner
                        .metrics
                        .queue_duration
                        .get_or_create(&self.inner.labels)
                        .observe(item.waited.as_secs_f64());
                    // There may be more; another taker may wait for it.
                    self.inner.changed.notify_one();
                    return Some(item);
                }
                Popped::NotBefore(due) => {
                    tokio::select! {
                        () = changed => {}
                        () = sleep_until(due) => {}
                    }
                }
                Popped::Nothing => changed.await,
            }
        }
    }

    /// The work on an object is done. If it was asked for meanwhile, it is due again.
    pub fn done(&self, item: &Item, took: Duration) {
        self.inner
            .metrics
            .queue_work_duration
            .get_or_create(&self.inner.labels)
            .observe(took.as_secs_f64());
        self.inner.state.lock().state.done(&item.key, Instant::now());
        self.inner.finished();
    }

    /// An object was taken and not worked on: it comes again after a while, as if it had not been taken.
    pub fn give_back(&self, item: &Item, after: Duration) {
        let now = Instant::now();
        self.inner.state.lock().state.give_back(item, now + after, now);
        self.inner.finished();
    }

    /// Hands out nothing more and takes nothing in.
    pub fn shut_down(&self) {
        self.inner.state.lock().shut_down = true;
        self.inner.changed.notify_waiters();
        self.inner.changed.notify_one();
        self.inner.finished();
    }

    /// Resolves when nothing is in work.
    pub async fn drained(&self) {
        loop {
            let drained = self.inner.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            if self.inner.state.lock().state.in_work() == 0 {
                return;
            }
            drained.await;
        }
    }

    /// How many objects anything is kept for: waiting, ready, in work, failing or within their interval.
    pub fn len(&self) -> usize {
        self.inner.state.lock().state.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Queue")
            .field("name", &self.inner.labels.name)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn count_add(&self, delayed: bool) {
        self.metrics.queue_adds.get_or_create(&self.labels).inc();
        if delayed {
            self.metrics.queue_retries.get_or_create(&self.labels).inc();
        }
    }

    fn finished(&self) {
        // What was asked for during the work may be due now.
        self.changed.notify_one();
        self.drained.notify_waiters();
    }

    /// For the gauges.
    fn measure(&self) -> QueueSample {
        let guarded = self.state.lock();
        let running: Vec<f64> = guarded
            .state
            .started()
            .map(|started| started.elapsed().as_secs_f64())
            .collect();
        let depths = guarded.state.depths();
        QueueSample {
            depths: Priority::ALL.map(|priority| (priority.label(), depths[priority.level()])),
            unfinished: running.iter().sum(),
            longest: running.into_iter().fold(0.0, f64::max),
        }
    }
}
