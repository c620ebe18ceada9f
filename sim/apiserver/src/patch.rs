//! The kinds of patches: JSON, merge, and strategic merge of built-in kinds.

use serde_json::Value;

use crate::{
    failure::{Answer, Failure},
    kinds::Kind,
    store::key_of,
};

/// The object as the patch makes it.
pub fn patch(kind: &Kind, content_type: &str, mut object: Value, body: Value) -> Answer<Value> {
    match content_type.split(';').next().unwrap_or_default().trim() {
        "application/merge-patch+json" => {
            json_patch::merge(&mut object, &body);
            Ok(object)
        }
        "application/json-patch+json" => {
            let operations: json_patch::Patch = serde_json::from_value(body)
                .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))?;
            json_patch::patch(&mut object, &operations).map_err(|error| {
                let (_, name) = key_of(&object);
                Failure::invalid(
                    &kind.kind,
                    &kind.group,
                    &name,
                    &[format!("the patch does not apply: {error}")],
                )
            })?;
            Ok(object)
        }
        "application/strategic-merge-patch+json" if !kind.custom => {
            strategic_merge(&mut object, body);
            Ok(object)
        }
        other => Err(Failure::unsupported_media_type(format!(
            "the body of the request was in an unknown format - accepted media types include: \
             application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml (was {other})"
        ))),
    }
}

/// Lists of objects that share a well-known key merge by it; everything else merges as JSON does.
fn strategic_merge(target: &mut Value, patch: Value) {
    let merge_key = |items: &[Value]| {
        ["uid", "type", "name", "key"]
            .into_iter()
            .find(|key| !items.is_empty() && items.iter().all(|item| item.get(*key).is_some()))
    };
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (field, value) in patch {
                if value.is_null() {
                    target.remove(&field);
                } else {
                    strategic_merge(target.entry(field).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(target), Value::Array(items)) if merge_key(&items).is_some() => {
            let key = merge_key(&items).unwrap_or_default();
            for item in items {
                if item["$patch"] == "delete" {
                    target.retain(|old| old[key] != item[key]);
                } else if let Some(old) = target.iter_mut().find(|old| old[key] == item[key]) {
                    strategic_merge(old, item);
                } else {
                    target.push(item);
                }
            }
        }
        (target, patch) => *target = patch,
    }
}
