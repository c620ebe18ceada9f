//! Brings one partition of a slot to an image's bytes: plans, fetches, checks every chunk, writes in order.

use std::io;

use slipway_slots::Digest;
use slipway_slots::chunking::Chunker;
use slipway_slots::manifest::{ChunkEntry, ChunkIndex, Manifest, PartitionImage};
use slipway_slots::write_plan::{
    Cost, Limits, OnDeltaFailure, PlanStep, SeedChunk, Transfer, WritePlan, choose, plan,
};

use super::blocks::{Bytes, Piece, Placed};
use super::failpoint::Failpoints;
use super::output::Output;
use super::progress::{Meter, Watch};
use super::source::Sources;
use super::survey::{Survey, find, survey};
use crate::target::{SlotTarget, Through};

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("reading {place}: {source}")]
    Read { place: String, source: io::Error },
    #[error("writing {place}: {source}")]
    Write { place: String, source: io::Error },
    #[error("no source has the right bytes: {0}")]
    NoSource(String),
    #[error("the image's index is not what its manifest says: {0}")]
    Index(String),
    #[error("the solid image is not what its manifest says: {0}")]
    Solid(String),
    #[error("chunks could not be fetched and the whole image may not be (onDeltaFailure: Fail): {0}")]
    DeltaOnly(String),
    #[error("it was cancelled")]
    Cancelled,
}

/// What writing one partition needs beside its target.
pub(super) struct Writing<'a> {
    pub partition: &'a PartitionImage,
    pub sources: &'a mut Sources,
    /// The same partition of the running slot.
    pub seed: Option<&'a mut dyn SlotTarget>,
    pub limits: Limits,
    pub on_delta_failure: OnDeltaFailure,
    /// An earlier run may have written some of it: all of the target is looked at.
    pub resumed: bool,
    /// The target's label says that it holds this image.
    pub labelled: bool,
    pub failpoints: &'a dyn Failpoints,
    pub meter: &'a mut Meter,
}

impl Writing<'_> {
    /// The chunks that the partition has now, unless its label said so already and it was found to be true.
    pub fn run(mut self, target: &mut dyn SlotTarget) -> Result<Option<ChunkIndex>, WriteError> {
        let read = |place: String| move |source| WriteError::Read { place, source };
        let size = self.partition.size;
        if self.labelled {
            let digest = target.digest(0, size, Through::Cache);
            if digest.map_err(read(target.describe()))? == self.partition.digest {
                self.meter.in_place(size);
                return Ok(None);
            }
        }
        let index = self.index()?;
        let found = survey(target, &index, self.resumed).map_err(read(target.describe()))?;
        let mut seeds = Vec::new();
        if let (Some(seed), Some(chunker)) =
            (self.seed.as_deref_mut(), Chunker::new(self.partition.chunk_size))
        {
            seeds = find(seed, &index, chunker).map_err(read(seed.describe()))?;
        }
        let plan = self.plan(&index, &found, &seeds);
        self.meter.planned(&plan.cost, spared_blocks(&index, &plan));
        let transfer = match choose(&self.cost(&plan), self.partition.solid) {
            Transfer::Solid(_) if self.on_delta_failure == OnDeltaFailure::Fail => Transfer::Chunks,
            transfer => transfer,
        };
        let written = match transfer {
            Transfer::Chunks => self.chunks(&index, &plan, &found, target),
            Transfer::Solid(solid) => self.solid(&index, &plan, &found, solid, target),
        };
        match written {
            Err(WriteError::NoSource(reason)) => match (self.partition.solid, self.on_delta_failure) {
                (Some(solid), OnDeltaFailure::Full) => self.solid(&index, &plan, &found, solid, target)?,
                (_, OnDeltaFailure::Fail) => return Err(WriteError::DeltaOnly(reason)),
                (None, OnDeltaFailure::Full) => return Err(WriteError::NoSource(reason)),
            },
            // Of a stream it is not known which source lied; of a chunk it is.
            Err(WriteError::Solid(reason)) => {
                let found = survey(target, &index, true).map_err(read(target.describe()))?;
                let plan = self.plan(&index, &found, &seeds);
                match self.chunks(&index, &plan, &found, target) {
                    Err(WriteError::NoSource(_)) => return Err(WriteError::Solid(reason)),
                    result => result?,
                }
            }
            result => result?,
        }
        Ok(Some(index))
    }

    fn plan(&self, index: &ChunkIndex, found: &Survey, seeds: &[SeedChunk]) -> WritePlan {
        plan(self.partition, index, &found.in_place, &[seeds], self.limits)
    }

    /// What the plan costs without what a source has on this host.
    fn cost(&self, plan: &WritePlan) -> Cost {
        let mut cost = plan.cost;
        for step in &plan.steps {
            if let PlanStep::Fetch {
                stored_offset,
                stored_length,
                ..
            } = *step
            {
                let length = u64::from(stored_length);
                let here = self
                    .sources
                    .at_hand(&self.partition.chunks, stored_offset, length);
                cost.downloaded = cost.downloaded.saturating_sub(here);
                cost.requests = cost.requests.saturating_sub(u64::from(here >= length));
            }
        }
        cost
    }

    fn index(&mut self) -> Result<ChunkIndex, WriteError> {
        let blob = self.partition.index;
        let wrong = |problem: String| WriteError::Index(problem);
        let plain_size = ChunkIndex::plain_size(self.partition.chunk_count);
        let stored = self.sources.read_whole(&blob, self.meter)?;
        let plain = zstd::bulk::decompress(&stored, plain_size).map_err(|error| wrong(error.to_string()))?;
        ChunkIndex::decode(&plain, self.partition).map_err(|error| wrong(error.to_string()))
    }

    fn chunks(
        &mut self,
        index: &ChunkIndex,
        plan: &WritePlan,
        found: &Survey,
        target: &mut dyn SlotTarget,
    ) -> Result<(), WriteError> {
        self.write_with(index, target, |writing, output| {
            writing.produce(index, plan, &found.familiar, output)
        })
    }

    fn produce(
        &mut self,
        index: &ChunkIndex,
        plan: &WritePlan,
        familiar: &[bool],
        output: &Output,
    ) -> Result<(), WriteError> {
        let partition = self.partition;
        for step in &plan.steps {
            if self.meter.is_cancelled() {
                return Err(WriteError::Cancelled);
            }
            let known = |first: u32| familiar[first as usize];
            let (piece, length) = match *step {
                PlanStep::InPlace { .. } => continue,
                PlanStep::Zero { first, count } => {
                    let (offset, length) = index.range(first, count);
                    let mut bytes = output.memory(offset, length);
                    bytes.bytes_mut().fill(0);
                    (checked(bytes, known(first)), length)
                }
                PlanStep::Copy {
                    first, count, from, ..
                } => {
                    let (offset, length) = index.range(first, count);
                    let entries = &index.entries[first as usize..(first + count) as usize];
                    let mut placed = output.memory(offset, length);
                    let bytes = placed.bytes_mut();
                    let copied = self.copy(entries, from, bytes);
                    // The seed is not what it was when it was looked at: fetch what the plan meant to copy.
                    for entry in &entries[copied..] {
                        let into = &mut bytes[(entry.offset - offset) as usize..][..entry.length as usize];
                        self.sources
                            .read_chunk(&partition.chunks, entry, into, self.meter)?;
                    }
                    (checked(placed, known(first)), length)
                }
                PlanStep::Repeat { first, of } => (
                    Piece::Repeat {
                        chunk: first,
                        of,
                        familiar: known(first),
                    },
                    index.entries[first as usize].length as usize,
                ),
                PlanStep::Fetch {
                    first,
                    count,
                    stored_offset,
                    stored_length,
                } => {
                    let (offset, length) = index.range(first, count);
                    let mut placed = output.memory(offset, length);
                    let entries = &index.entries[first as usize..(first + count) as usize];
                    self.sources.read_run(
                        &partition.chunks,
                        entries,
                        stored_offset,
                        stored_length,
                        placed.bytes_mut(),
                        self.meter,
                    )?;
                    (checked(placed, known(first)), length)
                }
                PlanStep::Checkpoint => (Piece::Checkpoint, 0),
            };
            self.meter.produced(length as u64);
            if !output.write(piece) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Copies from the seed; how many of the chunks are what they were.
    fn copy(&mut self, entries: &[ChunkEntry], from: u64, bytes: &mut [u8]) -> usize {
        let Some(seed) = self.seed.as_deref_mut() else {
            return 0;
        };
        if seed.read_at(from, bytes, Through::Cache).is_err() {
            return 0;
        }
        let mut rest = &*bytes;
        entries
            .iter()
            .take_while(|entry| {
                let (chunk, behind) = rest.split_at(entry.length as usize);
                rest = behind;
                Digest::of(chunk) == entry.digest
            })
            .count()
    }
}

fn checked(bytes: Placed, familiar: bool) -> Piece {
    Piece::Bytes {
        bytes: Bytes::Checked(bytes),
        familiar,
    }
}

/// Bytes of whole blocks that are in place: they are neither written nor compared.
fn spared_blocks(index: &ChunkIndex, plan: &WritePlan) -> u64 {
    let block = u64::from(Manifest::BLOCK);
    plan.steps
        .iter()
        .map(|step| match *step {
            PlanStep::InPlace { first, count } => {
                let (offset, length) = index.range(first, count);
                let end = offset + length as u64;
                (end - end % block).saturating_sub(offset.next_multiple_of(block))
            }
            _ => 0,
        })
        .sum()
}

/// Writes one partition that belongs to no slot, such as the agent's own binary.
pub fn write_partition(
    partition: &PartitionImage,
    sources: &mut Sources,
    target: &mut dyn SlotTarget,
    limits: Limits,
    on_delta_failure: OnDeltaFailure,
    failpoints: &dyn Failpoints,
    watch: &Watch,
) -> Result<(), WriteError> {
    let writing = Writing {
        partition,
        sources,
        seed: None,
        limits,
        on_delta_failure,
        resumed: false,
        labelled: false,
        failpoints,
        meter: &mut Meter::new(watch.clone(), partition.size),
    };
    writing.run(target).map(drop)
}
