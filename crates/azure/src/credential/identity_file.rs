//! A user-assigned identity's certificate in a file of the manager.

use base64::{Engine, prelude::BASE64_STANDARD};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use url::Url;

use super::{certificate::Certificate, error::CredentialError, login::read_file};
use crate::cloud::Cloud;

/// A user-assigned identity's credentials as the identity data plane hands them out.
#[derive(Deserialize)]
pub(super) struct IdentityFile {
    pub client_id: String,
    pub tenant_id: String,
    #[serde(deserialize_with = "secret")]
    client_secret: SecretString,
    authentication_endpoint: Option<String>,
}

fn secret<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<SecretString, D::Error> {
    String::deserialize(deserializer).map(SecretString::from)
}

impl IdentityFile {
    pub fn read(identity: &str, path: &std::path::PathBuf) -> Result<Self, CredentialError> {
        let what = "the identity's credentials file";
        let bytes = read_file(identity, what, path)?;
        serde_json::from_slice(&bytes).map_err(|error| CredentialError::File {
            identity: identity.to_owned(),
            what,
            path: path.display().to_string(),
            // The position, not the text: the file is a secret.
            reason: format!(
                "it is not the expected JSON (line {}, column {})",
                error.line(),
                error.column()
            ),
        })
    }

    pub fn certificate(&self, identity: &str) -> Result<Certificate, CredentialError> {
        let bytes = BASE64_STANDARD
            .decode(self.client_secret.expose_secret())
            .map_err(|_| CredentialError::BadCertificate {
                identity: identity.to_owned(),
                reason: "client_secret is not base64".to_owned(),
            })?;
        Certificate::read(identity, &bytes, "")
    }

    pub fn cloud(&self, identity: &str, cloud: &Cloud) -> Result<Cloud, CredentialError> {
        match &self.authentication_endpoint {
            None => Ok(cloud.clone()),
            Some(text) => match Url::parse(text) {
                Ok(url) if url.scheme() == "https" => Ok(cloud.clone().with_authority_host(url)),
                _ => Err(CredentialError::File {
                    identity: identity.to_owned(),
                    what: "the identity's credentials file",
                    path: String::new(),
                    reason: "authentication_endpoint is not an https URL".to_owned(),
                }),
            },
        }
    }
}
