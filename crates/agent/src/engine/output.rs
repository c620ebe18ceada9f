//! The way from whoever has an image's bytes to the thread that writes them: chunks are hashed on every processor, and
//! arrive at the writer in the order in which they were made.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use slipway_slots::Digest;
use slipway_slots::manifest::{ChunkEntry, ChunkIndex};

use super::blocks::{BlockWriter, Bytes, Piece, Placed};
use super::write::{WriteError, Writing};
use crate::target::{AlignedBuffer, SlotTarget, next, workers};

/// How many pieces may wait for the disk: enough to keep it busy, little enough to keep memory small.
const IN_FLIGHT: usize = 4;

/// A run of chunks that have to be what the index says.
struct Check {
    /// Digest and length of each.
    chunks: Vec<(Digest, u32)>,
    bytes: Placed,
    result: SyncSender<Result<Placed, WriteError>>,
}

/// Where pieces go. What answers with `false` has nobody who takes it: the writer has failed, and its error is reported.
pub(super) struct Output {
    pieces: SyncSender<Piece>,
    checks: SyncSender<Check>,
    /// Memory that was written and can be used again.
    used: (Sender<AlignedBuffer>, Receiver<AlignedBuffer>),
}

impl Output {
    /// Room for as many bytes of the target from `offset` on, whatever they are, for somebody who writes them all.
    pub fn memory(&self, offset: u64, length: usize) -> Placed {
        Placed::new(offset, length, self.used.1.try_recv().unwrap_or_default())
    }

    pub fn take_back(&self, bytes: Placed) {
        // It holds the other end itself.
        let _ = self.used.0.send(bytes.into_memory());
    }

    pub fn write(&self, piece: Piece) -> bool {
        self.pieces.send(piece).is_ok()
    }

    /// Bytes of these chunks, which lie one after the other; they are written when all of them have the right digest.
    pub fn check_and_write(&self, entries: &[ChunkEntry], bytes: Placed, familiar: bool) -> bool {
        let (result, checked) = sync_channel(1);
        let chunks = entries.iter().map(|entry| (entry.digest, entry.length)).collect();
        let check = Check {
            chunks,
            bytes,
            result,
        };
        let piece = Piece::Bytes {
            bytes: Bytes::BeingChecked(checked),
            familiar,
        };
        self.checks.send(check).is_ok() && self.write(piece)
    }
}

fn check(checks: &Mutex<Receiver<Check>>) {
    while let Some(check) = next(checks) {
        let mut rest = check.bytes.bytes();
        let wrong = check.chunks.iter().find(|(digest, length)| {
            let (chunk, behind) = rest.split_at(*length as usize);
            rest = behind;
            Digest::of(chunk) != *digest
        });
        let result = match wrong {
            None => Ok(check.bytes),
            Some((digest, _)) => Err(WriteError::Solid(format!(
                "chunk {} has other bytes",
                digest.short()
            ))),
        };
        // The writer has ended: it needs no more.
        let _ = check.result.send(result);
    }
}

impl Writing<'_> {
    /// One thread fetches with `produce`, every processor hashes, one thread writes.
    pub(super) fn write_with(
        &mut self,
        index: &ChunkIndex,
        target: &mut dyn SlotTarget,
        produce: impl FnOnce(&mut Self, &Output) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        let writer = BlockWriter::new(
            target,
            index,
            self.limits.step,
            self.failpoints,
            self.meter.wear(),
        );
        let (pieces, to_write) = sync_channel(IN_FLIGHT);
        let (checks, to_check) = sync_channel(IN_FLIGHT);
        let to_check = Mutex::new(to_check);
        let used = channel();
        let give_back = used.0.clone();
        let output = Output { pieces, checks, used };
        thread::scope(|scope| {
            let writer = scope.spawn(move || writer.run(&to_write, &give_back));
            for _ in 0..workers() {
                scope.spawn(|| check(&to_check));
            }
            let produced = produce(self, &output);
            drop(output);
            let written = match writer.join() {
                Ok(written) => written,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            // The writer's error is the cause when the producer could not hand over.
            written.and(produced)
        })
    }
}
