//! What can go wrong in the controllers, with the class that decides what happens next. No message holds a secret.

use std::time::Duration;

use slipway_agent_api::{self as agent, Problem};
use slipway_runtime::{Class, Classified};

/// Hosts do not say when to come back.
const THROTTLED: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing}: {source}")]
    Api {
        doing: String,
        #[source]
        source: kube::Error,
    },
    #[error("{doing}: {problem}")]
    Host { doing: String, problem: Problem },
    #[error("{doing}: {source}")]
    ClusterApi {
        doing: String,
        #[source]
        source: slipway_capi::Error,
    },
    #[error("there is no EdgeMachineTemplate {name}, which machines are made from: make it again")]
    NoTemplate { name: String },
    #[error("Secret {name} {problem}")]
    Secret { name: String, problem: String },
    #[error("Secret {name} has no bootstrap data under the key value: the bootstrap provider writes it")]
    NoData { name: String },
}

impl Error {
    pub fn api(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Api { doing, source }
    }

    pub fn cluster_api(doing: impl Into<String>) -> impl FnOnce(slipway_capi::Error) -> Self {
        let doing = doing.into();
        move |source| Self::ClusterApi { doing, source }
    }

    pub fn host(doing: impl Into<String>) -> impl FnOnce(Problem) -> Self {
        let doing = doing.into();
        move |problem| Self::Host { doing, problem }
    }
}

impl Classified for Error {
    fn class(&self) -> Class {
        match self {
            Self::Api { source, .. } => source.class(),
            Self::Host { problem, .. } => match problem.class {
                agent::Class::Conflict => Class::Conflict,
                agent::Class::Throttled => Class::Throttled(THROTTLED),
                agent::Class::Transient => Class::Transient,
                agent::Class::Terminal => Class::Terminal,
                agent::Class::Denied => Class::Denied,
            },
            Self::ClusterApi { source, .. } => source.class(),
            Self::NoData { .. } | Self::NoTemplate { .. } | Self::Secret { .. } => Class::Terminal,
        }
    }
}
