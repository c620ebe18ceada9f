//! One simulated Azure shared between callers, with a clock that can be pushed.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use crate::{
    azure::Azure,
    settings::Settings,
    wire::{Request, Response},
};

type TellTime = dyn Fn() -> Timestamp + Send + Sync;

/// A handle; clones share the same Azure.
#[derive(Clone)]
pub struct Simulator {
    azure: Arc<Mutex<Azure>>,
    clock: Arc<TellTime>,
    /// How far the clock was pushed, in milliseconds.
    ahead: Arc<AtomicI64>,
}

impl fmt::Debug for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator")
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}

impl Simulator {
    /// On the machine's clock.
    pub fn new(settings: Settings) -> Self {
        Self::with_clock(settings, Timestamp::now)
    }

    /// On any clock, such as one that follows tokio's paused time.
    pub fn with_clock(settings: Settings, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self::around(Azure::new(settings), clock)
    }

    pub fn around(azure: Azure, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self {
            azure: Arc::new(Mutex::new(azure)),
            clock: Arc::new(clock),
            ahead: Arc::default(),
        }
    }

    pub fn now(&self) -> Timestamp {
        let ahead = SignedDuration::from_millis(self.ahead.load(Ordering::SeqCst));
        (self.clock)().checked_add(ahead).unwrap_or(Timestamp::MAX)
    }

    /// Pushes the clock, and with it everything that is due by then.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.ahead.fetch_add(by, Ordering::SeqCst);
        let now = self.now();
        self.azure().settle(now);
    }

    /// Answers a request at the clock's time. The response says whether to delay or drop it; that is up to the
    /// caller.
    pub fn handle(&self, request: &Request) -> Response {
        let now = self.now();
        self.azure().handle(request, now)
    }

    /// The Azure inside, for faults, counts and state.
    pub fn azure(&self) -> MutexGuard<'_, Azure> {
        // A panic in one test must not take the others with it.
        self.azure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
