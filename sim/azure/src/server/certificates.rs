//! The simulator's certificate authority: it makes a certificate for whatever name a client asks for.

use std::{
    collections::HashMap,
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs::sign::any_supported_type,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

#[derive(Debug, thiserror::Error)]
pub enum CaError {
    #[error("reading or writing {path}: {source}")]
    File { path: String, source: std::io::Error },
    #[error("making a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
}

/// A certificate authority of its own; clients are told to trust [`Ca::certificate_pem`].
pub struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
    certificate: String,
    made: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca").finish_non_exhaustive()
    }
}

fn parameters() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters
        .distinguished_name
        .push(DnType::CommonName, "azure-sim CA");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

impl Ca {
    pub fn new() -> Result<Self, CaError> {
        Self::with_key(KeyPair::generate()?)
    }

    fn with_key(key: KeyPair) -> Result<Self, CaError> {
        let issuer = CertifiedIssuer::self_signed(parameters(), key)?;
        let certificate = issuer.pem();
        Ok(Self {
            issuer,
            certificate,
            made: Mutex::default(),
        })
    }

    /// Keeps the CA in a folder (`ca.pem` and `ca.key`), so that clients trust it after a restart.
    pub fn kept_in(folder: &Path) -> Result<Self, CaError> {
        let file = |path: &Path, source| CaError::File {
            path: path.display().to_string(),
            source,
        };
        let (certificate_path, key_path) = (folder.join("ca.pem"), folder.join("ca.key"));
        if let (Ok(certificate), Ok(key)) = (
            std::fs::read_to_string(&certificate_path),
            std::fs::read_to_string(&key_path),
        ) {
            // The name and key decide what a certificate chains to, so the one on disk stays good.
            let mut ca = Self::with_key(KeyPair::from_pem(&key)?)?;
            ca.certificate = certificate;
            return Ok(ca);
        }
        std::fs::create_dir_all(folder).map_err(|source| file(folder, source))?;
        let key = KeyPair::generate()?;
        let text = key.serialize_pem();
        let ca = Self::with_key(key)?;
        write_private(&key_path, &text).map_err(|source| file(&key_path, source))?;
        std::fs::write(&certificate_path, &ca.certificate)
            .map_err(|source| file(&certificate_path, source))?;
        Ok(ca)
    }

    /// The certificate clients have to trust, in PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate
    }

    fn certificate_for(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = made.get(name) {
            return Some(Arc::clone(found));
        }
        let key = self.make(name).ok()?;
        let key = Arc::new(key);
        made.insert(name.to_owned(), Arc::clone(&key));
        Some(key)
    }

    fn make(&self, name: &str) -> Result<CertifiedKey, CaError> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.use_authority_key_identifier_extension = true;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        parameters.subject_alt_names = match name.parse() {
            Ok(address) => vec![SanType::IpAddress(address)],
            Err(_) => vec![SanType::DnsName(name.try_into()?)],
        };
        if name == "localhost" {
            parameters
                .subject_alt_names
                .push(SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()));
        }
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.issuer)?;
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let signer = any_supported_type(&private).map_err(|_| rcgen::Error::KeyGenerationUnavailable)?;
        Ok(CertifiedKey::new(vec![certificate.der().clone()], signer))
    }

    pub(super) fn acceptor(self: &Arc<Self>) -> TlsAcceptor {
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("the provider supports the default versions")
                .with_no_client_auth()
                .with_cert_resolver(Arc::new(ByName(Arc::clone(self))));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

/// Picks a certificate by the name in the greeting; a client that came by address names none.
struct ByName(Arc<Ca>);

impl fmt::Debug for ByName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByName")
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0
            .certificate_for(&hello.server_name().unwrap_or("localhost").to_ascii_lowercase())
    }
}

/// Readable by its owner alone.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}
