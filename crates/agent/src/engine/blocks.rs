//! The writing half: bytes in the order of their offsets become whole blocks, and blocks that the target holds already
//! are not written again.

#[cfg(test)]
mod tests;

use std::io;
use std::sync::mpsc::{Receiver, Sender};

use slipway_slots::Digest;
use slipway_slots::manifest::{ChunkIndex, Manifest};

use super::failpoint::{Failpoint, Failpoints};
use super::progress::Wear;
use super::write::WriteError;
use crate::target::{AlignedBuffer, SlotTarget, Through};

const BLOCK: usize = Manifest::BLOCK as usize;

/// Bytes for a place of the target, in memory whose blocks are those of the target: direct I/O takes them as they lie there.
#[derive(Debug, Default)]
pub(super) struct Placed {
    offset: u64,
    buffer: AlignedBuffer,
}

impl Placed {
    /// Room for as many bytes, whatever they are, for somebody who writes them all.
    pub fn new(offset: u64, length: usize, mut memory: AlignedBuffer) -> Self {
        memory.for_writing(lead(offset) + length);
        Self {
            offset,
            buffer: memory,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[lead(self.offset)..]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[lead(self.offset)..]
    }

    pub fn into_memory(self) -> AlignedBuffer {
        self.buffer
    }

    /// From a block's beginning on: `before` is what lies between that and these bytes.
    fn with_block_before(&mut self, before: &[u8]) -> &[u8] {
        self.buffer.bytes_mut()[..lead(self.offset)].copy_from_slice(before);
        self.buffer.bytes()
    }
}

/// How far into its block a place is.
fn lead(offset: u64) -> usize {
    (offset % BLOCK as u64) as usize
}

/// What the writing thread is given, in order.
pub(super) enum Piece {
    Bytes {
        bytes: Bytes,
        /// The target may hold some of its blocks.
        familiar: bool,
    },
    /// The same bytes as an earlier chunk.
    Repeat {
        chunk: u32,
        of: u32,
        familiar: bool,
    },
    Checkpoint,
}

/// The bytes of a piece; none that is wrong is ever written.
pub(super) enum Bytes {
    Checked(Placed),
    /// They are being hashed on another processor.
    BeingChecked(Receiver<Result<Placed, WriteError>>),
}

pub(super) struct BlockWriter<'a> {
    target: &'a mut dyn SlotTarget,
    index: &'a ChunkIndex,
    failpoints: &'a dyn Failpoints,
    wear: Wear,
    /// No write is longer.
    step: usize,
    /// What waits to be written, from a block's beginning on.
    start: u64,
    waiting: AlignedBuffer,
    familiar: bool,
    /// Something was written since the last flush.
    unflushed: bool,
}

impl<'a> BlockWriter<'a> {
    pub fn new(
        target: &'a mut dyn SlotTarget,
        index: &'a ChunkIndex,
        step: u64,
        failpoints: &'a dyn Failpoints,
        wear: Wear,
    ) -> Self {
        Self {
            target,
            index,
            failpoints,
            wear,
            step: (step as usize / BLOCK).max(1) * BLOCK,
            start: 0,
            waiting: AlignedBuffer::default(),
            familiar: false,
            unflushed: false,
        }
    }

    /// `used` gets memory back to whoever makes pieces.
    pub fn run(mut self, pieces: &Receiver<Piece>, used: &Sender<AlignedBuffer>) -> Result<(), WriteError> {
        let place = self.target.describe();
        let failed = |source| WriteError::Write {
            place: place.clone(),
            source,
        };
        for piece in pieces {
            match piece {
                Piece::Bytes { bytes, familiar } => {
                    let mut placed = match bytes {
                        Bytes::Checked(placed) => placed,
                        Bytes::BeingChecked(result) => match result.recv() {
                            Ok(checked) => checked?,
                            // Nobody hashes any more: whoever did has ended with a reason of its own.
                            Err(_) => return Ok(()),
                        },
                    };
                    self.take(&mut placed, familiar).map_err(failed)?;
                    // Nobody takes it when everything has been made.
                    let _ = used.send(placed.into_memory());
                }
                Piece::Repeat { chunk, of, familiar } => {
                    let bytes = self.again(chunk, of).map_err(failed)?;
                    let offset = self.index.entries[chunk as usize].offset;
                    self.gather(offset, &bytes, familiar).map_err(failed)?;
                }
                Piece::Checkpoint => {
                    self.write_whole().map_err(failed)?;
                    self.flush().map_err(failed)?;
                    self.failpoints.reached(Failpoint::Checkpoint);
                }
            }
        }
        self.complete().map_err(failed)?;
        self.flush().map_err(failed)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.unflushed {
            self.target.flush()?;
            self.unflushed = false;
        }
        Ok(())
    }

    fn end(&self) -> u64 {
        self.start + self.waiting.len() as u64
    }

    /// Bytes that are worth a write of their own are written from where they lie; fewer are gathered first.
    fn take(&mut self, placed: &mut Placed, familiar: bool) -> io::Result<()> {
        if placed.bytes().len() < self.step / 4 {
            return self.gather(placed.offset, placed.bytes(), familiar);
        }
        self.go_to(placed.offset)?;
        self.write_whole()?;
        self.familiar |= familiar;
        let bytes = placed.with_block_before(self.waiting.bytes());
        let whole = bytes.len() / BLOCK * BLOCK;
        self.write_blocks(self.start, &bytes[..whole])?;
        self.start += whole as u64;
        let rest = &bytes[whole..];
        self.waiting.for_writing(rest.len()).copy_from_slice(rest);
        self.familiar &= !rest.is_empty();
        Ok(())
    }

    fn gather(&mut self, offset: u64, bytes: &[u8], familiar: bool) -> io::Result<()> {
        self.go_to(offset)?;
        self.familiar |= familiar;
        self.waiting.append(bytes);
        self.write_front(self.waiting.len() / self.step * self.step)
    }

    /// What comes next begins at `offset`.
    fn go_to(&mut self, offset: u64) -> io::Result<()> {
        if offset == self.end() {
            return Ok(());
        }
        self.complete()?;
        // What shares the first block is in place already.
        self.start = offset - lead(offset) as u64;
        let before = self.waiting.for_writing(lead(offset));
        self.target.read_at(self.start, before, Through::Cache)
    }

    /// Writes the whole blocks of what waits.
    fn write_whole(&mut self) -> io::Result<()> {
        self.write_front(self.waiting.len() / BLOCK * BLOCK)
    }

    /// Writes the beginning of what waits, which is whole blocks.
    fn write_front(&mut self, length: usize) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        self.write_blocks(self.start, &waiting.bytes()[..length])?;
        self.start += length as u64;
        waiting.remove_front(length);
        self.waiting = waiting;
        self.familiar &= self.waiting.len() > 0;
        Ok(())
    }

    fn write_blocks(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        for (number, piece) in bytes.chunks(self.step).enumerate() {
            let offset = offset + (number * self.step) as u64;
            if self.familiar {
                self.write_changed(offset, piece)?;
            } else {
                self.write(offset, piece)?;
            }
        }
        Ok(())
    }

    /// Writes everything that waits: what follows in its last block is in place already.
    fn complete(&mut self) -> io::Result<()> {
        let length = self.waiting.len();
        if length == 0 {
            return Ok(());
        }
        let behind = self.waiting.grow(length.next_multiple_of(BLOCK) - length);
        self.target
            .read_at(self.start + length as u64, behind, Through::Cache)?;
        self.write_whole()
    }

    /// Only the blocks that differ from what the target holds.
    fn write_changed(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut held = vec![0; bytes.len()];
        self.target.read_at(offset, &mut held, Through::Cache)?;
        let blocks = bytes.len() / BLOCK;
        let same = |number: usize| {
            let range = number * BLOCK..(number + 1) * BLOCK;
            bytes[range.clone()] == held[range]
        };
        let mut first = 0;
        while first < blocks {
            let alike = same(first);
            let count = (first..blocks).take_while(|block| same(*block) == alike).count();
            let range = first * BLOCK..(first + count) * BLOCK;
            if alike {
                self.wear.spared(range.len() as u64);
            } else {
                self.write(offset + range.start as u64, &bytes[range])?;
            }
            first += count;
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.unflushed = true;
        self.target.write_at(offset, bytes)?;
        self.wear.written(bytes.len() as u64);
        self.failpoints.reached(Failpoint::ChunkWritten);
        Ok(())
    }

    /// The bytes of chunk `of`, which are those of `chunk`: from the target, or from what waits.
    fn again(&mut self, chunk: u32, of: u32) -> io::Result<Vec<u8>> {
        let source = &self.index.entries[of as usize];
        let mut bytes = vec![0; source.length as usize];
        self.target.read_at(source.offset, &mut bytes, Through::Cache)?;
        let (from, to) = (source.offset.max(self.start), source.end().min(self.end()));
        if from < to {
            let waiting = &self.waiting.bytes()[(from - self.start) as usize..(to - self.start) as usize];
            bytes[(from - source.offset) as usize..][..waiting.len()].copy_from_slice(waiting);
        }
        if Digest::of(&bytes) != self.index.entries[chunk as usize].digest {
            return Err(io::Error::other(format!(
                "chunk {of} is not what was written to it"
            )));
        }
        Ok(bytes)
    }
}
