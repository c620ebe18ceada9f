//! The merge patches that users bring: each must be an object in JSON or YAML. Found at admission, where the user is,
//! and not at the first reconcile.

use serde_json::Value;
use slipway_runtime::admission::field::{FieldError, Path};

/// Reads one patch.
pub fn read(text: &str) -> Result<Value, String> {
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(_) => serde_saphyr::from_str(text).map_err(|error| {
            error
                .to_string()
                .lines()
                .next()
                .unwrap_or("neither JSON nor YAML")
                .to_owned()
        })?,
    };
    if value.is_object() {
        Ok(value)
    } else {
        Err("a merge patch must be an object".to_owned())
    }
}

pub fn validate(path: &Path, patches: &[String]) -> Vec<FieldError> {
    patches
        .iter()
        .enumerate()
        .filter_map(|(index, patch)| {
            let problem = read(patch).err()?;
            Some(FieldError::invalid(
                &path.index(index),
                patch.as_str(),
                format!("must be a merge patch in JSON or YAML: {problem}"),
            ))
        })
        .collect()
}
