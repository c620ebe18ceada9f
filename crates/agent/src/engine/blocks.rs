//! The writing half: bytes in the order of their offsets become whole blocks, and blocks that the target holds already
//! are not written again.

use std::io;
use std::sync::mpsc::{Receiver, Sender};

use slipway_slots::Digest;
use slipway_slots::manifest::{ChunkIndex, Manifest};

use super::failpoint::{Failpoint, Failpoints};
use super::progress::Wear;
use super::write::WriteError;
use crate::target::{AlignedBuffer, SlotTarget, Through};

const BLOCK: usize = Manifest::BLOCK as usize;

/// What the writing thread is given, in order.
pub(super) enum Piece {
    Bytes {
        offset: u64,
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
    Checked(Vec<u8>),
    /// They are being hashed on another processor.
    BeingChecked(Receiver<Result<Vec<u8>, WriteError>>),
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
    pub fn run(mut self, pieces: &Receiver<Piece>, used: &Sender<Vec<u8>>) -> Result<(), WriteError> {
        let place = self.target.describe();
        let failed = |source| WriteError::Write {
            place: place.clone(),
            source,
        };
        for piece in pieces {
            match piece {
                Piece::Bytes {
                    offset,
                    bytes,
                    familiar,
                } => {
                    let bytes = match bytes {
                        Bytes::Checked(bytes) => bytes,
                        Bytes::BeingChecked(result) => match result.recv() {
                            Ok(checked) => checked?,
                            // Nobody hashes any more: whoever did has ended with a reason of its own.
                            Err(_) => return Ok(()),
                        },
                    };
                    self.take(offset, &bytes, familiar).map_err(failed)?;
                    // Nobody takes it when everything has been made.
                    let _ = used.send(bytes);
                }
                Piece::Repeat { chunk, of, familiar } => {
                    let bytes = self.again(chunk, of).map_err(failed)?;
                    let offset = self.index.entries[chunk as usize].offset;
                    self.take(offset, &bytes, familiar).map_err(failed)?;
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

    fn take(&mut self, offset: u64, bytes: &[u8], familiar: bool) -> io::Result<()> {
        if offset != self.end() {
            self.complete()?;
            // What shares the first block is in place already.
            self.start = offset - offset % BLOCK as u64;
            let before = self.waiting.for_writing((offset - self.start) as usize);
            self.target.read_at(self.start, before, Through::Cache)?;
        }
        self.familiar |= familiar;
        self.waiting.append(bytes);
        self.write_front(self.waiting.len() / self.step * self.step)
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
        for (number, piece) in waiting.bytes()[..length].chunks(self.step).enumerate() {
            let offset = self.start + (number * self.step) as u64;
            if self.familiar {
                self.write_changed(offset, piece)?;
            } else {
                self.write(offset, piece)?;
            }
        }
        self.start += length as u64;
        waiting.remove_front(length);
        self.waiting = waiting;
        self.familiar &= self.waiting.len() > 0;
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
