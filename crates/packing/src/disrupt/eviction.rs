//! What keeps a pod where it runs: its own wish not to be disturbed, and the budgets that guard it.

use std::collections::BTreeSet;

use crate::engine::nodes;
use crate::labels;
use crate::model::{IntOrString, Node, Pod, PodDisruptionBudget, Snapshot, Taint};
use crate::taints;
use crate::time::{duration_seconds, epoch_seconds};

/// The taint of nodes that are being disrupted.
const DISRUPTED: &str = "karpenter.sh/disrupted";

/// Why a pod keeps its node, if it does.
pub(crate) fn blocker(snapshot: &Snapshot, pod: &Pod) -> Option<String> {
    if !pod.is_active() {
        return None;
    }
    if do_not_disrupt(pod, snapshot.options.now.as_deref()) {
        return Some(format!(
            "pod has \"karpenter.sh/do-not-disrupt\" annotation (Pod={})",
            pod.metadata.reference()
        ));
    }
    match guard(snapshot, pod, |budget| budget.status.disruptions_allowed == 0) {
        Guard::Nobody => None,
        Guard::Many(names) => Some(format!(
            "eviction does not support multiple PDBs (PodDisruptionBudget(s)=[{}])",
            names.join(" ")
        )),
        Guard::One(name) => Some(format!(
            "pdb prevents pod evictions (PodDisruptionBudget=[{name}])"
        )),
    }
}

/// Whether nobody knows when the pod will be evicted: nothing is created for it as long as that holds. A budget that
/// is only used up for the moment does not count.
pub(crate) fn is_held_back(snapshot: &Snapshot, pod: &Pod) -> bool {
    pod.is_active()
        && (do_not_disrupt(pod, snapshot.options.now.as_deref())
            || !matches!(guard(snapshot, pod, never_allows), Guard::Nobody))
}

/// Pods that come back elsewhere because their node is already being taken away.
pub fn leaving_pods(snapshot: &Snapshot) -> Vec<&Pod> {
    let leaving: BTreeSet<&str> = nodes::join(snapshot)
        .iter()
        .filter(|state| state.deleting())
        .filter_map(|state| Some(state.node?.metadata.name.as_str()))
        .collect();
    snapshot
        .bound_pods
        .iter()
        .filter(|pod| leaving.contains(pod.spec.node_name.as_str()))
        .filter(|pod| pod.is_reschedulable() && !is_held_back(snapshot, pod))
        .collect()
}

enum Guard {
    Nobody,
    One(String),
    Many(Vec<String>),
}

fn guard(snapshot: &Snapshot, pod: &Pod, blocks: impl Fn(&PodDisruptionBudget) -> bool) -> Guard {
    // Nobody evicts a mirror pod, nor one that stays through a disruption.
    if pod.is_mirror() || tolerates_disruption(pod) {
        return Guard::Nobody;
    }
    let matching: Vec<&PodDisruptionBudget> = snapshot
        .pod_disruption_budgets
        .iter()
        .filter(|budget| guards(budget, pod))
        .collect();
    let Some(budget) = matching.first() else {
        return Guard::Nobody;
    };
    if matching.len() > 1 {
        return Guard::Many(
            matching
                .iter()
                .map(|budget| budget.metadata.reference())
                .collect(),
        );
    }
    let unhealthy = pod
        .status
        .conditions
        .iter()
        .any(|condition| condition.kind == "Ready" && condition.status == "False");
    let always = budget.spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow");
    if !(always && unhealthy) && blocks(budget) {
        Guard::One(budget.metadata.reference())
    } else {
        Guard::Nobody
    }
}

fn never_allows(budget: &PodDisruptionBudget) -> bool {
    let none = |value: &IntOrString| match value {
        IntOrString::Number(number) => *number == 0,
        IntOrString::Text(text) => text == "0%",
    };
    let all = |value: &IntOrString| matches!(value, IntOrString::Text(text) if text == "100%");
    budget.spec.max_unavailable.as_ref().is_some_and(none)
        || budget.spec.min_available.as_ref().is_some_and(all)
}

/// Whether a node takes no more pods because it is being disrupted.
pub(crate) fn is_tainted(node: &Node) -> bool {
    node.spec.taints.iter().any(|taint| taint.key == DISRUPTED)
}

fn tolerates_disruption(pod: &Pod) -> bool {
    let disrupted = [Taint {
        key: DISRUPTED.to_owned(),
        value: String::new(),
        effect: "NoSchedule".to_owned(),
    }];
    taints::untolerated(&disrupted, &pod.spec.tolerations).is_none()
}

fn guards(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    budget.metadata.namespace == pod.metadata.namespace
        && budget
            .spec
            .selector
            .as_ref()
            .is_some_and(|selector| selector.matches(&pod.metadata.labels))
}

/// `true`, or a duration from the pod's start.
pub(crate) fn do_not_disrupt(pod: &Pod, now: Option<&str>) -> bool {
    let Some(value) = pod.metadata.annotations.get(labels::DO_NOT_DISRUPT) else {
        return false;
    };
    if value == "true" {
        return true;
    }
    let Some(period) = duration_seconds(value).filter(|period| *period > 0.0) else {
        return false;
    };
    let Some(start) = pod.status.start_time.as_deref().and_then(epoch_seconds) else {
        return true;
    };
    now.and_then(epoch_seconds)
        .is_none_or(|now| ((now - start) as f64) < period)
}
