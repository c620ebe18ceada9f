//! Controllers: how one is registered, and what it is given to work with.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;

use crate::Clock;

/// Every door to the outside that a controller has. A test holds each of them.
#[derive(Clone)]
pub struct Context {
    pub client: kube::Client,
    pub clock: Clock,
}

/// Runs one controller until the manager shuts down.
pub type Run = Arc<dyn Fn(Context) -> BoxFuture<'static, anyhow::Result<()>> + Send + Sync>;

/// One controller of a provider.
#[derive(Clone)]
pub struct Registration {
    /// The kind in lower case: the `controller` label of metrics and logs, and of `--<name>-concurrency`.
    pub name: &'static str,
    pub run: Run,
}

impl fmt::Debug for Registration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Registration")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
