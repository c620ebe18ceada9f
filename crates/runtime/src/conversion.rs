//! Conversion between the served versions of one kind.

use std::sync::Arc;

use serde_json::Value;

/// Converts one object to the desired `apiVersion` (`group/version`). `metadata` is carried over by the
/// server and may not be changed by the function, except for annotations that keep what a version cannot hold.
pub type Convert = Arc<dyn Fn(Value, &str) -> Result<Value, String> + Send + Sync>;

/// The conversion of one kind, registered by its CRD's name (`plural.group`).
#[derive(Clone)]
pub struct Conversion {
    pub crd: String,
    pub convert: Convert,
}

impl Conversion {
    pub fn new(
        crd: impl Into<String>,
        convert: impl Fn(Value, &str) -> Result<Value, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            crd: crd.into(),
            convert: Arc::new(convert),
        }
    }
}
