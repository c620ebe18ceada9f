//! Labels that a standing node does not have. Karpenter keeps what pods on a node say about its labels: once one that only
//! excludes values of a label is on a node without that label, the node counts as one that may have any other value, and a pod
//! that selects one is put there, where it can never run. This crate goes by the labels the node has. Where that is the cause,
//! both agree as soon as no pod excludes values of labels that some node does not have.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::retain_expressions;

/// The workload without such exclusions; none if there are none.
pub fn no_exclusions_of_missing_labels(workload: &Value) -> Option<Value> {
    let objects = ["nodes", "nodeClaims"]
        .into_iter()
        .filter_map(|kind| workload[kind].as_array())
        .flatten();
    let labels: Vec<BTreeSet<&str>> = objects
        .filter_map(|object| object["metadata"]["labels"].as_object())
        .map(|labels| labels.keys().map(String::as_str).collect())
        .collect();
    let everywhere = |key: &Value| {
        let key = key.as_str().unwrap_or_default();
        labels.iter().all(|own| own.contains(key))
    };
    let mut changed = workload.clone();
    for pod in changed["pods"].as_array_mut().into_iter().flatten() {
        retain_expressions(pod, |own| own["operator"] != "NotIn" || everywhere(&own["key"]));
    }
    (changed != *workload).then_some(changed)
}

#[test]
fn only_exclusions_of_labels_that_are_missing_go() {
    let node = |labels: Value| json!({"metadata": {"labels": labels}});
    let expression = |key: &str, operator: &str| json!({"key": key, "operator": operator, "values": ["a"]});
    let pod = |expressions: Value| {
        json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}}}})
    };
    let nodes = json!([node(json!({"both": "x", "one": "x"})), node(json!({"both": "y"}))]);
    let kept = json!([expression("both", "NotIn"), expression("one", "In")]);
    let before = json!({"nodes": nodes, "pods": [pod(kept.clone())]});
    assert_eq!(no_exclusions_of_missing_labels(&before), None);
    let more = json!([
        expression("both", "NotIn"),
        expression("one", "NotIn"),
        expression("one", "In")
    ]);
    let changed = no_exclusions_of_missing_labels(&json!({"nodes": nodes, "pods": [pod(more)]}));
    assert_eq!(changed.expect("there is one")["pods"][0], pod(kept));
}
