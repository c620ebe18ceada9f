//! Behaviours shown with both controllers at work on the driver, beyond the journeys of `component`.

mod bootstrap_data;
mod changes;
mod losses;
mod ownership;
mod requests;
mod secrets;

use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;

pub fn data(secret: &Secret) -> Value {
    serde_json::to_value(&secret.data).unwrap_or_default()
}

pub fn base64_of(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}
