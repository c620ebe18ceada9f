//! Where the bytes of a slot's partition live. A file or block device is here; a partition inside a disk image and a
//! node over SSH are targets like it, and one suite (`tests/target_suite`) holds them all to the same behaviour.

mod file;

use std::io;

use slipway_slots::Digest;
use slipway_slots::digest::Hasher;

pub use file::LocalTarget;

/// Which bytes a read is to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// Whatever is at hand, caches included.
    Cache,
    /// The medium itself: what would still be there after a power cut. Valid after a flush.
    Medium,
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

    /// Digests of consecutive chunks from `offset` on, the last of which may be shorter. A target that is far away
    /// computes them there.
    fn digests(&mut self, offset: u64, length: u64, chunk: u32, through: Through) -> io::Result<Vec<Digest>> {
        let mut digests = Vec::new();
        let mut buffer = vec![0; chunk as usize];
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let length = u64::from(chunk).min(end - at) as usize;
            self.read_at(at, &mut buffer[..length], through)?;
            digests.push(Digest::of(&buffer[..length]));
            at += length as u64;
        }
        Ok(digests)
    }

    /// The digest of the whole range.
    fn digest(&mut self, offset: u64, length: u64, through: Through) -> io::Result<Digest> {
        let mut hasher = Hasher::new();
        let mut buffer = vec![0; 1 << 20];
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let length = (buffer.len() as u64).min(end - at) as usize;
            self.read_at(at, &mut buffer[..length], through)?;
            hasher.update(&buffer[..length]);
            at += length as u64;
        }
        Ok(hasher.finish())
    }
}
