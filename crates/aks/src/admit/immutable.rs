//! Fields that cannot change, with messages that tell a changed value from a new and a removed one.

use serde::Serialize;
use serde_json::{Value, json};
use slipway_runtime::admission::field::{FieldError, Path};

pub const CHANGED: &str = "field is immutable";
pub const UNSET: &str = "field is immutable, unable to set an empty value if it was already set";
pub const SET: &str = "field is immutable, unable to assign a value if it was already empty";

fn is_empty(value: &Value) -> bool {
    value.is_null() || value == ""
}

/// One field that cannot change.
pub fn immutable(path: &Path, old: &impl Serialize, new: &impl Serialize) -> Option<FieldError> {
    let (old, new) = (json!(old), json!(new));
    match (is_empty(&old), is_empty(&new)) {
        (false, true) => Some(FieldError::invalid(path, new, UNSET)),
        (true, false) => Some(FieldError::invalid(path, new, SET)),
        (false, false) if old != new => Some(FieldError::invalid(path, new, CHANGED)),
        _ => None,
    }
}

/// Several fields of one object that cannot change, by their names in the API.
pub fn immutable_fields(
    root: &Path,
    names: &[&str],
    old: &impl Serialize,
    new: &impl Serialize,
) -> Vec<FieldError> {
    let (old, new) = (json!(old), json!(new));
    names
        .iter()
        .filter_map(|name| immutable(&root.child(name), &old[*name], &new[*name]))
        .collect()
}

/// Errors without those that the object before had too: what was let in, or what another field broke, does not hold a
/// change of something else.
pub fn unless_before(errors: Vec<FieldError>, before: &[FieldError]) -> Vec<FieldError> {
    errors
        .into_iter()
        .filter(|error| !before.contains(error))
        .collect()
}
