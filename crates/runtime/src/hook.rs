//! Cluster API runtime hooks served by a provider (`CanUpdateMachine`, `UpdateMachine`, …).

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

/// Answers one hook request with one hook response; both are the hook's own JSON. A failure is a response with
/// `status: Failure`, so the handler itself cannot fail.
pub type HookHandler = Arc<dyn Fn(Value, kube::Client) -> BoxFuture<'static, Value> + Send + Sync>;

/// One hook of the catalogue, and its handler.
#[derive(Clone)]
pub struct Hook {
    /// The hook's name in the catalogue, e.g. `UpdateMachine`.
    pub hook: &'static str,
    /// The handler's name, unique in this provider; Cluster API appends the ExtensionConfig's name to it.
    pub name: &'static str,
    pub api_version: &'static str,
    pub timeout_seconds: u32,
    pub fail_open: bool,
    /// Served only where this feature gate is on. One hook that Cluster API does not know makes it refuse them all.
    pub gate: Option<&'static str>,
    pub handler: HookHandler,
}
