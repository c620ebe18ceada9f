//! Registries and their mirrors, over `oci-client`.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use oci_client::{
    Client, Reference,
    client::{Certificate, CertificateEncoding, ClientConfig, ClientProtocol},
    errors::{OciDistributionError, OciErrorCode},
    secrets::RegistryAuth,
};
use slipway_slots::Digest;
use slipway_slots::manifest::Blob;

use super::manifest::{ACCEPTED, MAX_MANIFEST};
use super::source::{BlobSource, Opened, SourceError};

/// How registries are reached from this host.
#[derive(Clone, Default)]
pub struct RegistrySettings {
    /// Registries, `host:port`, that speak plain HTTP.
    pub plain_http: Vec<String>,
    /// `(registry, mirror)`: mirrors are asked first, in this order.
    pub mirrors: Vec<(String, String)>,
    /// CAs beside the system's, PEM.
    pub ca_certificates: Vec<Vec<u8>>,
    /// Credentials by registry, from the host's configuration; an order's own come first.
    pub credentials: Vec<(String, RegistryAuth)>,
}

impl RegistrySettings {
    /// The places to ask for an image: mirrors, then the registry itself.
    pub fn places(&self, reference: &Reference, auth: Option<&RegistryAuth>) -> Vec<Registry> {
        let registry = reference.registry().to_owned();
        let mirrors = self
            .mirrors
            .iter()
            .filter(|(of, _)| *of == registry)
            .map(|(_, mirror)| mirror.clone());
        mirrors
            .chain([registry.clone()])
            .map(|place| {
                let own = place == registry;
                let configured = self
                    .credentials
                    .iter()
                    .find(|(of, _)| *of == place)
                    .map(|(_, auth)| auth.clone());
                // An order's credentials are for the registry it names, and nobody else's.
                let auth = auth.filter(|_| own).cloned().or(configured);
                Registry::new(self, &place, reference, auth.unwrap_or(RegistryAuth::Anonymous))
            })
            .collect()
    }
}

pub struct Registry {
    client: Client,
    reference: Reference,
    auth: RegistryAuth,
}

impl Registry {
    fn new(settings: &RegistrySettings, place: &str, reference: &Reference, auth: RegistryAuth) -> Self {
        // Whoever was first has the same one.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let config = ClientConfig {
            protocol: ClientProtocol::HttpsExcept(settings.plain_http.clone()),
            extra_root_certificates: settings
                .ca_certificates
                .iter()
                .map(|pem| Certificate {
                    encoding: CertificateEncoding::Pem,
                    data: pem.clone(),
                })
                .collect(),
            connect_timeout: Some(Duration::from_secs(10)),
            user_agent: concat!("slipway-agent/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        let repository = reference.repository().to_owned();
        let reference = match reference.tag() {
            Some(tag) => Reference::with_tag(place.to_owned(), repository, tag.to_owned()),
            None => Reference::with_tag(place.to_owned(), repository, "latest".to_owned()),
        };
        Self {
            client: Client::new(config),
            reference,
            auth,
        }
    }
}

fn source_error(error: &OciDistributionError) -> SourceError {
    let of_code = |code: u16, text: String| match code {
        404 => SourceError::Absent,
        401 | 403 => SourceError::Denied(text),
        429 => SourceError::Throttled(None),
        _ => SourceError::Failed(text),
    };
    match error {
        OciDistributionError::ImageManifestNotFoundError(_) => SourceError::Absent,
        OciDistributionError::AuthenticationFailure(_) | OciDistributionError::UnauthorizedError { .. } => {
            SourceError::Denied("it wants other credentials".to_owned())
        }
        OciDistributionError::ServerError { code, .. } => of_code(*code, format!("it answers {code}")),
        OciDistributionError::RegistryError { envelope, .. } => {
            let absent = envelope.errors.iter().any(|error| {
                matches!(
                    error.code,
                    OciErrorCode::BlobUnknown
                        | OciErrorCode::ManifestUnknown
                        | OciErrorCode::NameUnknown
                        | OciErrorCode::NotFound
                )
            });
            let denied = envelope
                .errors
                .iter()
                .any(|error| matches!(error.code, OciErrorCode::Denied | OciErrorCode::Unauthorized));
            let throttled = envelope
                .errors
                .iter()
                .any(|error| matches!(error.code, OciErrorCode::Toomanyrequests));
            if absent {
                SourceError::Absent
            } else if denied {
                SourceError::Denied("it wants other credentials".to_owned())
            } else if throttled {
                SourceError::Throttled(None)
            } else {
                SourceError::Failed("it answers with an error".to_owned())
            }
        }
        OciDistributionError::RequestError(error) => match error.status() {
            Some(status) => of_code(status.as_u16(), format!("it answers {status}")),
            // The address is in the source's name; a URL here could carry a signature.
            None if error.is_timeout() => SourceError::Failed("it does not answer".to_owned()),
            None if error.is_connect() => SourceError::Failed("it cannot be reached".to_owned()),
            None => SourceError::Failed("the connection broke".to_owned()),
        },
        // Other errors may quote addresses and what was sent.
        _ => SourceError::Failed("its answer cannot be used".to_owned()),
    }
}

#[async_trait]
impl BlobSource for Registry {
    fn name(&self) -> String {
        format!("registry {}", self.reference.registry())
    }

    fn is_peer(&self) -> bool {
        false
    }

    async fn manifest(&self, digest: &Digest) -> Result<Bytes, SourceError> {
        let reference = Reference::with_digest(
            self.reference.registry().to_owned(),
            self.reference.repository().to_owned(),
            digest.to_string(),
        );
        let (bytes, _) = self
            .client
            .pull_manifest_raw(&reference, &self.auth, &ACCEPTED)
            .await
            .map_err(|error| source_error(&error))?;
        if bytes.len() as u64 > MAX_MANIFEST {
            return Err(SourceError::Failed("its manifest is too large".to_owned()));
        }
        Ok(bytes)
    }

    async fn open(&self, blob: &Blob, offset: u64, end: u64) -> Result<Opened, SourceError> {
        self.client
            .store_auth_if_needed(self.reference.registry(), &self.auth)
            .await;
        let digest = blob.digest.to_string();
        let answer = if offset == 0 && end >= blob.size {
            let stream = self
                .client
                .pull_blob_stream(&self.reference, digest.as_str())
                .await;
            (0, stream.map_err(|error| source_error(&error))?)
        } else {
            let length = (end < blob.size).then(|| end - offset);
            let answer = self
                .client
                .pull_blob_stream_partial(&self.reference, digest.as_str(), offset, length)
                .await;
            match answer.map_err(|error| source_error(&error))? {
                oci_client::client::BlobResponse::Partial(stream) => (offset, stream),
                // Ranges are ignored there: all of it comes again.
                oci_client::client::BlobResponse::Full(stream) => (0, stream),
            }
        };
        let (at, stream) = answer;
        let stream = stream
            .stream
            // The error's own text has the address, which may carry a signature.
            .map(|piece| piece.map_err(|_| "the connection broke".to_owned()));
        Ok(Opened {
            at,
            stream: stream.boxed(),
        })
    }

    async fn resolve_tag(&self) -> Result<Digest, SourceError> {
        // Some registries send no digest with a HEAD; the bytes always have one.
        let (bytes, _) = self
            .client
            .pull_manifest_raw(&self.reference, &self.auth, &ACCEPTED)
            .await
            .map_err(|error| source_error(&error))?;
        Ok(Digest::of(&bytes))
    }
}
