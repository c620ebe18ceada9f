//! One blob, from whoever has it: goes on where it was cut, leaves those who are slow or lie, and ends with bytes that have
//! the right digest or with every reason why not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use slipway_slots::Digest;
use slipway_slots::manifest::Blob;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::source::{BlobSource, SourceError};
use super::source_order::{self, SourceOrder, Stopped, is_slow, stall_timeout};
use super::store::{Finished, Partial, Store};
use super::{CacheError, Suspects};

/// Bytes are written in pieces of about this size.
const PIECE: usize = 1 << 20;

/// How long to wait for whom.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// A connection from which nothing comes for this long is made again.
    pub stall: Duration,
    /// The download fails after this long without a byte from anybody.
    pub give_up: Duration,
    /// The first and the longest wait between two rounds.
    pub backoff: (Duration, Duration),
    /// A host beside this one is left when it is silent this long,
    pub peer_stall: Duration,
    /// or slower than this, in bytes a second.
    pub peer_rate: u64,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            stall: Duration::from_mins(1),
            give_up: Duration::from_mins(30),
            backoff: (Duration::from_millis(500), Duration::from_secs(30)),
            peer_stall: Duration::from_secs(5),
            peer_rate: 128 << 10,
        }
    }
}

/// How far an image is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub done: u64,
    pub total: u64,
    pub upstream: u64,
    pub peers: u64,
}

/// Counts for everybody who waits for the same image.
#[derive(Default)]
pub struct Meter {
    shown: watch::Sender<Progress>,
    /// Bytes of the blob under way, which are taken back when it starts over.
    current: AtomicU64,
}

impl Meter {
    pub fn subscribe(&self) -> watch::Receiver<Progress> {
        self.shown.subscribe()
    }

    pub fn total(&self, total: u64) {
        self.shown.send_modify(|progress| progress.total = total);
    }

    pub fn present(&self, bytes: u64) {
        self.shown.send_modify(|progress| progress.done += bytes);
    }

    fn begin(&self, present: u64) {
        self.current.store(present, Ordering::Relaxed);
        self.present(present);
    }

    fn came(&self, bytes: u64, peer: bool) {
        self.current.fetch_add(bytes, Ordering::Relaxed);
        self.shown.send_modify(|progress| {
            progress.done += bytes;
            *(if peer {
                &mut progress.peers
            } else {
                &mut progress.upstream
            }) += bytes;
        });
    }

    fn start_over(&self) {
        let current = self.current.swap(0, Ordering::Relaxed);
        self.shown
            .send_modify(|progress| progress.done = progress.done.saturating_sub(current));
    }
}

/// Runs file work where it does not hold up the network.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

pub struct Download<'a> {
    pub store: &'a Arc<Store>,
    pub sources: &'a [Arc<dyn BlobSource>],
    pub waits: Waits,
    pub suspects: &'a Suspects,
    pub meter: &'a Meter,
}

impl Download<'_> {
    async fn open(&self, blob: Blob) -> Result<Partial, CacheError> {
        let store = self.store.clone();
        blocking(move || store.partial(&blob))
            .await
            .map_err(|error| CacheError::disk("opening a download", &error))
    }

    /// Brings one blob to its place.
    pub async fn run(&self, blob: Blob, allocated: impl FnOnce(u64)) -> Result<(), CacheError> {
        if self.store.blob_size(&blob.digest) == Some(blob.size) {
            self.meter.present(blob.size);
            return Ok(());
        }
        let mut partial = self.open(blob).await?;
        allocated(blob.size - partial.length());
        self.meter.begin(partial.length());
        let trusted = (0..self.sources.len())
            .filter(|at| !self.suspects.contains(&self.sources[*at].name(), &blob.digest));
        let mut order = SourceOrder::new(self.sources, &self.waits, blob.digest, trusted);
        let mut wrote: BTreeSet<usize> = BTreeSet::new();
        // After bytes of several were wrong together, one alone is asked for all of them.
        let mut alone = false;
        loop {
            // A bundle may have brought it while we waited.
            if self.store.blob_size(&blob.digest) == Some(blob.size) {
                self.meter.present(blob.size.saturating_sub(partial.length()));
                return self
                    .store
                    .drop_partial(&blob.digest)
                    .map_err(|error| CacheError::disk("ending a download", &error));
            }
            if partial.is_complete() {
                match blocking(move || partial.finish())
                    .await
                    .map_err(|error| CacheError::disk("finishing a download", &error))?
                {
                    Finished::Named => return Ok(()),
                    Finished::Mismatch { inherited } => {
                        if let (0, 1, Some(liar)) = (inherited, wrote.len(), wrote.first().copied()) {
                            self.suspect(liar, &blob.digest);
                            order.leave(liar, "sent other bytes");
                        }
                        alone = true;
                        wrote.clear();
                        self.meter.start_over();
                        partial = self.open(blob).await?;
                    }
                }
            }
            let current = order.current()?;
            if alone && !wrote.is_empty() && !wrote.contains(&current) {
                partial
                    .restart()
                    .map_err(|error| CacheError::disk("starting over", &error))?;
                self.meter.start_over();
                wrote.clear();
            }
            let before = partial.length();
            let (stopped, back) = self
                .pull(&self.sources[current], partial, &blob, order.has_others())
                .await;
            partial = back;
            if partial.length() != before {
                wrote.insert(current);
                order.came();
            }
            if let Err(stopped) = stopped {
                sleep(order.stopped(stopped)?).await;
            }
        }
    }

    fn suspect(&self, liar: usize, blob: &Digest) {
        let name = self.sources[liar].name();
        tracing::warn!(source = name, %blob, "it sent other bytes and is not asked again");
        self.suspects.add(&name, *blob);
    }

    /// Takes what one source gives. The partial comes back whatever happens.
    async fn pull(
        &self,
        source: &Arc<dyn BlobSource>,
        mut partial: Partial,
        blob: &Blob,
        others: bool,
    ) -> (Result<(), Stopped>, Partial) {
        let mut opened =
            match source_order::open(source, blob, partial.length(), blob.size, &self.waits).await {
                Ok(opened) => opened,
                Err(stopped) => return (Err(stopped), partial),
            };
        if opened.at != partial.length() {
            if opened.at != 0 {
                return (
                    Err(Stopped::Never("answers with another part".to_owned())),
                    partial,
                );
            }
            if let Err(error) = partial.restart() {
                return (Err(Stopped::Disk(error)), partial);
            }
            self.meter.start_over();
        }
        let (began, first) = (Instant::now(), partial.length());
        let mut buffer = BytesMut::new();
        loop {
            let ended = match source_order::next(&mut opened, stall_timeout(source, &self.waits)).await {
                Ok(piece) => {
                    buffer.extend_from_slice(&piece);
                    None
                }
                Err(stopped) => Some(stopped),
            };
            if buffer.len() >= PIECE || (ended.is_some() && !buffer.is_empty()) {
                let bytes = buffer.split().freeze();
                let length = bytes.len() as u64;
                let (taken, back) = blocking(move || {
                    let taken = partial.append(&bytes);
                    (taken, partial)
                })
                .await;
                partial = back;
                match taken {
                    Err(error) => return (Err(Stopped::Disk(error)), partial),
                    Ok(false) => {
                        return (
                            Err(Stopped::Never("sends more bytes than there are".to_owned())),
                            partial,
                        );
                    }
                    Ok(true) => self.meter.came(length, source.is_peer()),
                }
            }
            match ended {
                Some(_) if partial.is_complete() => return (Ok(()), partial),
                Some(stopped) => return (Err(stopped), partial),
                None => {}
            }
            let came = partial.length().saturating_sub(first) + buffer.len() as u64;
            if others && is_slow(source, &self.waits, began, came) {
                return (Err(Stopped::Cut("is slow".to_owned())), partial);
            }
        }
    }
}

/// A manifest from the first who has the right one.
pub async fn manifest(
    digest: &Digest,
    sources: &[Arc<dyn BlobSource>],
    waits: &Waits,
    suspects: &Suspects,
) -> Result<bytes::Bytes, CacheError> {
    let began = Instant::now();
    let mut wait = waits.backoff.0;
    loop {
        let mut reasons = Vec::new();
        let mut again = false;
        for source in sources {
            let name = source.name();
            if suspects.contains(&name, digest) {
                reasons.push(format!("{name} sent other bytes before"));
                continue;
            }
            match timeout(stall_timeout(source, waits), source.manifest(digest)).await {
                Ok(Ok(bytes)) if Digest::of(&bytes) == *digest => return Ok(bytes),
                Ok(Ok(_)) => {
                    suspects.add(&name, *digest);
                    reasons.push(format!("{name} sent another manifest"));
                }
                Ok(Err(error)) => {
                    again |= !source.is_peer()
                        && matches!(error, SourceError::Failed(_) | SourceError::Throttled(_));
                    reasons.push(format!("{name} {error}"));
                }
                Err(_) => {
                    again |= !source.is_peer();
                    reasons.push(format!("{name} does not answer"));
                }
            }
        }
        if !again || began.elapsed() + wait > waits.give_up {
            return Err(CacheError::NoSource {
                what: digest.to_string(),
                reasons: if reasons.is_empty() {
                    "there is none".to_owned()
                } else {
                    reasons.join("; ")
                },
            });
        }
        sleep(wait).await;
        wait = (wait * 2).min(waits.backoff.1);
    }
}
