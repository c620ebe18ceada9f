//! Where the peer takes a label for absent that has to be there. It keeps no difference between "this label must not
//! exist" and "nothing is left of what was asked", nor between `NotIn` alone and `NotIn` with `Exists`; such a pod it puts
//! on nodes where the pod can never run. This crate does not, so outcomes may differ.

use serde_json::Value;

use super::generator::TEAM;

/// What a pod's selector, terms and preferences say about the custom label.
fn said(pod: &Value) -> Vec<&str> {
    let mut operators = Vec::new();
    if pod["spec"]["nodeSelector"].get(TEAM).is_some() {
        operators.push("In");
    }
    let node = &pod["spec"]["affinity"]["nodeAffinity"];
    let required = &node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let preferred = &node["preferredDuringSchedulingIgnoredDuringExecution"];
    let terms = required.as_array().into_iter().flatten().chain(
        preferred
            .as_array()
            .into_iter()
            .flatten()
            .map(|term| &term["preference"]),
    );
    for expression in terms
        .filter_map(|term| term["matchExpressions"].as_array())
        .flatten()
    {
        if expression["key"] == TEAM {
            operators.extend(expression["operator"].as_str());
        }
    }
    operators
}

/// Whether the label has to be there and may be absent for one pod, or for pods that could share a node.
pub fn confuses_peer(workload: &Value) -> bool {
    let pods: Vec<Vec<&str>> = workload["pods"]
        .as_array()
        .into_iter()
        .flatten()
        .map(said)
        .collect();
    let present = |operator: &&str| matches!(*operator, "In" | "Exists");
    let one = pods
        .iter()
        .any(|said| said.iter().any(present) && !said.iter().all(present));
    let anyone = |wanted: &str| pods.iter().flatten().any(|operator| *operator == wanted);
    one || (anyone("Exists") && anyone("NotIn") && anyone("DoesNotExist"))
}
