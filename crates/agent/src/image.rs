//! Images as files: cuts a raw partition into stored chunks with their index, and reads them from a directory.
//!
//! The blobs of an image lie in one directory, each under its digest, beside `manifest.signed.json`. That directory is
//! a bundle for a USB stick, the layers of an OCI artifact, and the cache of a host.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use slipway_slots::Digest;
use slipway_slots::chunking::{Chunker, Cutting};
use slipway_slots::digest::Hasher;
use slipway_slots::manifest::{Blob, ChunkEntry, ChunkIndex, Manifest, PartitionImage, chunk_size_for};
use tempfile::NamedTempFile;

use crate::engine::{ChunkSource, FetchError};

const LEVEL: i32 = 9;
/// The largest piece read at once.
const PIECE: usize = 1 << 20;

/// Cuts `size` bytes of `raw` into chunks and writes the blobs (index, chunks, solid stream) into `directory`.
/// The size is rounded up to whole blocks of 4 KiB, the rest is zero.
pub fn build_partition(
    name: &str,
    raw: &mut dyn Read,
    size: u64,
    directory: &Path,
) -> io::Result<PartitionImage> {
    let size = size.next_multiple_of(u64::from(Manifest::BLOCK));
    let chunk_size = chunk_size_for(size);
    let chunker = Chunker::new(chunk_size).expect("sizes for images can be cut by");
    let mut storing = Storing {
        chunks: BlobWriter::create(directory)?,
        compressor: zstd::bulk::Compressor::new(LEVEL)?,
        stored: HashMap::new(),
        entries: Vec::new(),
        end: 0,
    };
    let mut solid = zstd::stream::write::Encoder::new(BlobWriter::create(directory)?, LEVEL)?;
    let mut whole = Hasher::new();
    let mut cutting = Cutting::new(chunker);
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < size {
        let length = (buffer.len() as u64).min(size - at) as usize;
        let piece = &mut buffer[..length];
        fill(raw, piece)?;
        whole.update(piece);
        solid.write_all(piece)?;
        cutting.push(piece, |chunk| storing.add(chunk))?;
        at += length as u64;
    }
    cutting.finish(|chunk| storing.add(chunk))?;
    let mut index = BlobWriter::create(directory)?;
    let chunk_count = storing.entries.len() as u32;
    let plain = ChunkIndex {
        entries: storing.entries,
    }
    .encode();
    index.write_all(&zstd::bulk::compress(&plain, LEVEL)?)?;
    Ok(PartitionImage {
        name: name.to_owned(),
        size,
        digest: whole.finish(),
        chunk_size,
        chunk_count,
        index: index.finish()?,
        chunks: storing.chunks.finish()?,
        solid: Some(solid.finish()?.finish()?),
    })
}

/// The chunks blob as it grows.
struct Storing {
    chunks: BlobWriter,
    compressor: zstd::bulk::Compressor<'static>,
    stored: HashMap<Digest, (u64, u32)>,
    entries: Vec<ChunkEntry>,
    /// Where the next chunk begins in the partition.
    end: u64,
}

impl Storing {
    fn add(&mut self, chunk: &[u8]) -> io::Result<()> {
        let digest = Digest::of(chunk);
        let (stored_offset, stored_length) = if let Some(place) = self.stored.get(&digest) {
            *place
        } else {
            let compressed = self.compressor.compress(chunk)?;
            let form = if compressed.len() < chunk.len() {
                compressed.as_slice()
            } else {
                chunk
            };
            let place = (self.chunks.length, form.len() as u32);
            self.chunks.write_all(form)?;
            self.stored.insert(digest, place);
            place
        };
        self.entries.push(ChunkEntry {
            digest,
            offset: self.end,
            length: chunk.len() as u32,
            stored_offset,
            stored_length,
        });
        self.end += chunk.len() as u64;
        Ok(())
    }
}

/// As much as there is; what is missing at the end is zero.
fn fill(raw: &mut dyn Read, piece: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < piece.len() {
        match raw.read(&mut piece[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    piece[filled..].fill(0);
    Ok(())
}

/// Where a blob lies in the directory of an image.
pub fn blob_path(directory: &Path, digest: &Digest) -> PathBuf {
    directory.join(digest.to_string().replace(':', "-"))
}

/// A blob gets its name when its digest is known.
struct BlobWriter {
    directory: PathBuf,
    file: NamedTempFile,
    hasher: Hasher,
    length: u64,
}

impl BlobWriter {
    fn create(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            file: NamedTempFile::new_in(directory)?,
            hasher: Hasher::new(),
            length: 0,
        })
    }

    fn finish(self) -> io::Result<Blob> {
        let digest = self.hasher.finish();
        self.file.as_file().sync_all()?;
        self.file.persist(blob_path(&self.directory, &digest))?;
        Ok(Blob {
            digest,
            size: self.length,
        })
    }
}

impl Write for BlobWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The blobs of an image in a directory: a bundle, or the host's cache.
#[derive(Debug)]
pub struct ImageDirectory {
    path: PathBuf,
    open: Option<(Digest, File)>,
}

impl ImageDirectory {
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            open: None,
        }
    }
}

impl ChunkSource for ImageDirectory {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&mut self, blob: &Blob, offset: u64, buffer: &mut [u8]) -> Result<(), FetchError> {
        let failed = |error: io::Error, name: String| match error.kind() {
            io::ErrorKind::NotFound => FetchError::Absent {
                source_name: name,
                blob: blob.digest.to_string(),
            },
            _ => FetchError::Failed {
                source_name: name,
                blob: blob.digest.to_string(),
                reason: error.to_string(),
            },
        };
        let name = self.name();
        let file = match &self.open {
            Some((digest, file)) if *digest == blob.digest => file,
            _ => {
                let file = File::open(blob_path(&self.path, &blob.digest))
                    .map_err(|error| failed(error, name.clone()))?;
                &self.open.insert((blob.digest, file)).1
            }
        };
        file.read_exact_at(buffer, offset)
            .map_err(|error| failed(error, name))
    }
}
