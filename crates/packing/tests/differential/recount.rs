//! Where Karpenter counts topology again in the middle of a batch, or takes two constraints for one. A spread constraint is
//! told apart by the alternatives of its pod's node affinity, and one that comes up when a pod gives up an alternative
//! knows nothing of pods placed earlier in the batch; constraints that differ only in `minDomains` are one to it, with the
//! `minDomains` of whichever came first.

use serde_json::{Value, json};

/// The workload with pods that have nothing to give up of what their nodes must be; none if no pod has.
pub fn last_alternative_only(workload: &Value) -> Option<Value> {
    let mut changed = workload.clone();
    for pod in changed["pods"].as_array_mut().into_iter().flatten() {
        let terms = pod
            .pointer_mut("/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms")
            .and_then(Value::as_array_mut);
        if let Some(terms) = terms
            && terms.len() > 1
        {
            terms.drain(..terms.len() - 1);
        }
    }
    (changed != *workload).then_some(changed)
}

/// The workload with one `minDomains` for all; none if they do not differ.
pub fn same_min_domains(workload: &Value) -> Option<Value> {
    let mut changed = workload.clone();
    for pod in changed["pods"].as_array_mut().into_iter().flatten() {
        let constraints = pod
            .pointer_mut("/spec/topologySpreadConstraints")
            .and_then(Value::as_array_mut);
        for constraint in constraints.into_iter().flatten() {
            if constraint["whenUnsatisfiable"] == "DoNotSchedule" {
                constraint["minDomains"] = json!(1);
            }
        }
    }
    (changed != *workload).then_some(changed)
}
