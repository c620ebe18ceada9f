//! The fleet's CA: signs what enrolment has decided. It owns the signing key and nothing else.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls_pki_types::{
    CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject,
};
use slipway_slots::Digest;

use crate::{
    Identity,
    identity::{MANAGER_NAME, check_name, server_name},
    tls::Material,
};

/// Clocks of hosts that were off are behind; certificates are valid since before they were made.
const BACKDATED: Duration = Duration::from_hours(1);
const CA_LIFETIME: Duration = Duration::from_hours(10 * 365 * 24);

#[derive(Debug, thiserror::Error)]
pub enum CaError {
    #[error("the fleet's CA cannot be used: {0}")]
    Ca(String),
    #[error("the certificate request cannot be accepted: {0}")]
    Request(String),
    #[error("nobody has a certificate without a name")]
    Anonymous,
}

/// A CA, and those that are trusted beside it while one takes the other's place.
pub struct Ca {
    fleet: String,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    also_trusted: Vec<CertificateDer<'static>>,
    lifetime: Duration,
}

/// The CA's certificate and key, PEM.
pub struct CaPem {
    pub certificate: String,
    pub key: String,
}

fn ca_error(error: impl std::fmt::Display) -> CaError {
    CaError::Ca(error.to_string())
}

fn request_error(error: impl std::fmt::Display) -> CaError {
    CaError::Request(error.to_string())
}

fn validity(params: &mut CertificateParams, now: Timestamp, lifetime: Duration) {
    let epoch = date_time_ymd(1970, 1, 1);
    let now = Duration::from_secs(now.as_second().max(0).cast_unsigned());
    params.not_before = epoch + now.saturating_sub(BACKDATED);
    params.not_after = epoch + now + lifetime;
}

impl Ca {
    /// A new CA for a fleet.
    pub fn generate(fleet: &str, now: Timestamp) -> Result<CaPem, CaError> {
        check_name(fleet).map_err(ca_error)?;
        let key = KeyPair::generate().map_err(ca_error)?;
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, format!("slipway fleet {fleet}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        validity(&mut params, now, CA_LIFETIME);
        let certificate = params.self_signed(&key).map_err(ca_error)?;
        Ok(CaPem {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// `also_trusted`: certificates of the CA before, or of the one that follows. `lifetime` is that of hosts' certificates.
    pub fn open(
        fleet: &str,
        pem: &CaPem,
        also_trusted: &[String],
        lifetime: Duration,
    ) -> Result<Self, CaError> {
        check_name(fleet).map_err(ca_error)?;
        let certificate = CertificateDer::from_pem_slice(pem.certificate.as_bytes()).map_err(ca_error)?;
        let key = KeyPair::from_pem(&pem.key).map_err(ca_error)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(ca_error)?;
        let also_trusted = also_trusted
            .iter()
            .map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).map_err(ca_error))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            fleet: fleet.to_owned(),
            issuer,
            certificate,
            also_trusted,
            lifetime,
        })
    }

    pub fn fleet(&self) -> &str {
        &self.fleet
    }

    /// What a join token carries, so that a new host knows whom it speaks to.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.certificate)
    }

    pub fn trusted(&self) -> Vec<CertificateDer<'static>> {
        std::iter::once(&self.certificate)
            .chain(&self.also_trusted)
            .cloned()
            .collect()
    }

    fn params(&self, identity: &Identity, now: Timestamp) -> Result<CertificateParams, CaError> {
        let mut params = CertificateParams::default();
        let uri = identity.to_string().try_into().map_err(request_error)?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        let (common, name) = match identity {
            Identity::Operator { .. } => ("operator", Some(MANAGER_NAME.to_owned())),
            Identity::Host { name, .. } => (name.as_str(), Some(server_name(name))),
            Identity::Reader { name, .. } => (name.as_str(), None),
            Identity::Anonymous => return Err(CaError::Anonymous),
        };
        // A common name has at most 64 characters; it is for people only.
        params
            .distinguished_name
            .push(DnType::CommonName, common.chars().take(64).collect::<String>());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if let Some(name) = name {
            params
                .subject_alt_names
                .push(SanType::DnsName(name.try_into().map_err(request_error)?));
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        validity(&mut params, now, self.lifetime);
        Ok(params)
    }

    /// A certificate for the key of `request` (DER). Nothing but the key is taken from it.
    pub fn sign(
        &self,
        identity: &Identity,
        request: &[u8],
        now: Timestamp,
    ) -> Result<Vec<CertificateDer<'static>>, CaError> {
        let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
            .map_err(request_error)?;
        let params = self.params(identity, now)?;
        let certificate = params
            .signed_by(&request.public_key, &self.issuer)
            .map_err(request_error)?;
        Ok(vec![certificate.into(), self.certificate.clone()])
    }

    /// A certificate with a new key: for the manager itself, and for readers.
    pub fn issue(&self, identity: &Identity, now: Timestamp) -> Result<Material, CaError> {
        let key = KeyPair::generate().map_err(ca_error)?;
        let certificate = self
            .params(identity, now)?
            .signed_by(&key, &self.issuer)
            .map_err(ca_error)?;
        Ok(Material {
            chain: vec![certificate.into(), self.certificate.clone()],
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            ca_certificates: self.trusted(),
        })
    }
}

/// The digest of a request's public key, and the proof that who sent it has the key.
pub fn requested_key(request: &[u8]) -> Result<Digest, CaError> {
    if request.len() > 16 << 10 {
        return Err(request_error("it has more than 16 KiB"));
    }
    let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
        .map_err(request_error)?;
    Ok(Digest::of(rcgen::PublicKeyData::der_bytes(&request.public_key)))
}
