//! How far a write is: bytes done and to do, the rate of the last seconds, and when it will be finished.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use slipway_slots::write_plan::Cost;

/// What is shown to whoever watches. Within one operation and run of the agent no number but the rate goes down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Of the image: found in place, or at hand to be written.
    pub bytes_done: u64,
    pub bytes_total: u64,
    /// Written to the slot, in whole blocks: what the flash has to bear.
    pub bytes_written: u64,
    /// Not written, because the slot held them already: flash that was spared.
    pub bytes_in_place: u64,
    /// Had from any source but the running slot, as they are stored.
    pub bytes_downloaded: u64,
    /// Bytes a second, over the last seconds; zero before there are any.
    pub rate: u64,
    /// Seconds until everything is written, at this rate.
    pub eta_seconds: Option<u64>,
}

/// Shared by the engine, who writes it, and by watchers, who read it at any time.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    progress: Mutex<Progress>,
    downloads: Downloads,
    wear: Wear,
    cancelled: AtomicBool,
}

impl Watch {
    pub fn progress(&self) -> Progress {
        let mut progress = *self
            .shared
            .progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        progress.bytes_downloaded = self.downloads().values().sum();
        let wear = &self.shared.wear.0;
        progress.bytes_written = wear.written.load(Ordering::Relaxed);
        progress.bytes_in_place += wear.spared.load(Ordering::Relaxed);
        progress
    }

    /// How many bytes each source gave.
    pub fn downloads(&self) -> BTreeMap<String, u64> {
        self.shared.downloads.lock().clone()
    }

    /// The engine stops before its next piece.
    pub fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Relaxed)
    }
}

/// Counts downloaded bytes, source by source.
#[derive(Clone, Debug, Default)]
pub struct Downloads(Arc<Mutex<BTreeMap<String, u64>>>);

impl Downloads {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, source: &str, bytes: u64) {
        let mut counts = self.lock();
        match counts.get_mut(source) {
            Some(count) => *count += bytes,
            None => {
                counts.insert(source.to_owned(), bytes);
            }
        }
    }
}

/// Counts what the flash has to bear, and what it is spared.
#[derive(Clone, Debug, Default)]
pub(super) struct Wear(Arc<WearCounts>);

#[derive(Debug, Default)]
struct WearCounts {
    written: AtomicU64,
    spared: AtomicU64,
}

impl Wear {
    pub fn written(&self, bytes: u64) {
        self.0.written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn spared(&self, bytes: u64) {
        self.0.spared.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The engine's side of a [`Watch`].
pub(super) struct Meter {
    watch: Watch,
    /// When the current stretch began, and how much was done then.
    since: (Instant, u64),
}

/// The rate is measured over stretches of this length.
const STRETCH: Duration = Duration::from_secs(5);

impl Meter {
    pub fn new(watch: Watch, total: u64) -> Self {
        *watch
            .shared
            .progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Progress {
            bytes_total: total,
            ..Progress::default()
        };
        watch.shared.downloads.lock().clear();
        watch.shared.wear.0.written.store(0, Ordering::Relaxed);
        watch.shared.wear.0.spared.store(0, Ordering::Relaxed);
        Self {
            watch,
            since: (Instant::now(), 0),
        }
    }

    pub fn downloads(&self) -> Downloads {
        self.watch.shared.downloads.clone()
    }

    pub fn wear(&self) -> Wear {
        self.watch.shared.wear.clone()
    }

    pub fn cancellation(&self) -> Watch {
        self.watch.clone()
    }

    pub fn is_cancelled(&self) -> bool {
        self.watch.is_cancelled()
    }

    /// A partition was planned: what is in place is done, and some whole blocks of it are spared.
    pub fn planned(&mut self, cost: &Cost, spared: u64) {
        self.change(|progress| {
            progress.bytes_done += cost.in_place;
            progress.bytes_in_place += spared;
        });
        self.since.1 = self.watch.progress().bytes_done;
    }

    /// A partition of so many bytes is there already.
    pub fn in_place(&mut self, bytes: u64) {
        let cost = Cost {
            in_place: bytes,
            ..Cost::default()
        };
        self.planned(&cost, bytes);
    }

    /// So many bytes more are on their way to the slot.
    pub fn produced(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let (began, before) = self.since;
        let elapsed = began.elapsed();
        let mut done = 0;
        self.change(|progress| {
            progress.bytes_done = (progress.bytes_done + bytes).min(progress.bytes_total);
            done = progress.bytes_done;
            if elapsed.as_millis() > 0 && (progress.rate == 0 || elapsed >= STRETCH) {
                progress.rate = (u128::from(done.saturating_sub(before)) * 1000 / elapsed.as_millis()) as u64;
            }
            progress.eta_seconds = (progress.bytes_total - done).checked_div(progress.rate);
        });
        if elapsed >= STRETCH {
            self.since = (Instant::now(), done);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(
            &mut self
                .watch
                .shared
                .progress
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}
