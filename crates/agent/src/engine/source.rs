//! Where the stored bytes of an image come from: a directory, a cache, another host, a registry. The engine checks
//! every chunk, so a source may be anybody.

use slipway_slots::Digest;
use slipway_slots::manifest::{Blob, ChunkEntry};
use zstd::bulk::Decompressor;

use super::progress::{Downloads, Meter};
use super::write::WriteError;

/// The largest part of a blob asked for at once.
const PIECE: u64 = 1 << 20;

/// Serves ranges of an image's blobs.
pub trait ChunkSource: Send {
    /// For errors, logs and the count of bytes by source.
    fn name(&self) -> String;

    /// Exactly `buffer.len()` bytes of `blob` from `offset` on. Retries, resuming, mirrors and bandwidth limits are
    /// the source's own matter; an error means that it gave up.
    fn read(&mut self, blob: &Blob, offset: u64, buffer: &mut [u8]) -> Result<(), FetchError>;

    /// How many of these bytes cost no download, because the source has them on this host.
    fn at_hand(&self, _blob: &Blob, _offset: u64, _length: u64) -> u64 {
        0
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("{source_name} does not have {blob}")]
    Absent { source_name: String, blob: String },
    #[error("{source_name} did not deliver {blob}: {reason}")]
    Failed {
        source_name: String,
        blob: String,
        reason: String,
    },
}

/// Sources in the order they are asked. One that failed or gave wrong bytes for a blob is asked last from then on.
#[derive(Default)]
pub struct Sources {
    sources: Vec<Box<dyn ChunkSource>>,
    /// Made once: its tables are larger than most chunks.
    unpacker: Option<Decompressor<'static>>,
}

impl Sources {
    pub fn new(sources: Vec<Box<dyn ChunkSource>>) -> Self {
        Self {
            sources,
            unpacker: None,
        }
    }

    fn unpacker(&mut self) -> Result<Decompressor<'static>, WriteError> {
        match self.unpacker.take() {
            Some(unpacker) => Ok(unpacker),
            None => Decompressor::new().map_err(|error| WriteError::NoSource(error.to_string())),
        }
    }

    /// How many of these bytes whoever is asked first has on this host.
    pub(super) fn at_hand(&self, blob: &Blob, offset: u64, length: u64) -> u64 {
        let first = self.sources.first();
        first.map_or(0, |source| source.at_hand(blob, offset, length))
    }

    /// Asks one source after the other until `check` accepts what one gave.
    fn ask<T>(
        &mut self,
        blob: &Blob,
        offset: u64,
        length: usize,
        downloads: &Downloads,
        mut check: impl FnMut(&[u8]) -> Result<T, String>,
    ) -> Result<T, WriteError> {
        let mut stored = vec![0; length];
        let mut reasons = Vec::new();
        for _ in 0..self.sources.len() {
            let source = &mut self.sources[0];
            let reason = match source.read(blob, offset, &mut stored) {
                Ok(()) => {
                    downloads.add(&source.name(), length as u64);
                    match check(&stored) {
                        Ok(good) => return Ok(good),
                        Err(problem) => format!("{}: {problem}", source.name()),
                    }
                }
                Err(error) => error.to_string(),
            };
            reasons.push(reason);
            self.sources.rotate_left(1);
        }
        Err(no_source(reasons))
    }

    /// A blob small enough to be held in memory.
    pub(super) fn read_whole(&mut self, blob: &Blob, meter: &Meter) -> Result<Vec<u8>, WriteError> {
        let expected = blob.digest;
        self.ask(blob, 0, blob.size as usize, &meter.downloads(), |stored| {
            if Digest::of(stored) == expected {
                Ok(stored.to_vec())
            } else {
                Err(format!("{} has other bytes", expected.short()))
            }
        })
    }

    /// A run of chunks that lie one after the other. When one of them is wrong, each is asked for alone.
    pub(super) fn read_run(
        &mut self,
        blob: &Blob,
        entries: &[ChunkEntry],
        stored_offset: u64,
        stored_length: u32,
        bytes: &mut [u8],
        meter: &Meter,
    ) -> Result<(), WriteError> {
        let mut unpacker = self.unpacker()?;
        let whole = self.ask(
            blob,
            stored_offset,
            stored_length as usize,
            &meter.downloads(),
            |stored| {
                for (entry, into) in split(entries, bytes) {
                    let at = (entry.stored_offset - stored_offset) as usize;
                    unpack(
                        &mut unpacker,
                        entry,
                        &stored[at..at + entry.stored_length as usize],
                        into,
                    )?;
                }
                Ok(())
            },
        );
        self.unpacker = Some(unpacker);
        if whole.is_ok() || entries.len() == 1 {
            return whole;
        }
        for (entry, into) in split(entries, bytes) {
            self.read_chunk(blob, entry, into, meter)?;
        }
        Ok(())
    }

    pub(super) fn read_chunk(
        &mut self,
        blob: &Blob,
        entry: &ChunkEntry,
        into: &mut [u8],
        meter: &Meter,
    ) -> Result<(), WriteError> {
        let mut unpacker = self.unpacker()?;
        let result = self.ask(
            blob,
            entry.stored_offset,
            entry.stored_length as usize,
            &meter.downloads(),
            |stored| unpack(&mut unpacker, entry, stored, into),
        );
        self.unpacker = Some(unpacker);
        result
    }

    /// Bytes that are checked by who asked for them.
    pub(super) fn read_range(
        &mut self,
        blob: &Blob,
        offset: u64,
        buffer: &mut [u8],
        downloads: &Downloads,
    ) -> Result<(), WriteError> {
        let mut at = offset;
        for piece in buffer.chunks_mut(PIECE as usize) {
            self.read_piece(blob, at, piece, downloads)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// From the first source that has it.
    fn read_piece(
        &mut self,
        blob: &Blob,
        offset: u64,
        piece: &mut [u8],
        downloads: &Downloads,
    ) -> Result<(), WriteError> {
        let mut reasons = Vec::new();
        for _ in 0..self.sources.len() {
            let source = &mut self.sources[0];
            match source.read(blob, offset, piece) {
                Ok(()) => {
                    downloads.add(&source.name(), piece.len() as u64);
                    return Ok(());
                }
                Err(error) => reasons.push(error.to_string()),
            }
            self.sources.rotate_left(1);
        }
        Err(no_source(reasons))
    }
}

fn no_source(mut reasons: Vec<String>) -> WriteError {
    if reasons.is_empty() {
        reasons.push("there are no sources".to_owned());
    }
    WriteError::NoSource(reasons.join("; "))
}

/// Each chunk of a run with its part of the run's bytes.
fn split<'a>(
    entries: &'a [ChunkEntry],
    mut bytes: &'a mut [u8],
) -> impl Iterator<Item = (&'a ChunkEntry, &'a mut [u8])> {
    entries.iter().map(move |entry| {
        let (chunk, rest) = std::mem::take(&mut bytes).split_at_mut(entry.length as usize);
        bytes = rest;
        (entry, chunk)
    })
}

/// The plain chunk, if it is the one the index names.
fn unpack(
    unpacker: &mut Decompressor<'_>,
    entry: &ChunkEntry,
    stored: &[u8],
    into: &mut [u8],
) -> Result<(), String> {
    if stored.len() == into.len() {
        into.copy_from_slice(stored);
    } else {
        let length = unpacker
            .decompress_to_buffer(stored, into)
            .map_err(|error| format!("chunk {} cannot be unpacked: {error}", entry.digest.short()))?;
        if length != into.len() {
            return Err(format!("chunk {} is too short", entry.digest.short()));
        }
    }
    if Digest::of(into) == entry.digest {
        Ok(())
    } else {
        Err(format!("chunk {} has other bytes", entry.digest.short()))
    }
}
