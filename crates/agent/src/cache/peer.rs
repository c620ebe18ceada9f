//! A host beside this one as a source: the `Blobs` service over mTLS.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use slipway_agent_api::{
    channel::Channel,
    proto::{LocateRequest, ReadRequest, blobs_client::BlobsClient},
    tls::CurrentTls,
};
use slipway_slots::Digest;
use slipway_slots::manifest::Blob;

use super::manifest::MAX_MANIFEST;
use super::source::{BlobSource, Opened, SourceError};

pub struct PeerSource {
    host: String,
    address: String,
    tls: Arc<CurrentTls>,
    channel: tokio::sync::Mutex<Option<Channel>>,
}

impl PeerSource {
    pub fn new(host: &str, address: &str, tls: Arc<CurrentTls>) -> Self {
        Self {
            host: host.to_owned(),
            address: address.to_owned(),
            tls,
            channel: tokio::sync::Mutex::new(None),
        }
    }

    async fn client(&self) -> Result<BlobsClient<Channel>, SourceError> {
        let mut kept = self.channel.lock().await;
        let channel = match kept.as_ref().filter(|channel| !channel.is_closed()) {
            Some(channel) => channel.clone(),
            None => {
                let config = self.tls.get().client.clone();
                let channel = Channel::to_host(&self.address, &self.host, config)
                    .await
                    .map_err(|error| SourceError::Failed(error.to_string()))?;
                *kept = Some(channel.clone());
                channel
            }
        };
        let origin = channel.origin();
        Ok(BlobsClient::with_origin(channel, origin))
    }
}

fn source_error(status: &tonic::Status) -> SourceError {
    match status.code() {
        tonic::Code::NotFound => SourceError::Absent,
        tonic::Code::PermissionDenied | tonic::Code::Unauthenticated => {
            SourceError::Denied(status.message().to_owned())
        }
        tonic::Code::ResourceExhausted => SourceError::Throttled(None),
        _ => SourceError::Failed(status.message().to_owned()),
    }
}

#[async_trait]
impl BlobSource for PeerSource {
    fn name(&self) -> String {
        format!("host {}", self.host)
    }

    fn is_peer(&self) -> bool {
        true
    }

    async fn manifest(&self, digest: &Digest) -> Result<Bytes, SourceError> {
        let located = self
            .client()
            .await?
            .locate(LocateRequest {
                digests: vec![digest.to_string()],
            })
            .await
            .map_err(|status| source_error(&status))?
            .into_inner();
        let size = located.blobs.first().ok_or(SourceError::Absent)?.size;
        if size > MAX_MANIFEST {
            return Err(SourceError::Failed("its manifest is too large".to_owned()));
        }
        let blob = Blob {
            digest: *digest,
            size,
        };
        let mut stream = self.open(&blob, 0, size).await?.stream;
        let mut bytes = Vec::new();
        while let Some(piece) = stream.next().await {
            bytes.extend_from_slice(&piece.map_err(SourceError::Failed)?);
            if bytes.len() as u64 > size {
                return Err(SourceError::Failed("it sends more than it said".to_owned()));
            }
        }
        Ok(bytes.into())
    }

    async fn open(&self, blob: &Blob, offset: u64, end: u64) -> Result<Opened, SourceError> {
        let stream = self
            .client()
            .await?
            .read(ReadRequest {
                digest: blob.digest.to_string(),
                offset,
                length: if end < blob.size { end - offset } else { 0 },
            })
            .await
            .map_err(|status| source_error(&status))?
            .into_inner();
        let stream = stream.map(|piece| match piece {
            Ok(piece) => Ok(Bytes::from(piece.data)),
            Err(status) => Err(status.message().to_owned()),
        });
        Ok(Opened {
            at: offset,
            stream: stream.boxed(),
        })
    }
}
