//! What can go wrong in the two controllers, with the class that decides what happens next. No message holds a secret.

use slipway_runtime::{Class, Classified};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing}: {source}")]
    Api {
        doing: String,
        #[source]
        source: kube::Error,
    },
    #[error("{doing}: the workload cluster has not answered in time")]
    Silent { doing: String },
    #[error(transparent)]
    ClusterApi(#[from] slipway_capi::Error),
    #[error("the userdata cannot be made: {0}")]
    Userdata(#[from] crate::bootstrap::render::Error),
    #[error("{doing}: {problem}")]
    Unusable { doing: String, problem: String },
}

impl Error {
    pub fn api(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Api { doing, source }
    }
}

impl Classified for Error {
    fn class(&self) -> Class {
        match self {
            Self::Api { source, .. } => source.class(),
            Self::Silent { .. } => Class::Transient,
            Self::ClusterApi(error) => error.class(),
            Self::Userdata(_) | Self::Unusable { .. } => Class::Terminal,
        }
    }
}

/// An object that is already there is what we want.
pub fn unless_exists<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(()),
        other => other.map(|_| ()),
    }
}
