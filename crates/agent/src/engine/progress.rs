//! How far a write is: bytes done and to do, the rate of the last seconds, and when it will be finished.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use slipway_slots::manifest::PartitionImage;
use slipway_slots::write_plan::Cost;

use super::write::Piece;

/// What is shown to whoever watches. Within one operation and run of the agent no number but the rate goes down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Of the image: found in place or written.
    pub bytes_done: u64,
    pub bytes_total: u64,
    pub bytes_written: u64,
    /// Not written, because the slot held them already: flash that was spared.
    pub bytes_in_place: u64,
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
    downloaded: Arc<AtomicU64>,
    cancelled: AtomicBool,
}

impl Watch {
    pub fn progress(&self) -> Progress {
        let mut progress = *self
            .shared
            .progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        progress.bytes_downloaded = self.shared.downloaded.load(Ordering::Relaxed);
        progress
    }

    /// The engine stops before its next piece.
    pub fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Relaxed)
    }
}

/// Counts downloaded bytes.
#[derive(Clone, Debug)]
pub struct Downloads(Arc<AtomicU64>);

impl Downloads {
    pub(super) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
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
        Self {
            watch,
            since: (Instant::now(), 0),
        }
    }

    pub fn downloads(&self) -> Downloads {
        Downloads(self.watch.shared.downloaded.clone())
    }

    pub fn cancellation(&self) -> Watch {
        self.watch.clone()
    }

    pub fn is_cancelled(&self) -> bool {
        self.watch.is_cancelled()
    }

    /// A partition was planned: what is in place is done.
    pub fn planned(&mut self, cost: &Cost, _size: u64) {
        self.change(|progress| {
            progress.bytes_done += cost.in_place;
            progress.bytes_in_place += cost.in_place;
        });
        self.since.1 = self.watch.progress().bytes_done;
    }

    pub fn wrote(&mut self, piece: &Piece, partition: &PartitionImage) {
        let bytes = match piece {
            Piece::Bytes { bytes, .. } => bytes.len() as u64,
            Piece::Repeat { first, .. } => u64::from(partition.chunk_range(u64::from(*first)).1),
            Piece::Checkpoint => return,
        };
        let (began, before) = self.since;
        let elapsed = began.elapsed();
        let mut done = 0;
        self.change(|progress| {
            progress.bytes_done = (progress.bytes_done + bytes).min(progress.bytes_total);
            progress.bytes_written += bytes;
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
