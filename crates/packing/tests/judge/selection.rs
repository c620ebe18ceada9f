//! Labels, selectors, taints and namespaces.

use std::collections::{BTreeMap, BTreeSet};

use slipway_packing::model::{
    LabelSelector, Pod, PodAffinityTerm, SelectorOperator, Snapshot, StringMap, Taint, Toleration,
};
use slipway_packing::requirement::{Operator, RequirementSpec};

pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// Possible values by label; a label that is missing is not on the node.
pub type Labels = BTreeMap<String, BTreeSet<String>>;

pub fn tolerated(taints: &[Taint], tolerations: &[Toleration]) -> bool {
    taints
        .iter()
        .filter(|taint| taint.effect != "PreferNoSchedule")
        .all(|taint| {
            tolerations.iter().any(|toleration| {
                (toleration.effect.is_empty() || toleration.effect == taint.effect)
                    && (toleration.key.is_empty() || toleration.key == taint.key)
                    && (toleration.operator == "Exists" || toleration.value == taint.value)
            })
        })
}

pub fn allows(required: &RequirementSpec, value: Option<&str>) -> bool {
    let listed = |value: &str| required.values.iter().any(|own| own == value);
    let number = || {
        Some((
            value?.parse::<i64>().ok()?,
            required.values.first()?.parse::<i64>().ok()?,
        ))
    };
    match required.operator {
        Operator::In => value.is_some_and(listed),
        Operator::NotIn => !value.is_some_and(listed),
        Operator::Exists => value.is_some(),
        Operator::DoesNotExist => value.is_none(),
        Operator::Gt => number().is_some_and(|(value, bound)| value > bound),
        Operator::Gte => number().is_some_and(|(value, bound)| value >= bound),
        Operator::Lt => number().is_some_and(|(value, bound)| value < bound),
        Operator::Lte => number().is_some_and(|(value, bound)| value <= bound),
    }
}

/// Labels that go by an older name too.
pub fn normal(key: &str) -> &str {
    match key {
        "failure-domain.beta.kubernetes.io/zone" => "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region" => "topology.kubernetes.io/region",
        "beta.kubernetes.io/arch" => "kubernetes.io/arch",
        "beta.kubernetes.io/os" => "kubernetes.io/os",
        "beta.kubernetes.io/instance-type" => "node.kubernetes.io/instance-type",
        other => other,
    }
}

/// Whether all of these can hold on a node with these labels.
pub fn all_hold(required: &[RequirementSpec], labels: &Labels) -> bool {
    required
        .iter()
        .all(|required| match labels.get(normal(&required.key)) {
            Some(values) => values.iter().any(|value| allows(required, Some(value))),
            None => allows(required, None),
        })
}

/// The alternatives of a pod's required node affinity; none means there is none.
pub fn required_terms(pod: &Pod) -> Option<Vec<&[RequirementSpec]>> {
    let affinity = pod.spec.affinity.as_ref()?;
    let required = affinity.node_affinity.as_ref()?.required.as_ref()?;
    let terms = required.node_selector_terms.iter();
    Some(terms.map(|term| term.match_expressions.as_slice()).collect())
}

/// Whether the pod's selector and one of its required terms can hold on a node with these labels.
pub fn selected(pod: &Pod, labels: &Labels) -> bool {
    pod.spec.node_selector.iter().all(|(key, value)| {
        labels
            .get(normal(key))
            .is_some_and(|values| values.contains(value))
    }) && required_terms(pod).is_none_or(|terms| terms.iter().any(|term| all_hold(term, labels)))
}

pub fn matches(selector: Option<&LabelSelector>, labels: &StringMap) -> bool {
    let Some(selector) = selector else { return false };
    selector
        .match_labels
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && selector.match_expressions.iter().all(|expression| {
            let value = labels.get(&expression.key);
            match expression.operator {
                SelectorOperator::In => value.is_some_and(|value| expression.values.contains(value)),
                SelectorOperator::NotIn => !value.is_some_and(|value| expression.values.contains(value)),
                SelectorOperator::Exists => value.is_some(),
                SelectorOperator::DoesNotExist => value.is_none(),
            }
        })
}

/// The namespaces a term looks at: those it lists and those its selector selects, or the pod's own if it says nothing.
pub fn namespaces(snapshot: &Snapshot, term: &PodAffinityTerm, own: &str) -> BTreeSet<String> {
    let Some(selector) = &term.namespace_selector else {
        return if term.namespaces.is_empty() {
            BTreeSet::from([own.to_owned()])
        } else {
            term.namespaces.iter().cloned().collect()
        };
    };
    let chosen = snapshot
        .namespaces
        .iter()
        .filter(|namespace| matches(Some(selector), &namespace.metadata.labels))
        .map(|namespace| namespace.metadata.name.clone());
    term.namespaces.iter().cloned().chain(chosen).collect()
}
