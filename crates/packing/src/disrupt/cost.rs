//! Consolidation by the policy `cost`: several nodes for several, those first that save most for each pod that moves. What
//! Karpenter's methods find is the start, and the answer wherever nothing better is found.

use std::collections::BTreeSet;

use ahash::{AHashMap, AHashSet};

use super::candidates::Candidate;
use super::command::{Command, Decision, Method};
use super::consolidate::{Move, NO_SPOT_TO_SPOT, Probe, cheaper_in_any_number, simulate};
use super::methods::Search;
use super::score::BASE_COST;
use crate::engine::run::Item;
use crate::labels;
use crate::model::{
    InstanceType, NewClaim, NodeAssignment, NodePool, Offering, Options, Pod, ReservedOfferingMode,
    ResourceList, Snapshot,
};
use crate::optimum;
use crate::quantity::Quantity;
use crate::requirement::{Operator, RequirementSpec};
use crate::requirements::{Requirements, Undefined};
use crate::resources;
use crate::schedule::ROUNDING;

/// Of the sets of nodes that could go, so many of the best are planned at the least cost.
const PLANNED: usize = 3;
/// How many steps one of these plans may take.
const STEPS: u64 = optimum::STEPS / 20;

/// A command with what it is worth.
struct Worth {
    command: Command,
    gain: f64,
    evictions: f64,
}

impl<'a> Search<'_, 'a> {
    pub fn at_the_least_cost(&mut self, found: &[Candidate<'a>]) -> Option<Command> {
        let allowed = self.allowed.clone();
        let mut best: Option<Worth> = None;
        for method in [Self::many, Self::one] {
            self.allowed.clone_from(&allowed);
            if let Some(command) = method(self, found.to_vec()) {
                let nodes: Vec<&Candidate<'a>> = found
                    .iter()
                    .filter(|candidate| command.nodes.iter().any(|name| name == candidate.name))
                    .collect();
                keep_better(&mut best, self.worth(&nodes, command));
            }
        }
        self.allowed.clone_from(&allowed);
        let candidates = self.consolidatable(found.to_vec());
        let mut sets = self.sets(&candidates, &allowed);
        let mut tried: Vec<(f64, Vec<&Candidate<'a>>)> = Vec::new();
        for nodes in sets.drain(..) {
            let probe = Probe {
                spare_busy_nodes: !self.world.options.improvements.busy_destinations,
                ..Probe::default()
            };
            let Ok(simulated) = simulate(self.world, &nodes, self.others, probe, self.order) else {
                continue;
            };
            let price: f64 = nodes.iter().map(|candidate| candidate.price).sum();
            let cost: f64 = simulated
                .claims
                .iter()
                .map(|finished| finished.claim.cheapest_price)
                .sum();
            if let Ok(replacements) = cheaper_in_any_number(self.world, &nodes, simulated.claims) {
                let target = replacements
                    .iter()
                    .map(|replacement| replacement.price(self.world))
                    .sum();
                if self.is_worth(&nodes, target) {
                    let found = Move {
                        replacements,
                        on_nodes: simulated.on_nodes,
                    };
                    let command = self.command(Method::CostConsolidation, &nodes, &found);
                    keep_better(&mut best, self.worth(&nodes, command));
                }
            }
            tried.push((price - cost - self.eviction_price(&nodes), nodes));
        }
        tried.sort_by(|left, right| right.0.total_cmp(&left.0));
        for (_, nodes) in tried.into_iter().take(PLANNED) {
            if let Some(command) = self.planned(&nodes) {
                keep_better(&mut best, self.worth(&nodes, command));
            }
        }
        let command = best.filter(|best| best.gain > ROUNDING)?.command;
        for node in &command.nodes {
            self.outcome.blocked.remove(node);
        }
        Some(command)
    }

    fn eviction_price(&self, nodes: &[&Candidate<'_>]) -> f64 {
        self.world.options.packing_weights.eviction * evictions(nodes)
    }

    /// What a command saves, and what nodes less and pods that stay are worth.
    fn worth(&self, nodes: &[&Candidate<'_>], command: Command) -> Worth {
        let weights = self.world.options.packing_weights;
        let fewer = nodes.len() as f64 - command.replacements.len() as f64;
        Worth {
            gain: command.savings + weights.node * fewer - self.eviction_price(nodes),
            evictions: evictions(nodes),
            command,
        }
    }

    /// Sets of nodes that could go together, within budgets: ever more of those that cost most for each pod that moves, and of
    /// those that cost most beyond what their pods are worth.
    fn sets<'c>(
        &mut self,
        candidates: &'c [Candidate<'a>],
        allowed: &AHashMap<String, usize>,
    ) -> Vec<Vec<&'c Candidate<'a>>> {
        let items: Vec<Item> = candidates
            .iter()
            .flat_map(|candidate| candidate.items.iter().copied())
            .collect();
        let worth = optimum::worth_of(self.world, &items);
        let wasted: Vec<f64> = candidates
            .iter()
            .map(|candidate| {
                let pods: f64 = candidate.items.iter().map(|item| worth[item.class]).sum();
                (candidate.price - pods) / candidate.cost
            })
            .collect();
        let by_price: Vec<usize> = (0..candidates.len()).collect();
        let mut by_waste = by_price.clone();
        by_waste.sort_by(|left, right| wasted[*right].total_cmp(&wasted[*left]).then(left.cmp(right)));
        let mut sets = Vec::new();
        let mut known: BTreeSet<Vec<usize>> = BTreeSet::new();
        for order in [by_price, by_waste] {
            let mut left = allowed.clone();
            let within: Vec<usize> = order
                .into_iter()
                .filter(|index| {
                    let pool = &candidates[*index].pool.metadata.name;
                    let left = left.entry(pool.clone()).or_default();
                    let may_go = *left > 0;
                    *left = left.saturating_sub(1);
                    self.outcome.constrained_by_budgets |= !may_go;
                    may_go
                })
                .collect();
            for size in sizes(within.len()) {
                let mut set = within[..size].to_vec();
                set.sort_unstable();
                if known.insert(set.clone()) {
                    sets.push(set.into_iter().map(|index| &candidates[index]).collect());
                }
            }
        }
        sets
    }

    /// These nodes for what the planner finds cheapest, if that is cheaper.
    fn planned(&self, nodes: &[&Candidate<'a>]) -> Option<Command> {
        let waiting: Vec<usize> = self.others.pending.iter().map(|item| item.pod).collect();
        let leaving = self.others.leaving.iter().map(|item| item.pod);
        let moving = nodes
            .iter()
            .flat_map(|node| node.items.iter().map(|item| item.pod));
        let free: AHashSet<usize> = waiting.iter().copied().chain(leaving.clone()).collect();
        let places: Vec<usize> = waiting.iter().copied().chain(leaving).chain(moving).collect();
        let pods: Vec<Pod> = places.iter().map(|place| self.pods[*place].clone()).collect();
        let mut snapshot = without(self.world.snapshot, nodes);
        snapshot.options.reserved_offering_mode = ReservedOfferingMode::Fallback;
        let rules = optimum::Rules {
            spare_busy_nodes: !snapshot.options.improvements.busy_destinations,
            ..optimum::Rules::default()
        };
        let plan = optimum::plan_under(&snapshot, &pods, rules, STEPS, &mut || true).plan;
        let by_name: AHashMap<String, usize> = places
            .iter()
            .map(|place| (self.pods[*place].metadata.reference(), *place))
            .collect();
        let may_wait = |name: &String| by_name.get(name).is_some_and(|place| waiting.contains(place));
        if !plan.unschedulable.iter().all(|refusal| may_wait(&refusal.pod)) {
            return None;
        }
        // A node that has not come up yet is no place to count on.
        let is_free = |name: &String| by_name.get(name).is_some_and(|place| free.contains(place));
        let counted_on = |node: &NodeAssignment| {
            let managed = snapshot
                .node_claims
                .iter()
                .any(|claim| claim.status.node_name == node.node || claim.metadata.name == node.node);
            !node.initialized && managed && !node.pods.iter().all(is_free)
        };
        if plan.existing.iter().any(counted_on) {
            return None;
        }
        let (replacements, worst) = launched(&snapshot, nodes, plan.new_claims).ok()?;
        let target: f64 = replacements.iter().map(|claim| claim.cheapest_price).sum();
        let source: f64 = nodes.iter().map(|candidate| candidate.price).sum();
        if worst >= source || !self.is_worth(nodes, target) {
            return None;
        }
        // Whoever asked names the pods by their places.
        let named = |pods: &[String]| -> Vec<String> {
            let places = pods.iter().filter_map(|pod| by_name.get(pod));
            places.map(ToString::to_string).collect()
        };
        let of_claim = |claim: NewClaim| NewClaim {
            pods: named(&claim.pods),
            ..claim
        };
        let of_node = |node: NodeAssignment| NodeAssignment {
            pods: named(&node.pods),
            ..node
        };
        let replacements: Vec<NewClaim> = replacements.into_iter().map(of_claim).collect();
        Some(Command {
            method: Method::CostConsolidation,
            reason: Method::CostConsolidation.reason(),
            decision: if replacements.is_empty() {
                Decision::Delete
            } else {
                Decision::Replace
            },
            nodes: nodes.iter().map(|candidate| candidate.name.to_owned()).collect(),
            replacements,
            existing: plan.existing.into_iter().map(of_node).collect(),
            savings: source - target,
            terminate_first: None,
            termination_grace_seconds: None,
            unhealthy: None,
        })
    }
}

/// What moving the pods of these nodes costs, a plain pod one.
fn evictions(nodes: &[&Candidate<'_>]) -> f64 {
    nodes.iter().map(|candidate| candidate.cost - BASE_COST).sum()
}

fn keep_better(best: &mut Option<Worth>, other: Worth) {
    let is_better = best.as_ref().is_none_or(|best| {
        let more = other.gain - best.gain;
        more > ROUNDING || (more > -ROUNDING && other.evictions < best.evictions - ROUNDING)
    });
    if is_better {
        *best = Some(other);
    }
}

/// One, two, three, five and so on up to all.
fn sizes(all: usize) -> Vec<usize> {
    let (mut sizes, mut last, mut next) = (Vec::new(), 1, 1);
    while next < all {
        sizes.push(next);
        (last, next) = (next, last + next);
    }
    if all > 0 {
        sizes.push(all);
    }
    sizes
}

/// The cluster without these nodes and what runs on them.
fn without(snapshot: &Snapshot, nodes: &[&Candidate<'_>]) -> Snapshot {
    let names: AHashSet<&str> = nodes
        .iter()
        .map(|candidate| candidate.own.metadata.name.as_str())
        .collect();
    let claims: AHashSet<&str> = nodes
        .iter()
        .map(|candidate| candidate.claim.metadata.name.as_str())
        .collect();
    let mut snapshot = snapshot.clone();
    snapshot
        .nodes
        .retain(|node| !names.contains(node.metadata.name.as_str()));
    snapshot
        .node_claims
        .retain(|claim| !claims.contains(claim.metadata.name.as_str()));
    snapshot
        .bound_pods
        .retain(|pod| !names.contains(pod.spec.node_name.as_str()));
    if snapshot.options.improvements.replacements_within_limits {
        for candidate in nodes {
            let pools = snapshot.node_pools.iter_mut();
            let of_it = |pool: &&mut NodePool| pool.metadata.name == candidate.pool.metadata.name;
            if let Some(pool) = pools.into_iter().find(of_it) {
                charge(&mut pool.spec.limits, &candidate.own.status.capacity);
            }
        }
    }
    snapshot
}

/// What a node that is still there takes of its pool's limits.
fn charge(limits: &mut ResourceList, capacity: &ResourceList) {
    for (name, left) in limits.iter_mut() {
        let taken = if name == resources::NODES {
            resources::ONE
        } else {
            capacity.get(name).copied().unwrap_or_default()
        };
        *left = (*left - taken).max(Quantity::ZERO);
    }
}

/// The claims with the cheapest type alone, so that they cost what was worked out, and what they cost at worst.
fn launched(
    snapshot: &Snapshot,
    nodes: &[&Candidate<'_>],
    claims: Vec<NewClaim>,
) -> Result<(Vec<NewClaim>, f64), String> {
    let all_spot = nodes
        .iter()
        .all(|candidate| candidate.capacity_type == labels::CAPACITY_SPOT);
    let mut worst = 0.0;
    let mut launched = Vec::new();
    for mut claim in claims {
        let mut requirements = Requirements::from_specs(&claim.requirements);
        if requirements.has_min_values() {
            return Err("minValues asks for more than the cheapest type".to_owned());
        }
        let allows = |value: &str| {
            let own = requirements.get(labels::CAPACITY_TYPE);
            own.is_none_or(|own| own.has(value))
        };
        let allows_spot = allows(labels::CAPACITY_SPOT);
        if all_spot && allows_spot && !snapshot.options.spot_to_spot_consolidation {
            return Err(NO_SPOT_TO_SPOT.to_owned());
        }
        let name = claim.instance_types.first().cloned().unwrap_or_default();
        let kinds = snapshot.instance_types.get(&claim.node_pool);
        let kind = kinds.and_then(|kinds| kinds.iter().find(|kind| kind.name == name));
        if allows_spot && allows(labels::CAPACITY_ON_DEMAND) {
            // What was worked out is the price of spot: if there is none, nothing should be launched in its place.
            let mut pinned = claim.requirements.clone();
            pinned.retain(|own| own.key != labels::CAPACITY_TYPE);
            pinned.push(RequirementSpec::new(
                labels::CAPACITY_TYPE,
                Operator::In,
                &[labels::CAPACITY_SPOT],
            ));
            let of_spot = Requirements::from_specs(&pinned);
            let price =
                |of: &Requirements| kind.map_or(f64::MAX, |kind| worst_price(kind, of, &snapshot.options));
            let is_spot = price(&of_spot) < f64::MAX && price(&of_spot) <= price(&requirements);
            if is_spot {
                (claim.requirements, requirements) = (pinned, of_spot);
            }
        }
        worst += kind.map_or(f64::MAX, |kind| {
            worst_price(kind, &requirements, &snapshot.options)
        });
        claim.instance_types = vec![name].into();
        launched.push(claim);
    }
    Ok((launched, worst))
}

/// What a type costs at most, in the capacity type it would be launched as: reserved, else spot, else on demand.
fn worst_price(kind: &InstanceType, requirements: &Requirements, options: &Options) -> f64 {
    let well_known = &options.well_known_labels;
    let priced = |capacity_type: &str| {
        let launchable = |offering: &&Offering| {
            let own = Requirements::from_specs(&offering.requirements);
            let is_own = own
                .get(labels::CAPACITY_TYPE)
                .is_some_and(|own| own.has(capacity_type));
            let free = capacity_type != labels::CAPACITY_RESERVED || offering.reservation_capacity > 0;
            is_own
                && free
                && offering.available
                && requirements
                    .compatible(&own, Undefined::WellKnown(well_known))
                    .is_ok()
        };
        let prices = kind.offerings.iter().filter(launchable);
        prices.map(|offering| offering.price).collect::<Vec<f64>>()
    };
    let by_type = [
        labels::CAPACITY_RESERVED,
        labels::CAPACITY_SPOT,
        labels::CAPACITY_ON_DEMAND,
    ]
    .map(priced);
    let price = if options.improvements.cheapest_is_launched {
        by_type.into_iter().flatten().min_by(f64::total_cmp)
    } else {
        by_type
            .into_iter()
            .find_map(|prices| prices.into_iter().max_by(f64::total_cmp))
    };
    price.unwrap_or(f64::MAX)
}
