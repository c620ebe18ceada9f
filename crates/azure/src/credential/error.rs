//! One clear error per way a credential can fail.

use slipway_runtime::{Class, Classified};

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CredentialError {
    #[error(
        "namespace {namespace:?} may not use {identity}: add it to spec.allowedNamespaces of the identity"
    )]
    NamespaceNotAllowed { identity: String, namespace: String },
    #[error(
        "{identity} names {what}, which is not namespace {namespace:?}'s own: use a client secret, a certificate or a workload \
         identity, or let namespaces borrow it with --aso-workload-identity=relaxed"
    )]
    NotOfNamespace {
        identity: String,
        namespace: String,
        what: &'static str,
    },
    #[error("{identity}: the label selector of spec.allowedNamespaces is not valid: {reason}")]
    BadSelector { identity: String, reason: String },
    #[error("{identity} has no {field}")]
    Incomplete { identity: String, field: &'static str },
    #[error("{identity}: Secret {secret} was not found")]
    SecretNotFound { identity: String, secret: String },
    #[error("{identity}: Secret {secret} has no key {key:?}")]
    KeyNotFound {
        identity: String,
        secret: String,
        key: &'static str,
    },
    #[error("{identity}: the identity type {kind:?} is not known")]
    UnknownType { identity: String, kind: String },
    #[error("{identity}: {what} {path} cannot be read: {reason}")]
    File {
        identity: String,
        what: &'static str,
        path: String,
        reason: String,
    },
    #[error("{identity}: the certificate cannot be used: {reason}")]
    BadCertificate { identity: String, reason: String },
    #[error("{identity}: the certificate expired at {not_after}; put a valid one into its place")]
    CertificateExpired { identity: String, not_after: String },
    #[error("{identity}: the certificate is valid only from {not_before}")]
    CertificateNotYetValid { identity: String, not_before: String },
    #[error("{identity}: a ServiceAccount token could not be requested: {reason}")]
    ServiceAccount { identity: String, reason: String },
    #[error("{identity}: Microsoft Entra refused the login: {message}{advice}")]
    Rejected {
        identity: String,
        code: String,
        message: String,
        advice: &'static str,
    },
    #[error(
        "{identity}: the managed identity is not assigned to this host, or the host has no identity endpoint: {message}"
    )]
    ManagedIdentity { identity: String, message: String },
    #[error("{identity}: Microsoft Entra could not be reached: {reason}")]
    Unreachable { identity: String, reason: String },
}

impl CredentialError {
    /// Stable, for a condition's reason.
    pub fn code(&self) -> &str {
        match self {
            Self::NamespaceNotAllowed { .. } => "NamespaceNotAllowedByIdentity",
            Self::NotOfNamespace { .. } => "IdentityNotOfNamespace",
            Self::BadSelector { .. } | Self::Incomplete { .. } | Self::UnknownType { .. } => {
                "InvalidIdentity"
            }
            Self::SecretNotFound { .. } | Self::KeyNotFound { .. } => "SecretNotFound",
            Self::File { .. } => "CredentialFileUnreadable",
            Self::BadCertificate { .. } => "InvalidCertificate",
            Self::CertificateExpired { .. } | Self::CertificateNotYetValid { .. } => "CertificateExpired",
            Self::ServiceAccount { .. } => "ServiceAccountTokenFailed",
            Self::Rejected { .. } => "LoginRefused",
            Self::ManagedIdentity { .. } => "ManagedIdentityUnavailable",
            Self::Unreachable { .. } => "EntraUnreachable",
        }
    }
}

impl Classified for CredentialError {
    fn class(&self) -> Class {
        match self {
            Self::BadSelector { .. }
            | Self::Incomplete { .. }
            | Self::UnknownType { .. }
            | Self::BadCertificate { .. } => Class::Terminal,
            Self::Unreachable { .. } | Self::ServiceAccount { .. } | Self::ManagedIdentity { .. } => {
                Class::Transient
            }
            // What somebody else must put right, without an event that tells us.
            Self::NamespaceNotAllowed { .. }
            | Self::NotOfNamespace { .. }
            | Self::SecretNotFound { .. }
            | Self::KeyNotFound { .. }
            | Self::File { .. }
            | Self::CertificateExpired { .. }
            | Self::CertificateNotYetValid { .. }
            | Self::Rejected { .. } => Class::Denied,
        }
    }
}
