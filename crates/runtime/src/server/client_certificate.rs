//! Who may call runtime hooks: with `--hook-client-ca-file` only clients that show a certificate of that CA, as Cluster
//! API's core does with `--runtime-extension-client-cert-file`. Webhooks share the port and the apiserver shows no
//! certificate, so a connection without one is taken and its hook requests are refused.

use std::{fs, path::Path, sync::Arc};

use rustls::{
    RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};

/// Among the extensions of a request whose client has shown a certificate of the CA.
#[derive(Clone, Copy, Debug)]
pub struct Verified;

/// The CA of those who may call hooks.
#[derive(Clone, Debug)]
pub struct ClientCa {
    roots: Arc<RootCertStore>,
}

impl ClientCa {
    pub fn read(path: &Path) -> Result<Self, String> {
        let pem = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Self::from_pem(&pem).map_err(|reason| format!("{}: {reason}", path.display()))
    }

    pub fn from_pem(pem: &[u8]) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| format!("it is not PEM: {error}"))?;
            roots
                .add(certificate)
                .map_err(|error| format!("it holds a certificate that is none of a CA: {error}"))?;
        }
        if roots.is_empty() {
            return Err("it holds no certificate".to_owned());
        }
        Ok(Self {
            roots: Arc::new(roots),
        })
    }

    /// Checks the certificate of whoever shows one.
    pub(super) fn verifier(
        &self,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, String> {
        WebPkiClientVerifier::builder_with_provider(self.roots.clone(), provider)
            .allow_unauthenticated()
            .build()
            .map_err(|error| error.to_string())
    }
}
