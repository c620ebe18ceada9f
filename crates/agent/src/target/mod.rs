//! Where the bytes of a slot's partition live. A file or block device is here; a partition inside a disk image and a
//! node over SSH are targets like it, and one suite (`tests/target_suite`) holds them all to the same behaviour.

mod aligned;
mod file;
mod hashing;

use std::io;
use std::sync::mpsc::{channel, sync_channel};

use slipway_slots::Digest;
use slipway_slots::chunking::Chunker;
use slipway_slots::digest::Hasher;

pub(crate) use aligned::AlignedBuffer;
pub use file::LocalTarget;
pub(crate) use hashing::{next, workers};

/// The largest piece read at once.
const PIECE: usize = 1 << 20;
/// So many pieces are read before the first of them is used.
const READ_AHEAD: usize = 3;

/// Which bytes a read is to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// Whatever is at hand, caches included.
    Cache,
    /// The medium itself: what would still be there after a power cut. Valid after a flush.
    Medium,
}

/// A chunk of what a target holds, found by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub digest: Digest,
    pub length: u32,
}

/// One partition of one slot. Offsets and lengths of writes are multiples of [`SlotTarget::block_size`].
pub trait SlotTarget: Send {
    /// For errors and logs: `/dev/sda3`, `disk.vhdx partition 3`, `node-7:/dev/sda3`.
    fn describe(&self) -> String;

    /// In bytes.
    fn size(&self) -> u64;

    /// What is written at once; a power of two of at least 512.
    fn block_size(&self) -> u32 {
        4096
    }

    /// Who else uses the partition: mounted, held by a device above it, the running system's root. Writing to it is
    /// refused while there is somebody.
    fn in_use(&mut self) -> io::Result<Option<String>>;

    /// Exactly `buffer.len()` bytes, or an error.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8], through: Through) -> io::Result<()>;

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Everything written before is durable when this returns.
    fn flush(&mut self) -> io::Result<()>;

    /// Another way to the same bytes, for reading side by side; `None` where there is only one.
    fn another_reader(&self) -> io::Result<Option<Box<dyn SlotTarget>>> {
        Ok(None)
    }

    /// Digests of consecutive chunks of these lengths from `offset` on. A target that is far away computes them there.
    fn digests(&mut self, offset: u64, lengths: &[u32], through: Through) -> io::Result<Vec<Digest>> {
        let total: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
        if total > PIECE as u64 {
            return hashing::digests(self, offset, lengths, through);
        }
        let mut bytes = vec![0; total as usize];
        self.read_at(offset, &mut bytes, through)?;
        Ok(hashing::digests_of(&bytes, lengths))
    }

    /// Cuts `length` bytes from `offset` on into chunks, at most `count` of them: whoever asked goes on behind the last.
    fn cut(&mut self, offset: u64, length: u64, chunker: Chunker, count: usize) -> io::Result<Vec<Cut>> {
        let mut cuts = Vec::new();
        let mut bytes = Buffered::new(offset, length);
        while cuts.len() < count && bytes.left() > 0 {
            let ahead = bytes.peek(self, chunker.longest() as usize, Through::Cache)?;
            let length = chunker.cut(ahead);
            cuts.push(Cut {
                digest: Digest::of(&ahead[..length]),
                length: length as u32,
            });
            bytes.skip(length);
        }
        Ok(cuts)
    }

    /// The digest of the whole range; one thread reads while another computes.
    fn digest(&mut self, offset: u64, length: u64, through: Through) -> io::Result<Digest> {
        let (to_hash, pieces) = sync_channel::<Vec<u8>>(READ_AHEAD);
        let (give_back, used) = channel();
        std::thread::scope(|scope| {
            let hashing = scope.spawn(move || {
                let mut hasher = Hasher::new();
                for piece in pieces {
                    hasher.update(&piece);
                    // Nobody takes it when everything has been read.
                    let _ = give_back.send(piece);
                }
                hasher.finish()
            });
            let end = offset + length;
            let mut at = offset;
            while at < end {
                let length = (PIECE as u64).min(end - at) as usize;
                let mut piece: Vec<u8> = used.try_recv().unwrap_or_default();
                piece.resize(length, 0);
                self.read_at(at, &mut piece, through)?;
                to_hash.send(piece).map_err(io::Error::other)?;
                at += length as u64;
            }
            drop(to_hash);
            hashing
                .join()
                .map_err(|_| io::Error::other("computing a digest failed"))
        })
    }
}

/// Reads a range in large pieces and hands it out in small ones.
struct Buffered {
    /// What was read and not yet handed out.
    bytes: Vec<u8>,
    used: usize,
    /// Where reading goes on, and where it ends.
    at: u64,
    end: u64,
}

impl Buffered {
    fn new(offset: u64, length: u64) -> Self {
        Self {
            bytes: Vec::new(),
            used: 0,
            at: offset,
            end: offset.saturating_add(length),
        }
    }

    fn left(&self) -> u64 {
        self.end - self.at + (self.bytes.len() - self.used) as u64
    }

    /// The next `length` bytes, fewer only at the end.
    fn peek<T: SlotTarget + ?Sized>(
        &mut self,
        target: &mut T,
        length: usize,
        through: Through,
    ) -> io::Result<&[u8]> {
        if self.bytes.len() - self.used < length && self.at < self.end {
            self.bytes.drain(..self.used);
            self.used = 0;
            let kept = self.bytes.len();
            let missing = PIECE.max(length - kept) as u64;
            let read = missing.min(self.end - self.at) as usize;
            self.bytes.resize(kept + read, 0);
            target.read_at(self.at, &mut self.bytes[kept..], through)?;
            self.at += read as u64;
        }
        let ready = &self.bytes[self.used..];
        Ok(&ready[..ready.len().min(length)])
    }

    fn skip(&mut self, length: usize) {
        self.used += length;
    }
}
