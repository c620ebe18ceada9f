//! Owner references: dependents of what is gone are deleted, as the garbage collector does.

use std::{collections::HashSet, sync::Arc};

use serde_json::Value;

use crate::{server::State, store::key_of};

const FOREGROUND: &str = "foregroundDeletion";

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
}

/// Whether a write can have made work for the collector: owners that are new, or an object that is on its way out.
pub fn is_concerned(before: &Value, after: &Value) -> bool {
    after["metadata"].get("deletionTimestamp").is_some()
        || before["metadata"].get("ownerReferences") != after["metadata"].get("ownerReferences")
}

/// Runs the collector until it finds nothing more to do.
pub fn collect(state: &mut State) {
    while step(state) {}
}

fn step(state: &mut State) -> bool {
    let objects: Vec<(String, Arc<Value>)> = state
        .store
        .all()
        .map(|(resource, object)| (resource.clone(), object.clone()))
        .collect();
    let living: HashSet<&str> = objects
        .iter()
        .filter_map(|(_, object)| object["metadata"]["uid"].as_str())
        .collect();
    let waiting: HashSet<&str> = objects
        .iter()
        .filter(|(_, object)| is_waiting_for_dependents(object))
        .filter_map(|(_, object)| object["metadata"]["uid"].as_str())
        .collect();

    for (resource, object) in &objects {
        let deleting = object["metadata"].get("deletionTimestamp").is_some();
        let mut owners = owners(object)
            .filter_map(|owner| owner["uid"].as_str())
            .peekable();
        if !deleting && owners.peek().is_some() {
            let mut all_gone = true;
            for uid in owners {
                all_gone &= !living.contains(uid) || waiting.contains(uid);
            }
            if all_gone {
                state.begin_delete(resource, &key_of(object));
                return true;
            }
        }
    }
    // An owner that waits for its dependents goes when no blocking dependent is left.
    for (resource, object) in objects
        .iter()
        .filter(|(_, object)| is_waiting_for_dependents(object))
    {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let blocked = objects.iter().any(|(_, dependent)| {
            owners(dependent).any(|owner| owner["uid"] == uid && owner["blockOwnerDeletion"] == true)
        });
        if !blocked {
            let mut released = Value::clone(object);
            if let Some(finalizers) = released["metadata"]["finalizers"].as_array_mut() {
                finalizers.retain(|finalizer| finalizer != FOREGROUND);
            }
            state.finish_write(resource, &key_of(object), released);
            return true;
        }
    }
    false
}

fn is_waiting_for_dependents(object: &Value) -> bool {
    object["metadata"].get("deletionTimestamp").is_some()
        && object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|finalizers| finalizers.iter().any(|finalizer| finalizer == FOREGROUND))
}
