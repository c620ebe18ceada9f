//! Certificates in use: what a process shows, whom it believes, and how both change while connections go on.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use slipway_slots::Digest;
use x509_parser::parse_x509_certificate;

/// gRPC, as everybody speaks it.
pub const ALPN_GRPC: &[u8] = b"h2";
/// The one who accepts the connection is the one who calls over it.
pub const ALPN_TUNNEL: &[u8] = b"slipway-tunnel/1";

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("certificates cannot be used: {0}")]
    Material(String),
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
}

/// A certificate with its key, and the CAs that are believed.
pub struct Material {
    /// The own one first.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub ca_certificates: Vec<CertificateDer<'static>>,
}

impl Clone for Material {
    fn clone(&self) -> Self {
        Self {
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            ca_certificates: self.ca_certificates.clone(),
        }
    }
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Material(…)")
    }
}

/// Whether callers need a certificate: everywhere but where hosts enrol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    WithCertificate,
    Anybody,
}

/// What connections are made with.
pub struct Tls {
    pub server: Arc<ServerConfig>,
    pub client: Arc<ClientConfig>,
    pub tunnel: Arc<ClientConfig>,
    pub valid: Validity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl Validity {
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, TlsError> {
        let (_, parsed) = parse_x509_certificate(certificate)
            .map_err(|error| TlsError::Material(format!("the certificate cannot be read: {error}")))?;
        let at = |seconds| Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
        let validity = parsed.validity();
        Ok(Self {
            from: at(validity.not_before.timestamp()),
            until: at(validity.not_after.timestamp()),
        })
    }

    /// After two thirds of its life a certificate is renewed; the last third is for links that are down.
    pub fn renew_at(&self) -> Timestamp {
        let life = self.until.duration_since(self.from);
        self.from.saturating_add(life / 3 * 2).unwrap_or(self.until)
    }

    /// How long a connection may last that was made with this certificate.
    pub fn left(&self, now: Timestamp) -> Duration {
        Duration::try_from(self.until.duration_since(now)).unwrap_or_default()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn roots(ca_certificates: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for ca in ca_certificates {
        roots.add(ca.clone())?;
    }
    if roots.is_empty() {
        return Err(TlsError::Material("there is no CA to believe".to_owned()));
    }
    Ok(Arc::new(roots))
}

impl Tls {
    pub fn new(material: &Material, callers: Callers) -> Result<Self, TlsError> {
        let roots = roots(&material.ca_certificates)?;
        let own = material
            .chain
            .first()
            .ok_or_else(|| TlsError::Material("there is no certificate".to_owned()))?;
        let valid = Validity::of(own)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider());
        let verifier = match callers {
            Callers::WithCertificate => verifier,
            Callers::Anybody => verifier.allow_unauthenticated(),
        }
        .build()
        .map_err(|error| TlsError::Material(error.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(material.chain.clone(), material.key.clone_key())?;
        server.alpn_protocols = match callers {
            Callers::WithCertificate => vec![ALPN_GRPC.to_vec()],
            Callers::Anybody => vec![ALPN_GRPC.to_vec(), ALPN_TUNNEL.to_vec()],
        };
        // A resumed session would carry a certificate past its end.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let client = |protocol: &[u8]| -> Result<Arc<ClientConfig>, TlsError> {
            let mut client = ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&TLS13])?
                .with_root_certificates(roots.clone())
                .with_client_auth_cert(material.chain.clone(), material.key.clone_key())?;
            client.alpn_protocols = vec![protocol.to_vec()];
            client.resumption = Resumption::disabled();
            Ok(Arc::new(client))
        };
        Ok(Self {
            server: Arc::new(server),
            client: client(ALPN_GRPC)?,
            tunnel: client(ALPN_TUNNEL)?,
            valid,
        })
    }
}

/// The certificates of a process. New connections take what is current; those that exist go on with what they have.
pub struct CurrentTls {
    callers: Callers,
    current: ArcSwap<Tls>,
}

impl CurrentTls {
    pub fn new(material: &Material, callers: Callers) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self {
            callers,
            current: ArcSwap::from_pointee(Tls::new(material, callers)?),
        }))
    }

    pub fn get(&self) -> Arc<Tls> {
        self.current.load_full()
    }

    pub fn replace(&self, material: &Material) -> Result<(), TlsError> {
        self.current.store(Arc::new(Tls::new(material, self.callers)?));
        Ok(())
    }
}

/// For a host that has a join token and nothing else: the CA whose digest the token carries is believed.
pub fn joining(ca: Digest) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier = Arc::new(PinnedCa { ca });
    let mut client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    client.alpn_protocols = vec![ALPN_GRPC.to_vec()];
    client.resumption = Resumption::disabled();
    Ok(Arc::new(client))
}

/// Finds the CA of that digest in what the server shows, and then verifies the server by it as anybody would.
#[derive(Debug)]
struct PinnedCa {
    ca: Digest,
}

impl ServerCertVerifier for PinnedCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let pinned = intermediates
            .iter()
            .find(|certificate| Digest::of(certificate) == self.ca)
            .ok_or_else(|| {
                rustls::Error::General(
                    "the server does not show the CA that the join token names: it is another one, or somebody is between"
                        .to_owned(),
                )
            })?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &provider().signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &provider().signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// The machine's time of day.
pub(crate) fn now() -> Timestamp {
    Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH)
}
