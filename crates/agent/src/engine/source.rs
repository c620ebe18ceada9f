//! Where the stored bytes of an image come from: a directory, a cache, another host, a registry. The engine checks
//! every chunk, so a source may be anybody.

use slipway_slots::manifest::Blob;

/// Serves ranges of an image's blobs.
pub trait ChunkSource: Send {
    /// For errors, logs and the count of bytes by source.
    fn name(&self) -> String;

    /// Exactly `buffer.len()` bytes of `blob` from `offset` on. Retries, resuming, mirrors and bandwidth limits are
    /// the source's own matter; an error means that it gave up.
    fn read(&mut self, blob: &Blob, offset: u64, buffer: &mut [u8]) -> Result<(), FetchError>;
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
