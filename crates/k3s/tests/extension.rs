//! The kit's runtime extension, registered in the simulated management cluster as core does it.

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};
use slipway_kit::extension::handlers;
pub use slipway_kit::extension::{Extension, patches};

use super::environment::{Environment, create, patch_status};

/// Every kind an update can touch.
pub const EVERYTHING: &[&str] = &["Machine", "HostMachine", "KThreesConfig"];

/// Registers an extension as core does once it has discovered its handlers.
pub async fn register(environment: &Environment, client_config: &Value) {
    let api = extension_configs(environment);
    let made = create(
        &api,
        json!({"apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig",
                "metadata": {"name": "updates"},
                "spec": {"clientConfig": client_config}}),
    )
    .await;
    patch_status(
            &api,
            "updates",
            json!({
                "conditions": [{"type": "Discovered", "status": "True", "reason": "Discovered", "message": "",
                    "observedGeneration": made.metadata.generation, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "handlers": handlers(),
            }),
        )
        .await;
}

pub fn extension_configs(environment: &Environment) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig");
    Api::all_with(environment.management.client(), &ApiResource::from_gvk(&kind))
}
