//! The chunk index: for every chunk of a partition its digest and how many bytes it takes where chunks are stored.
//!
//! A chunk that occurs twice is stored once; the later entry says so with a stored length of zero. The index is
//! stored zstd-compressed; this is its plain form: 36 bytes a chunk, the digest and the stored length (big endian).

use std::collections::{HashMap, HashSet};

use crate::Digest;

use super::{Manifest, PartitionImage};

/// The most chunks an index has: it is held in memory whole, so this bounds the agent's memory.
const MOST_CHUNKS: u64 = 262_144;

const ENTRY: usize = 36;

/// Chunks of 4 KiB up to 1 GiB; above that they grow, so that the index stays under 10 MiB.
pub fn chunk_size_for(size: u64) -> u32 {
    let least = size.div_ceil(MOST_CHUNKS).next_power_of_two();
    least.clamp(u64::from(Manifest::MIN_CHUNK), u64::from(Manifest::MAX_CHUNK)) as u32
}

/// One chunk of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkEntry {
    /// Of the plain bytes.
    pub digest: Digest,
    /// Where its stored form begins in the chunks blob.
    pub stored_offset: u64,
    /// How long its stored form is. As long as the chunk: it is stored as it is; shorter: it is a zstd frame.
    pub stored_length: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkIndex {
    pub entries: Vec<ChunkEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    #[error("the chunk index has {found} bytes: {expected} chunks take {} bytes", expected * ENTRY as u64)]
    Length { found: usize, expected: u64 },
    #[error("the chunk index has more than {MOST_CHUNKS} chunks: larger images need larger chunks")]
    TooManyChunks,
    #[error("chunk {0} of the index repeats a chunk that was not stored before it")]
    NotStored(usize),
    #[error("chunk {0} of the index is stored twice, or is stored longer than it is")]
    StoredLength(usize),
    #[error("the chunks of the index take {found} stored bytes: the manifest says {expected}")]
    StoredSize { found: u64, expected: u64 },
}

impl ChunkIndex {
    /// How large the stored form of an index can be, so that nobody is made to download more.
    pub fn stored_limit(chunks: u64) -> u64 {
        chunks.saturating_mul(ENTRY as u64).saturating_add(1024)
    }

    /// The size of the plain form.
    pub fn plain_size(chunks: u64) -> u64 {
        chunks * ENTRY as u64
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.entries.len() * ENTRY);
        let mut stored = HashSet::new();
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.digest.0);
            let first = stored.insert(entry.digest);
            bytes.extend_from_slice(&if first { entry.stored_length } else { 0 }.to_be_bytes());
        }
        bytes
    }

    /// The index of `partition`: as many chunks as it has, each stored exactly once, in as many bytes as it says.
    pub fn decode(bytes: &[u8], partition: &PartitionImage) -> Result<Self, IndexError> {
        let expected = partition.chunk_count();
        if expected > MOST_CHUNKS {
            return Err(IndexError::TooManyChunks);
        }
        if bytes.len() as u64 != Self::plain_size(expected) {
            return Err(IndexError::Length {
                found: bytes.len(),
                expected,
            });
        }
        let mut entries = Vec::with_capacity(expected as usize);
        let mut stored = HashMap::<Digest, (u64, u32)>::with_capacity(expected as usize);
        let mut end = 0;
        for (number, entry) in bytes.chunks_exact(ENTRY).enumerate() {
            let (digest, length) = entry.split_at(32);
            let digest = Digest(digest.try_into().expect("32 bytes"));
            let length = u32::from_be_bytes(length.try_into().expect("4 bytes"));
            let (stored_offset, stored_length) = if length == 0 {
                *stored.get(&digest).ok_or(IndexError::NotStored(number))?
            } else {
                let (_, plain) = partition.chunk_range(number as u64);
                if length > plain || stored.insert(digest, (end, length)).is_some() {
                    return Err(IndexError::StoredLength(number));
                }
                let offset = end;
                end += u64::from(length);
                (offset, length)
            };
            entries.push(ChunkEntry {
                digest,
                stored_offset,
                stored_length,
            });
        }
        if end != partition.chunks.size {
            return Err(IndexError::StoredSize {
                found: end,
                expected: partition.chunks.size,
            });
        }
        Ok(Self { entries })
    }
}
