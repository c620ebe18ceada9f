//! What an identity logs in with, read from its facts and its secret. Pure but for files an identity names.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc};

use k8s_openapi::ByteString;
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use sha2::{Digest, Sha256};

use super::{
    error::CredentialError,
    identity::{Identity, IdentityKind, SecretName},
    service_account::ServiceAccountTokens,
};

/// The means of a login.
#[derive(Clone)]
pub enum Login {
    Secret(SecretString),
    Certificate {
        /// PEM or PKCS12.
        bytes: SecretSlice<u8>,
        password: SecretString,
    },
    /// A ServiceAccount token projected into a file.
    FederatedFile(PathBuf),
    /// A ServiceAccount token requested for each login.
    ServiceAccount {
        namespace: String,
        name: String,
        tokens: Arc<dyn ServiceAccountTokens>,
    },
    /// The host's identity endpoint.
    ManagedIdentity,
    /// A user-assigned identity's certificate, handed out as a JSON file.
    IdentityFile(PathBuf),
    /// The first of these whose subject the identity is federated with.
    FirstFederated(Vec<Self>),
}

impl fmt::Debug for Login {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Secret(_) => "Secret",
            Self::Certificate { .. } => "Certificate",
            Self::FederatedFile(_) => "FederatedFile",
            Self::ServiceAccount { .. } => "ServiceAccount",
            Self::ManagedIdentity => "ManagedIdentity",
            Self::IdentityFile(_) => "IdentityFile",
            Self::FirstFederated(_) => "FirstFederated",
        })
    }
}

/// Everything needed to log in as somebody.
#[derive(Clone, Debug)]
pub struct Principal {
    /// How it is called in errors; also what a [`super::Permission`] is for.
    pub identity: String,
    pub tenant_id: String,
    pub client_id: String,
    pub login: Login,
    /// Tenants beside its own whose tokens it shows, for resources that refer to some of theirs.
    pub additional_tenants: Vec<String>,
}

/// The key CAPZ keeps a client secret or certificate under.
const CLIENT_SECRET: &str = "clientSecret";
/// Where the manager's own federated token is mounted unless the environment says otherwise.
const PROJECTED_TOKEN: &str = "/var/run/secrets/azure/tokens/azure-identity-token";

impl Identity {
    /// The secret that must be read before [`Identity::principal`], if any.
    pub fn needs_secret(&self) -> Option<&SecretName> {
        match self.kind {
            IdentityKind::ServicePrincipal | IdentityKind::ManualServicePrincipal => {
                self.client_secret.as_ref()
            }
            IdentityKind::ServicePrincipalCertificate if self.certificate_path.is_none() => {
                self.client_secret.as_ref()
            }
            _ => None,
        }
    }

    /// What to log in with. `secret` is the data of [`Identity::needs_secret`], `None` if it was not found.
    pub fn principal(
        &self,
        secret: Option<&BTreeMap<String, ByteString>>,
        service_accounts: Option<Arc<dyn ServiceAccountTokens>>,
    ) -> Result<Principal, CredentialError> {
        let identity = self.display();
        let missing = |field| CredentialError::Incomplete {
            identity: identity.clone(),
            field,
        };
        let value = || -> Result<Vec<u8>, CredentialError> {
            let name = self
                .client_secret
                .as_ref()
                .ok_or_else(|| missing("spec.clientSecret"))?;
            let data = secret.ok_or_else(|| CredentialError::SecretNotFound {
                identity: identity.clone(),
                secret: name.to_string(),
            })?;
            data.get(CLIENT_SECRET)
                .map(|value| value.0.clone())
                .filter(|value| !value.is_empty())
                .ok_or_else(|| CredentialError::KeyNotFound {
                    identity: identity.clone(),
                    secret: name.to_string(),
                    key: CLIENT_SECRET,
                })
        };
        let login = match self.kind {
            IdentityKind::ServicePrincipal | IdentityKind::ManualServicePrincipal => {
                Login::Secret(text(value()?))
            }
            IdentityKind::ServicePrincipalCertificate => Login::Certificate {
                bytes: match &self.certificate_path {
                    Some(path) => read_file(&identity, "the certificate file", path)?,
                    None => value()?,
                }
                .into(),
                password: match secret.and_then(|data| data.get("password")) {
                    Some(password) => text(password.0.clone()),
                    None => SecretString::default(),
                },
            },
            IdentityKind::UserAssignedManagedIdentity => Login::ManagedIdentity,
            IdentityKind::WorkloadIdentity => match (&self.service_account, service_accounts) {
                (Some(name), Some(tokens)) => Login::ServiceAccount {
                    namespace: self.namespace.clone(),
                    name: name.clone(),
                    tokens,
                },
                _ => Login::FederatedFile(projected_token()),
            },
            IdentityKind::UserAssignedIdentityCredential => Login::IdentityFile(
                self.credentials_path
                    .clone()
                    .ok_or_else(|| missing("spec.userAssignedIdentityCredentialsPath"))?,
            ),
        };
        if !matches!(login, Login::IdentityFile(_)) {
            if self.client_id.is_empty() {
                return Err(missing("spec.clientID"));
            }
            if self.tenant_id.is_empty() {
                return Err(missing("spec.tenantID"));
            }
        }
        Ok(Principal {
            identity,
            tenant_id: self.tenant_id.clone(),
            client_id: self.client_id.clone(),
            login,
            additional_tenants: Vec::new(),
        })
    }
}

pub(super) fn projected_token() -> PathBuf {
    std::env::var_os("AZURE_FEDERATED_TOKEN_FILE")
        .map_or_else(|| PathBuf::from(PROJECTED_TOKEN), PathBuf::from)
}

fn text(bytes: Vec<u8>) -> SecretString {
    // A secret that is no text is refused by Entra with its own words; its bytes are not shown.
    SecretString::from(
        String::from_utf8(bytes)
            .unwrap_or_default()
            .trim_end_matches('\n')
            .to_owned(),
    )
}

pub(super) fn read_file(
    identity: &str,
    what: &'static str,
    path: &PathBuf,
) -> Result<Vec<u8>, CredentialError> {
    std::fs::read(path).map_err(|error| CredentialError::File {
        identity: identity.to_owned(),
        what,
        path: path.display().to_string(),
        reason: error.kind().to_string(),
    })
}

impl Principal {
    /// The same in each of its additional tenants. An identity of the host is of one tenant alone.
    pub(crate) fn elsewhere(&self) -> Vec<Self> {
        let tenants = self.additional_tenants.iter();
        tenants
            .filter(|_| !matches!(self.login, Login::ManagedIdentity | Login::IdentityFile(_)))
            .map(|tenant| Self {
                tenant_id: tenant.clone(),
                additional_tenants: Vec::new(),
                ..self.clone()
            })
            .collect()
    }

    /// Changes whenever anything changes that a token depends on; tells nothing about a secret.
    pub(crate) fn fingerprint(&self, authority_host: &str) -> [u8; 32] {
        let mut digest = Sha256::new();
        let mut add = |bytes: &[u8]| {
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        for part in [&self.identity, &self.tenant_id, &self.client_id] {
            add(part.as_bytes());
        }
        for tenant in &self.additional_tenants {
            add(tenant.as_bytes());
        }
        add(authority_host.as_bytes());
        self.login.digest(&mut add);
        digest.finalize().into()
    }
}

impl Login {
    /// Hands over everything that a token depends on.
    fn digest(&self, add: &mut impl FnMut(&[u8])) {
        add(format!("{self:?}").as_bytes());
        match self {
            Self::Secret(secret) => add(secret.expose_secret().as_bytes()),
            Self::Certificate { bytes, password } => {
                add(bytes.expose_secret());
                add(password.expose_secret().as_bytes());
            }
            Self::FederatedFile(path) => add(path.as_os_str().as_encoded_bytes()),
            // The file is replaced before its certificate expires: its content is part of the fingerprint.
            Self::IdentityFile(path) => {
                add(path.as_os_str().as_encoded_bytes());
                add(&std::fs::read(path).unwrap_or_default());
            }
            Self::ServiceAccount { namespace, name, .. } => {
                add(namespace.as_bytes());
                add(name.as_bytes());
            }
            Self::ManagedIdentity => {}
            Self::FirstFederated(logins) => {
                for login in logins {
                    login.digest(add);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::identity::tests::identity, *};

    fn data(pairs: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
            .collect()
    }

    #[test]
    fn what_is_missing_is_named() {
        let principal = identity(IdentityKind::ServicePrincipal);
        assert_eq!(
            principal.principal(None, None).unwrap_err().to_string(),
            "AzureClusterIdentity default/fleet: Secret default/fleet-secret was not found"
        );
        assert_eq!(
            principal
                .principal(Some(&data(&[("other", "x")])), None)
                .unwrap_err()
                .to_string(),
            "AzureClusterIdentity default/fleet: Secret default/fleet-secret has no key \"clientSecret\""
        );
        let mut file = identity(IdentityKind::ServicePrincipalCertificate);
        file.certificate_path = Some("/nowhere/at/all.pem".into());
        assert_eq!(
            file.principal(None, None).unwrap_err().to_string(),
            "AzureClusterIdentity default/fleet: the certificate file /nowhere/at/all.pem cannot be read: entity not found"
        );
        let mut unnamed = identity(IdentityKind::WorkloadIdentity);
        unnamed.tenant_id.clear();
        assert_eq!(
            unnamed.principal(None, None).unwrap_err().to_string(),
            "AzureClusterIdentity default/fleet has no spec.tenantID"
        );
    }

    #[test]
    fn a_changed_secret_is_another_principal() {
        let of = |secret: &str| {
            identity(IdentityKind::ServicePrincipal)
                .principal(Some(&data(&[("clientSecret", secret)])), None)
                .unwrap()
        };
        assert_eq!(of("a").fingerprint("h"), of("a").fingerprint("h"));
        assert_ne!(of("a").fingerprint("h"), of("b").fingerprint("h"));
        assert_ne!(of("a").fingerprint("h"), of("a").fingerprint("i"));
        assert!(!format!("{:?}", of("canary")).contains("canary"));
    }
}
