//! Finalizers: stored before anything outside is made, removed only when everything outside is gone. The patches
//! touch one entry and test what they rely on, so that no other finalizer is lost to a stale read.

use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, TestOperation, jsonptr::PointerBuf};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Resource, api::PatchParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use slipway_runtime::Outcome;

use crate::Error;

pub fn has(metadata: &ObjectMeta, finalizer: &str) -> bool {
    metadata
        .finalizers
        .iter()
        .flatten()
        .any(|present| present == finalizer)
}

/// The patch that adds the finalizer. `None` if it is there, or if the object is being deleted and the apiserver
/// takes no new ones.
pub fn add(metadata: &ObjectMeta, finalizer: &str) -> Option<Patch> {
    if has(metadata, finalizer) || metadata.deletion_timestamp.is_some() {
        return None;
    }
    let mut operations = vec![test(["metadata", "uid"], json!(metadata.uid))];
    if metadata.finalizers.as_ref().is_some_and(|list| !list.is_empty()) {
        // Appending needs no test of the list: whatever is in it stays.
        operations.push(PatchOperation::Add(AddOperation {
            path: PointerBuf::from_tokens(["metadata", "finalizers", "-"]),
            value: json!(finalizer),
        }));
    } else {
        // Making the list would replace one that somebody else made meanwhile.
        operations.push(test(
            ["metadata", "resourceVersion"],
            json!(metadata.resource_version),
        ));
        operations.push(PatchOperation::Add(AddOperation {
            path: PointerBuf::from_tokens(["metadata", "finalizers"]),
            value: json!([finalizer]),
        }));
    }
    Some(Patch(operations))
}

/// The patch that lets a deleted object go. `None` unless the object is being deleted, the finalizer is there, and
/// the clean-up came to its end.
pub fn remove(metadata: &ObjectMeta, finalizer: &str, cleaned_up: Outcome) -> Option<Patch> {
    if metadata.deletion_timestamp.is_none() || !cleaned_up.is_done() {
        return None;
    }
    drop_entry(metadata, finalizer)
}

/// The patch that drops a finalizer of an object that is not being deleted (one of a shared object, or of a name
/// that is no longer used). `None` if it is not there.
pub fn drop_entry(metadata: &ObjectMeta, finalizer: &str) -> Option<Patch> {
    let index = metadata
        .finalizers
        .iter()
        .flatten()
        .position(|present| present == finalizer)?
        .to_string();
    Some(Patch(vec![
        test(["metadata", "finalizers", &index], json!(finalizer)),
        PatchOperation::Remove(RemoveOperation {
            path: PointerBuf::from_tokens(["metadata", "finalizers", &index]),
        }),
    ]))
}

fn test<const N: usize>(path: [&str; N], value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation {
        path: PointerBuf::from_tokens(path),
        value,
    })
}

/// Stores the finalizer if it is missing. Returns the stored object if it was written.
pub async fn ensure<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<Option<K>, Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    match add(object.meta(), finalizer) {
        None => Ok(None),
        Some(patch) => write(api, object, patch, "adding the finalizer to")
            .await
            .map(Some),
    }
}

/// Removes the finalizer of a deleted object once its clean-up is done. Returns whether it was removed.
pub async fn release<K>(api: &Api<K>, object: &K, finalizer: &str, cleaned_up: Outcome) -> Result<bool, Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    match remove(object.meta(), finalizer, cleaned_up) {
        None => Ok(false),
        Some(patch) => match write(api, object, patch, "removing the finalizer of").await {
            Ok(_) => Ok(true),
            // Gone is what was asked for.
            Err(Error::Api {
                source: kube::Error::Api(status),
                ..
            }) if status.code == 404 => Ok(true),
            Err(error) => Err(error),
        },
    }
}

async fn write<K>(api: &Api<K>, object: &K, patch: Patch, doing: &str) -> Result<K, Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let name = object.meta().name.as_deref().unwrap_or_default();
    let what = format!(
        "{doing} {}",
        crate::owner::key(object.meta().namespace.as_deref(), name)
    );
    api.patch(
        name,
        &PatchParams::default(),
        &kube::api::Patch::<()>::Json(patch),
    )
    .await
    .map_err(|error| Error::patching(what, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const OURS: &str = "ours.example.dev";

    fn object(finalizers: Option<&[&str]>, deleting: bool) -> Value {
        let mut metadata = json!({"name": "a", "uid": "u", "resourceVersion": "7"});
        if let Some(finalizers) = finalizers {
            metadata["finalizers"] = json!(finalizers);
        }
        if deleting {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        json!({ "metadata": metadata })
    }

    fn metadata(object: &Value) -> ObjectMeta {
        serde_json::from_value(object["metadata"].clone()).unwrap()
    }

    /// Applies a patch made from `seen` to `stored`.
    fn apply(seen: &Value, stored: &Value, patch: fn(&ObjectMeta) -> Option<Patch>) -> Result<Value, String> {
        let mut result = stored.clone();
        let patch = patch(&metadata(seen)).expect("there is something to patch");
        json_patch::patch(&mut result, &patch).map_err(|error| error.to_string())?;
        Ok(result["metadata"]["finalizers"].clone())
    }

    #[test]
    fn adding_keeps_what_others_added() {
        let add_ours: fn(&ObjectMeta) -> Option<Patch> = |metadata| add(metadata, OURS);
        let empty = object(None, false);
        assert_eq!(apply(&empty, &empty, add_ours).unwrap(), json!([OURS]));

        let one = object(Some(&["theirs"]), false);
        let two = object(Some(&["theirs", "late"]), false);
        assert_eq!(
            apply(&one, &two, add_ours).unwrap(),
            json!(["theirs", "late", OURS])
        );

        let mut written_meanwhile = object(Some(&["theirs"]), false);
        written_meanwhile["metadata"]["resourceVersion"] = json!("8");
        assert!(apply(&empty, &written_meanwhile, add_ours).is_err());

        let mut replaced = one.clone();
        replaced["metadata"]["uid"] = json!("another");
        assert!(apply(&one, &replaced, add_ours).is_err());
    }

    #[test]
    fn nothing_is_added_twice_or_to_what_is_being_deleted() {
        assert_eq!(add(&metadata(&object(Some(&[OURS]), false)), OURS), None);
        assert_eq!(add(&metadata(&object(None, true)), OURS), None);
    }

    #[test]
    fn removing_takes_only_our_entry_and_only_when_all_is_done() {
        let remove_ours: fn(&ObjectMeta) -> Option<Patch> = |metadata| remove(metadata, OURS, Outcome::Done);
        let seen = object(Some(&["a", OURS, "b"]), true);
        assert_eq!(apply(&seen, &seen, remove_ours).unwrap(), json!(["a", "b"]));
        let moved = object(Some(&[OURS, "b"]), true);
        assert!(
            apply(&seen, &moved, remove_ours).is_err(),
            "the list changed meanwhile"
        );

        let waiting = Outcome::InProgress(Duration::from_secs(1));
        assert_eq!(remove(&metadata(&seen), OURS, waiting), None);
        assert_eq!(
            remove(&metadata(&object(Some(&[OURS]), false)), OURS, Outcome::Done),
            None
        );
        assert_eq!(
            remove(&metadata(&object(Some(&["a"]), true)), OURS, Outcome::Done),
            None
        );
    }
}
