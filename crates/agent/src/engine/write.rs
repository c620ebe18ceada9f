//! Brings one partition of a slot to an image's bytes: plans, fetches, checks every chunk, writes in order.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use slipway_slots::Digest;
use slipway_slots::manifest::{Blob, ChunkIndex, PartitionImage};
use slipway_slots::write_plan::{Limits, OnDeltaFailure, PlanStep, Transfer, WritePlan, choose, plan};

use super::failpoint::{Failpoint, Failpoints};
use super::progress::{Meter, Watch};
use super::source::Sources;
use crate::target::{SlotTarget, Through};

/// How many pieces may wait for the disk: enough to keep it busy, little enough to keep memory small.
const IN_FLIGHT: usize = 4;
/// So many chunks of a target or seed are looked at before all of it is read.
const SAMPLES: u64 = 64;
const REGION: u64 = 2048;

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
    pub failpoints: &'a dyn Failpoints,
    pub meter: &'a mut Meter,
}

impl Writing<'_> {
    pub fn run(mut self, target: &mut dyn SlotTarget) -> Result<(), WriteError> {
        let index = self.index()?;
        let present = self.present(target, &index)?;
        let mut seeds = Vec::new();
        if let Some(seed) = self.seed.as_deref_mut() {
            seeds = seed_digests(seed, self.partition, &index)?;
        }
        let plan = plan(self.partition, &index, &present, &[&seeds], self.limits);
        self.meter.planned(&plan.cost, self.partition.size);
        drop((present, seeds));
        let transfer = match choose(&plan.cost, self.partition.solid) {
            Transfer::Solid(_) if self.on_delta_failure == OnDeltaFailure::Fail => Transfer::Chunks,
            transfer => transfer,
        };
        match transfer {
            Transfer::Chunks => match self.chunks(&index, &plan, target) {
                Err(WriteError::NoSource(reason)) => match (self.partition.solid, self.on_delta_failure) {
                    (Some(solid), OnDeltaFailure::Full) => self.solid(&index, &plan, solid, target),
                    (_, OnDeltaFailure::Fail) => Err(WriteError::DeltaOnly(reason)),
                    (None, OnDeltaFailure::Full) => Err(WriteError::NoSource(reason)),
                },
                result => result,
            },
            Transfer::Solid(solid) => self.solid(&index, &plan, solid, target),
        }
    }

    fn index(&mut self) -> Result<ChunkIndex, WriteError> {
        let blob = self.partition.index;
        let wrong = |problem: String| WriteError::Index(problem);
        let plain_size = ChunkIndex::plain_size(self.partition.chunk_count()) as usize;
        let stored = self.sources.read_whole(&blob, self.meter)?;
        let plain = zstd::bulk::decompress(&stored, plain_size).map_err(|error| wrong(error.to_string()))?;
        ChunkIndex::decode(&plain, self.partition).map_err(|error| wrong(error.to_string()))
    }

    /// Digests of what the target holds. A region in which no sampled chunk is right is not read whole, unless an
    /// earlier run wrote here: then nothing that is right may be fetched again.
    fn present(
        &mut self,
        target: &mut dyn SlotTarget,
        index: &ChunkIndex,
    ) -> Result<Vec<Digest>, WriteError> {
        let read = |source| WriteError::Read {
            place: target_name(self.partition),
            source,
        };
        let chunk = self.partition.chunk_size;
        let count = index.entries.len() as u64;
        let mut present = vec![Digest([0; 32]); count as usize];
        let mut first = 0;
        while first < count {
            let chunks = REGION.min(count - first);
            let stride = (chunks / 8).max(1);
            let mut hit = self.resumed || chunks <= SAMPLES;
            let mut sample = first;
            while !hit && sample < first + chunks {
                let (offset, length) = self.partition.chunk_range(sample);
                let digests = target
                    .digests(offset, u64::from(length), chunk, Through::Cache)
                    .map_err(read)?;
                hit = digests.first() == Some(&index.entries[sample as usize].digest);
                sample += stride;
            }
            if hit {
                let (offset, _) = self.partition.chunk_range(first);
                let (last, length) = self.partition.chunk_range(first + chunks - 1);
                let digests = target
                    .digests(offset, last + u64::from(length) - offset, chunk, Through::Cache)
                    .map_err(read)?;
                for (at, digest) in digests.into_iter().enumerate() {
                    present[first as usize + at] = digest;
                }
            }
            first += chunks;
        }
        Ok(present)
    }

    /// Carries out the plan with one thread that fetches and checks and one that writes.
    fn chunks(
        &mut self,
        index: &ChunkIndex,
        plan: &WritePlan,
        target: &mut dyn SlotTarget,
    ) -> Result<(), WriteError> {
        let (partition, failpoints) = (self.partition, self.failpoints);
        let (sender, receiver) = sync_channel(IN_FLIGHT);
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || write_pieces(partition, index, target, &receiver, failpoints));
            let produced = self.produce(index, plan, &sender);
            drop(sender);
            let written = writer.join().expect("the writer does not panic");
            // The writer's error is the cause when the producer could not hand over.
            written.and(produced)
        })
    }

    fn produce(
        &mut self,
        index: &ChunkIndex,
        plan: &WritePlan,
        sender: &SyncSender<Piece>,
    ) -> Result<(), WriteError> {
        let partition = self.partition;
        let range = |first: u32, count: u32| {
            let (offset, _) = partition.chunk_range(u64::from(first));
            let (last, length) = partition.chunk_range(u64::from(first + count - 1));
            (offset, (last + u64::from(length) - offset) as usize)
        };
        for step in &plan.steps {
            if self.meter.is_cancelled() {
                return Err(WriteError::Cancelled);
            }
            let piece = match *step {
                PlanStep::InPlace { .. } => continue,
                PlanStep::Zero { first, count } => {
                    let (offset, length) = range(first, count);
                    Piece::Bytes {
                        offset,
                        bytes: vec![0; length],
                    }
                }
                PlanStep::Copy {
                    first, count, from, ..
                } => {
                    let (offset, length) = range(first, count);
                    let mut bytes = vec![0; length];
                    let read = self.copy(index, first, from, &mut bytes);
                    if let Err(changed) = read {
                        // The seed is not what it was when it was looked at: fetch what the plan meant to copy.
                        let Some(entries) = index.entries.get(changed as usize..(first + count) as usize)
                        else {
                            continue;
                        };
                        for (at, entry) in entries.iter().enumerate() {
                            let number = changed as usize + at;
                            let (start, length) = partition.chunk_range(number as u64);
                            let into = &mut bytes[(start - offset) as usize..][..length as usize];
                            self.sources
                                .read_chunk(&partition.chunks, entry, into, self.meter)?;
                        }
                    }
                    Piece::Bytes { offset, bytes }
                }
                PlanStep::Repeat { first, of } => Piece::Repeat { first, of },
                PlanStep::Fetch {
                    first,
                    count,
                    stored_offset,
                    stored_length,
                } => {
                    let (offset, length) = range(first, count);
                    let mut bytes = vec![0; length];
                    let entries = &index.entries[first as usize..(first + count) as usize];
                    self.sources.read_run(
                        &partition.chunks,
                        entries,
                        stored_offset,
                        stored_length,
                        partition.chunk_size,
                        &mut bytes,
                        self.meter,
                    )?;
                    Piece::Bytes { offset, bytes }
                }
                PlanStep::Checkpoint => Piece::Checkpoint,
            };
            self.meter.wrote(&piece, partition);
            if sender.send(piece).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Copies from the seed; `Err` names the first chunk whose bytes are not what they were.
    fn copy(&mut self, index: &ChunkIndex, first: u32, from: u32, bytes: &mut [u8]) -> Result<(), u32> {
        let Some(seed) = self.seed.as_deref_mut() else {
            return Err(first);
        };
        let (offset, _) = self.partition.chunk_range(u64::from(from));
        seed.read_at(offset, bytes, Through::Cache).map_err(|_| first)?;
        for (at, chunk) in bytes.chunks(self.partition.chunk_size as usize).enumerate() {
            let number = first + at as u32;
            if Digest::of(chunk) != index.entries[number as usize].digest {
                return Err(number);
            }
        }
        Ok(())
    }

    /// Reads the solid stream from its beginning and writes what the plan would have written.
    fn solid(
        &mut self,
        index: &ChunkIndex,
        plan: &WritePlan,
        solid: Blob,
        target: &mut dyn SlotTarget,
    ) -> Result<(), WriteError> {
        let mut in_place = vec![false; index.entries.len()];
        for step in &plan.steps {
            if let PlanStep::InPlace { first, count } = step {
                in_place[*first as usize..(*first + *count) as usize].fill(true);
            }
        }
        let (partition, failpoints) = (self.partition, self.failpoints);
        let limits = self.limits;
        let (sender, receiver) = sync_channel(IN_FLIGHT);
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || write_pieces(partition, index, target, &receiver, failpoints));
            let produced = self.produce_solid(index, &in_place, solid, limits, &sender);
            drop(sender);
            writer.join().expect("the writer does not panic").and(produced)
        })
    }

    fn produce_solid(
        &mut self,
        index: &ChunkIndex,
        in_place: &[bool],
        solid: Blob,
        limits: Limits,
        sender: &SyncSender<Piece>,
    ) -> Result<(), WriteError> {
        let wrong = |problem: &dyn std::fmt::Display| WriteError::Solid(problem.to_string());
        let cancelled = self.meter.cancellation();
        let mut stream = zstd::stream::read::Decoder::new(SolidReader {
            sources: self.sources,
            blob: solid,
            at: 0,
            meter: self.meter.downloads(),
        })
        .map_err(|error| wrong(&error))?;
        let mut since_checkpoint = 0;
        for (number, entry) in index.entries.iter().enumerate() {
            if cancelled.is_cancelled() {
                return Err(WriteError::Cancelled);
            }
            let (offset, length) = self.partition.chunk_range(number as u64);
            let mut bytes = vec![0; length as usize];
            stream.read_exact(&mut bytes).map_err(|error| wrong(&error))?;
            if Digest::of(&bytes) != entry.digest {
                return Err(wrong(&format!("chunk {number} has other bytes")));
            }
            if in_place[number] {
                continue;
            }
            since_checkpoint += u64::from(length);
            let piece = Piece::Bytes { offset, bytes };
            self.meter.wrote(&piece, self.partition);
            if sender.send(piece).is_err() {
                return Ok(());
            }
            if since_checkpoint >= limits.checkpoint {
                since_checkpoint = 0;
                if sender.send(Piece::Checkpoint).is_err() {
                    return Ok(());
                }
            }
        }
        if since_checkpoint > 0 {
            // A dropped receiver is the writer's error, which is reported.
            let _ = sender.send(Piece::Checkpoint);
        }
        Ok(())
    }
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
        failpoints,
        meter: &mut Meter::new(watch.clone(), partition.size),
    };
    writing.run(target)
}

fn target_name(partition: &PartitionImage) -> String {
    format!("partition {}", partition.name)
}

/// Digests of a seed's chunks; none, when nothing of the image was found in a sample of it.
fn seed_digests(
    seed: &mut dyn SlotTarget,
    partition: &PartitionImage,
    index: &ChunkIndex,
) -> Result<Vec<Digest>, WriteError> {
    let chunk = partition.chunk_size;
    let read = |source| WriteError::Read {
        place: format!("the running slot's {}", target_name(partition)),
        source,
    };
    let count = seed.size() / u64::from(chunk);
    let mut known: Vec<_> = index.entries.iter().map(|entry| entry.digest).collect();
    known.sort_unstable();
    let zero = Digest::of(&vec![0; chunk as usize]);
    let stride = (count / SAMPLES).max(1);
    let mut sample = 0;
    let mut hit = false;
    while !hit && sample < count {
        let digests = seed
            .digests(sample * u64::from(chunk), u64::from(chunk), chunk, Through::Cache)
            .map_err(read)?;
        hit = digests[0] != zero && known.binary_search(&digests[0]).is_ok();
        sample += stride;
    }
    if !hit {
        return Ok(Vec::new());
    }
    seed.digests(0, count * u64::from(chunk), chunk, Through::Cache)
        .map_err(read)
}

/// What the writing thread is told, in order.
pub(super) enum Piece {
    Bytes { offset: u64, bytes: Vec<u8> },
    Repeat { first: u32, of: u32 },
    Checkpoint,
}

fn write_pieces(
    partition: &PartitionImage,
    index: &ChunkIndex,
    target: &mut dyn SlotTarget,
    pieces: &Receiver<Piece>,
    failpoints: &dyn Failpoints,
) -> Result<(), WriteError> {
    let place = target.describe();
    let failed = |source| WriteError::Write {
        place: place.clone(),
        source,
    };
    for piece in pieces {
        match piece {
            Piece::Bytes { offset, bytes } => target.write_at(offset, &bytes).map_err(failed)?,
            Piece::Repeat { first, of } => {
                let (offset, length) = partition.chunk_range(u64::from(first));
                let (source, _) = partition.chunk_range(u64::from(of));
                let mut bytes = vec![0; length as usize];
                target
                    .read_at(source, &mut bytes, Through::Cache)
                    .map_err(failed)?;
                if Digest::of(&bytes) != index.entries[first as usize].digest {
                    return Err(failed(io::Error::other(format!(
                        "chunk {of} is not what was written to it"
                    ))));
                }
                target.write_at(offset, &bytes).map_err(failed)?;
            }
            Piece::Checkpoint => {
                target.flush().map_err(failed)?;
                failpoints.reached(Failpoint::Checkpoint);
                continue;
            }
        }
        failpoints.reached(Failpoint::ChunkWritten);
    }
    Ok(())
}

/// The solid blob as a stream.
struct SolidReader<'a> {
    sources: &'a mut Sources,
    blob: Blob,
    at: u64,
    meter: super::progress::Downloads,
}

impl Read for SolidReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = (buffer.len() as u64).min(self.blob.size - self.at) as usize;
        self.sources
            .read_range(&self.blob, self.at, &mut buffer[..length], &self.meter)
            .map_err(io::Error::other)?;
        self.at += length as u64;
        Ok(length)
    }
}
