//! Annotations that decide who works on them and what `clusterctl move` does: managed-by, block-move, delete-for-move, and the hooks that hold a Machine's deletion.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::names::annotation;

pub fn has_annotation(metadata: &ObjectMeta, name: &str) -> bool {
    metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(name))
}

/// Whether somebody else runs this infrastructure: its controller leaves it alone.
pub fn is_externally_managed(metadata: &ObjectMeta) -> bool {
    has_annotation(metadata, annotation::MANAGED_BY)
}

pub fn blocks_move(metadata: &ObjectMeta) -> bool {
    has_annotation(metadata, annotation::BLOCK_MOVE)
}

/// Whether `clusterctl move` deletes the object here: what it stands for outside must be left alone.
pub fn is_deleted_for_move(metadata: &ObjectMeta) -> bool {
    has_annotation(metadata, annotation::DELETE_FOR_MOVE)
}

/// The merge patch that makes `clusterctl move` wait, or lets it go on. `None` if it is as desired.
pub fn block_move(metadata: &ObjectMeta, desired: bool) -> Option<Value> {
    match (blocks_move(metadata), desired) {
        (false, true) => Some(set_annotation(annotation::BLOCK_MOVE, Some("true"))),
        (true, false) => Some(set_annotation(annotation::BLOCK_MOVE, None)),
        _ => None,
    }
}

/// A merge patch that sets or removes one annotation and touches nothing else.
pub fn set_annotation(name: &str, value: Option<&str>) -> Value {
    json!({ "metadata": { "annotations": { (name): value } } })
}

/// Other hooks that hold the Machine before its infrastructure is deleted; ours is called last.
pub fn other_pre_terminate_hooks<'a>(metadata: &'a ObjectMeta, ours: &str) -> Vec<&'a str> {
    metadata
        .annotations
        .iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .filter(|name| name.starts_with(annotation::PRE_TERMINATE_HOOK_PREFIX) && *name != ours)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(annotations: &[(&str, &str)]) -> ObjectMeta {
        let pairs = annotations.iter();
        ObjectMeta {
            annotations: Some(
                pairs
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect(),
            ),
            ..Default::default()
        }
    }

    #[test]
    fn the_presence_of_a_mark_counts_not_its_value() {
        assert!(is_externally_managed(&metadata(&[(annotation::MANAGED_BY, "")])));
        assert!(blocks_move(&metadata(&[(annotation::BLOCK_MOVE, "false")])));
        assert!(is_deleted_for_move(&metadata(&[(
            annotation::DELETE_FOR_MOVE,
            ""
        )])));
        assert!(!is_externally_managed(&ObjectMeta::default()));
    }

    #[test]
    fn block_move_is_written_only_where_it_changes() {
        let free = metadata(&[]);
        let blocked = metadata(&[(annotation::BLOCK_MOVE, "true")]);
        assert_eq!(block_move(&blocked, true), None);
        assert_eq!(block_move(&free, false), None);
        assert_eq!(
            block_move(&free, true).unwrap(),
            json!({"metadata": {"annotations": {"clusterctl.cluster.x-k8s.io/block-move": "true"}}})
        );
        assert_eq!(
            block_move(&blocked, false).unwrap(),
            json!({"metadata": {"annotations": {"clusterctl.cluster.x-k8s.io/block-move": null}}})
        );
    }

    #[test]
    fn our_hook_waits_for_the_others() {
        let ours = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/k3s-cleanup";
        let theirs = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/theirs";
        let both = metadata(&[(ours, ""), (theirs, ""), ("x", "")]);
        assert_eq!(other_pre_terminate_hooks(&both, ours), [theirs]);
    }
}
