//! A service principal's certificate and key, from PEM or PKCS12, without OpenSSL. Pure.

use aws_lc_rs::{
    rsa::KeyPair,
    signature::{KeyPair as _, RSA_PSS_SHA256},
};
use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use p12_keystore::Pkcs12Archive;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::json;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::error::CredentialError;

/// A certificate chain, leaf first, and the key of the leaf.
pub struct Certificate {
    key: KeyPair,
    chain: Vec<Vec<u8>>,
    not_before: Timestamp,
    not_after: Timestamp,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Certificate")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// How long a signed assertion is good for.
const LIFETIME: i64 = 600;

impl Certificate {
    pub fn read(identity: &str, bytes: &[u8], password: &str) -> Result<Self, CredentialError> {
        let bad = |reason: String| CredentialError::BadCertificate {
            identity: identity.to_owned(),
            reason,
        };
        let is_pem = bytes.windows(11).any(|window| window == b"-----BEGIN ");
        let (key, chain) = if is_pem {
            from_pem(bytes).map_err(bad)?
        } else {
            // A certificate may stand base64-encoded in its secret, as key vaults hand it out.
            let decoded = std::str::from_utf8(bytes).ok().and_then(|text| {
                BASE64_STANDARD
                    .decode(text.split_whitespace().collect::<String>())
                    .ok()
            });
            from_pkcs12(decoded.as_deref().unwrap_or(bytes), password).map_err(bad)?
        };
        let mut chain = chain;
        let position = chain
            .iter()
            .position(|certificate| {
                X509Certificate::from_der(certificate).is_ok_and(|(_, parsed)| {
                    parsed.public_key().subject_public_key.data == key.public_key().as_ref()
                })
            })
            .ok_or_else(|| bad("no certificate in it belongs to the private key".to_owned()))?;
        chain[..=position].rotate_right(1);
        let (_, leaf) = X509Certificate::from_der(&chain[0]).map_err(|error| bad(error.to_string()))?;
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
        let validity = leaf.validity();
        let (not_before, not_after) = (
            at(validity.not_before.timestamp()),
            at(validity.not_after.timestamp()),
        );
        Ok(Self {
            key,
            chain,
            not_before,
            not_after,
        })
    }

    /// Whether it can be used now.
    pub fn check(&self, identity: &str, now: Timestamp) -> Result<(), CredentialError> {
        if now >= self.not_after {
            Err(CredentialError::CertificateExpired {
                identity: identity.to_owned(),
                not_after: self.not_after.to_string(),
            })
        } else if now < self.not_before {
            Err(CredentialError::CertificateNotYetValid {
                identity: identity.to_owned(),
                not_before: self.not_before.to_string(),
            })
        } else {
            Ok(())
        }
    }

    /// A signed statement that we are `client_id`, for `audience`.
    pub fn assertion(&self, client_id: &str, audience: &str, now: Timestamp) -> Result<String, String> {
        let encode = |value: &serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let header = json!({
            "alg": "PS256",
            "typ": "JWT",
            "x5t#S256": BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&self.chain[0])),
            "x5c": self.chain.iter().map(|certificate| BASE64_STANDARD.encode(certificate)).collect::<Vec<_>>(),
        });
        let seconds = now.as_second();
        let claims = json!({
            "aud": audience,
            "iss": client_id,
            "sub": client_id,
            "jti": uuid::Uuid::new_v4().to_string(),
            "nbf": seconds,
            "iat": seconds,
            "exp": seconds + LIFETIME,
        });
        let message = format!("{}.{}", encode(&header), encode(&claims));
        let mut signature = vec![0; self.key.public_modulus_len()];
        self.key
            .sign(
                &RSA_PSS_SHA256,
                &aws_lc_rs::rand::SystemRandom::new(),
                message.as_bytes(),
                &mut signature,
            )
            .map_err(|_| "signing the login with the certificate's key failed".to_owned())?;
        Ok(format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }
}

type KeyAndChain = (KeyPair, Vec<Vec<u8>>);

fn from_pem(bytes: &[u8]) -> Result<KeyAndChain, String> {
    let encrypted = b"BEGIN ENCRYPTED PRIVATE KEY";
    if bytes.windows(encrypted.len()).any(|window| window == encrypted) {
        return Err(
            "the PEM private key is encrypted; store it unencrypted, or as PKCS12 with its password"
                .to_owned(),
        );
    }
    let chain = CertificateDer::pem_slice_iter(bytes)
        .map(|certificate| certificate.map(|certificate| certificate.to_vec()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| "a PEM block in it is broken".to_owned())?;
    if chain.is_empty() {
        return Err("it has no CERTIFICATE block".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(bytes).map_err(|_| "it has no PRIVATE KEY block".to_owned())?;
    let pair = match &key {
        PrivateKeyDer::Pkcs8(der) => KeyPair::from_pkcs8(der.secret_pkcs8_der()),
        PrivateKeyDer::Pkcs1(der) => KeyPair::from_der(der.secret_pkcs1_der()),
        _ => return Err("its private key is not an RSA key".to_owned()),
    }
    .map_err(|_| "its private key is not an RSA key of at least 2048 bits".to_owned())?;
    Ok((pair, chain))
}

fn from_pkcs12(bytes: &[u8], password: &str) -> Result<KeyAndChain, String> {
    let archive = Pkcs12Archive::from_pkcs12(bytes, password)
        .map_err(|_| "it is neither PEM nor a PKCS12 archive that this password opens".to_owned())?;
    let key = archive
        .keys
        .first()
        .ok_or_else(|| "the PKCS12 archive has no private key".to_owned())?;
    let pair = KeyPair::from_pkcs8(key.key.as_der())
        .map_err(|_| "its private key is not an RSA key of at least 2048 bits".to_owned())?;
    let chain = archive
        .certs
        .iter()
        .map(|bag| bag.cert.as_der().to_vec())
        .collect();
    Ok((pair, chain))
}
