//! Disruption: what a command leaves behind is a plan like any other, over a cluster without the nodes that go.

use std::collections::{BTreeMap, BTreeSet};

use slipway_packing::disrupt::{Command, Decision, Method};
use slipway_packing::model::{Plan, Pod, Snapshot};

use super::named;
use super::selection::matches;

/// Everything that is wrong with a command.
pub fn problems(snapshot: &Snapshot, pending: &[Pod], command: &Command) -> Vec<String> {
    let mut problems = Vec::new();
    let going: BTreeSet<&str> = command.nodes.iter().map(String::as_str).collect();
    if going.is_empty() || going.len() != command.nodes.len() {
        problems.push(format!("no node, or one twice: {:?}", command.nodes));
    }
    for name in &going {
        if !snapshot.nodes.iter().any(|node| node.metadata.name == *name) {
            problems.push(format!("there is no node {name}"));
        }
        if snapshot.deleting_nodes.iter().any(|own| own == name) {
            problems.push(format!("{name} is going already"));
        }
    }
    if (command.decision == Decision::Delete) != command.replacements.is_empty() {
        problems.push(format!(
            "{:?} with {} replacements",
            command.decision,
            command.replacements.len()
        ));
    }
    let for_money = matches!(
        command.method,
        Method::MultiNodeConsolidation | Method::SingleNodeConsolidation
    );
    if for_money && command.decision == Decision::Replace && command.savings <= 0.0 {
        problems.push(format!("{} is saved", command.savings));
    }
    let plan = Plan {
        new_claims: command.replacements.clone(),
        existing: command.existing.clone(),
        ..Plan::default()
    };
    let claimed = plan.new_claims.iter().flat_map(|claim| &claim.pods);
    let kept = plan.existing.iter().flat_map(|node| &node.pods);
    let placed: BTreeSet<&str> = claimed.chain(kept).map(String::as_str).collect();
    let by_name: BTreeMap<String, &Pod> = snapshot
        .bound_pods
        .iter()
        .chain(pending)
        .map(|pod| (named(pod), pod))
        .collect();
    let mut pods: Vec<Pod> = Vec::new();
    for name in &placed {
        match by_name.get(*name) {
            Some(pod) => pods.push((*pod).clone()),
            None => problems.push(format!("there is no pod {name}")),
        }
    }
    for pod in &snapshot.bound_pods {
        let goes = going.contains(pod.spec.node_name.as_str());
        if goes
            && comes_back(pod)
            && !placed.contains(named(pod).as_str())
            && !may_wait(snapshot, command, pod)
        {
            problems.push(format!("{} has nowhere to go", named(pod)));
        }
    }
    let mut after = snapshot.clone();
    let claim_of: BTreeSet<String> = after
        .nodes
        .iter()
        .filter(|node| going.contains(node.metadata.name.as_str()))
        .map(|node| node.spec.provider_id.clone())
        .collect();
    after
        .nodes
        .retain(|node| !going.contains(node.metadata.name.as_str()));
    after
        .node_claims
        .retain(|claim| !claim_of.contains(&claim.status.provider_id));
    after
        .bound_pods
        .retain(|pod| !going.contains(pod.spec.node_name.as_str()));
    problems.extend(super::problems(&after, &pods, &plan));
    problems
}

/// Whether somebody makes the pod again once its node is gone.
fn comes_back(pod: &Pod) -> bool {
    let owned_by = |kind: &str| {
        let owners = &pod.metadata.owner_references;
        owners.iter().any(|owner| owner.kind == kind)
    };
    let done = matches!(pod.status.phase.as_str(), "Failed" | "Succeeded");
    let ends = pod.metadata.deletion_timestamp.is_some() && !owned_by("StatefulSet");
    !done && !ends && !owned_by("DaemonSet") && !owned_by("Node")
}

/// A drifted node may go before its last pods can: nothing is made for pods of which nobody knows when they go.
fn may_wait(snapshot: &Snapshot, command: &Command, pod: &Pod) -> bool {
    let guarded = snapshot.pod_disruption_budgets.iter().any(|budget| {
        budget.metadata.namespace == pod.metadata.namespace
            && matches(budget.spec.selector.as_ref(), &pod.metadata.labels)
    });
    let asks = pod
        .metadata
        .annotations
        .contains_key("karpenter.sh/do-not-disrupt");
    command.method == Method::Drift && (guarded || asks)
}
