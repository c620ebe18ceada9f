//! Chunks that an image shares with images that are cached: they are read there and not downloaded again.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use slipway_slots::Digest;
use slipway_slots::manifest::{Blob, ChunkIndex, Manifest, PartitionImage};

use super::index::Kind;
use super::{Cache, Lease};

/// By the image's blob of chunks, and by where a chunk's stored form begins in it.
#[derive(Debug, Default)]
pub struct SharedChunks(HashMap<Digest, BTreeMap<u64, CachedChunk>>);

/// Where a cached image has a chunk, in the same stored form.
#[derive(Clone, Debug)]
struct CachedChunk {
    file: Arc<File>,
    offset: u64,
    length: u32,
}

fn decode(partition: &PartitionImage, stored: &[u8]) -> Option<ChunkIndex> {
    let plain = zstd::bulk::decompress(stored, ChunkIndex::plain_size(partition.chunk_count)).ok()?;
    ChunkIndex::decode(&plain, partition).ok()
}

impl Cache {
    /// What cached images have of an image whose indexes are `held`. They are kept as long as the leases are.
    pub(super) fn shared_chunks(
        self: &Arc<Self>,
        manifest: &Manifest,
        held: &BTreeMap<Digest, Vec<u8>>,
    ) -> (SharedChunks, Vec<Lease>) {
        let mut shared = SharedChunks::default();
        let mut desired: HashMap<Digest, Vec<(Digest, u64, u32)>> = HashMap::new();
        for partition in &manifest.partitions {
            let stored = held.get(&partition.index.digest);
            let Some(index) = stored.and_then(|stored| decode(partition, stored)) else {
                continue;
            };
            for entry in index.entries {
                desired.entry(entry.digest).or_default().push((
                    partition.chunks.digest,
                    entry.stored_offset,
                    entry.stored_length,
                ));
            }
        }
        let mut leases = Vec::new();
        for (record, _) in self.list() {
            if record.kind != Kind::Disk {
                continue;
            }
            let Ok(lease) = self.lease(&record.digest) else {
                continue;
            };
            if self
                .add_chunks_of(&record.digest, &desired, &mut shared)
                .is_some()
            {
                leases.push(lease);
            }
        }
        (shared, leases)
    }

    /// `None` when the image cannot be read, or has nothing of it.
    fn add_chunks_of(
        &self,
        image: &Digest,
        desired: &HashMap<Digest, Vec<(Digest, u64, u32)>>,
        shared: &mut SharedChunks,
    ) -> Option<()> {
        let manifest = self.disk_image(image).ok()?.unverified().ok()?;
        let mut found = None;
        for partition in &manifest.partitions {
            let stored = self.read_blob(image, &partition.index).ok()?;
            let index = decode(partition, &stored)?;
            let file = Arc::new(self.open_blob(&partition.chunks)?);
            for entry in index.entries {
                for (blob, offset, length) in desired.get(&entry.digest).into_iter().flatten() {
                    // Another compressor may have stored it otherwise.
                    if *length == entry.stored_length {
                        let chunk = CachedChunk {
                            file: file.clone(),
                            offset: entry.stored_offset,
                            length: *length,
                        };
                        shared.0.entry(*blob).or_default().insert(*offset, chunk);
                        found = Some(());
                    }
                }
            }
        }
        found
    }

    fn open_blob(&self, blob: &Blob) -> Option<File> {
        let (path, _) = self.blob(&blob.digest)?;
        File::open(path).ok()
    }
}

impl SharedChunks {
    /// How many bytes of this part of a blob of chunks cached images have.
    pub fn at_hand(&self, blob: &Digest, offset: u64, length: u64) -> u64 {
        let cached = self.0.get(blob).into_iter();
        cached
            .flat_map(|cached| cached.range(offset..offset + length))
            .map(|(_, chunk)| u64::from(chunk.length))
            .sum()
    }

    /// Fills what is at hand of a blob of chunks; the parts of the buffer that are not.
    pub fn read(&self, blob: &Digest, offset: u64, buffer: &mut [u8]) -> Vec<Range<usize>> {
        let end = offset + buffer.len() as u64;
        let mut missing = Vec::new();
        let mut at = 0;
        let cached = self.0.get(blob);
        for (start, chunk) in cached.into_iter().flat_map(|cached| cached.range(offset..end)) {
            let start = (*start - offset) as usize;
            let part = start..start + chunk.length as usize;
            if part.start < at || part.end > buffer.len() {
                continue;
            }
            let into = &mut buffer[part.clone()];
            if chunk.file.read_exact_at(into, chunk.offset).is_err() {
                continue;
            }
            if at < part.start {
                missing.push(at..part.start);
            }
            at = part.end;
        }
        if at < buffer.len() {
            missing.push(at..buffer.len());
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// What is at hand is filled in right, and exactly the rest is named.
        #[test]
        fn what_is_missing_is_exactly_what_no_cached_image_has(
            chunks in proptest::collection::vec((1..40_u32, any::<bool>()), 1..12),
            from in any::<prop::sample::Index>(),
            to in any::<prop::sample::Index>(),
        ) {
            let blob = Digest::of(b"chunks");
            let mut file = tempfile::tempfile().unwrap();
            let mut all = Vec::new();
            let mut held = Vec::new();
            let (mut stored, mut length_of_file) = (Vec::new(), 0);
            let mut starts = vec![0];
            for (number, (length, here)) in chunks.iter().enumerate() {
                let bytes = vec![number as u8 + 1; *length as usize];
                if *here {
                    file.write_all(&bytes).unwrap();
                    stored.push((all.len() as u64, length_of_file, *length));
                    length_of_file += u64::from(*length);
                }
                held.extend(vec![*here; *length as usize]);
                all.extend(bytes);
                starts.push(all.len());
            }
            let file = Arc::new(file);
            let cached = stored.into_iter().map(|(at, offset, length)| {
                (at, CachedChunk { file: file.clone(), offset, length })
            });
            let shared = SharedChunks(HashMap::from([(blob, cached.collect())]));
            // Whoever asks asks for whole chunks.
            let (one, other) = (from.index(starts.len()), to.index(starts.len()));
            let (first, last) = (starts[one.min(other)], starts[one.max(other)]);
            let mut buffer = vec![0; last - first];
            let missing = shared.read(&blob, first as u64, &mut buffer);
            let not_here: usize = missing.iter().map(ExactSizeIterator::len).sum();
            let here = shared.at_hand(&blob, first as u64, buffer.len() as u64);
            prop_assert_eq!(here as usize + not_here, buffer.len());
            let mut named = vec![false; buffer.len()];
            for part in missing {
                named[part].fill(true);
            }
            for (at, byte) in buffer.iter().enumerate() {
                prop_assert_eq!(named[at], !held[first + at]);
                prop_assert!(named[at] || *byte == all[first + at]);
            }
        }
    }
}
