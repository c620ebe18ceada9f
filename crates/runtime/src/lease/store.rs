//! Where the lease is kept: the apiserver, behind a trait that the simulation implements.

use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::PostParams};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Somebody else wrote first.
    #[error("somebody else wrote the lease first")]
    Conflict,
    #[error("{0}")]
    Failed(String),
}

/// Reads and writes one lease. Writes are refused with [`StoreError::Conflict`] if the resourceVersion moved.
pub trait LeaseStore: Send + Sync {
    fn get(&self) -> BoxFuture<'_, Result<Option<Lease>, StoreError>>;
    fn create(&self, lease: Lease) -> BoxFuture<'_, Result<Lease, StoreError>>;
    fn replace(&self, lease: Lease) -> BoxFuture<'_, Result<Lease, StoreError>>;
}

/// The lease in an apiserver.
pub struct ApiServerLease {
    api: Api<Lease>,
    name: String,
}

impl ApiServerLease {
    pub fn new(client: kube::Client, namespace: &str, name: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
        }
    }
}

impl From<kube::Error> for StoreError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => Self::Conflict,
            error => Self::Failed(error.to_string()),
        }
    }
}

impl LeaseStore for ApiServerLease {
    fn get(&self) -> BoxFuture<'_, Result<Option<Lease>, StoreError>> {
        Box::pin(async { Ok(self.api.get_opt(&self.name).await?) })
    }

    fn create(&self, lease: Lease) -> BoxFuture<'_, Result<Lease, StoreError>> {
        Box::pin(async move { Ok(self.api.create(&PostParams::default(), &lease).await?) })
    }

    fn replace(&self, lease: Lease) -> BoxFuture<'_, Result<Lease, StoreError>> {
        Box::pin(async move {
            Ok(self
                .api
                .replace(&self.name, &PostParams::default(), &lease)
                .await?)
        })
    }
}
