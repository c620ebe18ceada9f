//! The image cache: every image lies once on the host, under its digest. "Cached" means usable: complete, verified, durable.
//!
//! Decisions are `index`'s, files are `store`'s, bytes come from `source`s; this module puts them together.

mod arrival;
mod bundle;
mod download;
mod export;
mod failpoint;
mod import;
mod index;
mod keep;
mod manifest;
mod peer;
mod registry;
mod remote;
mod shared_chunks;
mod source;
mod source_order;
mod store;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use slipway_agent_api::{Class, Problem};
use slipway_slots::Digest;
use slipway_slots::manifest::{Blob, KeyRing, SignedManifest};
use tokio::sync::{Semaphore, watch};

use arrival::Arrival;
use manifest::Read;
use store::Store;

pub use bundle::announced_names;
pub use download::{Progress, Waits};
pub use export::remove_leftovers;
pub use failpoint::{ServiceFailpoint, ServiceFailpoints};
pub use import::BundleImage;
pub use index::{Eviction, ImageRecord, Index, KeepReason, Kind, Limits, Need, NoRoom};
pub use manifest::{ManifestProblem, architecture};
pub use peer::PeerSource;
pub use registry::{Registry, RegistrySettings};
pub use remote::{Remote, RemoteCounts, RemoteImage};
pub use source::{BlobSource, Opened, SourceError};
pub use store::{copy_file, replace_file, sync_directory};

/// A source that gave wrong bytes is not asked for them again for this long.
const SUSPECTED_FOR: Duration = Duration::from_hours(1);
/// Images that arrive at one time.
const ARRIVALS: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error("the disk has no room left for {0}")]
    DiskFull(String),
    #[error("image {0} was damaged on disk and is no longer cached: ensure it again")]
    Damaged(Digest),
    #[error("{what} cannot be had: {reasons}")]
    NoSource { what: String, reasons: String },
    #[error("image {image} is not usable: {problem}")]
    NotUsable { image: String, problem: String },
    #[error("image {0} is not cached here")]
    NotCached(Digest),
    #[error("image {image} stays: it is {kept}")]
    Kept { image: Digest, kept: String },
    #[error("what {name} means is not known: {reason}; give a digest, or let the registry be reached")]
    UnknownTag { name: String, reason: String },
    #[error("{doing}: {reason}")]
    Disk { doing: &'static str, reason: String },
    #[error("the bundle {name} cannot be used: {reason}")]
    Bundle { name: String, reason: String },
    #[error("the work was given up")]
    GivenUp,
}

impl CacheError {
    fn disk(doing: &'static str, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::StorageFull {
            return Self::DiskFull(doing.to_owned());
        }
        Self::Disk {
            doing,
            reason: error.to_string(),
        }
    }

    /// What the caller does next.
    pub fn problem(&self) -> Problem {
        let (class, reason) = match self {
            Self::NoRoom(_) | Self::DiskFull(_) => (Class::Conflict, "NoRoom"),
            Self::NoSource { .. } => (Class::Transient, "NoSource"),
            Self::Damaged(_) => (Class::Transient, "Damaged"),
            Self::NotUsable { .. } => (Class::Terminal, "NotUsable"),
            Self::NotCached(_) => (Class::Terminal, "NotCached"),
            Self::Kept { .. } => (Class::Conflict, "Kept"),
            Self::UnknownTag { .. } => (Class::Transient, "UnknownTag"),
            Self::Disk { .. } => (Class::Transient, "Disk"),
            Self::Bundle { .. } => (Class::Terminal, "Bundle"),
            Self::GivenUp => (Class::Transient, "GivenUp"),
        };
        Problem::new(class, reason, self.to_string())
    }
}

/// How to answer for a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagPolicy {
    PreferRegistry,
    PreferCache,
}

/// Who sent wrong bytes for what.
#[derive(Default)]
pub struct Suspects(Mutex<HashMap<(String, Digest), Instant>>);

impl Suspects {
    fn add(&self, source: &str, digest: Digest) {
        self.0.lock().insert((source.to_owned(), digest), Instant::now());
    }

    fn contains(&self, source: &str, digest: &Digest) -> bool {
        self.0
            .lock()
            .get(&(source.to_owned(), *digest))
            .is_some_and(|since| since.elapsed() < SUSPECTED_FOR)
    }
}

/// How the cache is set up.
#[derive(Clone)]
pub struct Settings {
    pub limits: Limits,
    /// Left on the disk for everybody else.
    pub margin: u64,
    /// For images that are ensured without one.
    pub default_ttl: Option<Duration>,
    pub waits: Waits,
    pub architecture: String,
    /// Disk images are checked by it before they count as cached.
    pub keys: Option<KeyRing>,
    pub now: fn() -> Timestamp,
}

/// An image to be had.
#[derive(Clone)]
pub struct Ensure {
    /// The tag it goes by, such as `registry.example/app:1`.
    pub name: Option<String>,
    pub digest: Option<Digest>,
    pub tag_policy: TagPolicy,
    /// In the order they are asked.
    pub sources: Vec<Arc<dyn BlobSource>>,
    pub ttl: Option<Duration>,
    pub pin: Option<String>,
    /// Every byte is read again even if it is cached.
    pub verify: bool,
}

/// The cache of a host.
pub struct Cache {
    store: Arc<Store>,
    index: Mutex<Index>,
    arrivals: Mutex<HashMap<Digest, Arrival>>,
    /// One download at a time of each blob.
    blobs: Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<()>>>>,
    limit: Semaphore,
    suspects: Suspects,
    /// Records of images that were found damaged: who needs them is still known when they come again.
    lost: Mutex<HashMap<Digest, ImageRecord>>,
    settings: Settings,
    changed: watch::Sender<u64>,
    problems: Vec<String>,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({})", self.store.root().display())
    }
}

/// Keeps an image while somebody reads it.
pub struct Lease {
    cache: Arc<Cache>,
    digest: Digest,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.cache.index.lock().release(&self.digest);
    }
}

impl Cache {
    pub fn open(
        root: &Path,
        settings: Settings,
        steps: Arc<dyn ServiceFailpoints>,
    ) -> Result<Arc<Self>, CacheError> {
        let failed = |error: io::Error| CacheError::disk("opening the cache", &error);
        let store = Store::open(root, steps).map_err(failed)?;
        let found = store.load().map_err(failed)?;
        let mut index = Index::default();
        for record in found.images {
            index.insert(record);
        }
        for (digest, size) in found.loose {
            index.found_loose(digest, size);
        }
        Ok(Arc::new(Self {
            store: Arc::new(store),
            index: Mutex::new(index),
            arrivals: Mutex::default(),
            blobs: Mutex::default(),
            limit: Semaphore::new(ARRIVALS),
            suspects: Suspects::default(),
            lost: Mutex::default(),
            settings,
            changed: watch::Sender::new(0),
            problems: found.problems,
        }))
    }

    /// What was damaged when it was opened.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// By the clock that pins and times to live go by.
    pub fn now(&self) -> Timestamp {
        (self.settings.now)()
    }

    /// The images with the reason why each stays.
    pub fn list(&self) -> Vec<(ImageRecord, Option<KeepReason>)> {
        let (index, now) = (self.index.lock(), self.now());
        index
            .images()
            .map(|record| (record.clone(), index.kept(record, now)))
            .collect()
    }

    pub fn image(&self, digest: &Digest) -> Option<ImageRecord> {
        self.index.lock().image(digest).cloned()
    }

    /// The images that a slot calls so.
    pub fn digests_of_slot_image(&self, image: &Digest) -> Vec<Digest> {
        let index = self.index.lock();
        let images = index.images();
        let images = images.filter(|record| record.slot_image.as_ref() == Some(image));
        images.map(|record| record.digest).collect()
    }

    /// Bytes used and bytes reserved.
    pub fn used(&self) -> (u64, u64) {
        let index = self.index.lock();
        (index.used(), index.reserved())
    }

    pub fn quota(&self) -> u64 {
        self.settings.limits.quota
    }

    /// Tells of every change, for whoever waits for an image.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The images of the slots, by the engine's name for them: they stay.
    pub fn set_slots(&self, slots: BTreeMap<Digest, String>) {
        self.index.lock().set_slots(slots);
    }

    /// Keeps an image until the lease is dropped.
    pub fn lease(self: &Arc<Self>, digest: &Digest) -> Result<Lease, CacheError> {
        let mut index = self.index.lock();
        if index.image(digest).is_none() {
            return Err(CacheError::NotCached(*digest));
        }
        index.lease(*digest);
        Ok(Lease {
            cache: self.clone(),
            digest: *digest,
        })
    }

    /// Changes a record, on disk first.
    fn change(&self, digest: &Digest, change: impl FnOnce(&mut ImageRecord)) -> Result<(), CacheError> {
        let mut index = self.index.lock();
        let mut record = index
            .image(digest)
            .cloned()
            .ok_or(CacheError::NotCached(*digest))?;
        let before = record.clone();
        change(&mut record);
        if record != before {
            self.store
                .write_record(&record)
                .map_err(|error| CacheError::disk("writing an image's record", &error))?;
            index.insert(record);
            drop(index);
            self.changed.send_modify(|changes| *changes += 1);
        }
        Ok(())
    }

    /// Checks that an image is usable, and makes it one.
    fn admit(
        &self,
        digest: Digest,
        flight: u64,
        blobs: Vec<Blob>,
        image: &manifest::Image,
    ) -> Result<(), CacheError> {
        let slot_image = self.check_usable(&digest, image)?;
        let mut index = self.index.lock();
        // It came twice at once, or was damaged: who needs it stays known.
        let before = index
            .image(&digest)
            .cloned()
            .or_else(|| self.lost.lock().remove(&digest));
        let record = ImageRecord {
            digest,
            kind: image.kind,
            blobs,
            names: before
                .as_ref()
                .map(|before| before.names.clone())
                .unwrap_or_default(),
            pins: before.map(|before| before.pins).unwrap_or_default(),
            ttl: self.settings.default_ttl.map(|ttl| ttl.as_secs()),
            last_used: self.now(),
            slot_image,
        };
        self.store
            .write_record(&record)
            .map_err(|error| CacheError::disk("writing an image's record", &error))?;
        index.insert(record);
        // What was promised to it is now its own.
        index.reserve(flight, Need::default());
        drop(index);
        self.changed.send_modify(|changes| *changes += 1);
        Ok(())
    }

    fn check_usable(&self, digest: &Digest, image: &manifest::Image) -> Result<Option<Digest>, CacheError> {
        let Some(layer) = &image.disk_manifest else {
            return Ok(None);
        };
        let bytes = self.read_blob(digest, layer)?;
        let (_, id) = self.check_signed(digest, image, &bytes)?;
        Ok(Some(id))
    }

    /// The signed manifest of a disk image that names nothing which is not the image's, and the engine's name for it.
    fn check_signed(
        &self,
        digest: &Digest,
        image: &manifest::Image,
        bytes: &[u8],
    ) -> Result<(SignedManifest, Digest), CacheError> {
        let unusable = |problem: String| CacheError::NotUsable {
            image: digest.to_string(),
            problem,
        };
        let signed = SignedManifest::decode(bytes).map_err(|error| unusable(error.to_string()))?;
        if let Some(keys) = &self.settings.keys {
            keys.verify(&signed)
                .map_err(|error| unusable(error.to_string()))?;
        }
        let id = manifest::check_disk(&signed, image).map_err(|error| unusable(error.to_string()))?;
        Ok((signed, id))
    }

    /// A small blob of an image.
    fn read_blob(&self, image: &Digest, blob: &Blob) -> Result<Vec<u8>, CacheError> {
        match self.store.read_blob(blob) {
            Ok(bytes) => Ok(bytes),
            Err(error) if is_damage(&error) => {
                self.damaged(&blob.digest)?;
                Err(CacheError::Damaged(*image))
            }
            Err(error) => Err(CacheError::disk("reading a manifest", &error)),
        }
    }

    /// A blob that is complete, for whoever may read it.
    pub fn blob(&self, digest: &Digest) -> Option<(std::path::PathBuf, u64)> {
        let size = self.store.blob_size(digest)?;
        Some((self.store.blob_path(digest), size))
    }

    /// The signed manifest of a cached disk image; its blobs are had one by one.
    pub fn disk_image(&self, digest: &Digest) -> Result<SignedManifest, CacheError> {
        let unusable = |problem: String| CacheError::NotUsable {
            image: digest.to_string(),
            problem,
        };
        let image = self.read_image(digest)?;
        let layer = image
            .disk_manifest
            .ok_or_else(|| unusable("it is not an image for a slot".to_owned()))?;
        let bytes = self.read_blob(digest, &layer)?;
        SignedManifest::decode(&bytes).map_err(|error| unusable(error.to_string()))
    }

    /// The image's own manifest, which an index may have led to.
    fn read_image(&self, digest: &Digest) -> Result<manifest::Image, CacheError> {
        let record = self.image(digest).ok_or(CacheError::NotCached(*digest))?;
        for blob in &record.blobs {
            let bytes = self.read_blob(digest, blob)?;
            match manifest::read(&bytes, &self.settings.architecture) {
                Ok(Read::Image(image)) => return Ok(image),
                Ok(Read::Index(_)) => {}
                Err(problem) => {
                    return Err(CacheError::NotUsable {
                        image: digest.to_string(),
                        problem: problem.to_string(),
                    });
                }
            }
        }
        Err(CacheError::NotCached(*digest))
    }
}

/// Whether a blob's file is not what it should be, and reading it again is no use.
fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof
    )
}
