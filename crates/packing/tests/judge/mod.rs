//! Says whether a plan keeps Kubernetes' rules. Written from those rules over plain strings; it shares no scheduling
//! code with the crate, only the data model and quantities. Tests and measurements judge plans of any scheduler by it.

pub mod amounts;
mod command;
mod places;
mod pod_affinity;
mod selection;
mod spread;
mod volumes;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use slipway_packing::disrupt::Command;
use slipway_packing::model::{NewClaim, Plan, Pod, ResourceList, Snapshot};
use slipway_packing::quantity::Quantity;

use places::{NodeLoad, Places};

/// Fails with everything that is wrong.
pub fn check(snapshot: &Snapshot, pods: &[Pod], plan: &Plan) {
    let problems = problems(snapshot, pods, plan);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Fails with everything that is wrong with what a disruption decided.
pub fn check_command(snapshot: &Snapshot, pending: &[Pod], command: &Command) {
    let problems = command_problems(snapshot, pending, command);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

pub use command::problems as command_problems;

/// Everything that is wrong with a plan.
pub fn problems(snapshot: &Snapshot, pods: &[Pod], plan: &Plan) -> Vec<String> {
    let mut problems = Vec::new();
    every_pod_once(pods, plan, &mut problems);
    if !problems.is_empty() {
        return problems;
    }
    let by_name: HashMap<String, &Pod> = pods.iter().map(|pod| (pod.metadata.reference(), pod)).collect();
    let moving: BTreeSet<&str> = pods.iter().map(|pod| pod.metadata.uid.as_str()).collect();
    let volumes = volumes::Attached::new(snapshot);
    let places = Places::new(snapshot, &by_name, &moving, &volumes, &mut problems).of_plan(plan);
    limits(snapshot, plan, &mut problems);
    reservations(snapshot, plan, &mut problems);
    pod_affinity::apart(snapshot, &places, &mut problems);
    pod_affinity::together(snapshot, &places, &mut problems);
    spread::even(snapshot, &places, &mut problems);
    problems
}

fn every_pod_once(pods: &[Pod], plan: &Plan, problems: &mut Vec<String>) {
    let mut seen: Vec<&String> = plan.new_claims.iter().flat_map(|claim| &claim.pods).collect();
    seen.extend(plan.existing.iter().flat_map(|assignment| &assignment.pods));
    seen.extend(plan.unschedulable.iter().map(|refusal| &refusal.pod));
    let mut required: Vec<String> = pods.iter().map(|pod| pod.metadata.reference()).collect();
    seen.sort();
    required.sort();
    if !seen.iter().copied().eq(&required) {
        problems.push(format!(
            "not every pod is decided once: {} decisions for {} pods",
            seen.len(),
            required.len()
        ));
    }
    for refusal in &plan.unschedulable {
        if refusal.message.is_empty() {
            problems.push(format!("{} is refused without a reason", refusal.pod));
        }
    }
}

/// What every claim could cost at most stays inside the pool's limits, as long as the pool was inside before.
fn limits(snapshot: &Snapshot, plan: &Plan, problems: &mut Vec<String>) {
    for pool in &snapshot.node_pools {
        let own: Vec<&NewClaim> = plan
            .new_claims
            .iter()
            .filter(|claim| claim.node_pool == pool.metadata.name)
            .collect();
        let Some(kinds) = snapshot.instance_types.get(&pool.metadata.name) else {
            continue;
        };
        let by_name: HashMap<&str, _> = kinds.iter().map(|kind| (kind.name.as_str(), kind)).collect();
        let standing = capacities(snapshot, &pool.metadata.name);
        for (resource, limit) in &pool.spec.limits {
            let used: Quantity = if resource == "nodes" {
                // Without the option the count of nodes is only looked at before the batch.
                if !snapshot.options.improvements.exact_node_limits {
                    continue;
                }
                Quantity::from_units((standing.len() + own.len()) as i64)
            } else {
                let before: Quantity = standing
                    .iter()
                    .filter_map(|capacity| capacity.get(resource).copied())
                    .sum();
                let most = own.iter().map(|claim| {
                    let amounts = claim
                        .instance_types
                        .iter()
                        .filter_map(|name| by_name.get(name.as_str())?.capacity.get(resource).copied());
                    amounts.max().unwrap_or(Quantity::ZERO)
                });
                before + most.sum()
            };
            if !own.is_empty() && used > *limit {
                problems.push(format!(
                    "{}: {used} of {resource} against {limit}",
                    pool.metadata.name
                ));
            }
        }
    }
}

/// What a pool has already: nodes that stay and claims on their way.
fn capacities<'a>(snapshot: &'a Snapshot, pool: &str) -> Vec<&'a ResourceList> {
    let of_pool = |labels: &slipway_packing::model::StringMap| {
        labels.get("karpenter.sh/nodepool").is_some_and(|own| own == pool)
    };
    let stays = |metadata: &slipway_packing::model::ObjectMeta| {
        metadata.deletion_timestamp.is_none() && !snapshot.deleting_nodes.contains(&metadata.name)
    };
    let mut all = Vec::new();
    let mut joined: BTreeSet<&str> = BTreeSet::new();
    for node in &snapshot.nodes {
        let provider = node.spec.provider_id.as_str();
        let claim = snapshot
            .node_claims
            .iter()
            .find(|claim| claim.status.provider_id == provider);
        joined.insert(provider);
        // Without a claim a node that is being deleted still stands.
        let counts = claim.is_none_or(|claim| stays(&claim.metadata)) && stays(&node.metadata);
        if of_pool(&node.metadata.labels) && counts {
            let told = !node.status.capacity.is_empty();
            all.push(match claim {
                Some(claim) if !told => &claim.status.capacity,
                _ => &node.status.capacity,
            });
        }
    }
    for claim in &snapshot.node_claims {
        if !joined.contains(claim.status.provider_id.as_str())
            && of_pool(&claim.metadata.labels)
            && stays(&claim.metadata)
        {
            all.push(&claim.status.capacity);
        }
    }
    all
}

/// No reservation is promised to more claims than it has room for.
fn reservations(snapshot: &Snapshot, plan: &Plan, problems: &mut Vec<String>) {
    let label = &snapshot.options.reservation_label;
    let mut room: BTreeMap<&str, u32> = BTreeMap::new();
    for kind in snapshot.instance_types.values().flatten() {
        for offering in &kind.offerings {
            let ids = offering.requirements.iter().filter(|own| own.key == *label);
            for id in ids.flat_map(|own| &own.values) {
                let entry = room.entry(id).or_insert(offering.reservation_capacity);
                *entry = (*entry).min(offering.reservation_capacity);
            }
        }
    }
    let mut promised: BTreeMap<&str, u32> = BTreeMap::new();
    for claim in &plan.new_claims {
        let ids = claim.requirements.iter().filter(|own| own.key == *label);
        for id in ids.flat_map(|own| &own.values) {
            *promised.entry(id).or_default() += 1;
        }
    }
    for (id, count) in promised {
        let room = room.get(id).copied().unwrap_or(0);
        if count > room {
            problems.push(format!("{count} claims for the {room} slots of reservation {id}"));
        }
    }
}

/// The pod's name for messages.
fn named(pod: &Pod) -> String {
    pod.metadata.reference()
}

/// Whether two places could be in one domain.
fn share(one: &NodeLoad<'_>, other: &NodeLoad<'_>, key: &str) -> bool {
    if key == selection::HOSTNAME {
        return one.host == other.host;
    }
    match (one.labels.get(key), other.labels.get(key)) {
        (Some(left), Some(right)) => left.intersection(right).next().is_some(),
        _ => false,
    }
}
