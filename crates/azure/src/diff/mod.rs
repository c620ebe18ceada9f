//! What a resource lacks to be as desired: a comparison that knows what Azure adds, rewrites and leaves out, and the
//! body that changes it and nothing else. Pure.

mod compare;
mod equal;
mod merge;
mod record;

pub use compare::{Difference, Edit, differences};
pub use merge::{merge, without_children};
pub use record::Record;

/// How the elements of a list are told apart, if they are objects with a name of their own.
pub(crate) fn element_key(element: &serde_json::Value) -> Option<String> {
    ["name", "key", "id"]
        .iter()
        .find_map(|member| element.get(*member).and_then(serde_json::Value::as_str))
        .map(str::to_ascii_lowercase)
}

/// Whether every element of a list of objects has a key, each once.
pub(crate) fn is_keyed(list: &[serde_json::Value]) -> bool {
    let keys: std::collections::BTreeSet<_> = list.iter().filter_map(element_key).collect();
    !list.is_empty() && keys.len() == list.len()
}

/// Nothing, in any of its spellings.
pub(crate) fn is_empty(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Null => true,
        serde_json::Value::String(text) => text.is_empty(),
        serde_json::Value::Array(list) => list.is_empty(),
        serde_json::Value::Object(members) => members.values().all(is_empty),
        _ => false,
    }
}

/// A member by name; Azure is not strict about the case of ARM ids used as keys.
pub(crate) fn member<'v>(value: &'v serde_json::Value, key: &str) -> Option<&'v serde_json::Value> {
    let members = value.as_object()?;
    members.get(key).or_else(|| {
        members
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(key))
            .map(|(_, member)| member)
    })
}
