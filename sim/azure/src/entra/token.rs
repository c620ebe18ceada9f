//! Signed tokens: the ones this simulator issues and checks, and the assertions clients present.

use std::sync::LazyLock;

use aws_lc_rs::{
    digest,
    encoding::AsDer,
    rand::SystemRandom,
    rsa::{KeyPair as RsaKeys, KeySize},
    signature::{self, KeyPair as _, UnparsedPublicKey},
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Application, error::SignInError};

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    pub audience: String,
    pub issuer: String,
    pub tenant: String,
    pub client_id: String,
    pub object_id: String,
    pub issued_at: i64,
    pub expires_at: i64,
    pub number: u64,
}

/// Why a bearer token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenProblem {
    Malformed,
    Expired { at: i64 },
}

/// One key a process: making one takes a noticeable part of a second.
pub fn process_key() -> &'static str {
    static KEY: LazyLock<String> = LazyLock::new(|| {
        let keys = RsaKeys::generate(KeySize::Rsa2048).expect("the machine can make an RSA key");
        let der =
            AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&keys).expect("a new key can be written");
        STANDARD.encode(der.as_ref())
    });
    &KEY
}

fn keys(text: &str) -> Option<RsaKeys> {
    RsaKeys::from_pkcs8(&STANDARD.decode(text).ok()?).ok()
}

pub fn sign(key: &str, claims: &Claims) -> String {
    let header = json!({"typ": "JWT", "alg": "RS256", "kid": key_id(key)});
    let body = json!({
        "aud": claims.audience,
        "iss": claims.issuer,
        "iat": claims.issued_at,
        "nbf": claims.issued_at,
        "exp": claims.expires_at,
        "appid": claims.client_id,
        "appidacr": "1",
        "idtyp": "app",
        "oid": claims.object_id,
        "sub": claims.object_id,
        "tid": claims.tenant,
        "uti": claims.number.to_string(),
        "ver": "1.0",
    });
    let text = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(header.to_string()),
        URL_SAFE_NO_PAD.encode(body.to_string())
    );
    let Some(keys) = keys(key) else {
        return text;
    };
    let mut signature = vec![0; keys.public_modulus_len()];
    keys.sign(
        &signature::RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        text.as_bytes(),
        &mut signature,
    )
    .expect("the buffer has the length of the modulus");
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

pub fn read(key: &str, token: &str, now: Timestamp) -> Result<Claims, TokenProblem> {
    let parts = Parts::read(token).ok_or(TokenProblem::Malformed)?;
    let keys = keys(key).ok_or(TokenProblem::Malformed)?;
    if !parts.verify(&signature::RSA_PKCS1_2048_8192_SHA256, keys.public_key().as_ref()) {
        return Err(TokenProblem::Malformed);
    }
    let number = |name: &str| parts.body[name].as_i64().unwrap_or_default();
    let claims = Claims {
        audience: parts.claim("aud").to_owned(),
        issuer: parts.claim("iss").to_owned(),
        tenant: parts.claim("tid").to_owned(),
        client_id: parts.claim("appid").to_owned(),
        object_id: parts.claim("oid").to_owned(),
        issued_at: number("iat"),
        expires_at: number("exp"),
        number: parts.claim("uti").parse().unwrap_or_default(),
    };
    if claims.expires_at <= now.as_second() {
        return Err(TokenProblem::Expired {
            at: claims.expires_at,
        });
    }
    Ok(claims)
}

fn key_id(key: &str) -> String {
    let hash = digest::digest(&digest::SHA256, key.as_bytes());
    URL_SAFE_NO_PAD.encode(&hash.as_ref()[..15])
}

/// The public key as a JWK set, for API servers that check tokens themselves.
pub fn key_set(key: &str) -> Value {
    let modulus = keys(key)
        .and_then(|keys| first_integer(keys.public_key().as_ref()))
        .unwrap_or_default();
    json!({"keys": [{
        "kty": "RSA",
        "use": "sig",
        "alg": "RS256",
        "kid": key_id(key),
        "n": URL_SAFE_NO_PAD.encode(modulus),
        "e": "AQAB",
    }]})
}

/// The first INTEGER of a DER SEQUENCE without its leading zero: the modulus of an RSAPublicKey.
fn first_integer(der: &[u8]) -> Option<Vec<u8>> {
    let (_, sequence) = header(der)?;
    let (length, integer) = header(sequence)?;
    let bytes = integer.get(..length)?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    Some(bytes[zeros..].to_vec())
}

/// Length and rest of one DER element.
fn header(der: &[u8]) -> Option<(usize, &[u8])> {
    let first = usize::from(*der.get(1)?);
    if first < 0x80 {
        return Some((first, der.get(2..)?));
    }
    let count = first & 0x7f;
    let length = der
        .get(2..2 + count)?
        .iter()
        .fold(0, |length, byte| (length << 8) | usize::from(*byte));
    Some((length, der.get(2 + count..)?))
}

/// A JSON web token taken apart, not yet believed.
#[derive(Clone, Debug)]
pub struct Parts {
    header: Value,
    body: Value,
    signed: String,
    signature: Vec<u8>,
}

impl Parts {
    pub fn read(token: &str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, body) = signed.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).ok();
        Some(Self {
            header: serde_json::from_slice(&decode(header)?).ok()?,
            body: serde_json::from_slice(&decode(body)?).ok()?,
            signed: signed.to_owned(),
            signature: decode(signature)?,
        })
    }

    pub fn claim(&self, name: &str) -> &str {
        self.body[name].as_str().unwrap_or_default()
    }

    pub fn expires_at(&self) -> Option<i64> {
        self.body["exp"].as_i64()
    }

    pub fn has_audience(&self, audience: &str) -> bool {
        match &self.body["aud"] {
            Value::String(text) => text == audience,
            Value::Array(list) => list.iter().any(|entry| entry == audience),
            _ => false,
        }
    }

    fn verify(&self, algorithm: &'static dyn signature::VerificationAlgorithm, key: &[u8]) -> bool {
        UnparsedPublicKey::new(algorithm, key)
            .verify(self.signed.as_bytes(), &self.signature)
            .is_ok()
    }
}

/// A client assertion must be signed with a registered certificate that is valid now.
pub fn check_certificate(
    parts: &Parts,
    application: &Application,
    now: Timestamp,
) -> Result<(), SignInError> {
    let desired = |name: &str| {
        parts.header[name]
            .as_str()
            .and_then(|text| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok())
    };
    let (sha1, sha256) = (desired("x5t"), desired("x5t#S256"));
    let thumbprint = sha1
        .as_ref()
        .or(sha256.as_ref())
        .map(|bytes| hex(bytes))
        .unwrap_or_default();
    for encoded in &application.certificates {
        let Ok(der) = STANDARD.decode(encoded) else {
            continue;
        };
        let same = match (&sha256, &sha1) {
            (Some(hash), _) => digest::digest(&digest::SHA256, &der).as_ref() == hash.as_slice(),
            (None, Some(hash)) => {
                digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &der).as_ref() == hash.as_slice()
            }
            (None, None) => true,
        };
        if !same {
            continue;
        }
        let Ok((_, certificate)) = x509_parser::parse_x509_certificate(&der) else {
            continue;
        };
        let validity = certificate.validity();
        let second = now.as_second();
        if validity.not_after.timestamp() < second || validity.not_before.timestamp() > second {
            let shown = |time: i64| {
                Timestamp::from_second(time).map_or_else(|_| time.to_string(), |time| time.to_string())
            };
            return Err(SignInError::CertificateExpired {
                thumbprint,
                start: shown(validity.not_before.timestamp()),
                end: shown(validity.not_after.timestamp()),
            });
        }
        let key = &certificate.public_key().subject_public_key.data;
        let algorithm: &'static dyn signature::VerificationAlgorithm = match parts.header["alg"].as_str() {
            Some("PS256") => &signature::RSA_PSS_2048_8192_SHA256,
            _ => &signature::RSA_PKCS1_2048_8192_SHA256,
        };
        return if parts.verify(algorithm, key) {
            Ok(())
        } else {
            Err(SignInError::BadSignature)
        };
    }
    Err(SignInError::UnknownCertificate { thumbprint })
}

/// Whether a token is signed by one of the RSA keys of a JWK set.
pub fn signed_by(parts: &Parts, keys: &Value) -> bool {
    let desired = parts.header["kid"].as_str();
    keys["keys"].as_array().is_some_and(|keys| {
        keys.iter()
            .filter(|key| desired.is_none() || key["kid"].as_str() == desired || key["kid"].is_null())
            .filter_map(|key| {
                let part = |name: &str| {
                    URL_SAFE_NO_PAD
                        .decode(key[name].as_str()?.trim_end_matches('='))
                        .ok()
                };
                Some((part("n")?, part("e")?))
            })
            .any(|(modulus, exponent)| {
                signature::RsaPublicKeyComponents {
                    n: &modulus,
                    e: &exponent,
                }
                .verify(
                    &signature::RSA_PKCS1_2048_8192_SHA256,
                    parts.signed.as_bytes(),
                    &parts.signature,
                )
                .is_ok()
            })
    })
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02X}");
        text
    })
}
