//! What can go wrong in the controllers, with the class that decides what happens next. No message holds a secret.

use slipway_runtime::{Class, Classified, plain};

use super::step::StepStatus;
use crate::{
    ArmError, CredentialError, engine::SetupError, resource::ResourceError, setup::ConfigurationError,
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing}: {}", plain(.source))]
    Api {
        doing: String,
        #[source]
        source: kube::Error,
    },
    #[error(transparent)]
    ClusterApi(#[from] slipway_capi::Error),
    #[error(transparent)]
    Azure(#[from] ArmError),
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// The objects ask for something that cannot be made: only a change of them helps.
    #[error("{0}")]
    InvalidSpec(String),
    /// What is needed to sign in is missing: somebody creates the identity or restarts the manager.
    #[error("{message}")]
    SignIn { code: &'static str, message: String },
    #[error("AKS answered {action} without a kubeconfig that can be read")]
    NoKubeconfig { action: &'static str },
}

impl Error {
    pub fn api(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Api { doing, source }
    }

    /// Stable, for a condition's reason.
    pub fn code(&self) -> &str {
        match self {
            Self::Azure(error) => error.code(),
            Self::Credential(error) => error.code(),
            Self::Resource(error) => error.reason(),
            Self::Api { .. } | Self::ClusterApi(_) => "KubernetesError",
            Self::Configuration(_) => "InvalidConfiguration",
            Self::InvalidSpec(_) => "InvalidSpec",
            Self::SignIn { code, .. } => code,
            Self::NoKubeconfig { .. } => "UnexpectedAnswer",
        }
    }

    /// The status of a step that ended with this error.
    pub fn status(&self) -> StepStatus {
        let message = match self {
            // The code is the condition's reason, and the resource is the condition's subject.
            Self::Azure(ArmError::Refused { refusal, .. }) => refusal.message.clone(),
            other => other.to_string(),
        };
        StepStatus::Failed {
            code: reason(self.code()),
            message,
            terminal: matches!(self.class(), Class::Terminal | Class::Denied),
        }
    }

    /// Whether it is likely over with the next retry: what the conditions said before stands.
    pub fn is_passing(&self) -> bool {
        matches!(
            self.class(),
            Class::Transient | Class::Conflict | Class::Throttled(_)
        )
    }
}

/// A reason that both forms of condition accept: letters, digits and underscores, beginning with a letter.
fn reason(code: &str) -> String {
    let kept: String = code
        .chars()
        .filter(|character| character.is_ascii_alphanumeric() || *character == '_')
        .collect();
    if kept.starts_with(|first: char| first.is_ascii_alphabetic()) {
        kept
    } else {
        "Failed".to_owned()
    }
}

impl From<SetupError> for Error {
    fn from(error: SetupError) -> Self {
        match error {
            SetupError::Credential(error) => Self::Credential(error),
            other => Self::Configuration(other.into()),
        }
    }
}

impl Classified for Error {
    fn class(&self) -> Class {
        match self {
            Self::Api { source, .. } => source.class(),
            Self::ClusterApi(error) => error.class(),
            Self::Azure(error) => error.class(),
            Self::Credential(error) => error.class(),
            Self::Resource(error) => error.class(),
            Self::Configuration(_) | Self::InvalidSpec(_) => Class::Terminal,
            Self::SignIn { .. } => Class::Denied,
            Self::NoKubeconfig { .. } => Class::Transient,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn a_reason_is_one_that_kubernetes_accepts() {
        for (code, expected) in [
            ("QuotaExceeded", "QuotaExceeded"),
            ("Microsoft.Thing/Code", "MicrosoftThingCode"),
            ("409", "Failed"),
            ("", "Failed"),
        ] {
            assert_eq!(reason(code), expected);
        }
    }
}
