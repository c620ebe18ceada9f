//! What hosts run on once they have bootstrap data. The hosts decide when one boots and when it goes; a backend does it.

use std::{collections::BTreeMap, io};

use async_trait::async_trait;

use super::api::Endpoint;

#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
    #[error(transparent)]
    System(#[from] io::Error),
    /// The host is there, but what it was told to run does not run; trying again would not help.
    #[error("{0}")]
    Refused(String),
}

/// One host and all it is told.
#[derive(Clone, Debug, Default)]
pub struct Booting {
    /// `namespace/name` of its Cluster.
    pub cluster: String,
    pub name: String,
    pub provider_id: String,
    pub address: String,
    /// The version its Machine asks for.
    pub version: String,
    pub failure_domain: Option<String>,
    pub is_control_plane: bool,
    /// The kind of its bootstrap configuration.
    pub bootstrap_kind: String,
    pub bootstrap_data: Vec<u8>,
    pub capacity: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
}

/// Every call can be repeated.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Where the API of a cluster answers, now or later.
    async fn endpoint(&self, cluster: &str) -> Result<Endpoint, BackendError>;

    /// Boots a host; one that runs already goes on as it is.
    async fn boot(&self, host: &Booting) -> Result<(), BackendError>;

    /// The host and its disk are gone.
    async fn destroy(&self, cluster: &str, host: &str) -> Result<(), BackendError>;

    /// Takes a host's power away, or gives it back.
    async fn set_alive(&self, cluster: &str, host: &str, alive: bool) -> Result<(), BackendError>;
}
