//! What can go wrong while working with Cluster API's objects, with the class that decides what happens next.

use slipway_runtime::{Class, Classified, plain};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing}: {}", plain(.source))]
    Api {
        /// What we were doing, to what: `reading Cluster default/edge`.
        doing: String,
        #[source]
        source: kube::Error,
    },
    /// A precondition of a patch did not hold: somebody else wrote first.
    #[error("{doing}: the object changed meanwhile")]
    Changed { doing: String },
    #[error("the object reference is not set: it needs apiGroup, kind and name")]
    EmptyReference,
    #[error(
        "CustomResourceDefinition {crd} serves no version of the contract {contracts}: label it \
         cluster.x-k8s.io/<contract> with the versions that fulfil the contract, joined with \"_\""
    )]
    NoContractVersion { crd: String, contracts: String },
    #[error("the template {kind} {name} cannot be cloned: {problem}")]
    Template {
        kind: String,
        name: String,
        problem: String,
    },
    #[error("Secret {secret} cannot be used: {problem}")]
    Secret { secret: String, problem: String },
    #[error("making a certificate failed: {0}")]
    Certificate(String),
    #[error("the status would hold {count} conditions, and Cluster API's schemas allow {max}")]
    TooManyConditions { count: usize, max: usize },
    #[error(transparent)]
    Hook(#[from] crate::hook::HookError),
}

impl From<rcgen::Error> for Error {
    fn from(error: rcgen::Error) -> Self {
        Self::Certificate(error.to_string())
    }
}

impl Error {
    /// Wraps an apiserver error. A failed `test` of a JSON patch is answered with 422, but means that the object
    /// is not what we thought: it becomes a conflict. A 422 of a patch without `test` stays what it is.
    pub(crate) fn patching(doing: impl Into<String>, source: kube::Error) -> Self {
        let doing = doing.into();
        match &source {
            kube::Error::Api(status) if status.code == 422 && is_patch_precondition(&status.message) => {
                Self::Changed { doing }
            }
            _ => Self::Api { doing, source },
        }
    }

    pub(crate) fn api(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Api { doing, source }
    }
}

/// The apiserver's wording when applying a JSON patch fails.
fn is_patch_precondition(message: &str) -> bool {
    message.contains("the server rejected our request due to an error in our request")
        || message.contains("testing value")
        || message.contains("test failed")
        || message.contains("operation does not apply")
}

impl Classified for Error {
    fn class(&self) -> Class {
        match self {
            Self::Api { source, .. } => source.class(),
            Self::Changed { .. } => Class::Conflict,
            Self::Hook(error) => error.class(),
            Self::EmptyReference
            | Self::NoContractVersion { .. }
            | Self::Template { .. }
            | Self::Secret { .. }
            | Self::TooManyConditions { .. } => Class::Terminal,
            Self::Certificate(_) => Class::Transient,
        }
    }
}
