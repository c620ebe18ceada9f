//! `spec.resources`: Azure resources written inline, of any kind. Nothing of them is dropped by the apiserver.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::Value;

/// Inline resources, in the order of the manifest.
pub type Resources = Vec<Value>;

/// The schema: a list of objects whose fields are not known here.
pub(crate) fn resources(_generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}
    })
}
