//! Where the engine reads an image's blobs: in the cache, or in parts from others.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use slipway_slots::Digest;
use slipway_slots::manifest::Blob;
use tokio::runtime::Handle;

use crate::cache::{Cache, Remote};
use crate::engine::{ChunkSource, FetchError, Sources};

/// The engine reads an image's blobs out of the cache.
pub(super) struct CachedBlobs {
    cache: Arc<Cache>,
    open: Option<(Digest, std::fs::File)>,
}

impl CachedBlobs {
    pub fn new(cache: Arc<Cache>) -> Self {
        Self { cache, open: None }
    }
}

impl ChunkSource for CachedBlobs {
    fn name(&self) -> String {
        "the cache".to_owned()
    }

    fn read(&mut self, blob: &Blob, offset: u64, buffer: &mut [u8]) -> Result<(), FetchError> {
        let absent = || FetchError::Absent {
            source_name: "the cache".to_owned(),
            blob: blob.digest.to_string(),
        };
        let file = match self.open.take().filter(|(digest, _)| *digest == blob.digest) {
            Some((_, file)) => file,
            None => {
                let (path, _) = self.cache.blob(&blob.digest).ok_or_else(absent)?;
                std::fs::File::open(path).map_err(|_| absent())?
            }
        };
        let read = file.read_exact_at(buffer, offset);
        self.open = Some((blob.digest, file));
        read.map_err(|error| FetchError::Failed {
            source_name: "the cache".to_owned(),
            blob: blob.digest.to_string(),
            reason: error.to_string(),
        })
    }
}

/// The engine asks others for parts of an image's blobs, `first` before the rest.
struct RemoteBlobs {
    remote: Arc<Remote>,
    first: usize,
    /// What this host has is not asked for.
    here: bool,
    runtime: Handle,
}

impl ChunkSource for RemoteBlobs {
    fn name(&self) -> String {
        self.remote.name(self.first)
    }

    fn at_hand(&self, blob: &Blob, offset: u64, length: u64) -> u64 {
        if self.here {
            self.remote.at_hand(blob, offset, length)
        } else {
            0
        }
    }

    fn read(&mut self, blob: &Blob, offset: u64, buffer: &mut [u8]) -> Result<(), FetchError> {
        let missing = if self.here {
            self.remote.read_here(blob, offset, buffer)
        } else {
            std::iter::once(0..buffer.len()).collect()
        };
        for part in missing {
            let at = offset + part.start as u64;
            let reading = self.remote.read(blob, at, &mut buffer[part], self.first);
            self.runtime
                .block_on(reading)
                .map_err(|error| FetchError::Failed {
                    source_name: self.name(),
                    blob: blob.digest.to_string(),
                    reason: error.to_string(),
                })?;
        }
        Ok(())
    }
}

/// For the engine: it leaves a source whose bytes are wrong for the next, so each of them comes first once. Chunks of cached
/// images are used until one is found to be damaged.
pub(super) fn remote_sources(remote: &Arc<Remote>) -> Sources {
    let runtime = Handle::current();
    let source = |first, here| -> Box<dyn ChunkSource> {
        Box::new(RemoteBlobs {
            remote: remote.clone(),
            first,
            here,
            runtime: runtime.clone(),
        })
    };
    let others = (0..remote.sources()).map(|first| source(first, false));
    Sources::new(std::iter::once(source(0, true)).chain(others).collect())
}
