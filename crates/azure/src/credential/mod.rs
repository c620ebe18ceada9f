//! Who we are to Azure: identities and credential secrets become tokens, and only for a namespace that may use them.
//! Secrets are held in `secrecy` types and appear in no error, log or debug text.

mod aso_secret;
mod assertion;
mod certificate;
mod error;
mod federation;
mod holding;
mod identity;
mod identity_file;
mod login;
mod registry;
mod service_account;
mod tenancy;

pub use aso_secret::{AsoCredential, from_aso_secret};
pub use certificate::Certificate;
pub use error::CredentialError;
pub use holding::identity_finalizer;
pub use identity::{AllowedNamespaces, Identity, IdentityKind, Namespace, Permission, SecretName};
pub use login::{Login, Principal};
pub use registry::Credentials;
pub use service_account::{ServiceAccountTokens, TokenRequests};
pub use tenancy::{Borrowed, Lender, Mode, NAMESPACE_ACCOUNT, OPERATOR_ACCOUNT, Tenancy, unproven};
