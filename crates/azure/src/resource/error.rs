//! What can be wrong with an ASO-shaped object, each with the words for its condition.

use slipway_runtime::{Class, Classified};

use crate::arm::IdError;

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ResourceError {
    #[error("{kind} of {group:?}: Azure Service Operator has no such API group")]
    UnknownGroup { group: String, kind: String },
    #[error("the kind {kind} of {group:?} is not known: did you mean {similar}?")]
    UnknownKind {
        group: String,
        kind: String,
        similar: String,
    },
    #[error(
        "{kind} of {group:?} is not a resource of Azure Resource Manager and is not served here: install Azure Service Operator \
         for it"
    )]
    NotOfResourceManager { group: String, kind: String },
    #[error("{kind}: {version:?} is not an API version: it must look like v1api20240901 or v20240901")]
    UnknownVersion { kind: String, version: String },
    #[error("{object}: {path} is not known in version {version}")]
    UnknownField {
        object: String,
        path: String,
        version: String,
    },
    #[error("{object}: {path} must be {expected}")]
    WrongType {
        object: String,
        path: String,
        expected: &'static str,
    },
    #[error("{object}: {path} is missing")]
    Missing { object: String, path: &'static str },
    #[error("{object}: {path} refers to {target}, which does not exist or is not ready yet")]
    ReferenceNotFound {
        object: String,
        path: String,
        target: String,
    },
    #[error("{object}: waiting for its owner {owner}")]
    WaitingForOwner { object: String, owner: String },
    #[error("{object}: {path} refers to key {key:?} of Secret {name:?}, which does not exist")]
    SecretNotFound {
        object: String,
        path: String,
        name: String,
        key: String,
    },
    #[error("{object}: {path} refers to key {key:?} of ConfigMap {name:?}, which does not exist")]
    ConfigMapNotFound {
        object: String,
        path: String,
        name: String,
        key: String,
    },
    #[error(transparent)]
    Id(#[from] IdError),
}

impl ResourceError {
    /// The reason of the condition; where Azure Service Operator has one, it is the same.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnknownGroup { .. } | Self::UnknownKind { .. } | Self::NotOfResourceManager { .. } => {
                "KindNotServed"
            }
            Self::UnknownVersion { .. } => "VersionNotServed",
            Self::UnknownField { .. } | Self::WrongType { .. } | Self::Missing { .. } => "InvalidResource",
            Self::ReferenceNotFound { .. } => "ReferenceNotFound",
            Self::WaitingForOwner { .. } => "WaitingForOwner",
            Self::SecretNotFound { .. } => "SecretNotFound",
            Self::ConfigMapNotFound { .. } => "ConfigMapNotFound",
            Self::Id(_) => "InvalidResourceId",
        }
    }
}

impl Classified for ResourceError {
    fn class(&self) -> Class {
        match self {
            Self::ReferenceNotFound { .. }
            | Self::WaitingForOwner { .. }
            | Self::SecretNotFound { .. }
            | Self::ConfigMapNotFound { .. } => Class::Transient,
            _ => Class::Terminal,
        }
    }
}
