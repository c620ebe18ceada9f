//! Where each chunk of an image comes from: it is there already, is empty, lies in a seed on this host, came earlier in
//! the same image, or has to be fetched. Decided for the whole partition before the first write.

use std::collections::HashMap;

use crate::Digest;
use crate::chunking::Chunker;
use crate::manifest::{Blob, ChunkEntry, ChunkIndex, PartitionImage};

/// What one request for a range costs beside its bytes.
const REQUEST: u64 = 768;

/// Limits that keep the agent's memory small and a crash cheap.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// No step moves more bytes than this at once, unless one chunk is larger.
    pub step: u64,
    /// After at most this many written bytes comes a [`PlanStep::Checkpoint`].
    pub checkpoint: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            step: 1 << 20,
            checkpoint: 32 << 20,
        }
    }
}

/// A run of chunks that are handled alike; `first` and `count` are in chunks of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanStep {
    /// They are there already: not a byte is written.
    InPlace { first: u32, count: u32 },
    /// All zero.
    Zero { first: u32, count: u32 },
    /// They lie one after the other in a seed, from byte `from` on.
    Copy {
        first: u32,
        count: u32,
        seed: u32,
        from: u64,
    },
    /// The same as chunk `of` of the target, which was written before.
    Repeat { first: u32, of: u32 },
    /// They lie one after the other where chunks are stored.
    Fetch {
        first: u32,
        count: u32,
        stored_offset: u64,
        stored_length: u32,
    },
    /// Flush, and note how far it is.
    Checkpoint,
}

/// What carrying out a plan costs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub in_place: u64,
    pub zero: u64,
    pub copied: u64,
    /// As they will be in the slot.
    pub fetched: u64,
    /// As they are stored: what goes over the network.
    pub downloaded: u64,
    pub requests: u64,
}

impl Cost {
    pub fn written(&self) -> u64 {
        self.zero + self.copied + self.fetched
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WritePlan {
    pub steps: Vec<PlanStep>,
    pub cost: Cost,
}

/// How the missing bytes are downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    Chunks,
    /// The whole partition as one stream, of which what is there already is thrown away.
    Solid(Blob),
}

/// What to do when chunks cannot be had one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDeltaFailure {
    /// Never download the whole image: the link is metered.
    Fail,
    #[default]
    Full,
}

/// A chunk of the image that was found in a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeedChunk {
    pub digest: Digest,
    pub offset: u64,
    pub length: u32,
}

/// `in_place` says of each chunk whether the target holds it already; `seeds` are what was found elsewhere on the host,
/// in the order of their offsets.
pub fn plan(
    partition: &PartitionImage,
    index: &ChunkIndex,
    in_place: &[bool],
    seeds: &[&[SeedChunk]],
    limits: Limits,
) -> WritePlan {
    let mut known = HashMap::<&Digest, (u32, u32)>::new();
    for (seed, chunks) in seeds.iter().enumerate().rev() {
        for (at, chunk) in chunks.iter().enumerate().rev() {
            known.insert(&chunk.digest, (seed as u32, at as u32));
        }
    }
    let zero = Zero::of(partition);
    let mut written = HashMap::<&Digest, u32>::new();
    let mut builder = Builder {
        plan: WritePlan::default(),
        limits,
        since_checkpoint: 0,
        run: 0,
        copied: None,
    };
    for (number, entry) in index.entries.iter().enumerate() {
        let first = number as u32;
        let digest = &entry.digest;
        let mut copied = None;
        let step = if in_place.get(number) == Some(&true) {
            PlanStep::InPlace { first, count: 1 }
        } else if zero.is(entry) {
            PlanStep::Zero { first, count: 1 }
        } else if let Some((seed, at)) = builder.continues(known.get(digest).copied(), digest, seeds) {
            copied = Some((seed, at));
            PlanStep::Copy {
                first,
                count: 1,
                seed,
                from: seeds[seed as usize][at as usize].offset,
            }
        } else if let Some(of) = written.get(digest) {
            PlanStep::Repeat { first, of: *of }
        } else {
            PlanStep::Fetch {
                first,
                count: 1,
                stored_offset: entry.stored_offset,
                stored_length: entry.stored_length,
            }
        };
        written.entry(digest).or_insert(first);
        builder.push(step, u64::from(entry.length));
        builder.copied = copied;
    }
    if builder.since_checkpoint > 0 {
        builder.plan.steps.push(PlanStep::Checkpoint);
    }
    builder.plan
}

/// Long stretches of zeros are cut into chunks of the longest length.
struct Zero {
    length: u32,
    digest: Digest,
}

impl Zero {
    fn of(partition: &PartitionImage) -> Self {
        let length = Chunker::new(partition.chunk_size).map_or(0, |chunker| chunker.longest());
        Self {
            length,
            digest: Digest::of(&vec![0; length as usize]),
        }
    }

    fn is(&self, entry: &ChunkEntry) -> bool {
        entry.length == self.length && entry.digest == self.digest
    }
}

struct Builder {
    plan: WritePlan,
    limits: Limits,
    since_checkpoint: u64,
    /// Bytes of the step that is being lengthened.
    run: u64,
    /// The seed and its chunk that the last step copies.
    copied: Option<(u32, u32)>,
}

impl Builder {
    /// The place of a chunk in a seed: where the last copy ended, if the seed has it there too.
    fn continues(
        &self,
        found: Option<(u32, u32)>,
        digest: &Digest,
        seeds: &[&[SeedChunk]],
    ) -> Option<(u32, u32)> {
        let found = found?;
        if let Some((seed, at)) = self.copied {
            let (last, next) = (seeds[seed as usize][at as usize], at + 1);
            if let Some(chunk) = seeds[seed as usize].get(next as usize)
                && chunk.digest == *digest
                && chunk.offset == last.offset + u64::from(last.length)
            {
                return Some((seed, next));
            }
        }
        Some(found)
    }

    fn push(&mut self, step: PlanStep, length: u64) {
        let cost = &mut self.plan.cost;
        let writes = match step {
            PlanStep::InPlace { .. } => {
                cost.in_place += length;
                0
            }
            PlanStep::Zero { .. } => {
                cost.zero += length;
                length
            }
            PlanStep::Copy { .. } | PlanStep::Repeat { .. } => {
                cost.copied += length;
                length
            }
            PlanStep::Fetch { stored_length, .. } => {
                cost.fetched += length;
                cost.downloaded += u64::from(stored_length);
                length
            }
            PlanStep::Checkpoint => 0,
        };
        if writes > 0 && self.since_checkpoint + writes > self.limits.checkpoint && self.since_checkpoint > 0
        {
            self.plan.steps.push(PlanStep::Checkpoint);
            self.since_checkpoint = 0;
        }
        self.since_checkpoint += writes;
        let fits = writes == 0 || self.run + length <= self.limits.step;
        let run = self.run;
        if fits
            && self
                .plan
                .steps
                .last_mut()
                .is_some_and(|last| last.lengthen(&step, run))
        {
            self.run += length;
            return;
        }
        if matches!(step, PlanStep::Fetch { .. }) {
            self.plan.cost.requests += 1;
        }
        self.plan.steps.push(step);
        self.run = length;
    }
}

impl PlanStep {
    /// Takes a step of one chunk into this one of `run` bytes, if it goes on where this one ends.
    fn lengthen(&mut self, next: &Self, run: u64) -> bool {
        match (self, next) {
            (Self::InPlace { first, count }, Self::InPlace { first: at, .. })
            | (Self::Zero { first, count }, Self::Zero { first: at, .. })
                if *first + *count == *at =>
            {
                *count += 1;
                true
            }
            (
                Self::Copy {
                    first,
                    count,
                    seed,
                    from,
                },
                Self::Copy {
                    first: at,
                    seed: other,
                    from: source,
                    ..
                },
            ) if *first + *count == *at && seed == other && *from + run == *source => {
                *count += 1;
                true
            }
            (
                Self::Fetch {
                    first,
                    count,
                    stored_offset,
                    stored_length,
                },
                Self::Fetch {
                    first: at,
                    stored_offset: offset,
                    stored_length: length,
                    ..
                },
            ) if *first + *count == *at && *stored_offset + u64::from(*stored_length) == *offset => {
                *count += 1;
                *stored_length += length;
                true
            }
            _ => false,
        }
    }
}

/// Chunks unless the whole partition as one stream is clearly smaller than what is missing.
pub fn choose(cost: &Cost, solid: Option<Blob>) -> Transfer {
    match solid {
        Some(solid) if (cost.downloaded + REQUEST * cost.requests) * 10 > solid.size * 9 => {
            Transfer::Solid(solid)
        }
        _ => Transfer::Chunks,
    }
}
