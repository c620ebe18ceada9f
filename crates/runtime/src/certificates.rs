//! The HTTPS server's certificate: read from a folder and followed as it is renewed (cert-manager's secret volume
//! swaps a symbolic link), or made here for a run on one's own machine.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Once},
    time::Duration,
};

use arc_swap::ArcSwap;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio_util::sync::CancellationToken;

/// How often the folder is read. Watching it by inotify breaks on the symbolic links of secret volumes.
const POLL: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error(
        "cannot read the webhook certificate {path}: {source}; mount cert-manager's secret there, name another \
         folder with --webhook-cert-dir, or pass --webhook-self-signed for a local run"
    )]
    Missing { path: String, source: std::io::Error },
    #[error("cannot use the webhook certificate in {directory}: {reason}")]
    Unusable { directory: String, reason: String },
    #[error(
        "cannot write a self-signed certificate to {path}: {source}; name a folder that can be written with \
         --webhook-cert-dir"
    )]
    Unwritable { path: String, source: std::io::Error },
    #[error("cannot make a self-signed certificate: {0}")]
    NotMade(#[from] rcgen::Error),
}

/// Makes aws-lc-rs the one source of cryptography of this process. Safe to call again.
pub fn install_crypto_provider() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Fails only if a program that embeds us has installed one before, and then that one serves as well.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    });
}

/// Where certificate and key are found.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    pub directory: PathBuf,
    pub certificate: String,
    pub key: String,
}

impl CertificateFiles {
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            certificate: "tls.crt".to_owned(),
            key: "tls.key".to_owned(),
        }
    }

    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), CertificateError> {
        let read = |name: &str| {
            let path = self.directory.join(name);
            fs::read(&path).map_err(|source| CertificateError::Missing {
                path: path.display().to_string(),
                source,
            })
        };
        Ok((read(&self.certificate)?, read(&self.key)?))
    }
}

/// The certificate that new connections are answered with.
#[derive(Debug)]
pub struct Certificates {
    current: ArcSwap<CertifiedKey>,
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl Certificates {
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, String> {
        Ok(Self {
            current: ArcSwap::from_pointee(certified_key(certificate, key)?),
        })
    }

    /// Reads the folder once; [`Certificates::follow`] keeps up with it.
    pub fn load(files: &CertificateFiles) -> Result<Self, CertificateError> {
        let (certificate, key) = files.read()?;
        Self::from_pem(&certificate, &key).map_err(|reason| CertificateError::Unusable {
            directory: files.directory.display().to_string(),
            reason,
        })
    }

    /// Takes up new files as they appear. A pair that cannot be used (half written, key and certificate of
    /// different renewals) is reported once, and the old pair stays.
    pub async fn follow(self: Arc<Self>, files: CertificateFiles, cancel: CancellationToken) {
        self.follow_every(POLL, files, cancel).await;
    }

    pub(crate) async fn follow_every(
        self: Arc<Self>,
        period: Duration,
        files: CertificateFiles,
        cancel: CancellationToken,
    ) {
        // What is in use may be older than what is there now, so the first read is compared with nothing.
        let mut seen = None;
        let mut readable = true;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(period) => {}
            }
            match files.read() {
                Err(error) => {
                    seen = None;
                    if std::mem::replace(&mut readable, false) {
                        tracing::error!(err = %error, "Failed to read the webhook certificate, keeping the old one");
                    }
                }
                Ok(found) if seen.as_ref() == Some(&found) => {}
                Ok(found) => {
                    readable = true;
                    match certified_key(&found.0, &found.1) {
                        Ok(pair) => {
                            let renewed = pair.cert != self.current.load().cert;
                            self.current.store(Arc::new(pair));
                            if renewed {
                                tracing::info!("Updated current TLS certificate");
                            }
                        }
                        Err(reason) => {
                            tracing::error!(
                                err = reason,
                                "Failed to use the new webhook certificate, keeping the old one"
                            );
                        }
                    }
                    seen = Some(found);
                }
            }
        }
    }

    /// The leaf certificate in use, in DER.
    pub fn leaf(&self) -> Vec<u8> {
        self.current
            .load()
            .cert
            .first()
            .map(|certificate| certificate.to_vec())
            .unwrap_or_default()
    }
}

fn certified_key(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    install_crypto_provider();
    let chain = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("the certificate is not PEM: {error}"))?;
    if chain.is_empty() {
        return Err("the certificate file holds no certificate".to_owned());
    }
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the private key is not PEM: {error}"))?;
    let provider = rustls::crypto::CryptoProvider::get_default()
        .cloned()
        .unwrap_or_else(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    // Also refuses a key that does not belong to the certificate.
    CertifiedKey::from_der(chain, key, &provider).map_err(|error| error.to_string())
}

/// A certificate authority of one's own and a server certificate signed by it, for local runs and tests.
#[derive(Clone, Debug)]
pub struct SelfSigned {
    /// What goes into `caBundle`.
    pub ca: String,
    pub certificate: String,
    /// Never logged.
    key: String,
}

impl SelfSigned {
    /// For a server that is reached under these names or addresses.
    pub fn generate(hosts: &[String]) -> Result<Self, CertificateError> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, "slipway local CA");
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_certificate = ca.self_signed(&ca_key)?;
        let issuer = Issuer::new(ca, ca_key);

        let key = KeyPair::generate()?;
        let mut server = CertificateParams::new(hosts.to_vec())?;
        server.distinguished_name.push(DnType::CommonName, "slipway");
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        server.use_authority_key_identifier_extension = true;
        let certificate = server.signed_by(&key, &issuer)?;
        Ok(Self {
            ca: ca_certificate.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    pub fn certificates(&self) -> Result<Certificates, String> {
        Certificates::from_pem(self.certificate.as_bytes(), self.key.as_bytes())
    }

    /// Writes `ca.crt`, `tls.crt` and `tls.key` (readable by its owner only) into a folder.
    pub fn write(&self, directory: &Path) -> Result<(), CertificateError> {
        let unwritable = |path: &Path, source| CertificateError::Unwritable {
            path: path.display().to_string(),
            source,
        };
        fs::create_dir_all(directory).map_err(|source| unwritable(directory, source))?;
        for (name, text, mode) in [
            ("ca.crt", &self.ca, 0o644),
            ("tls.crt", &self.certificate, 0o644),
            ("tls.key", &self.key, 0o600),
        ] {
            let path = directory.join(name);
            fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(mode)
                .open(&path)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(|source| unwritable(&path, source))?;
        }
        Ok(())
    }
}

/// For `--webhook-self-signed`: a folder that already has a usable pair keeps it, so that a restart does not
/// invalidate the `caBundle` that was installed.
pub fn ensure_self_signed(files: &CertificateFiles, hosts: &[String]) -> Result<(), CertificateError> {
    let usable = files
        .read()
        .is_ok_and(|(certificate, key)| certified_key(&certificate, &key).is_ok());
    if usable {
        return Ok(());
    }
    SelfSigned::generate(hosts)?.write(&files.directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn hosts() -> Vec<String> {
        vec!["localhost".to_owned(), "127.0.0.1".to_owned()]
    }

    #[test]
    fn a_missing_folder_says_what_to_do() {
        let error = Certificates::load(&CertificateFiles::in_directory("/nowhere/certs")).unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with("cannot read the webhook certificate /nowhere/certs/tls.crt: "),
            "{message}"
        );
        assert!(
            message.contains("--webhook-cert-dir") && message.contains("--webhook-self-signed"),
            "{message}"
        );
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        SelfSigned::generate(&hosts())
            .unwrap()
            .write(folder.path())
            .unwrap();
        let other = SelfSigned::generate(&hosts()).unwrap();
        fs::write(folder.path().join("tls.key"), &other.key).unwrap();
        let error = Certificates::load(&CertificateFiles::in_directory(folder.path())).unwrap_err();
        assert!(matches!(error, CertificateError::Unusable { .. }), "{error}");
        fs::write(folder.path().join("tls.key"), "not a key").unwrap();
        let error = Certificates::load(&CertificateFiles::in_directory(folder.path())).unwrap_err();
        assert!(
            error.to_string().contains("the private key is not PEM"),
            "{error}"
        );
    }

    #[test]
    fn a_local_certificate_is_made_once_and_its_key_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let files = CertificateFiles::in_directory(folder.path().join("certs"));
        ensure_self_signed(&files, &hosts()).unwrap();
        let first = files.read().unwrap();
        ensure_self_signed(&files, &hosts()).unwrap();
        assert_eq!(first, files.read().unwrap());
        let mode = fs::metadata(files.directory.join("tls.key"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(files.directory.join("tls.crt"), "broken").unwrap();
        ensure_self_signed(&files, &hosts()).unwrap();
        assert!(Certificates::load(&files).is_ok());
    }

    /// A secret volume: `tls.crt -> ..data/tls.crt`, `..data -> ..2026_1`, renewed by renaming a new link over `..data`.
    #[tokio::test(start_paused = true)]
    async fn a_swapped_secret_volume_is_taken_up() {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path();
        let renew = |name: &str| {
            let pair = SelfSigned::generate(&hosts()).unwrap();
            pair.write(&volume.join(name)).unwrap();
            symlink(name, volume.join("..data_tmp")).unwrap();
            fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
            pair.certificates().unwrap().leaf()
        };
        let first = renew("..2026_1");
        for file in ["tls.crt", "tls.key"] {
            symlink(Path::new("..data").join(file), volume.join(file)).unwrap();
        }
        let files = CertificateFiles::in_directory(volume);
        let certificates = Arc::new(Certificates::load(&files).unwrap());
        assert_eq!(certificates.leaf(), first);
        let cancel = CancellationToken::new();
        let follower = tokio::spawn(certificates.clone().follow(files, cancel.clone()));
        tokio::time::sleep(POLL * 2).await;
        let second = renew("..2026_2");
        tokio::time::sleep(POLL * 2).await;
        assert_eq!(certificates.leaf(), second);
        // A broken renewal leaves the good pair in place, and the next good one is taken up.
        fs::write(volume.join("..data/tls.crt"), "half a certif").unwrap();
        tokio::time::sleep(POLL * 2).await;
        assert_eq!(certificates.leaf(), second);
        let third = renew("..2026_3");
        tokio::time::sleep(POLL * 2).await;
        assert_eq!(certificates.leaf(), third);
        cancel.cancel();
        follower.await.unwrap();
    }
}
