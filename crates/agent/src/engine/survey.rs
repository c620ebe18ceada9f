//! What is at hand before anything is fetched: chunks the target holds in their place, and chunks a seed holds anywhere.

use std::collections::HashSet;
use std::io;

use slipway_slots::Digest;
use slipway_slots::chunking::Chunker;
use slipway_slots::manifest::ChunkIndex;
use slipway_slots::write_plan::SeedChunk;

use crate::target::{SlotTarget, Through};

/// A target is looked at region by region.
const REGION: u64 = 8 << 20;
/// So many chunks of a region are looked at before all of it is read; fewer are read at once.
const SAMPLES: usize = 8;
/// So many places of a seed are looked at before all of it is read, each as long as so many chunks.
const PLACES: u64 = 16;
const PLACE: u64 = 64;
/// Chunks of a seed that are held in memory at once.
const BATCH: usize = 8192;

/// What a target holds of an image, chunk by chunk.
pub(super) struct Survey {
    /// It is there already.
    pub in_place: Vec<bool>,
    /// Its surroundings are of an earlier version: before it is written, its blocks are compared.
    pub familiar: Vec<bool>,
}

/// A region in which no sampled chunk is right is not read whole, unless an earlier run wrote here: then nothing that
/// is right may be fetched again.
pub(super) fn survey(target: &mut dyn SlotTarget, index: &ChunkIndex, resumed: bool) -> io::Result<Survey> {
    let count = index.entries.len();
    let mut found = Survey {
        in_place: vec![false; count],
        familiar: vec![false; count],
    };
    let mut first = 0;
    while first < count {
        let start = index.entries[first].offset;
        let chunks = index.entries[first..]
            .iter()
            .take_while(|entry| entry.offset - start < REGION)
            .count();
        let entries = &index.entries[first..first + chunks];
        let mut hit = resumed || chunks <= SAMPLES * SAMPLES;
        for entry in entries.iter().step_by((chunks / SAMPLES).max(1)) {
            if hit {
                break;
            }
            let digests = target.digests(entry.offset, &[entry.length], Through::Cache)?;
            hit = digests == [entry.digest];
        }
        if hit {
            let lengths: Vec<_> = entries.iter().map(|entry| entry.length).collect();
            let digests = target.digests(start, &lengths, Through::Cache)?;
            for (at, (entry, digest)) in entries.iter().zip(digests).enumerate() {
                found.in_place[first + at] = entry.digest == digest;
                found.familiar[first + at] = true;
            }
        }
        first += chunks;
    }
    Ok(found)
}

/// The chunks of the image that `seed` holds, wherever; none, when nothing of it was found in a sample.
pub(super) fn find(
    seed: &mut dyn SlotTarget,
    index: &ChunkIndex,
    chunker: Chunker,
) -> io::Result<Vec<SeedChunk>> {
    let zero = Digest::of(&vec![0; chunker.longest() as usize]);
    let known: HashSet<_> = index
        .entries
        .iter()
        .map(|entry| entry.digest)
        .filter(|digest| *digest != zero)
        .collect();
    let size = seed.size();
    let place = PLACE * u64::from(chunker.average());
    let mut hit = size <= PLACES * place;
    for number in 0..PLACES {
        if hit {
            break;
        }
        let cuts = seed.cut(size / PLACES * number, place, chunker, BATCH)?;
        hit = cuts.iter().any(|cut| known.contains(&cut.digest));
    }
    let mut found = Vec::new();
    let mut at = 0;
    while hit && at < size {
        for cut in seed.cut(at, size - at, chunker, BATCH)? {
            if known.contains(&cut.digest) {
                found.push(SeedChunk {
                    digest: cut.digest,
                    offset: at,
                    length: cut.length,
                });
            }
            at += u64::from(cut.length);
        }
    }
    Ok(found)
}
