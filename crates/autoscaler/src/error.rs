//! What can go wrong in the controllers, with the class that decides what happens next.

use slipway_runtime::{Class, Classified, plain};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing}: {}", plain(.source))]
    Api {
        /// What we were doing, to what: `scaling MachineDeployment default/general`.
        doing: String,
        #[source]
        source: kube::Error,
    },
    #[error("making a Machine from {object}: {why}")]
    Template { object: String, why: String },
    #[error(transparent)]
    ClusterApi(#[from] slipway_capi::Error),
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
            // What is missing may come without telling us.
            Self::Template { .. } => Class::Transient,
            Self::ClusterApi(error) => error.class(),
        }
    }
}
