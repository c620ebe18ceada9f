//! Who speaks to MOC: the files that MOC gives its clients, out of a Secret. Pure. Never printed.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde::Deserialize;

/// The keys of the Secret, after the files.
pub const LOGIN_KEY: &str = "login";
pub const CONFIG_KEY: &str = "wssdconfig";

/// What a Secret has.
pub enum Credentials {
    /// A token that a certificate is had for.
    Login {
        name: String,
        token: String,
        ca_certificates: Vec<CertificateDer<'static>>,
    },
    /// A certificate that somebody has logged in for.
    Certificate {
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        ca_certificates: Vec<CertificateDer<'static>>,
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Login { name, .. } => write!(f, "Login({name})"),
            Self::Certificate { .. } => write!(f, "Certificate(…)"),
        }
    }
}

/// Why a Secret has none. Never repeats the Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCredentials {
    #[error(
        "has neither the key {LOGIN_KEY} (the login file of an identity of MOC) nor {CONFIG_KEY} (the file that logging in writes)"
    )]
    NoKey,
    #[error("has under {0} something that is not such a file of MOC: it needs {1}")]
    Unreadable(&'static str, &'static str),
}

#[derive(Deserialize)]
struct LoginFile {
    name: String,
    token: String,
    certificate: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ConfigFile {
    cloud_certificate: String,
    client_certificate: String,
    client_key: String,
}

/// PEM in base64, as MOC writes it; PEM as it is where somebody has decoded it.
pub(crate) fn pem(text: &str) -> Option<Vec<u8>> {
    let text = text.trim();
    if text.starts_with("-----BEGIN") {
        return Some(text.as_bytes().to_vec());
    }
    BASE64_STANDARD.decode(text).ok()
}

pub(crate) fn certificates(text: &str) -> Option<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem(text)?)
        .collect::<Result<_, _>>()
        .ok()?;
    (!found.is_empty()).then_some(found)
}

impl Credentials {
    pub fn of_secret(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, NoCredentials> {
        if let Some(bytes) = data.get(LOGIN_KEY) {
            let unreadable = NoCredentials::Unreadable(LOGIN_KEY, "name, token and certificate");
            let text = std::str::from_utf8(bytes).map_err(|_| unreadable.clone())?;
            let file: LoginFile = serde_saphyr::from_str(text).map_err(|_| unreadable.clone())?;
            return Ok(Self::Login {
                ca_certificates: certificates(&file.certificate).ok_or(unreadable)?,
                name: file.name,
                token: file.token,
            });
        }
        let bytes = data.get(CONFIG_KEY).ok_or(NoCredentials::NoKey)?;
        let unreadable =
            NoCredentials::Unreadable(CONFIG_KEY, "CloudCertificate, ClientCertificate and ClientKey");
        let file: ConfigFile = serde_json::from_slice(bytes).map_err(|_| unreadable.clone())?;
        let key = pem(&file.client_key).and_then(|pem| PrivateKeyDer::from_pem_slice(&pem).ok());
        match (
            certificates(&file.client_certificate),
            key,
            certificates(&file.cloud_certificate),
        ) {
            (Some(chain), Some(key), Some(ca_certificates)) => Ok(Self::Certificate {
                chain,
                key,
                ca_certificates,
            }),
            _ => Err(unreadable),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(key: &str, text: &str) -> BTreeMap<String, Vec<u8>> {
        [(key.to_owned(), text.as_bytes().to_vec())].into()
    }

    #[test]
    fn what_is_wrong_with_a_secret_is_said_without_repeating_it() {
        assert_eq!(
            Credentials::of_secret(&BTreeMap::new()).err(),
            Some(NoCredentials::NoKey)
        );
        for (key, text) in [
            (LOGIN_KEY, "name: canary"),
            (LOGIN_KEY, "name: a\ntoken: canary\ncertificate: canary"),
            (CONFIG_KEY, "canary"),
            (
                CONFIG_KEY,
                r#"{"CloudCertificate":"canary","ClientCertificate":"","ClientKey":""}"#,
            ),
        ] {
            let said = Credentials::of_secret(&secret(key, text))
                .expect_err("unreadable")
                .to_string();
            assert!(said.contains(key) && !said.contains("canary"), "{said}");
        }
    }

    #[test]
    fn both_files_are_read() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::new(vec!["cloud".to_owned()])
            .and_then(|params| params.self_signed(&key))
            .expect("a certificate");
        let encoded = |text: String| BASE64_STANDARD.encode(text);
        let login = format!(
            "name: slipway\ntoken: canary\ncertificate: {}\nclienttype: ExternalClient\n",
            encoded(certificate.pem())
        );
        let login = Credentials::of_secret(&secret(LOGIN_KEY, &login)).expect("credentials");
        assert_eq!(format!("{login:?}"), "Login(slipway)");
        let config = serde_json::json!({
            "CloudCertificate": encoded(certificate.pem()), "ClientCertificate": encoded(certificate.pem()),
            "ClientKey": encoded(key.serialize_pem()), "IdentityName": "slipway"});
        let config = Credentials::of_secret(&secret(CONFIG_KEY, &config.to_string())).expect("credentials");
        assert_eq!(format!("{config:?}"), "Certificate(…)");
    }
}
