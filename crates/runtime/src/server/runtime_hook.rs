//! Cluster API's runtime hooks on the wire: paths, Discovery and failures. Hook requests carry no Content-Type, so
//! bodies are read as bytes.

use serde_json::{Value, json};

use crate::hook::Hook;

/// What Cluster API itself reads of an answer.
pub const LIMIT: usize = 20 * 1024 * 1024;

pub const DISCOVERY_PATH: &str = "/hooks.runtime.cluster.x-k8s.io/v1alpha1/discovery";

/// `/<group>/<version>/<hook>/<handler>`, all in lower case.
pub fn hook_path(hook: &Hook) -> String {
    format!(
        "/{}/{}/{}",
        hook.api_version,
        hook.hook.to_lowercase(),
        hook.name.to_lowercase()
    )
}

/// The answer to Discovery: what is registered.
pub fn discovery(hooks: &[Hook]) -> Value {
    let handlers: Vec<Value> = hooks
        .iter()
        .map(|hook| {
            json!({
                "name": hook.name,
                "requestHook": {"apiVersion": hook.api_version, "hook": hook.hook},
                "timeoutSeconds": hook.timeout_seconds,
                "failurePolicy": if hook.fail_open { "Ignore" } else { "Fail" },
            })
        })
        .collect();
    json!({
        "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1",
        "kind": "DiscoveryResponse",
        "status": "Success",
        "handlers": handlers,
    })
}

/// An answer that stops Cluster API without deciding anything.
pub fn failure(message: &str) -> Value {
    json!({"status": "Failure", "message": message, "retryAfterSeconds": 0})
}
