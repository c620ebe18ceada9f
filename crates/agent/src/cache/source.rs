//! Where blobs come from: a registry, its mirrors, or a host beside this one. Nobody is believed: digests are checked by
//! who asks.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use slipway_slots::Digest;
use slipway_slots::manifest::Blob;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error("does not have it")]
    Absent,
    #[error("refuses it: {0}")]
    Denied(String),
    #[error("asks to wait")]
    Throttled(Option<Duration>),
    #[error("{0}")]
    Failed(String),
}

/// A blob's bytes from `at` on, to the end that was asked for or to the blob's.
pub struct Opened {
    /// Where the stream begins: the offset asked for, or zero when the source cannot begin there.
    pub at: u64,
    pub stream: BoxStream<'static, Result<Bytes, String>>,
}

/// Where an image can be had.
#[async_trait]
pub trait BlobSource: Send + Sync {
    /// For errors, logs and the list of those who gave wrong bytes.
    fn name(&self) -> String;

    /// A host beside this one: left at the first trouble, and its bytes are counted apart.
    fn is_peer(&self) -> bool;

    /// The manifest of that digest.
    async fn manifest(&self, digest: &Digest) -> Result<Bytes, SourceError>;

    /// The blob's bytes, from `offset` on and no further than `end` if possible.
    async fn open(&self, blob: &Blob, offset: u64, end: u64) -> Result<Opened, SourceError>;

    /// What a tag means now. Hosts do not know tags.
    async fn resolve_tag(&self) -> Result<Digest, SourceError> {
        Err(SourceError::Absent)
    }
}
