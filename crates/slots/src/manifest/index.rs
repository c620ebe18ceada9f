//! The chunk index: for every chunk of a partition its digest, its length, and how many bytes it takes where chunks are
//! stored.
//!
//! A chunk that occurs twice is stored once; the later entry says so with a stored length of zero. The index is stored
//! zstd-compressed; this is its plain form: 40 bytes a chunk, the digest and both lengths (big endian).

use std::collections::{HashMap, HashSet};

use crate::Digest;
use crate::chunking::Chunker;

use super::PartitionImage;

/// The most chunks a partition has: its index is held in memory whole, so this bounds the agent's memory.
pub const MOST_CHUNKS: u64 = 524_288;
/// Images get chunks so large that they have about as many; [`MOST_CHUNKS`] cannot be exceeded then.
const CHUNKS: u64 = MOST_CHUNKS / 4;
/// Smaller chunks find a little more and cost more to list than that.
const SMALLEST: u32 = 8192;

const ENTRY: usize = 40;

/// The average length of the chunks of an image: 8 KiB up to 1 GiB; above that it grows, so that the index does not.
pub fn chunk_size_for(size: u64) -> u32 {
    let least = size.div_ceil(CHUNKS).next_power_of_two();
    least.clamp(u64::from(SMALLEST), u64::from(*Chunker::AVERAGES.end())) as u32
}

/// One chunk of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkEntry {
    /// Of the plain bytes.
    pub digest: Digest,
    /// Where it begins in the partition.
    pub offset: u64,
    pub length: u32,
    /// Where its stored form begins in the chunks blob.
    pub stored_offset: u64,
    /// How long its stored form is. As long as the chunk: it is stored as it is; shorter: it is a zstd frame.
    pub stored_length: u32,
}

impl ChunkEntry {
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkIndex {
    pub entries: Vec<ChunkEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    #[error("the chunk index has {found} bytes: {expected} chunks take {} bytes", expected * ENTRY as u64)]
    Length { found: usize, expected: u64 },
    #[error("chunk {0} of the index is shorter or longer than chunks of this image are")]
    ChunkLength(usize),
    #[error("chunk {0} of the index repeats a chunk that was not stored before it")]
    NotStored(usize),
    #[error("chunk {0} of the index is stored twice, or is stored longer than it is")]
    StoredLength(usize),
    #[error("the chunks of the index are {found} bytes: the manifest says {expected}")]
    Size { found: u64, expected: u64 },
    #[error("the chunks of the index take {found} stored bytes: the manifest says {expected}")]
    StoredSize { found: u64, expected: u64 },
}

impl ChunkIndex {
    /// How large the stored form of an index can be, so that nobody is made to download more.
    pub fn stored_limit(chunks: u64) -> u64 {
        chunks.saturating_mul(ENTRY as u64).saturating_add(1024)
    }

    /// The size of the plain form.
    pub fn plain_size(chunks: u32) -> usize {
        chunks as usize * ENTRY
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.entries.len() * ENTRY);
        let mut stored = HashSet::new();
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.digest.0);
            bytes.extend_from_slice(&entry.length.to_be_bytes());
            let first = stored.insert(&entry.digest);
            bytes.extend_from_slice(&if first { entry.stored_length } else { 0 }.to_be_bytes());
        }
        bytes
    }

    /// The index of `partition`: as many chunks as it has, which are all of it, each stored exactly once, in as many
    /// bytes as it says. The partition's manifest has been checked.
    pub fn decode(bytes: &[u8], partition: &PartitionImage) -> Result<Self, IndexError> {
        let count = partition.chunk_count;
        if bytes.len() != Self::plain_size(count) {
            return Err(IndexError::Length {
                found: bytes.len(),
                expected: u64::from(count),
            });
        }
        let lengths = Chunker::new(partition.chunk_size)
            .map_or(1..=u32::MAX, |chunker| chunker.shortest()..=chunker.longest());
        let mut entries = Vec::<ChunkEntry>::with_capacity(count as usize);
        let mut stored = HashMap::<Digest, u32>::with_capacity(count as usize);
        let (mut end, mut stored_end) = (0, 0);
        for (number, entry) in bytes.chunks_exact(ENTRY).enumerate() {
            let (digest, rest) = entry.split_at(32);
            let digest = Digest(digest.try_into().expect("32 bytes"));
            let number_at = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().expect("4 bytes"));
            let (length, stored_length) = (number_at(0), number_at(4));
            let last = number + 1 == count as usize;
            if length > *lengths.end() || length < if last { 1 } else { *lengths.start() } {
                return Err(IndexError::ChunkLength(number));
            }
            let offset = end;
            end += u64::from(length);
            let (stored_offset, stored_length) = if stored_length == 0 {
                let first = *stored.get(&digest).ok_or(IndexError::NotStored(number))?;
                let first = entries[first as usize];
                if first.length != length {
                    return Err(IndexError::ChunkLength(number));
                }
                (first.stored_offset, first.stored_length)
            } else {
                if stored_length > length || stored.insert(digest, number as u32).is_some() {
                    return Err(IndexError::StoredLength(number));
                }
                let at = stored_end;
                stored_end += u64::from(stored_length);
                (at, stored_length)
            };
            entries.push(ChunkEntry {
                digest,
                offset,
                length,
                stored_offset,
                stored_length,
            });
        }
        if end != partition.size {
            return Err(IndexError::Size {
                found: end,
                expected: partition.size,
            });
        }
        if stored_end != partition.chunks.size {
            return Err(IndexError::StoredSize {
                found: stored_end,
                expected: partition.chunks.size,
            });
        }
        Ok(Self { entries })
    }

    /// Where chunks `first` to `first + count` lie in the partition, and how long they are together.
    pub fn range(&self, first: u32, count: u32) -> (u64, usize) {
        let offset = self.entries[first as usize].offset;
        let end = self.entries[(first + count - 1) as usize].end();
        (offset, (end - offset) as usize)
    }
}
