//! The certificates of a cluster: what its servers show, signed by the CA their userdata brought, and whom
//! they believe.

use std::sync::Arc;

use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Who a client certificate says its holder is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub user: String,
    pub groups: Vec<String>,
}

impl Identity {
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, read) = X509Certificate::from_der(certificate).ok()?;
        let subject = read.subject();
        let text =
            |part: &x509_parser::x509::AttributeTypeAndValue<'_>| part.as_str().ok().map(str::to_owned);
        Some(Self {
            user: subject.iter_common_name().find_map(text)?,
            groups: subject.iter_organization().filter_map(text).collect(),
        })
    }

    pub fn is_administrator(&self) -> bool {
        self.groups.iter().any(|group| group == "system:masters")
    }
}

/// The CAs of a cluster, as PEM.
pub struct Cas<'a> {
    pub server_certificate: &'a str,
    pub server_key: &'a str,
    pub client_certificate: &'a str,
}

/// What the servers speak TLS with; clients may show a certificate, and it must then be the client CA's.
/// Says what is wrong without quoting a key.
pub fn tls(cas: &Cas<'_>, names: &[String]) -> Result<ServerConfig, &'static str> {
    let key = KeyPair::from_pem(cas.server_key).map_err(|_| "the key of server-ca cannot be read")?;
    let issuer = Issuer::from_ca_cert_pem(cas.server_certificate, key)
        .map_err(|_| "the certificate of server-ca cannot be read")?;
    let mut all: Vec<String> = ["127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc"]
        .map(str::to_owned)
        .into();
    all.extend(names.iter().cloned());
    all.sort();
    all.dedup();
    let mut leaf = CertificateParams::new(all).map_err(|_| "a name in tls-san is not a name")?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "k3s");
    subject.push(DnType::CommonName, "k3s");
    leaf.distinguished_name = subject;
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().map_err(|_| "no key can be made")?;
    let certificate = leaf
        .signed_by(&key, &issuer)
        .map_err(|_| "server-ca cannot sign")?;

    let read = |pem: &str, wrong: &'static str| -> Result<Vec<CertificateDer<'static>>, &'static str> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        read.map_err(|_| wrong)
    };
    let mut chain = vec![certificate.der().clone()];
    chain.extend(read(
        cas.server_certificate,
        "the certificate of server-ca cannot be read",
    )?);
    let mut clients = RootCertStore::empty();
    for certificate in read(
        cas.client_certificate,
        "the certificate of client-ca cannot be read",
    )? {
        clients
            .add(certificate)
            .map_err(|_| "the certificate of client-ca cannot be trusted")?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(clients), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .map_err(|_| "client-ca brings no certificate")?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| "TLS cannot be set up")?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|_| "the serving certificate does not fit its key")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
