//! Controllers: how one is written, registered and run, and what it is given to work with.

mod builder;
mod context;
mod run;
mod slot;
mod status;
#[cfg(test)]
mod tests;
mod trigger;
mod write;

use std::{fmt, future::Future, sync::Arc};

use futures::future::BoxFuture;
use kube::Resource;

pub use self::{
    builder::{Controller, Options},
    context::Context,
    slot::Slot,
    trigger::Trigger,
    write::Writable,
};
use crate::{Classified, Next, ObjectKey, Preview, informer::Object};

/// Makes one object true. Called with the state the caches show, never twice at once for the same object, and
/// again on every change, on failure and at the resync.
pub trait Reconciler: Send + Sync + 'static {
    type Object: Object + Resource<DynamicType = ()>;
    type Error: Classified;

    fn reconcile(
        &self,
        object: Arc<Self::Object>,
        context: &Context,
    ) -> impl Future<Output = Result<Next, Self::Error>> + Send;

    /// What a reconcile of this object would do: what it reads and plans, without a write. `None`: it cannot be told ahead.
    /// May run beside a reconcile of the same object.
    fn preview(
        &self,
        object: Arc<Self::Object>,
        unheld: bool,
        context: &Context,
    ) -> impl Future<Output = Result<Option<Preview>, Self::Error>> + Send {
        let _ = (object, unheld, context);
        async { Ok(None) }
    }

    /// The object is gone, whoever let it go: what is held in memory for it (connections, watches, notes) ends here.
    /// Called once for every object that was reconciled, never while a reconcile of it runs, also before another object
    /// of the same name is reconciled for the first time. Must not wait and must not fail.
    fn forget(&self, key: &ObjectKey, context: &Context) {
        let _ = (key, context);
    }
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
