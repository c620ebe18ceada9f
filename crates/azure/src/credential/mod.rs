//! Who we are to Azure: identities and credential secrets become tokens, and only for a namespace that may use them.
//! Secrets are held in `secrecy` types and appear in no error, log or debug text.

mod assertion;
mod certificate;
mod error;
mod identity;
mod login;
mod registry;
mod service_account;

pub use certificate::Certificate;
pub use error::CredentialError;
pub use identity::{AllowedNamespaces, Identity, IdentityKind, Namespace, Permission, SecretName};
pub use login::{Login, Principal, from_aso_secret};
pub use registry::Credentials;
pub use service_account::{ServiceAccountTokens, TokenRequests};
