//! The whole partition as one stream, for when most of it is missing: every chunk of it is checked, and what the plan would
//! have written is.

use std::io::{self, BufReader, Read};
use std::sync::mpsc::SyncSender;

use slipway_slots::Digest;
use slipway_slots::manifest::{Blob, ChunkEntry, ChunkIndex};
use slipway_slots::write_plan::{PlanStep, WritePlan};

use super::blocks::Piece;
use super::progress::Downloads;
use super::source::Sources;
use super::write::{WriteError, Writing};
use crate::target::SlotTarget;

/// What is asked for at once.
const PIECE: usize = 1 << 20;

impl Writing<'_> {
    /// Reads the solid stream from its beginning and writes what the plan would have written.
    pub(super) fn solid(
        &mut self,
        index: &ChunkIndex,
        plan: &WritePlan,
        familiar: &[bool],
        solid: Blob,
        target: &mut dyn SlotTarget,
    ) -> Result<(), WriteError> {
        let mut in_place = vec![false; index.entries.len()];
        for step in &plan.steps {
            if let PlanStep::InPlace { first, count } = step {
                in_place[*first as usize..(*first + *count) as usize].fill(true);
            }
        }
        self.write_with(index, target, |writing, sender| {
            writing.produce_solid(index, &in_place, familiar, solid, sender)
        })
    }

    fn produce_solid(
        &mut self,
        index: &ChunkIndex,
        in_place: &[bool],
        familiar: &[bool],
        solid: Blob,
        sender: &SyncSender<Piece>,
    ) -> Result<(), WriteError> {
        let wrong = |problem: &dyn std::fmt::Display| WriteError::Solid(problem.to_string());
        let cancelled = self.meter.cancellation();
        let reader = SolidReader {
            sources: self.sources,
            blob: solid,
            at: 0,
            meter: self.meter.downloads(),
        };
        let reader = BufReader::with_capacity(PIECE, reader);
        let mut stream = zstd::stream::read::Decoder::with_buffer(reader).map_err(|error| wrong(&error))?;
        let mut batch = Batch::default();
        let mut since_checkpoint = 0;
        for (number, entry) in index.entries.iter().enumerate() {
            if cancelled.is_cancelled() {
                return Err(WriteError::Cancelled);
            }
            let is_new_batch =
                batch.familiar != familiar[number] || batch.bytes.len() as u64 >= self.limits.step;
            if is_new_batch && !batch.hand_over(sender) {
                return Ok(());
            }
            let bytes = batch.add(entry, familiar[number]);
            stream.read_exact(bytes).map_err(|error| wrong(&error))?;
            if Digest::of(bytes) != entry.digest {
                return Err(wrong(&format!("chunk {number} has other bytes")));
            }
            if in_place[number] {
                batch.remove(entry);
                if !batch.hand_over(sender) {
                    return Ok(());
                }
                continue;
            }
            since_checkpoint += u64::from(entry.length);
            self.meter.produced(u64::from(entry.length));
            if since_checkpoint >= self.limits.checkpoint {
                since_checkpoint = 0;
                if !batch.hand_over(sender) || sender.send(Piece::Checkpoint).is_err() {
                    return Ok(());
                }
            }
        }
        batch.hand_over(sender);
        Ok(())
    }
}

/// Chunks of the solid stream that lie one after the other: handed over one by one they would cost a change of threads each.
#[derive(Default)]
struct Batch {
    offset: u64,
    bytes: Vec<u8>,
    familiar: bool,
}

impl Batch {
    /// Room for a chunk that follows.
    fn add(&mut self, entry: &ChunkEntry, familiar: bool) -> &mut [u8] {
        if self.bytes.is_empty() {
            self.offset = entry.offset;
            self.familiar = familiar;
        }
        let start = self.bytes.len();
        self.bytes.resize(start + entry.length as usize, 0);
        &mut self.bytes[start..]
    }

    /// Takes the last chunk out again.
    fn remove(&mut self, entry: &ChunkEntry) {
        self.bytes.truncate(self.bytes.len() - entry.length as usize);
    }

    /// False when nobody takes it: the writer has failed, and then its error is reported.
    fn hand_over(&mut self, sender: &SyncSender<Piece>) -> bool {
        if self.bytes.is_empty() {
            return true;
        }
        let room = self.bytes.len();
        let piece = Piece::Bytes {
            offset: self.offset,
            bytes: std::mem::replace(&mut self.bytes, Vec::with_capacity(room)),
            familiar: self.familiar,
        };
        sender.send(piece).is_ok()
    }
}

/// The solid blob as a stream.
struct SolidReader<'a> {
    sources: &'a mut Sources,
    blob: Blob,
    at: u64,
    meter: Downloads,
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
