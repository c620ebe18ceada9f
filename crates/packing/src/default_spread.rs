//! Spread constraints for pods that bring none of their own. Their selector is deduced as the kube-scheduler does:
//! from the Services that select the pod and the controller that owns it.

use ahash::AHashMap;

use crate::model::{
    LabelSelector, Pod, SelectorOperator, SelectorRequirement, Snapshot, StringMap, TopologySpreadConstraint,
};

/// The constraints a pod gets, by pod; none where it has its own or no selector can be deduced.
pub(crate) fn constraints(snapshot: &Snapshot, pods: &[&Pod]) -> Vec<Option<Vec<TopologySpreadConstraint>>> {
    let defaults = &snapshot.options.default_topology_spread;
    if defaults.is_empty() {
        return vec![None; pods.len()];
    }
    let mut known: AHashMap<(&str, &str, &StringMap), Option<LabelSelector>> = AHashMap::new();
    pods.iter()
        .map(|pod| {
            if !pod.spec.topology_spread_constraints.is_empty() {
                return None;
            }
            let owner = pod.metadata.controller().map_or("", |owner| owner.uid.as_str());
            let selector = known
                .entry((&pod.metadata.namespace, owner, &pod.metadata.labels))
                .or_insert_with(|| selector(snapshot, pod))
                .clone()?;
            let with_selector = |constraint: &TopologySpreadConstraint| TopologySpreadConstraint {
                label_selector: Some(selector.clone()),
                ..constraint.clone()
            };
            Some(defaults.iter().map(with_selector).collect())
        })
        .collect()
}

fn selector(snapshot: &Snapshot, pod: &Pod) -> Option<LabelSelector> {
    let mut selector = LabelSelector::default();
    for service in &snapshot.services {
        // No selector selects nothing; an empty one selects everything but adds nothing.
        let Some(labels) = &service.spec.selector else {
            continue;
        };
        let selects = service.metadata.namespace == pod.metadata.namespace
            && labels
                .iter()
                .all(|(key, value)| pod.metadata.labels.get(key) == Some(value));
        if selects {
            selector.match_labels.extend(labels.clone());
        }
    }
    let owner = pod.metadata.controller().and_then(|owner| {
        snapshot.controllers.iter().find(|controller| {
            controller.api_version == owner.api_version
                && controller.kind == owner.kind
                && controller.metadata.name == owner.name
                && controller.metadata.namespace == pod.metadata.namespace
        })
    });
    if let Some((controller, own)) = owner.and_then(|owner| Some((owner, owner.spec.selector.as_ref()?))) {
        match (controller.api_version.as_str(), controller.kind.as_str()) {
            ("v1", "ReplicationController") => selector.match_labels.extend(own.match_labels.clone()),
            ("apps/v1", "ReplicaSet" | "StatefulSet") => {
                selector
                    .match_expressions
                    .extend(own.match_labels.iter().map(|(key, value)| SelectorRequirement {
                        key: key.clone(),
                        operator: SelectorOperator::In,
                        values: vec![value.clone()],
                    }));
                selector
                    .match_expressions
                    .extend(own.match_expressions.iter().cloned());
            }
            _ => {}
        }
    }
    // An empty selector would count every pod of the namespace.
    (!selector.match_labels.is_empty() || !selector.match_expressions.is_empty()).then_some(selector)
}
