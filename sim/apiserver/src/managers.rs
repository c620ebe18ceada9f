//! `metadata.managedFields`: who owns which field, and server-side apply over it.

use serde_json::{Value, json};

use crate::{
    failure::{Answer, Failure},
    fields::{FieldSet, compare, fields_of, merge, remove},
    schema::Schema,
};

/// Who writes, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    pub name: String,
    pub apply: bool,
    pub api_version: String,
    pub subresource: String,
}

#[derive(Clone, Debug)]
struct Entry {
    manager: Manager,
    fields: FieldSet,
    time: String,
}

fn read(object: &Value) -> Vec<Entry> {
    object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|entry| Entry {
            manager: Manager {
                name: entry["manager"].as_str().unwrap_or_default().to_owned(),
                apply: entry["operation"] == "Apply",
                api_version: entry["apiVersion"].as_str().unwrap_or_default().to_owned(),
                subresource: entry["subresource"].as_str().unwrap_or_default().to_owned(),
            },
            fields: FieldSet::from_json(&entry["fieldsV1"]),
            time: entry["time"].as_str().unwrap_or_default().to_owned(),
        })
        .collect()
}

fn write(object: &mut Value, entries: &[Entry]) {
    let list: Vec<Value> = entries
        .iter()
        .filter(|entry| !entry.fields.is_empty())
        .map(|entry| {
            let mut json = json!({
                "manager": entry.manager.name,
                "operation": if entry.manager.apply { "Apply" } else { "Update" },
                "apiVersion": entry.manager.api_version,
                "time": entry.time,
                "fieldsType": "FieldsV1",
                "fieldsV1": entry.fields.to_json(),
            });
            if !entry.manager.subresource.is_empty() {
                json["subresource"] = json!(entry.manager.subresource);
            }
            json
        })
        .collect();
    if list.is_empty() {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
    } else {
        object["metadata"]["managedFields"] = Value::Array(list);
    }
}

/// Records an update: the writer owns what it changed, others lose it.
pub fn record_update(before: &Value, after: &mut Value, schema: Schema<'_>, manager: &Manager, now: &str) {
    let comparison = compare(before, after, schema);
    let nothing_changed = comparison.written.is_empty() && comparison.removed.is_empty();
    if nothing_changed && before["metadata"]["managedFields"] == after["metadata"]["managedFields"] {
        return;
    }
    // A write may edit managedFields itself (field manager migration): what it wrote is where we start from.
    let mut entries = read(after);
    if !comparison.written.is_empty() || !comparison.removed.is_empty() {
        for entry in &mut entries {
            entry.fields = entry.fields.difference(&comparison.removed);
            if entry.manager != *manager {
                entry.fields = entry.fields.difference(&comparison.written);
            }
        }
    }
    if !comparison.written.is_empty() {
        match entries.iter_mut().find(|entry| entry.manager == *manager) {
            Some(entry) => {
                entry.fields.union(&comparison.written);
                now.clone_into(&mut entry.time);
            }
            None => entries.push(Entry {
                manager: manager.clone(),
                fields: comparison.written,
                time: now.to_owned(),
            }),
        }
    }
    write(after, &entries);
}

/// Applies a configuration to an object that is there. The answer is the new object, equal to the old one
/// (bookkeeping included) where the apply changes nothing.
pub fn apply(
    live: &Value,
    configuration: &Value,
    schema: Schema<'_>,
    manager: &Manager,
    force: bool,
    now: &str,
) -> Answer<Value> {
    let mut entries = read(live);
    let expected = fields_of(configuration, schema);
    let mut merged = merge(live, configuration, schema, true);

    let previous = entries.iter().position(|entry| entry.manager == *manager);
    if let Some(position) = previous {
        // What this manager applied before, applies no more, and nobody else owns, is taken out.
        let mut kept = expected.clone();
        for (index, entry) in entries.iter().enumerate() {
            if index != position {
                kept.union(&entry.fields);
            }
        }
        let dropped = entries[position].fields.difference(&kept);
        remove(&mut merged, &dropped, schema, true);
    }

    let comparison = compare(live, &merged, schema);
    let mut conflicts = Vec::new();
    for entry in entries.iter_mut().filter(|entry| entry.manager != *manager) {
        let taken = entry.fields.intersection(&comparison.written);
        if taken.is_empty() {
            continue;
        }
        if force {
            entry.fields = entry.fields.difference(&taken);
        } else {
            for path in taken.paths() {
                conflicts.push(format!(
                    "conflict with {:?}{}: {}",
                    entry.manager.name,
                    if entry.manager.apply {
                        String::new()
                    } else {
                        format!(" using {}", entry.manager.api_version)
                    },
                    dotted(&path)
                ));
            }
        }
    }
    if !conflicts.is_empty() {
        return Err(Failure::apply_conflict(&conflicts));
    }
    for entry in entries.iter_mut().filter(|entry| entry.manager != *manager) {
        entry.fields = entry.fields.difference(&comparison.removed);
    }
    match previous {
        Some(position) => {
            if entries[position].fields != expected || live != &merged {
                now.clone_into(&mut entries[position].time);
            }
            entries[position].fields = expected;
        }
        None => entries.push(Entry {
            manager: manager.clone(),
            fields: expected,
            time: now.to_owned(),
        }),
    }
    write(&mut merged, &entries);
    Ok(merged)
}

/// `.spec.replicas`, as the apiserver shows a conflicting field.
fn dotted(path: &[String]) -> String {
    path.iter()
        .map(|step| match step.split_once(':') {
            Some(("f", name)) => format!(".{name}"),
            Some((_, rest)) => format!("[{rest}]"),
            None => step.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(name: &str) -> Manager {
        Manager {
            name: name.into(),
            apply: true,
            api_version: "v1".into(),
            subresource: String::new(),
        }
    }

    fn apply_as(live: &Value, configuration: &Value, name: &str, force: bool) -> Answer<Value> {
        apply(
            live,
            configuration,
            Schema::ANYTHING,
            &manager(name),
            force,
            "now",
        )
    }

    fn start() -> Value {
        json!({"metadata": {"name": "x"}})
    }

    #[test]
    fn a_field_no_longer_applied_is_removed_unless_somebody_else_owns_it() {
        let one = apply_as(&start(), &json!({"spec": {"a": 1, "b": 2}}), "first", false).unwrap();
        let two = apply_as(&one, &json!({"spec": {"b": 2}}), "second", false).unwrap();
        let three = apply_as(&two, &json!({"spec": {}}), "first", false).unwrap();
        assert_eq!(three["spec"], json!({"b": 2}));
    }

    #[test]
    fn taking_a_field_conflicts_and_force_takes_it() {
        let one = apply_as(&start(), &json!({"spec": {"a": 1}}), "first", false).unwrap();
        let refused = apply_as(&one, &json!({"spec": {"a": 2}}), "second", false).unwrap_err();
        assert_eq!(
            refused.message,
            "Apply failed with 1 conflict: conflict with \"first\": .spec.a"
        );
        let taken = apply_as(&one, &json!({"spec": {"a": 2}}), "second", true).unwrap();
        assert_eq!(taken["spec"]["a"], 2);
        // `first` owns nothing any more, so leaving the field out removes nothing.
        let after = apply_as(&taken, &json!({"spec": {}}), "first", false).unwrap();
        assert_eq!(after["spec"]["a"], 2);
    }

    #[test]
    fn applying_the_same_again_changes_nothing() {
        let configuration = json!({"spec": {"a": 1, "list": [1, 2]}});
        let one = apply_as(&start(), &configuration, "first", false).unwrap();
        let again = apply(
            &one,
            &configuration,
            Schema::ANYTHING,
            &manager("first"),
            false,
            "later",
        )
        .unwrap();
        assert_eq!(one, again);
    }

    #[test]
    fn an_update_takes_over_what_it_changes() {
        let one = apply_as(&start(), &json!({"spec": {"a": 1, "b": 1}}), "first", false).unwrap();
        let mut edited = one.clone();
        edited["spec"]["a"] = json!(5);
        let editor = Manager {
            apply: false,
            ..manager("editor")
        };
        record_update(&one, &mut edited, Schema::ANYTHING, &editor, "now");
        let refused = apply_as(&edited, &json!({"spec": {"a": 1, "b": 1}}), "first", false).unwrap_err();
        assert_eq!(
            refused.message,
            "Apply failed with 1 conflict: conflict with \"editor\" using v1: .spec.a"
        );
    }
}
