//! An image that is not cached and is written to a slot: its manifests are read whole, of its chunks only those that are asked
//! for. Nothing of it is stored here; whoever asks checks what comes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use slipway_slots::Digest;
use slipway_slots::manifest::{Blob, SignedManifest};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::download::Waits;
use super::manifest::MAX_MANIFEST;
use super::shared_chunks::SharedChunks;
use super::source::BlobSource;
use super::source_order::{self, SourceOrder, Stopped, is_slow, stall_timeout};
use super::{Cache, CacheError, Lease};

/// A server that ignores ranges is read from the start up to here; beyond, another one is better.
const MOST_SKIPPED: u64 = 64 << 20;

/// Bytes that came, also those that nobody needed.
#[derive(Debug, Default)]
pub struct RemoteCounts {
    upstream: AtomicU64,
    peers: AtomicU64,
}

impl RemoteCounts {
    fn add(&self, bytes: usize, peer: bool) {
        let count = if peer { &self.peers } else { &self.upstream };
        count.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// From registries, and from hosts beside this one.
    pub fn get(&self) -> (u64, u64) {
        (
            self.upstream.load(Ordering::Relaxed),
            self.peers.load(Ordering::Relaxed),
        )
    }
}

/// Parts of blobs from whoever has them.
pub struct Remote {
    sources: Vec<Arc<dyn BlobSource>>,
    waits: Waits,
    counts: Arc<RemoteCounts>,
    /// Of the image's indexes: they were read already.
    held: BTreeMap<Digest, Vec<u8>>,
    shared: SharedChunks,
    /// Keeps the cached images that have some of its chunks.
    leases: Vec<Lease>,
    /// Why it was given up, if it was.
    gave_up: Mutex<Option<CacheError>>,
    /// Ends with the image's last user: then nobody waits any more.
    alive: watch::Receiver<()>,
}

/// An image to be written to a slot. Reads of its parts end with it.
pub struct RemoteImage {
    pub signed: SignedManifest,
    pub remote: Arc<Remote>,
    #[expect(dead_code, reason = "its end is the message")]
    alive: watch::Sender<()>,
}

impl Cache {
    /// Reads what an image is, and what cached images have of it. `counts` is told what comes, now and later.
    pub async fn remote_disk_image(
        self: &Arc<Self>,
        digest: Digest,
        sources: Vec<Arc<dyn BlobSource>>,
        counts: Arc<RemoteCounts>,
    ) -> Result<RemoteImage, CacheError> {
        let unusable = |problem: &str| CacheError::NotUsable {
            image: digest.to_string(),
            problem: problem.to_owned(),
        };
        let (_, image) = self.read_manifests(digest, &sources).await?;
        let layer = image
            .disk_manifest
            .ok_or_else(|| unusable("it is not an image for a slot"))?;
        if layer.size > MAX_MANIFEST {
            return Err(unusable("its signed manifest is too large"));
        }
        let (alive, ended) = watch::channel(());
        let mut remote = Remote {
            sources,
            waits: self.settings.waits,
            counts,
            held: BTreeMap::new(),
            shared: SharedChunks::default(),
            leases: Vec::new(),
            gave_up: Mutex::default(),
            alive: ended,
        };
        let bytes = self.small_blob(&remote, &layer).await?;
        let (signed, _) = self.check_signed(&digest, &image, &bytes)?;
        let manifest = signed
            .unverified()
            .map_err(|error| unusable(&error.to_string()))?;
        for partition in &manifest.partitions {
            let bytes = self.small_blob(&remote, &partition.index).await?;
            remote.held.insert(partition.index.digest, bytes);
        }
        let cache = self.clone();
        let remote = tokio::task::spawn_blocking(move || {
            (remote.shared, remote.leases) = cache.shared_chunks(&manifest, &remote.held);
            remote
        })
        .await
        .map_err(|_| CacheError::GivenUp)?;
        Ok(RemoteImage {
            signed,
            remote: Arc::new(remote),
            alive,
        })
    }

    /// A whole blob that fits into memory, from the disk or from the first who has the right one.
    async fn small_blob(&self, remote: &Remote, blob: &Blob) -> Result<Vec<u8>, CacheError> {
        if let Ok(bytes) = self.store.read_blob(blob) {
            return Ok(bytes);
        }
        let mut reasons = Vec::new();
        for first in 0..remote.sources.len().max(1) {
            let mut bytes = vec![0; blob.size as usize];
            remote.read(blob, 0, &mut bytes, first).await?;
            if Digest::of(&bytes) == blob.digest {
                return Ok(bytes);
            }
            let name = remote.sources[first].name();
            self.suspects.add(&name, blob.digest);
            reasons.push(format!("{name} sent other bytes"));
        }
        Err(CacheError::NoSource {
            what: blob.digest.to_string(),
            reasons: reasons.join("; "),
        })
    }
}

impl Remote {
    /// How many there are to ask.
    pub fn sources(&self) -> usize {
        self.sources.len()
    }

    pub fn name(&self, source: usize) -> String {
        self.sources[source].name()
    }

    /// Why nobody had a part of it.
    pub fn gave_up(&self) -> Option<CacheError> {
        self.gave_up.lock().clone()
    }

    /// Fills what this host has of a blob already: of an index, or chunks of cached images. The parts of the buffer that are
    /// missing.
    pub fn read_here(&self, blob: &Blob, offset: u64, buffer: &mut [u8]) -> Vec<std::ops::Range<usize>> {
        match self.held.get(&blob.digest) {
            Some(bytes) if bytes.len() as u64 >= offset + buffer.len() as u64 => {
                buffer.copy_from_slice(&bytes[offset as usize..][..buffer.len()]);
                Vec::new()
            }
            _ => self.shared.read(&blob.digest, offset, buffer),
        }
    }

    /// How many of these bytes are here already.
    pub fn at_hand(&self, blob: &Blob, offset: u64, length: u64) -> u64 {
        self.shared.at_hand(&blob.digest, offset, length)
    }

    /// Exactly these bytes of a blob, from the `first` source or whoever comes after it, for as long as anybody waits.
    pub async fn read(
        &self,
        blob: &Blob,
        offset: u64,
        buffer: &mut [u8],
        first: usize,
    ) -> Result<(), CacheError> {
        let mut alive = self.alive.clone();
        let read = tokio::select! {
            read = self.read_from(blob, offset, buffer, first) => read,
            _ = alive.changed() => Err(CacheError::GivenUp),
        };
        *self.gave_up.lock() = read.as_ref().err().cloned();
        read
    }

    async fn read_from(
        &self,
        blob: &Blob,
        offset: u64,
        buffer: &mut [u8],
        first: usize,
    ) -> Result<(), CacheError> {
        // Who was waited for in vain is asked once more, and not waited for again.
        let waits = match self.gave_up() {
            Some(_) => Waits {
                give_up: Duration::ZERO,
                ..self.waits
            },
            None => self.waits,
        };
        let count = self.sources.len();
        let from_first = (0..count).map(|at| (first + at) % count);
        let mut order = SourceOrder::new(&self.sources, &waits, blob.digest, from_first);
        let mut done = 0;
        while done < buffer.len() {
            let source = &self.sources[order.current()?];
            let others = order.has_others();
            let before = done;
            let at = offset + done as u64;
            let stopped = self
                .pull(source, blob, at, &mut buffer[done..], others, &mut done)
                .await;
            if done > before {
                order.came();
            }
            if let Err(stopped) = stopped {
                sleep(order.stopped(stopped)?).await;
            }
        }
        Ok(())
    }

    /// Takes what one source gives; `done` grows with what came.
    async fn pull(
        &self,
        source: &Arc<dyn BlobSource>,
        blob: &Blob,
        offset: u64,
        mut into: &mut [u8],
        others: bool,
        done: &mut usize,
    ) -> Result<(), Stopped> {
        let end = offset + into.len() as u64;
        let mut opened = source_order::open(source, blob, offset, end, &self.waits).await?;
        let mut skip = match offset.checked_sub(opened.at) {
            Some(skip) if skip <= MOST_SKIPPED => skip as usize,
            Some(_) => return Err(Stopped::Never("does not give parts of a blob".to_owned())),
            None => return Err(Stopped::Never("answers with another part".to_owned())),
        };
        let (began, mut came) = (Instant::now(), 0);
        while !into.is_empty() {
            let piece = source_order::next(&mut opened, stall_timeout(source, &self.waits)).await?;
            self.counts.add(piece.len(), source.is_peer());
            came += piece.len() as u64;
            let skipped = skip.min(piece.len());
            skip -= skipped;
            let taken = (piece.len() - skipped).min(into.len());
            into[..taken].copy_from_slice(&piece[skipped..skipped + taken]);
            into = &mut std::mem::take(&mut into)[taken..];
            *done += taken;
            if others && !into.is_empty() && is_slow(source, &self.waits, began, came) {
                return Err(Stopped::Cut("is slow".to_owned()));
            }
        }
        Ok(())
    }
}
