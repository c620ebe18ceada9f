//! What can go wrong in the controllers, with the class that decides what happens next. No message holds a secret.

use slipway_azure::{
    ArmError, CredentialError, engine::SetupError, resource::ResourceError, setup::ConfigurationError,
};
use slipway_runtime::{Class, Classified};

use crate::{render::RenderError, status::Step};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing}: {source}")]
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
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error("spec.identityRef names AzureClusterIdentity {0}, which does not exist")]
    NoIdentity(String),
    #[error("spec.subscriptionID is not set, and the manager has no AZURE_SUBSCRIPTION_ID to use instead")]
    NoSubscription,
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
            Self::Render(_) => "InvalidSpec",
            Self::NoIdentity(_) => "IdentityNotFound",
            Self::NoSubscription => "NoSubscription",
            Self::NoKubeconfig { .. } => "UnexpectedAnswer",
        }
    }

    /// How a step that ended so is told.
    pub fn step(&self) -> Step {
        let message = match self {
            // The code is the condition's reason, and the resource is the condition's subject.
            Self::Azure(ArmError::Refused { refusal, .. }) => refusal.message.clone(),
            other => other.to_string(),
        };
        Step::Failed {
            code: reason(self.code()),
            message,
            terminal: matches!(self.class(), Class::Terminal | Class::Denied),
        }
    }

    /// Whether it is likely over before anybody looks: what was told before stands.
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
            Self::Configuration(_) | Self::Render(_) => Class::Terminal,
            // Somebody creates the identity or restarts the manager; the identity is watched.
            Self::NoIdentity(_) | Self::NoSubscription => Class::Denied,
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
