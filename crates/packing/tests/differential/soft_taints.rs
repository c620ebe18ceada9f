//! Karpenter counts topology again once a pod has given up on avoiding taints: spread constraints are told apart by the
//! tolerations of their pod, and the new one knows nothing of pods placed earlier in the batch; the domains of an affinity
//! are those the first pod that brought it tolerates. Where that is the cause, both agree as soon as every pod tolerates
//! such taints from the start.

use serde_json::{Value, json};

/// The workload with pods that need not give up on avoiding taints; none if there is no taint to avoid.
pub fn tolerated_from_the_start(workload: &Value) -> Option<Value> {
    let pools = workload["nodePools"].as_array()?;
    let taints = pools
        .iter()
        .filter_map(|pool| pool["spec"]["template"]["spec"]["taints"].as_array());
    if !taints
        .flatten()
        .any(|taint| taint["effect"] == "PreferNoSchedule")
    {
        return None;
    }
    let mut tolerant = workload.clone();
    for pod in tolerant["pods"].as_array_mut().into_iter().flatten() {
        let toleration = json!({"operator": "Exists", "effect": "PreferNoSchedule"});
        match pod["spec"]["tolerations"].as_array_mut() {
            Some(list) => list.push(toleration),
            None => pod["spec"]["tolerations"] = json!([toleration]),
        }
    }
    Some(tolerant)
}
