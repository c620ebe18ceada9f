//! What the statuses of all three kinds have in common. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use slipway_capi::{condition, names::condition::READY};

/// Whether the object was ready for what is asked for now.
pub fn was_ready(ready: Option<bool>, conditions: &[Condition], metadata: &ObjectMeta) -> bool {
    let told = condition::find(conditions, READY);
    ready == Some(true) && told.is_some_and(|told| told.observed_generation == metadata.generation)
}

/// A version as Cluster API writes it.
pub fn with_v(version: &str) -> String {
    if version.starts_with('v') {
        version.to_owned()
    } else {
        format!("v{version}")
    }
}
