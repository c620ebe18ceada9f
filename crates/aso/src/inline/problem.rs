//! What can be wrong with an inline resource, each with the words for its condition.

use serde_json::Value;
use slipway_azure::resource::ResourceError;
use slipway_runtime::{Class, Classified};

use super::labelling::Member;

#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum Problem {
    /// What the mapping to Azure says.
    #[error("{path}: {error}")]
    Resource { path: String, error: Box<ResourceError> },
    #[error("{path}: {expected}")]
    Malformed { path: String, expected: &'static str },
    #[error("{path}: {object} is already at {first}: remove one of them, or give it another metadata.name")]
    Duplicate {
        path: String,
        object: String,
        first: String,
    },
    #[error("{path}: {object} and {other} are the same resource in Azure, {id}: remove one of them")]
    SameId {
        path: String,
        object: String,
        other: String,
        id: String,
    },
    #[error("{path}: {members} wait for each other: remove one of their references")]
    Cycle { path: String, members: String },
    #[error(
        "{path}: its owner is in subscription {owner}, but its credential is for {credential}: use a credential \
         of the owner's subscription"
    )]
    SubscriptionMismatch {
        path: String,
        owner: String,
        credential: String,
    },
    /// A value that Cluster API decides was written otherwise.
    #[error("{path} is {written}, but it must be {value} because {reason}: remove it, or write {value}")]
    Incompatible {
        path: String,
        written: Value,
        value: Value,
        reason: String,
    },
    /// A value that Cluster API decides may not be written at all.
    #[error("{path} must not be set because {reason}: remove it")]
    NotYours { path: String, reason: String },
    #[error("{path}: no {kind} of containerservice.azure.com is in spec.resources: add one")]
    NothingDefined { path: String, kind: &'static str },
    #[error("{path}: {kind} has no {name} to export: use one of {known}")]
    UnknownExport {
        path: String,
        kind: String,
        name: String,
        known: String,
    },
    #[error("{path}: {other} is written to the same key: choose another name or key")]
    SameDestination { path: String, other: String },
    #[error("{path}: {other} sets {member} {key:?} of the same object: leave it to one of them")]
    SameLabel {
        path: String,
        other: String,
        member: Member,
        key: String,
    },
    #[error("{path}: {text}")]
    Expression { path: String, text: String },
    #[error("{path}: {text}")]
    Access { path: String, text: String },
}

impl Problem {
    /// The reason of the condition; where Azure Service Operator has one, it is the same.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Resource { error, .. } => error.reason(),
            Self::Malformed { .. }
            | Self::UnknownExport { .. }
            | Self::SameDestination { .. }
            | Self::SameLabel { .. }
            | Self::Expression { .. } => "InvalidResource",
            Self::Duplicate { .. } | Self::SameId { .. } => "DuplicateResource",
            Self::Cycle { .. } => "CyclicReferences",
            Self::SubscriptionMismatch { .. } => "SubscriptionMismatch",
            Self::Incompatible { .. } | Self::NotYours { .. } => "IncompatibleValue",
            Self::NothingDefined { .. } => "ResourceMissing",
            Self::Access { .. } => "CredentialsNotUsable",
        }
    }
}

impl Classified for Problem {
    fn class(&self) -> Class {
        match self {
            Self::Resource { error, .. } => error.class(),
            _ => Class::Terminal,
        }
    }
}
