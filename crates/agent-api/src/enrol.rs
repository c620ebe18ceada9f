//! Enrolment: the manager's half decides by the join token and signs; the host's half makes its own key, which never
//! leaves it, and renews the certificate before it ends.

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tonic::{Request, Response, Status};

use crate::{
    Identity,
    ca::{Ca, requested_key},
    channel::Channel,
    identity::check_name,
    problem::{Class, Problem},
    proto::{
        Credentials, JoinRequest, RenewRequest, enrolment_client::EnrolmentClient,
        enrolment_server::Enrolment,
    },
    tls::{CurrentTls, Material, joining},
    token::{Claim, JoinToken, TokenStore, unknown, used},
};

/// The manager's half.
pub struct EnrolmentService<S> {
    /// Replaced when the CA is.
    pub ca: Arc<ArcSwap<Ca>>,
    pub tokens: S,
    pub now: fn() -> Timestamp,
}

fn invalid(message: impl std::fmt::Display) -> Problem {
    Problem::new(Class::Terminal, "InvalidRequest", message.to_string())
}

impl<S: TokenStore> EnrolmentService<S> {
    fn sign(&self, host: &str, request: &[u8]) -> Result<Credentials, Problem> {
        let ca = self.ca.load();
        let identity = Identity::Host {
            fleet: ca.fleet().to_owned(),
            name: host.to_owned(),
        };
        let certificates = ca.sign(&identity, request, (self.now)()).map_err(invalid)?;
        let bytes = |certificates: Vec<CertificateDer<'_>>| {
            certificates
                .iter()
                .map(|certificate| certificate.to_vec())
                .collect()
        };
        Ok(Credentials {
            certificates: bytes(certificates),
            ca_certificates: bytes(ca.trusted()),
        })
    }

    async fn join_host(&self, request: &JoinRequest) -> Result<Credentials, Problem> {
        check_name(&request.host).map_err(invalid)?;
        let token: JoinToken = request.token.parse().map_err(invalid)?;
        let key = requested_key(&request.certificate_request).map_err(invalid)?;
        let record = self.tokens.get(&token.id).await?.ok_or_else(unknown)?;
        match record.check(&token, &request.host, key, (self.now)())? {
            Claim::First => {
                if !self.tokens.claim(&record, key).await? {
                    // Somebody was faster; if that was this key's own first try, the next one is let in.
                    let record = self.tokens.get(&token.id).await?.ok_or_else(unknown)?;
                    if record.check(&token, &request.host, key, (self.now)())? != Claim::Again {
                        return Err(used());
                    }
                }
            }
            Claim::Again => {}
        }
        self.sign(&request.host, &request.certificate_request)
    }
}

#[async_trait]
impl<S: TokenStore + 'static> Enrolment for EnrolmentService<S> {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<Credentials>, Status> {
        let request = request.into_inner();
        let joined = self.join_host(&request).await;
        let host: String = request.host.chars().take(80).collect();
        match &joined {
            Ok(_) => tracing::info!(host, "a host joined"),
            Err(problem) => tracing::warn!(host, "a host could not join: {problem}"),
        }
        Ok(Response::new(joined?))
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<Credentials>, Status> {
        let Some(Identity::Host { name, .. }) = request.extensions().get::<Identity>().cloned() else {
            return Err(Problem::new(Class::Denied, "NotAllowed", "only hosts renew certificates").into());
        };
        // Whatever the request says, a host is given its own name.
        let request = request.into_inner().certificate_request;
        requested_key(&request).map_err(invalid)?;
        Ok(Response::new(self.sign(&name, &request)?))
    }
}

/// A key that was made here, and the request for its certificate.
pub struct NewKey {
    key: KeyPair,
    request: Vec<u8>,
}

impl NewKey {
    pub fn generate() -> Result<Self, Problem> {
        let failed =
            |error: rcgen::Error| Problem::new(Class::Transient, "NoKey", format!("making a key: {error}"));
        let key = KeyPair::generate().map_err(failed)?;
        Self::of(key).map_err(failed)
    }

    /// The key of an earlier, interrupted try: a token is for one key.
    pub fn from_pem(pem: &str) -> Result<Self, Problem> {
        let failed = |error: rcgen::Error| {
            Problem::new(
                Class::Terminal,
                "NoKey",
                format!("reading the host's key: {error}"),
            )
        };
        let key = KeyPair::from_pem(pem).map_err(failed)?;
        Self::of(key).map_err(failed)
    }

    fn of(key: KeyPair) -> Result<Self, rcgen::Error> {
        let request = CertificateParams::default()
            .serialize_request(&key)?
            .der()
            .to_vec();
        Ok(Self { key, request })
    }

    /// For the host's own disk.
    pub fn to_pem(&self) -> String {
        self.key.serialize_pem()
    }

    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// The certificates that came for this key. What does not fit together is refused before it takes the old one's place.
    pub fn complete(&self, credentials: Credentials, host: &str) -> Result<Material, Problem> {
        let unusable = |reason: String| {
            Problem::new(
                Class::Transient,
                "UnusableCertificate",
                format!("the certificate that came cannot be used: {reason}"),
            )
        };
        let certificates =
            |bytes: Vec<Vec<u8>>| bytes.into_iter().map(CertificateDer::from).collect::<Vec<_>>();
        let material = Material {
            chain: certificates(credentials.certificates),
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der())),
            ca_certificates: certificates(credentials.ca_certificates),
        };
        let own = material
            .chain
            .first()
            .ok_or_else(|| unusable("there is none".to_owned()))?;
        match Identity::of_certificate(own).map_err(|error| unusable(error.to_string()))? {
            Identity::Host { name, .. } if name == host => {}
            other => return Err(unusable(format!("it is for {other}"))),
        }
        // Fails when the key is not the certificate's.
        crate::tls::Tls::new(&material, crate::tls::Callers::WithCertificate)
            .map_err(|error| unusable(error.to_string()))?;
        Ok(material)
    }
}

fn unreachable(error: &crate::channel::ConnectError) -> Problem {
    let class = match error {
        crate::channel::ConnectError::Untrusted { .. } => Class::Denied,
        _ => Class::Transient,
    };
    Problem::new(class, "Unreachable", error.to_string())
}

/// The host's half: asks with a token, of a manager whose CA the token names.
pub async fn join(address: &str, host: &str, token: &JoinToken, key: &NewKey) -> Result<Material, Problem> {
    let config =
        joining(token.ca).map_err(|error| Problem::new(Class::Terminal, "Tls", error.to_string()))?;
    let channel = Channel::to_manager(address, config)
        .await
        .map_err(|error| unreachable(&error))?;
    let origin = channel.origin();
    let credentials = EnrolmentClient::with_origin(channel, origin)
        .join(JoinRequest {
            token: token.reveal(),
            host: host.to_owned(),
            certificate_request: key.request().to_vec(),
        })
        .await
        .map_err(|status| Problem::from_status(&status))?
        .into_inner();
    key.complete(credentials, host)
}

/// The host's half: a new certificate for a new key, by right of the one that is still good.
pub async fn renew(address: &str, host: &str, tls: &CurrentTls, key: &NewKey) -> Result<Material, Problem> {
    let channel = Channel::to_manager(address, tls.get().client.clone())
        .await
        .map_err(|error| unreachable(&error))?;
    let origin = channel.origin();
    let credentials = EnrolmentClient::with_origin(channel, origin)
        .renew(RenewRequest {
            certificate_request: key.request().to_vec(),
        })
        .await
        .map_err(|status| Problem::from_status(&status))?
        .into_inner();
    key.complete(credentials, host)
}
