//! Whose turn it is to give bytes: hosts beside this one are left at the first trouble, registries are asked again and again,
//! and it ends when nobody gave a byte for too long. What all who read have in common is here too.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use slipway_slots::Digest;
use slipway_slots::manifest::Blob;
use tokio::time::{Instant, timeout};

use super::CacheError;
use super::download::Waits;
use super::source::{BlobSource, Opened, SourceError};

/// Why a source stopped giving.
pub(super) enum Stopped {
    /// It may go on.
    Cut(String),
    Throttled(Option<Duration>),
    /// It will not.
    Never(String),
    Disk(io::Error),
}

pub(super) struct SourceOrder<'a> {
    sources: &'a [Arc<dyn BlobSource>],
    waits: &'a Waits,
    blob: Digest,
    order: VecDeque<usize>,
    reasons: Vec<String>,
    wait: Duration,
    /// When the last byte came.
    progress: Instant,
}

impl<'a> SourceOrder<'a> {
    /// `order` says who is asked, the first of them first.
    pub fn new(
        sources: &'a [Arc<dyn BlobSource>],
        waits: &'a Waits,
        blob: Digest,
        order: impl Iterator<Item = usize>,
    ) -> Self {
        Self {
            sources,
            waits,
            blob,
            order: order.collect(),
            reasons: Vec::new(),
            wait: waits.backoff.0,
            progress: Instant::now(),
        }
    }

    fn nobody(&self, reasons: String) -> CacheError {
        CacheError::NoSource {
            what: self.blob.to_string(),
            reasons,
        }
    }

    pub fn current(&self) -> Result<usize, CacheError> {
        self.order.front().copied().ok_or_else(|| {
            self.nobody(if self.reasons.is_empty() {
                "there is none, or all of them sent other bytes before".to_owned()
            } else {
                self.reasons.join("; ")
            })
        })
    }

    /// Somebody else could be asked.
    pub fn has_others(&self) -> bool {
        self.order.len() > 1
    }

    pub fn came(&mut self) {
        self.progress = Instant::now();
        self.wait = self.waits.backoff.0;
    }

    /// It is not asked again.
    pub fn leave(&mut self, who: usize, reason: &str) {
        self.reasons
            .push(format!("{} {reason}", self.sources[who].name()));
        self.order.retain(|at| *at != who);
    }

    /// The one whose turn it is has stopped. How long to wait before the next is asked.
    pub fn stopped(&mut self, stopped: Stopped) -> Result<Duration, CacheError> {
        let current = self.current()?;
        let source = &self.sources[current];
        let (reason, told) = match stopped {
            Stopped::Disk(error) => return Err(CacheError::disk("writing a download", &error)),
            Stopped::Never(reason) => {
                self.leave(current, &reason);
                return Ok(Duration::ZERO);
            }
            Stopped::Cut(reason) if source.is_peer() => {
                self.leave(current, &reason);
                return Ok(Duration::ZERO);
            }
            Stopped::Cut(reason) => (reason, None),
            Stopped::Throttled(told) => ("asks to wait".to_owned(), told),
        };
        tracing::debug!(source = source.name(), "{reason}");
        if self.progress.elapsed() + self.wait > self.waits.give_up {
            return Err(self.nobody(format!("{} {reason}", source.name())));
        }
        self.order.rotate_left(1);
        let pause = told.unwrap_or(self.wait);
        self.wait = (self.wait * 2).min(self.waits.backoff.1);
        Ok(pause)
    }
}

/// How long a source may be silent.
pub(super) fn stall_timeout(source: &Arc<dyn BlobSource>, waits: &Waits) -> Duration {
    if source.is_peer() {
        waits.peer_stall
    } else {
        waits.stall
    }
}

/// Asks a source for a part of a blob.
pub(super) async fn open(
    source: &Arc<dyn BlobSource>,
    blob: &Blob,
    offset: u64,
    end: u64,
    waits: &Waits,
) -> Result<Opened, Stopped> {
    match timeout(stall_timeout(source, waits), source.open(blob, offset, end)).await {
        Ok(Ok(opened)) => Ok(opened),
        Ok(Err(SourceError::Throttled(wait))) => Err(Stopped::Throttled(wait)),
        Ok(Err(SourceError::Failed(reason))) => Err(Stopped::Cut(reason)),
        Ok(Err(error)) => Err(Stopped::Never(error.to_string())),
        Err(_) => Err(Stopped::Cut("does not answer".to_owned())),
    }
}

/// The next bytes of an answer.
pub(super) async fn next(opened: &mut Opened, stall_timeout: Duration) -> Result<Bytes, Stopped> {
    match timeout(stall_timeout, opened.stream.next()).await {
        Ok(Some(Ok(piece))) => Ok(piece),
        Ok(Some(Err(reason))) => Err(Stopped::Cut(format!("broke off: {reason}"))),
        Ok(None) => Err(Stopped::Cut("ended before all was there".to_owned())),
        Err(_) => Err(Stopped::Cut(format!(
            "sent nothing for {} s",
            stall_timeout.as_secs()
        ))),
    }
}

/// Whether a host gives too little to be waited for; `came` since `began`.
pub(super) fn is_slow(source: &Arc<dyn BlobSource>, waits: &Waits, began: Instant, came: u64) -> bool {
    let seconds = began.elapsed().as_secs();
    source.is_peer() && seconds >= waits.peer_stall.as_secs().max(1) && came / seconds < waits.peer_rate
}
