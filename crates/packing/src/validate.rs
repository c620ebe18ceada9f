//! Pods that ask for what is never allowed are told so before anything is tried.

use crate::labels;
use crate::model::{NodeSelectorTerm, Options, Pod};
use crate::requirement::Operator;
use crate::requirements::Requirements;
use crate::storage::Storage;

/// Why a pod is not considered at all, if so.
pub(crate) fn problem(pod: &Pod, options: &Options, storage: &Storage<'_>) -> Option<String> {
    let required = pod
        .spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| node.required.as_ref());
    let terms: &[NodeSelectorTerm] = required.map_or(&[], |required| required.node_selector_terms.as_slice());
    let mut first = Requirements::from_labels(&pod.spec.node_selector);
    if let Some(term) = terms.first() {
        first.add_all(&Requirements::from_specs(&term.match_expressions));
    }
    if first
        .get(labels::NODE_POOL)
        .is_some_and(|own| own.operator() == Operator::DoesNotExist)
    {
        return Some(format!(
            "configured to not run on a Karpenter provisioned node ({} DoesNotExist)",
            labels::NODE_POOL
        ));
    }
    let restricted = |key: &str| labels::restriction(labels::normalized(key), &options.well_known_labels);
    if let Some(restriction) = pod.spec.node_selector.keys().find_map(|key| restricted(key)) {
        return Some(restriction);
    }
    for term in terms {
        if !term.match_fields.is_empty() {
            return Some("node selector term with matchFields is not supported".to_owned());
        }
        for spec in &term.match_expressions {
            if let Some(restriction) = restricted(&spec.key) {
                return Some(restriction);
            }
            if spec.operator == Operator::In && spec.values.is_empty() {
                return Some(format!(
                    "key {} with operator In must have a value defined",
                    spec.key
                ));
            }
            let bound = matches!(
                spec.operator,
                Operator::Gt | Operator::Lt | Operator::Gte | Operator::Lte
            );
            let number = match spec.values.as_slice() {
                [value] => value.parse::<i64>().is_ok_and(|number| number >= 0),
                _ => false,
            };
            if bound && !number {
                return Some(format!(
                    "key {} with operator {} must have a single positive integer value",
                    spec.key,
                    spec.operator.name()
                ));
            }
        }
    }
    storage.problem(pod)
}
