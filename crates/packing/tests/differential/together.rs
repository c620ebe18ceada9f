//! Several constraints on one key. Karpenter lets each of them pick a domain without looking at the others, and a pod whose
//! constraints pick differently stays over although some domain suits them all; this crate decides them together. Where that
//! is the cause, both agree as soon as no pod has more than one constraint on a key.

use std::collections::BTreeSet;

use serde_json::Value;

use super::KINDS;

/// The workload with one constraint for each pod and key, spread first; none if no pod has more.
pub fn one_constraint_for_a_key(workload: &Value) -> Option<Value> {
    let mut changed = workload.clone();
    for pod in changed["pods"].as_array_mut().into_iter().flatten() {
        let mut taken: BTreeSet<String> = BTreeSet::new();
        let mut first = |key: &Value| {
            let key = key.as_str().unwrap_or_default();
            key == "kubernetes.io/hostname" || taken.insert(key.to_owned())
        };
        let spread = pod.pointer_mut("/spec/topologySpreadConstraints");
        if let Some(spread) = spread.and_then(Value::as_array_mut) {
            spread.retain(|own| first(&own["topologyKey"]));
        }
        for affinity in ["podAffinity", "podAntiAffinity"] {
            for kind in KINDS {
                let terms = pod.pointer_mut(&format!("/spec/affinity/{affinity}/{kind}"));
                if let Some(terms) = terms.and_then(Value::as_array_mut) {
                    terms.retain(|own| {
                        let term = own.get("podAffinityTerm").unwrap_or(own);
                        first(&term["topologyKey"])
                    });
                }
            }
        }
    }
    (changed != *workload).then_some(changed)
}
