//! Small marks on objects that decide who works on them and what `clusterctl move` does: managed-by, watch-filter,
//! block-move, delete-for-move, and the hooks that hold a Machine's deletion.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::names::{annotation, label};

pub fn has_annotation(metadata: &ObjectMeta, name: &str) -> bool {
    metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(name))
}

pub fn has_label(metadata: &ObjectMeta, name: &str) -> bool {
    metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(name))
}

/// Whether somebody else runs this infrastructure: its controller leaves it alone.
pub fn is_externally_managed(metadata: &ObjectMeta) -> bool {
    has_annotation(metadata, annotation::MANAGED_BY)
}

/// Whether this manager is to work on the object. Without a filter it works on every object.
pub fn passes_watch_filter(metadata: &ObjectMeta, filter: Option<&str>) -> bool {
    match filter.filter(|filter| !filter.is_empty()) {
        None => true,
        Some(filter) => metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(label::WATCH_FILTER))
            .is_some_and(|value| value == filter),
    }
}

/// The label selector that lets the apiserver apply the watch filter.
pub fn watch_filter_selector(filter: Option<&str>) -> Option<String> {
    filter
        .filter(|filter| !filter.is_empty())
        .map(|filter| format!("{}={filter}", label::WATCH_FILTER))
}

pub fn is_topology_owned(metadata: &ObjectMeta) -> bool {
    has_label(metadata, label::TOPOLOGY_OWNED)
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

/// The annotation that holds a Machine before its infrastructure is deleted, for the hook of this name.
pub fn pre_terminate_hook(name: &str) -> String {
    format!("{}/{name}", annotation::PRE_TERMINATE_HOOK_PREFIX)
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

    fn metadata(annotations: &[(&str, &str)], labels: &[(&str, &str)]) -> ObjectMeta {
        let map = |pairs: &[(&str, &str)]| {
            Some(
                pairs
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect(),
            )
        };
        ObjectMeta {
            annotations: map(annotations),
            labels: map(labels),
            ..Default::default()
        }
    }

    #[test]
    fn a_watch_filter_takes_only_what_is_labelled_for_it() {
        let labelled = metadata(&[], &[(label::WATCH_FILTER, "blue")]);
        assert!(passes_watch_filter(&labelled, None));
        assert!(passes_watch_filter(&labelled, Some("")));
        assert!(passes_watch_filter(&labelled, Some("blue")));
        assert!(!passes_watch_filter(&labelled, Some("green")));
        assert!(!passes_watch_filter(&metadata(&[], &[]), Some("blue")));
        assert_eq!(
            watch_filter_selector(Some("blue")).unwrap(),
            "cluster.x-k8s.io/watch-filter=blue"
        );
    }

    #[test]
    fn the_presence_of_a_mark_counts_not_its_value() {
        assert!(is_externally_managed(&metadata(
            &[(annotation::MANAGED_BY, "")],
            &[]
        )));
        assert!(blocks_move(&metadata(&[(annotation::BLOCK_MOVE, "false")], &[])));
        assert!(is_deleted_for_move(&metadata(
            &[(annotation::DELETE_FOR_MOVE, "")],
            &[]
        )));
        assert!(!is_externally_managed(&ObjectMeta::default()));
    }

    #[test]
    fn block_move_is_written_only_where_it_changes() {
        let free = metadata(&[], &[]);
        let blocked = metadata(&[(annotation::BLOCK_MOVE, "true")], &[]);
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
        let ours = pre_terminate_hook("k3s-cleanup");
        let both = metadata(
            &[(&ours, ""), (&pre_terminate_hook("theirs"), ""), ("x", "")],
            &[],
        );
        assert_eq!(
            other_pre_terminate_hooks(&both, &ours),
            ["pre-terminate.delete.hook.machine.cluster.x-k8s.io/theirs"]
        );
    }
}
