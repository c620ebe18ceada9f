//! Disruption: what a command leaves behind is a plan like any other, over a cluster without the nodes that go.

use std::collections::{BTreeMap, BTreeSet};

use slipway_packing::disrupt::{Command, Decision, Method};
use slipway_packing::model::{NewClaim, NodePool, Plan, Pod, Snapshot};

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
    let replaces = command.decision == Decision::Replace;
    if replaces == command.replacements.is_empty() {
        problems.push(format!(
            "{:?} with {} replacements",
            command.decision,
            command.replacements.len()
        ));
    }
    let for_money = matches!(
        command.method,
        Method::CostConsolidation | Method::MultiNodeConsolidation | Method::SingleNodeConsolidation
    );
    if for_money && command.decision == Decision::Replace && command.savings <= 0.0 {
        problems.push(format!("{} is saved", command.savings));
    }
    if command.decision == Decision::Reboot {
        if !command.existing.is_empty() {
            problems.push("pods move from a node that is only rebooted".to_owned());
        }
        return problems;
    }
    let (alike, for_pods): (Vec<&NewClaim>, Vec<&NewClaim>) = command
        .replacements
        .iter()
        .partition(|claim| static_pool(snapshot, &claim.node_pool).is_some());
    static_pools_keep_their_size(snapshot, command, &going, &alike, &mut problems);
    let plan = Plan {
        new_claims: for_pods.into_iter().cloned().collect(),
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

/// A drifted node may go before its last pods can: nothing is made for pods of which nobody knows when they go. Where the node
/// goes first or comes again by a template, nobody looks for places for its pods.
fn may_wait(snapshot: &Snapshot, command: &Command, pod: &Pod) -> bool {
    let guarded = snapshot.pod_disruption_budgets.iter().any(|budget| {
        budget.metadata.namespace == pod.metadata.namespace
            && matches(budget.spec.selector.as_ref(), &pod.metadata.labels)
    });
    let asks = pod
        .metadata
        .annotations
        .contains_key("karpenter.sh/do-not-disrupt");
    let unplanned = command.decision == Decision::TerminateFirst
        || snapshot.nodes.iter().any(|node| {
            node.metadata.name == pod.spec.node_name
                && pool_of(node).is_some_and(|pool| static_pool(snapshot, pool).is_some())
        });
    unplanned || (command.method == Method::Drift && (guarded || asks))
}

fn pool_of(node: &slipway_packing::model::Node) -> Option<&str> {
    node.metadata
        .labels
        .get("karpenter.sh/nodepool")
        .map(String::as_str)
}

fn static_pool<'a>(snapshot: &'a Snapshot, name: &str) -> Option<&'a NodePool> {
    snapshot
        .node_pools
        .iter()
        .find(|pool| pool.metadata.name == name && pool.spec.replicas.is_some())
}

/// A node of a static NodePool is replaced by one of the same pool, or it goes first; never are there more than allowed.
fn static_pools_keep_their_size(
    snapshot: &Snapshot,
    command: &Command,
    going: &BTreeSet<&str>,
    alike: &[&NewClaim],
    problems: &mut Vec<String>,
) {
    for pool in &snapshot.node_pools {
        let name = pool.metadata.name.as_str();
        if pool.spec.replicas.is_none() {
            continue;
        }
        let gone = snapshot
            .nodes
            .iter()
            .filter(|node| going.contains(node.metadata.name.as_str()) && pool_of(node) == Some(name))
            .count();
        let own: Vec<&&NewClaim> = alike.iter().filter(|claim| claim.node_pool == name).collect();
        let expected = if command.decision == Decision::TerminateFirst {
            0
        } else {
            gone
        };
        if own.len() != expected {
            problems.push(format!("{name}: {gone} nodes go and {} come", own.len()));
        }
        let there = snapshot
            .node_claims
            .iter()
            .filter(|claim| {
                let labels = &claim.metadata.labels;
                labels.get("karpenter.sh/nodepool").is_some_and(|own| own == name)
            })
            .count();
        let limit = pool
            .spec
            .limits
            .get("nodes")
            .map_or(i64::MAX, |limit| limit.value());
        if !own.is_empty() && (there + own.len()) as i64 > limit {
            problems.push(format!(
                "{name}: {there} nodes and {} more against {limit}",
                own.len()
            ));
        }
        let kinds = &snapshot.instance_types[name];
        for claim in own {
            let known = |listed: &&String| kinds.iter().any(|kind| kind.name == **listed);
            if claim.instance_types.is_empty() || !claim.instance_types.iter().all(|own| known(&own)) {
                problems.push(format!("{name}: no type, or one that it does not have"));
            }
            if !claim.pods.is_empty() {
                problems.push(format!("{name}: pods are planned for it"));
            }
        }
    }
}
