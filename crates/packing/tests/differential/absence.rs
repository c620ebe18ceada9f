//! Where the peer takes a label for absent that has to be there. It keeps no difference between "this label must not
//! exist" and "nothing is left of what was asked", nor between `NotIn` alone and `NotIn` with `Exists`; such a pod it puts
//! on nodes where the pod can never run. This crate does not. Where that is the cause, both agree as soon as no pod says
//! that the label has to be there, or absent, without saying which value it wants.

use serde_json::Value;

use super::generator::TEAM;

/// The workload without what pods say about the custom label, but for values they select; none if nothing is said.
pub fn without_label(workload: &Value) -> Option<Value> {
    let mut changed = workload.clone();
    for pod in changed["pods"].as_array_mut().into_iter().flatten() {
        let Some(node) = pod.pointer_mut("/spec/affinity/nodeAffinity") else {
            continue;
        };
        let mut terms: Vec<&mut Value> = Vec::new();
        if let Some(object) = node.as_object_mut() {
            for (kind, value) in object {
                let list = if kind.starts_with("required") {
                    value.get_mut("nodeSelectorTerms")
                } else {
                    Some(value)
                };
                terms.extend(list.and_then(Value::as_array_mut).into_iter().flatten());
            }
        }
        for term in terms {
            let term = if term.get("preference").is_some() {
                &mut term["preference"]
            } else {
                term
            };
            if let Some(expressions) = term.get_mut("matchExpressions").and_then(Value::as_array_mut) {
                expressions.retain(|own| own["key"] != TEAM);
            }
        }
    }
    (changed != *workload).then_some(changed)
}
