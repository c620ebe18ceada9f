//! The whole partition as one stream, for when most of it is missing: every chunk of it is checked, and what the plan would
//! have written is.

use std::io::{self, BufReader, Read};

use slipway_slots::manifest::{Blob, ChunkIndex};
use slipway_slots::write_plan::{PlanStep, WritePlan};

use super::blocks::Piece;
use super::output::Output;
use super::progress::Downloads;
use super::source::Sources;
use super::survey::Survey;
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
        found: &Survey,
        solid: Blob,
        target: &mut dyn SlotTarget,
    ) -> Result<(), WriteError> {
        let mut in_place = vec![false; index.entries.len()];
        for step in &plan.steps {
            if let PlanStep::InPlace { first, count } = step {
                in_place[*first as usize..(*first + *count) as usize].fill(true);
            }
        }
        self.write_with(index, target, |writing, output| {
            writing.produce_solid(index, &in_place, &found.familiar, solid, output)
        })
    }

    fn produce_solid(
        &mut self,
        index: &ChunkIndex,
        in_place: &[bool],
        familiar: &[bool],
        solid: Blob,
        output: &Output,
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
        let mut since_checkpoint = 0;
        let mut first = 0;
        while let Some(run) = Run::at(first, index, in_place, familiar, self.limits.step) {
            if cancelled.is_cancelled() {
                return Err(WriteError::Cancelled);
            }
            let mut bytes = output.memory(index.entries[run.first].offset, run.length);
            stream
                .read_exact(bytes.bytes_mut())
                .map_err(|error| wrong(&error))?;
            first += run.count;
            if in_place[run.first] {
                output.take_back(bytes);
                continue;
            }
            let entries = &index.entries[run.first..run.first + run.count];
            if !output.check_and_write(entries, bytes, familiar[run.first]) {
                return Ok(());
            }
            self.meter.produced(run.length as u64);
            since_checkpoint += run.length as u64;
            if since_checkpoint >= self.limits.checkpoint {
                since_checkpoint = 0;
                if !output.write(Piece::Checkpoint) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Chunks of the solid stream that lie one after the other and are handled alike.
struct Run {
    first: usize,
    count: usize,
    /// In bytes.
    length: usize,
}

impl Run {
    /// The one that begins at chunk `first`; not longer than `step`, unless one chunk is.
    fn at(first: usize, index: &ChunkIndex, in_place: &[bool], familiar: &[bool], step: u64) -> Option<Self> {
        let mut run = Self {
            first,
            count: 1,
            length: index.entries.get(first)?.length as usize,
        };
        for (at, entry) in index.entries.iter().enumerate().skip(first + 1) {
            let is_alike = in_place[at] == in_place[first] && familiar[at] == familiar[first];
            if !is_alike || run.length as u64 + u64::from(entry.length) > step {
                break;
            }
            run.count += 1;
            run.length += entry.length as usize;
        }
        Some(run)
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
