//! Where Karpenter takes a label for absent that has to be there. It keeps no difference between "this label must not
//! exist" and "nothing is left of what was asked", nor between `NotIn` alone and `NotIn` with `Exists`; such a pod it puts
//! on nodes where the pod can never run. This crate does not. Where that is the cause, both agree as soon as no pod says
//! that the label has to be there, or absent, without saying which value it wants.

use serde_json::Value;

use super::generator::TEAM;
use super::retain_expressions;

/// The workload without what pods say about the custom label, but for values they select; none if nothing is said.
pub fn without_label(workload: &Value) -> Option<Value> {
    let mut changed = workload.clone();
    for pod in changed["pods"].as_array_mut().into_iter().flatten() {
        retain_expressions(pod, |own| own["key"] != TEAM);
    }
    (changed != *workload).then_some(changed)
}
