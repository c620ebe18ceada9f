//! What we sent last and what became of it: how a removed field is noticed, and how Azure's own spelling of a value
//! is learned instead of fought. Secrets are kept as digests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Kept with the object (an annotation), so that it survives a restart and a move.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The body as desired when it was last applied, secrets as digests.
    pub sent: Value,
    /// Where Azure settled on another value than the one sent, by JSON pointer; null: it shows none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub accepted: BTreeMap<String, Value>,
    /// Whether the change was seen through to its end.
    #[serde(default)]
    pub settled: bool,
}

impl Record {
    /// A body was sent.
    pub fn sent(desired: &Value, secrets: &[String]) -> Self {
        Self {
            sent: masked(desired, secrets),
            accepted: BTreeMap::new(),
            settled: false,
        }
    }
}

/// The body with each secret replaced by a digest of it.
pub(super) fn masked(body: &Value, secrets: &[String]) -> Value {
    let mut body = body.clone();
    for pointer in secrets {
        if let Some(place) = body.pointer_mut(pointer) {
            *place = Value::String(digest(place));
        }
    }
    body
}

pub(super) fn digest(value: &Value) -> String {
    let hash = Sha256::digest(value.to_string().as_bytes());
    hash.iter().take(16).fold(String::from("sha256:"), |text, byte| {
        text + &format!("{byte:02x}")
    })
}
