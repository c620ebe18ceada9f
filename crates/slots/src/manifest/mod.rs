//! The image manifest: what an image is, for whom, how its bytes are cut into chunks, and who vouches for it.
//!
//! Trust runs in one direction: signatures vouch for the manifest, the manifest for each partition's chunk index, the
//! index for each chunk, and the partition's digest for all of them together.

mod admit;
mod index;
mod label;
mod trust;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Digest;
use crate::chunking::Chunker;

pub use admit::{Expectation, Refusal, admit};
pub use index::{ChunkEntry, ChunkIndex, IndexError, MOST_CHUNKS, chunk_size_for};
pub use label::{LABEL_SIZE, LabelError, decode_label, encode_label};
pub use trust::{KeyRing, KeyRingFile, SignedManifest, TrustError};

/// Manifests are small: the chunk tables are files of their own.
pub const MAX_MANIFEST: usize = 32 * 1024;

/// What an image is. Its encoding is canonical: one manifest has exactly one form in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// The version of this format; always [`Manifest::FORMAT`].
    pub format: u32,
    pub name: String,
    pub version: String,
    /// The kinds of host this image is made for; a host has one of them in its configuration.
    pub compatible: Vec<String>,
    /// As in `uname -m`.
    pub arch: String,
    /// Never lowered on a host: raising it takes every image of a lower epoch out of use.
    pub epoch: u64,
    pub created: Timestamp,
    /// After this moment the image is no longer accepted; hosts that run it go on.
    pub not_after: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_version: Option<String>,
    /// What is written to a slot, one entry for each of its partitions. The first carries the slot's label.
    pub partitions: Vec<PartitionImage>,
}

/// The contents of one partition of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PartitionImage {
    /// The name the host's configuration gives to this partition of a slot, such as `root`.
    pub name: String,
    pub size: u64,
    /// Of all bytes.
    pub digest: Digest,
    /// The average length of a chunk, by which a [`Chunker`] cuts.
    pub chunk_size: u32,
    pub chunk_count: u32,
    /// The [`ChunkIndex`], as it is stored.
    pub index: Blob,
    /// The stored chunks, one after the other.
    pub chunks: Blob,
    /// The whole partition as one zstd stream: smaller than the chunks when most of them are needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solid: Option<Blob>,
}

/// A file that comes with the manifest, found by its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blob {
    pub digest: Digest,
    pub size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("the manifest has {0} bytes: at most {MAX_MANIFEST} are accepted")]
    TooLarge(usize),
    #[error("the manifest cannot be read: {0}")]
    Syntax(String),
    #[error("the manifest is not in its canonical form")]
    NotCanonical,
    #[error("the manifest is of format {0}: this agent reads format {format}", format = Manifest::FORMAT)]
    Format(u32),
    #[error("the manifest's {field} {problem}")]
    Field { field: String, problem: String },
}

/// The one field that every format has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl Manifest {
    pub const FORMAT: u32 = 1;
    /// What every disk writes at once: a partition is a multiple of it.
    pub const BLOCK: u32 = 4096;
    /// Eight EiB minus room for sums: sizes are added without overflow.
    pub const MAX_SIZE: u64 = 1 << 50;

    /// The one form in bytes: compact JSON with the fields in the order of the type.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a manifest has only text, numbers and lists")
    }

    /// What identifies the image on every host: the digest of the manifest's bytes.
    pub fn id(&self) -> Digest {
        Digest::of(&self.encode())
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > MAX_MANIFEST {
            return Err(ManifestError::TooLarge(bytes.len()));
        }
        let syntax = |error: serde_json::Error| ManifestError::Syntax(error.to_string());
        let Format { format } = serde_json::from_slice(bytes).map_err(syntax)?;
        if format != Self::FORMAT {
            return Err(ManifestError::Format(format));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(syntax)?;
        manifest.check()?;
        if manifest.encode() != bytes {
            return Err(ManifestError::NotCanonical);
        }
        Ok(manifest)
    }

    /// Sum of the sizes of all partitions.
    pub fn size(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.size).sum()
    }

    /// What no manifest may say, whatever the host.
    pub fn check(&self) -> Result<(), ManifestError> {
        let wrong = |field: &str, problem: &str| {
            Err(ManifestError::Field {
                field: field.to_owned(),
                problem: problem.to_owned(),
            })
        };
        for (field, text) in [
            ("name", &self.name),
            ("version", &self.version),
            ("arch", &self.arch),
        ] {
            if text.is_empty() || text.len() > 128 || text.chars().any(char::is_control) {
                return wrong(field, "must be 1 to 128 printable characters");
            }
        }
        if self.compatible.is_empty() || self.compatible.iter().any(String::is_empty) {
            return wrong("compatible", "must name at least one kind of host");
        }
        if self.not_after <= self.created {
            return wrong("notAfter", "must be later than created");
        }
        if self.partitions.is_empty() || self.partitions.len() > 8 {
            return wrong("partitions", "must have 1 to 8 entries");
        }
        for (at, partition) in self.partitions.iter().enumerate() {
            let wrong = |field: &str, problem: &str| wrong(&format!("partitions[{at}].{field}"), problem);
            let name = &partition.name;
            if name.is_empty()
                || name.len() > 32
                || !name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            {
                return wrong("name", "must be 1 to 32 letters, digits and hyphens");
            }
            if self.partitions[..at].iter().any(|earlier| earlier.name == *name) {
                return wrong("name", "is used twice");
            }
            let Some(chunker) = Chunker::new(partition.chunk_size) else {
                return wrong("chunkSize", "must be a power of two from 1024 to 1048576");
            };
            if partition.size == 0 || partition.size > Self::MAX_SIZE {
                return wrong("size", "must be from one byte to one PiB");
            }
            if partition.size % u64::from(Self::BLOCK) != 0 {
                return wrong("size", "must be a multiple of 4096");
            }
            let chunks = u64::from(partition.chunk_count);
            let possible = partition.size.div_ceil(u64::from(chunker.longest()))
                ..=partition.size.div_ceil(u64::from(chunker.shortest()));
            if !possible.contains(&chunks) || chunks > MOST_CHUNKS {
                return wrong("chunkCount", "cannot be that of chunks of this size");
            }
            if partition.index.size > ChunkIndex::stored_limit(chunks) {
                return wrong("index.size", "is more than the index of so many chunks can have");
            }
            if partition.chunks.size > partition.size {
                return wrong("chunks.size", "is more than the image");
            }
        }
        Ok(())
    }
}
