//! The logins of this process: one credential per principal and cloud, shared by all clusters that use it, with the
//! tokens it holds. A token is handed out only against a [`Permission`].

use std::{collections::HashMap, fmt, sync::Arc, sync::LazyLock, time::Duration};

use azure_core::{
    credentials::{Secret, TokenCredential},
    error::ErrorKind,
    http::{ClientOptions, RetryOptions, Transport},
};
use azure_identity::{
    ClientAssertionCredential, ClientAssertionCredentialOptions, ClientSecretCredential,
    ClientSecretCredentialOptions, ManagedIdentityCredential, ManagedIdentityCredentialOptions,
    UserAssignedId, WorkloadIdentityCredential, WorkloadIdentityCredentialOptions,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use regex::Regex;
use secrecy::{ExposeSecret, SecretString};
use slipway_runtime::Clock;
use tokio::time::Instant;

use super::{
    assertion::{Federated, SERVICE_ACCOUNT, Signed},
    certificate::Certificate,
    error::CredentialError,
    federation::FirstFederated,
    identity::Permission,
    identity_file::IdentityFile,
    login::{Login, Principal, read_file},
    tenancy::NAMESPACE_ACCOUNT,
};
use crate::{
    arm::{Token, Tokens, stable},
    cloud::Cloud,
};

struct Entry {
    credential: Arc<dyn TokenCredential>,
    certificate: Option<Arc<Certificate>>,
    used: Instant,
}

/// A credential, and the certificate it signs with.
type Held = (Arc<dyn TokenCredential>, Option<Arc<Certificate>>);

type Entries = Mutex<HashMap<[u8; 32], Entry>>;

/// Hands out tokens.
#[derive(Clone)]
pub struct Credentials {
    transport: Transport,
    clock: Clock,
    entries: Arc<Entries>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credentials")
    }
}

/// A credential nobody asked for in this long is dropped, and its tokens with it.
const UNUSED: Duration = Duration::from_hours(2);

impl Credentials {
    pub fn new(transport: Transport, clock: Clock) -> Self {
        Self {
            transport,
            clock,
            entries: Arc::default(),
        }
    }

    /// Tokens for `principal` in `cloud`. Nothing is asked of Entra before the first use.
    pub fn tokens(
        &self,
        permission: &Permission,
        principal: Principal,
        cloud: &Cloud,
        scope: &str,
    ) -> Result<Arc<dyn Tokens>, CredentialError> {
        if permission.identity != principal.identity {
            return Err(CredentialError::NamespaceNotAllowed {
                identity: principal.identity,
                namespace: String::new(),
            });
        }
        let fingerprint = principal.fingerprint(cloud.authority_host().as_str());
        let bound = Bound {
            credentials: self.clone(),
            identity: principal.identity.clone(),
            principal,
            cloud: cloud.clone(),
            scope: scope.to_owned(),
            fingerprint,
        };
        bound.entry()?;
        Ok(Arc::new(bound))
    }

    /// Nobody signs in with it any more.
    pub(crate) fn forget(&self, fingerprint: &[u8; 32]) {
        self.entries.lock().remove(fingerprint);
    }

    /// How many credentials are held.
    pub(crate) fn len(&self) -> usize {
        self.entries.lock().len()
    }

    fn options(&self, cloud: &Cloud) -> ClientOptions {
        ClientOptions {
            retry: RetryOptions::none(),
            transport: Some(self.transport.clone()),
            cloud: Some(Arc::new(cloud.configuration())),
            ..ClientOptions::default()
        }
    }

    fn build(&self, principal: &Principal, login: &Login, cloud: &Cloud) -> Result<Entry, CredentialError> {
        let identity = &principal.identity;
        let assertion_options = || ClientAssertionCredentialOptions {
            client_options: self.options(cloud),
        };
        let mut certificate = None;
        let built: azure_core::Result<Arc<dyn TokenCredential>> = match login {
            Login::Secret(secret) => ClientSecretCredential::new(
                &principal.tenant_id,
                principal.client_id.clone(),
                Secret::new(secret.expose_secret().to_owned()),
                Some(ClientSecretCredentialOptions {
                    client_options: self.options(cloud),
                }),
            )
            .map(|credential| credential as _),
            Login::Certificate { bytes, password } => {
                let read = Arc::new(Certificate::read(
                    identity,
                    bytes.expose_secret(),
                    password.expose_secret(),
                )?);
                certificate = Some(Arc::clone(&read));
                self.signed(&principal.tenant_id, &principal.client_id, read, cloud)
            }
            Login::IdentityFile(path) => {
                let file = IdentityFile::read(identity, path)?;
                let read = Arc::new(file.certificate(identity)?);
                certificate = Some(Arc::clone(&read));
                let cloud = file.cloud(identity, cloud)?;
                self.signed(&file.tenant_id, &file.client_id, read, &cloud)
            }
            Login::FederatedFile(path) => {
                // The SDK reads the file here, and its error does not say why it could not.
                read_file(identity, "the federated token file", path)?;
                WorkloadIdentityCredential::new(Some(WorkloadIdentityCredentialOptions {
                    credential_options: assertion_options(),
                    client_id: Some(principal.client_id.clone()),
                    tenant_id: Some(principal.tenant_id.clone()),
                    token_file_path: Some(path.clone()),
                }))
                .map(|credential| credential as _)
            }
            Login::ServiceAccount {
                namespace,
                name,
                tokens,
            } => ClientAssertionCredential::new(
                principal.tenant_id.clone(),
                principal.client_id.clone(),
                Federated {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    tokens: Arc::clone(tokens),
                },
                Some(assertion_options()),
            )
            .map(|credential| credential as _),
            Login::FirstFederated(logins) => {
                Ok(Arc::new(self.first_federated(principal, logins, cloud)?) as _)
            }
            Login::ManagedIdentity => {
                ManagedIdentityCredential::new(Some(ManagedIdentityCredentialOptions {
                    user_assigned_id: Some(UserAssignedId::ClientId(principal.client_id.clone())),
                    client_options: ClientOptions {
                        cloud: None,
                        ..self.options(cloud)
                    },
                }))
                .map(|credential| credential as _)
            }
        };
        Ok(Entry {
            credential: built.map_err(|error| explain(principal, &error))?,
            certificate,
            used: Instant::now(),
        })
    }

    /// Those of several logins that can be had at all.
    fn first_federated(
        &self,
        principal: &Principal,
        logins: &[Login],
        cloud: &Cloud,
    ) -> Result<FirstFederated, CredentialError> {
        let mut credentials = Vec::new();
        let mut failed = None;
        for login in logins {
            match self.build(principal, login, cloud) {
                Ok(entry) => credentials.push(entry.credential),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        match failed {
            Some(error) if credentials.is_empty() => Err(error),
            _ => Ok(FirstFederated::new(credentials)),
        }
    }

    fn signed(
        &self,
        tenant_id: &str,
        client_id: &str,
        certificate: Arc<Certificate>,
        cloud: &Cloud,
    ) -> azure_core::Result<Arc<dyn TokenCredential>> {
        let authority = cloud.authority_host().as_str().trim_end_matches('/');
        let assertion = Signed {
            certificate,
            client_id: client_id.to_owned(),
            audience: format!("{authority}/{tenant_id}/oauth2/v2.0/token"),
            clock: self.clock,
        };
        ClientAssertionCredential::new(
            tenant_id.to_owned(),
            client_id.to_owned(),
            assertion,
            Some(ClientAssertionCredentialOptions {
                client_options: self.options(cloud),
            }),
        )
        .map(|credential| credential as _)
    }
}

/// One principal's tokens for one scope.
struct Bound {
    credentials: Credentials,
    identity: String,
    principal: Principal,
    cloud: Cloud,
    scope: String,
    fingerprint: [u8; 32],
}

impl fmt::Debug for Bound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Bound")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Bound {
    fn entry(&self) -> Result<Held, CredentialError> {
        let mut entries = self.credentials.entries.lock();
        entries.retain(|_, entry| entry.used.elapsed() < UNUSED);
        let entry = match entries.entry(self.fingerprint) {
            std::collections::hash_map::Entry::Occupied(found) => found.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                let login = &self.principal.login;
                place.insert(self.credentials.build(&self.principal, login, &self.cloud)?)
            }
        };
        entry.used = Instant::now();
        Ok((Arc::clone(&entry.credential), entry.certificate.clone()))
    }
}

#[async_trait::async_trait]
impl Tokens for Bound {
    async fn token(&self) -> Result<Token, CredentialError> {
        let (credential, certificate) = self.entry()?;
        if let Some(certificate) = certificate {
            certificate.check(&self.identity, self.credentials.clock.now())?;
        }
        if let Login::FederatedFile(path) = &self.principal.login {
            read_file(&self.identity, "the federated token file", path)?;
        }
        credential
            .get_token(&[&self.scope], None)
            .await
            .map(|token| Token {
                secret: SecretString::from(token.token.secret().to_owned()),
                expires: Timestamp::from_second(token.expires_on.unix_timestamp()).unwrap_or(Timestamp::MIN),
            })
            .map_err(|error| explain(&self.principal, &error))
    }

    fn refused(&self) {
        self.credentials.entries.lock().remove(&self.fingerprint);
    }
}

static ENTRA_MESSAGE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"(AADSTS\d+)[:\s][^"]*"#).expect("the pattern is valid"));

/// Turns the SDK's error into one of ours: what Entra said, without what changes from call to call.
fn explain(principal: &Principal, error: &azure_core::Error) -> CredentialError {
    let identity = principal.identity.clone();
    let text = error.to_string();
    if let Some((_, reason)) = text.split_once(SERVICE_ACCOUNT) {
        return CredentialError::ServiceAccount {
            identity,
            reason: format!("{}{}", stable(reason), account_advice(&principal.login)),
        };
    }
    if let Some(found) = ENTRA_MESSAGE.captures(&text) {
        let code = found[1].to_owned();
        let whole = found[0]
            .split("\nTo troubleshoot")
            .next()
            .unwrap_or_default()
            .replace("\\r\\n", " ");
        return CredentialError::Rejected {
            identity,
            advice: advice(&code),
            code,
            message: stable(&whole),
        };
    }
    let mut unreachable = false;
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = next {
        if let Some(inner) = current.downcast_ref::<azure_core::Error>() {
            unreachable |= match inner.kind() {
                ErrorKind::Connection | ErrorKind::Io => true,
                ErrorKind::HttpResponse { status, .. } => {
                    let status = u16::from(*status);
                    status == 429 || status >= 500
                }
                _ => false,
            };
        }
        next = current.source();
    }
    let reason = text
        .split("\nTo troubleshoot")
        .next()
        .unwrap_or_default()
        .split_once("authentication failed.")
        .map_or(text.as_str(), |(_, reason)| reason);
    let reason = stable(reason.split("\nTo troubleshoot").next().unwrap_or_default());
    match principal.login {
        Login::ManagedIdentity => CredentialError::ManagedIdentity {
            identity,
            message: reason,
        },
        _ if unreachable => CredentialError::Unreachable { identity, reason },
        _ => CredentialError::Rejected {
            identity,
            code: String::new(),
            message: reason,
            advice: "",
        },
    }
}

/// What the user can do where a namespace has no ServiceAccount to sign in with.
fn account_advice(login: &Login) -> String {
    match login {
        Login::ServiceAccount { namespace, name, .. } if name == NAMESPACE_ACCOUNT => format!(
            "; create ServiceAccount {name} in namespace {namespace}, and federate the identity with \
             system:serviceaccount:{namespace}:{name}"
        ),
        _ => String::new(),
    }
}

/// What the user can do about the refusals that occur in practice.
fn advice(code: &str) -> &'static str {
    match code {
        "AADSTS7000215" => " Check that the Secret holds the client secret's value, not its id.",
        "AADSTS7000222" => " Create a new client secret and put it into the Secret.",
        "AADSTS700016" => " Check spec.clientID and spec.tenantID.",
        "AADSTS90002" | "AADSTS900023" => " Check spec.tenantID.",
        "AADSTS700027" => " Register this certificate with the application.",
        "AADSTS70021" | "AADSTS700211" | "AADSTS700212" | "AADSTS700213" | "AADSTS700024" => {
            " Check the federated credential's issuer, subject and audience."
        }
        _ => "",
    }
}
