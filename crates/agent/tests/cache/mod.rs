//! The image cache: sharing, resuming, lying sources, room, crashes, bundles, and a real registry.

mod bundles;
mod downloads;
mod killed;
mod network;
pub mod real_registry;
mod room;
pub mod trouble;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use slipway_agent::cache::{
    BlobSource, Cache, Ensure, Limits, Opened, ServiceFailpoints, Settings, SourceError, TagPolicy, Waits,
};
use slipway_agent::engine::Unhindered;
use slipway_slots::Digest;
use slipway_slots::manifest::Blob;

pub fn settings(quota: u64) -> Settings {
    Settings {
        limits: Limits {
            quota,
            high: quota / 10 * 9,
            low: quota / 2,
        },
        margin: 0,
        default_ttl: None,
        waits: Waits {
            backoff: (Duration::from_millis(1), Duration::from_millis(5)),
            ..Waits::default()
        },
        architecture: "amd64".into(),
        keys: None,
        now: Timestamp::now,
    }
}

pub fn open(root: &Path, quota: u64) -> Arc<Cache> {
    open_with(root, settings(quota), Arc::new(Unhindered))
}

pub fn open_with(root: &Path, settings: Settings, steps: Arc<dyn ServiceFailpoints>) -> Arc<Cache> {
    Cache::open(root, settings, steps).unwrap()
}

/// A container image in memory.
pub struct TestImage {
    pub digest: Digest,
    pub blobs: BTreeMap<Digest, Bytes>,
    pub layers: Vec<Digest>,
}

/// Bytes that differ by seed.
pub fn layer(seed: u8, length: usize) -> Bytes {
    let mut state = u32::from(seed) + 1;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

impl TestImage {
    pub fn of(name: &str, layers: &[Bytes]) -> Self {
        let mut blobs = BTreeMap::new();
        let mut add = |bytes: Bytes, kind: &str| {
            let digest = Digest::of(&bytes);
            let descriptor = json!({"mediaType": kind, "digest": digest.to_string(), "size": bytes.len()});
            blobs.insert(digest, bytes);
            descriptor
        };
        let config = json!({"architecture": "amd64", "os": "linux", "name": name}).to_string();
        let config = add(config.into(), "application/vnd.oci.image.config.v1+json");
        let described: Vec<_> = layers
            .iter()
            .map(|layer| add(layer.clone(), "application/vnd.oci.image.layer.v1.tar"))
            .collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": described,
        });
        let manifest = Bytes::from(manifest.to_string());
        let digest = Digest::of(&manifest);
        blobs.insert(digest, manifest);
        Self {
            digest,
            blobs,
            layers: layers.iter().map(|layer| Digest::of(layer)).collect(),
        }
    }

    /// As an OCI layout: what `import` takes.
    pub fn write_layout(&self, to: &Path) {
        std::fs::create_dir_all(to.join("blobs/sha256")).unwrap();
        for (digest, bytes) in &self.blobs {
            let name = digest.to_string().replacen(':', "/", 1);
            std::fs::write(to.join("blobs").join(name), bytes).unwrap();
        }
        let manifest = json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": self.digest.to_string(),
            "size": self.blobs[&self.digest].len(),
        });
        let index = json!({"schemaVersion": 2, "manifests": [manifest]});
        std::fs::write(to.join("index.json"), index.to_string()).unwrap();
        std::fs::write(to.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    }

    pub fn size(&self) -> u64 {
        self.blobs.values().map(|blob| blob.len() as u64).sum()
    }
}

/// What a source does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Good,
    /// Every answer ends after so many bytes.
    CutAfter(u64),
    /// One byte of every blob is another.
    Lies,
    /// Answers from the beginning, whatever is asked for.
    NoRanges,
    /// Sends more than there is.
    TooMuch,
    /// The first answers of a blob carry other bytes, as if the file had been replaced; then it ends.
    Changed {
        first: usize,
    },
    Absent,
    Unreachable,
    /// Opens, and then says nothing.
    Silent,
    /// One byte at a time, a second apart.
    Drips,
}

/// A source in memory.
pub struct TestSource {
    pub name: String,
    pub peer: bool,
    blobs: Mutex<BTreeMap<Digest, Bytes>>,
    pub tag: Mutex<Option<Digest>>,
    pub manner: Mutex<Manner>,
    /// `(blob, offset)` of every request for a blob.
    pub asked: Mutex<Vec<(Digest, u64)>>,
    pub manifests: AtomicUsize,
    pub sent: Arc<AtomicU64>,
}

impl TestSource {
    pub fn new(name: &str, images: &[&TestImage]) -> Arc<Self> {
        let blobs = images.iter().flat_map(|image| image.blobs.clone()).collect();
        Arc::new(Self {
            name: name.into(),
            peer: name.starts_with("host "),
            blobs: Mutex::new(blobs),
            tag: Mutex::new(images.first().map(|image| image.digest)),
            manner: Mutex::new(Manner::Good),
            asked: Mutex::default(),
            manifests: AtomicUsize::new(0),
            sent: Arc::default(),
        })
    }

    pub fn with(name: &str, images: &[&TestImage], manner: Manner) -> Arc<Self> {
        let source = Self::new(name, images);
        *source.manner.lock() = manner;
        source
    }

    pub fn asked_for(&self, digest: &Digest) -> Vec<u64> {
        let asked = self.asked.lock();
        asked
            .iter()
            .filter(|(blob, _)| blob == digest)
            .map(|(_, offset)| *offset)
            .collect()
    }
}

#[async_trait]
impl BlobSource for TestSource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_peer(&self) -> bool {
        self.peer
    }

    async fn manifest(&self, digest: &Digest) -> Result<Bytes, SourceError> {
        self.manifests.fetch_add(1, Ordering::Relaxed);
        match *self.manner.lock() {
            Manner::Unreachable => return Err(SourceError::Failed("it cannot be reached".into())),
            Manner::Absent => return Err(SourceError::Absent),
            _ => {}
        }
        self.blobs.lock().get(digest).cloned().ok_or(SourceError::Absent)
    }

    async fn open(&self, blob: &Blob, offset: u64, until: u64) -> Result<Opened, SourceError> {
        let manner = *self.manner.lock();
        match manner {
            Manner::Unreachable => return Err(SourceError::Failed("it cannot be reached".into())),
            Manner::Absent => return Err(SourceError::Absent),
            _ => {}
        }
        let times = {
            let mut asked = self.asked.lock();
            asked.push((blob.digest, offset));
            asked.iter().filter(|(digest, _)| *digest == blob.digest).count()
        };
        let mut bytes = self
            .blobs
            .lock()
            .get(&blob.digest)
            .cloned()
            .ok_or(SourceError::Absent)?
            .to_vec();
        let at = if manner == Manner::NoRanges { 0 } else { offset };
        let mut end = if manner == Manner::NoRanges {
            bytes.len()
        } else {
            until as usize
        };
        match manner {
            Manner::Lies => bytes[0] ^= 1,
            Manner::TooMuch => {
                bytes.push(0);
                end += 1;
            }
            Manner::CutAfter(length) => end = end.min((at + length) as usize),
            Manner::Changed { first } if times <= first => {
                for byte in &mut *bytes {
                    *byte ^= 0xff;
                }
                end = end.min((at + 1000) as usize);
            }
            _ => {}
        }
        let piece = if manner == Manner::Drips { 1 } else { 4096 };
        let pieces: Vec<_> = bytes[(at as usize).min(end)..end]
            .chunks(piece)
            .map(Bytes::copy_from_slice)
            .collect();
        let sent = self.sent.clone();
        let stream = stream::iter(pieces).then(move |piece| {
            let sent = sent.clone();
            async move {
                match manner {
                    Manner::Drips => tokio::time::sleep(Duration::from_secs(1)).await,
                    Manner::Silent => std::future::pending().await,
                    _ => {}
                }
                sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
                Ok(piece)
            }
        });
        Ok(Opened {
            at,
            stream: stream.boxed(),
        })
    }

    async fn resolve_tag(&self) -> Result<Digest, SourceError> {
        match *self.manner.lock() {
            Manner::Unreachable => Err(SourceError::Failed("it cannot be reached".into())),
            _ => self.tag.lock().ok_or(SourceError::Absent),
        }
    }
}

pub fn ensure(digest: Digest, sources: &[&Arc<TestSource>]) -> Ensure {
    Ensure {
        name: None,
        digest: Some(digest),
        tag_policy: TagPolicy::PreferRegistry,
        sources: sources
            .iter()
            .map(|source| (*source).clone() as Arc<dyn BlobSource>)
            .collect(),
        ttl: None,
        pin: None,
        verify: false,
    }
}

/// Bytes of all files below a directory.
pub fn disk_usage(root: &Path) -> u64 {
    let mut total = 0;
    for entry in std::fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        total += if metadata.is_dir() {
            disk_usage(&entry.path())
        } else {
            metadata.len()
        };
    }
    total
}
