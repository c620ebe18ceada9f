//! The methods in their order: unhealthy nodes, empty ones, drifted ones, many nodes at once, one node at a time.

use std::collections::{BTreeMap, BTreeSet};

use ahash::{AHashMap, AHashSet};

use super::candidates::{self, Candidate, Class};
use super::command::{Command, Decision, Method, Outcome};
use super::consolidate::{Found, Move, Others, Replacement, consolidate, keep_cheaper};
use super::eviction::leaving_pods;
use super::score::{Totals, is_worth_it};
use crate::default_spread;
use crate::engine::run::Item;
use crate::engine::world::World;
use crate::model::{NodePool, PackingPolicy, Pod, Snapshot};
use crate::schedule::prepare;

/// At most this many nodes are considered together.
const MOST_TOGETHER: usize = 100;

/// Runs the methods in order and returns what the first one that found something decided.
pub fn next_command(snapshot: &Snapshot, pending: &[Pod]) -> Outcome {
    let mut last = Outcome::default();
    for method in Method::ALL {
        let outcome = disrupt(snapshot, pending, method);
        if outcome.command.is_some() {
            return outcome;
        }
        last.blocked.extend(outcome.blocked);
        last.constrained_by_budgets |= outcome.constrained_by_budgets;
        last.allowed = outcome.allowed;
    }
    last
}

/// What one method would do now.
pub fn disrupt(snapshot: &Snapshot, pending: &[Pod], method: Method) -> Outcome {
    disrupt_among(snapshot, pending, method, None)
}

/// What one method would do now if only these nodes could go: whether what was decided a while ago still holds.
pub fn disrupt_among(
    snapshot: &Snapshot,
    pending: &[Pod],
    method: Method,
    among: Option<&BTreeSet<String>>,
) -> Outcome {
    let is_static = |pool: &NodePool| pool.spec.replicas.is_some();
    let has_no_work = match method {
        Method::Repair => snapshot.repair_policies.is_empty(),
        Method::StaticDrift => !snapshot.node_pools.iter().any(is_static),
        Method::CostConsolidation => !snapshot
            .node_pools
            .iter()
            .any(|pool| pool.packing(&snapshot.options) == PackingPolicy::Cost),
        _ => false,
    };
    if has_no_work {
        return Outcome::default();
    }
    let leaving: Vec<&Pod> = leaving_pods(snapshot);
    let moving: AHashSet<&str> = leaving
        .iter()
        .copied()
        .chain(pending)
        .map(|pod| pod.metadata.uid.as_str())
        .collect();
    let movable: Vec<&Pod> = snapshot
        .bound_pods
        .iter()
        .filter(|pod| pod.is_reschedulable() && !moving.contains(pod.metadata.uid.as_str()))
        .collect();
    let mut pods: Vec<&Pod> = pending.iter().chain(leaving.iter().copied()).collect();
    pods.extend(&movable);
    let defaults = default_spread::constraints(snapshot, &pods);
    let mut world = World::build(snapshot, &moving);
    // Every pod that could move gets a class now: the world is built once for all probes.
    let items = prepare(&mut world, &pods, &defaults);
    let mut rank: Vec<usize> = vec![0; pods.len()];
    let mut by_pod: Vec<Option<Item>> = vec![None; pods.len()];
    for (position, item) in items.iter().enumerate() {
        rank[item.pod] = position;
        by_pod[item.pod] = Some(*item);
    }
    let item = |index: usize| by_pod[index].expect("every pod has an item");
    let others = Others {
        pending: (0..pending.len()).map(item).collect(),
        leaving: (pending.len()..pending.len() + leaving.len()).map(item).collect(),
    };
    let first_bound = pending.len() + leaving.len();
    let place: AHashMap<&str, usize> = movable
        .iter()
        .enumerate()
        .map(|(index, pod)| (pod.metadata.uid.as_str(), index))
        .collect();
    let item_of: AHashMap<usize, Item> = world
        .bound
        .iter()
        .enumerate()
        .filter_map(|(bound, data)| {
            let index = place.get(data.pod.metadata.uid.as_str())?;
            Some((bound, item(first_bound + index)))
        })
        .collect();
    let order = |_: &World<'_>, items: &mut Vec<Item>| items.sort_by_key(|item| rank[item.pod]);

    let class = match method {
        Method::Repair => Class::Repair,
        Method::StaticDrift | Method::Drift => Class::Eventual,
        _ => Class::Graceful,
    };
    let (mut found, blocked) = candidates::candidates(&world, &item_of, class);
    let allowed = candidates::budgets(&world, method.reason());
    let totals = candidates::totals(&world, &found);
    if let Some(among) = among {
        found.retain(|candidate| among.contains(candidate.name));
    }
    let mut outcome = Outcome {
        blocked: blocked.into_iter().collect(),
        allowed: allowed
            .iter()
            .map(|(pool, count)| (pool.clone(), *count))
            .collect(),
        ..Outcome::default()
    };
    let name_of = |item: &str| {
        pods[item.parse::<usize>().expect("an index")]
            .metadata
            .reference()
    };
    let mut search = Search {
        world: &mut world,
        others: &others,
        order: &order,
        pods: &pods,
        policy: if method == Method::CostConsolidation {
            PackingPolicy::Cost
        } else {
            PackingPolicy::Karpenter
        },
        allowed,
        totals,
        outcome: &mut outcome,
    };
    let commands: Vec<Command> = match method {
        Method::Repair => search.repair(found).into_iter().collect(),
        Method::Emptiness => search.emptiness(found).into_iter().collect(),
        Method::StaticDrift => search.static_drift(&found),
        Method::Drift => search.drift(&found).into_iter().collect(),
        Method::CostConsolidation => search.at_the_least_cost(&found).into_iter().collect(),
        Method::MultiNodeConsolidation => search.many(found).into_iter().collect(),
        Method::SingleNodeConsolidation => search.one(found).into_iter().collect(),
    };
    let mut commands = commands.into_iter().map(|mut command| {
        for claim in &mut command.replacements {
            claim.pods = claim.pods.iter().map(|pod| name_of(pod)).collect();
        }
        for node in &mut command.existing {
            node.pods = node.pods.iter().map(|pod| name_of(pod)).collect();
        }
        command
    });
    outcome.command = commands.next();
    outcome.beside = commands.collect();
    outcome
}

pub(super) struct Search<'r, 'a> {
    pub world: &'r mut World<'a>,
    pub others: &'r Others,
    pub order: &'r dyn Fn(&World<'_>, &mut Vec<Item>),
    /// By the place that items name.
    pub pods: &'r [&'a Pod],
    /// Consolidation is for nodes of NodePools with this policy.
    policy: PackingPolicy,
    pub allowed: AHashMap<String, usize>,
    totals: AHashMap<String, Totals>,
    pub outcome: &'r mut Outcome,
}

impl<'a> Search<'_, 'a> {
    /// Takes one off the pool's budget, if anything is left of it.
    pub fn spend(&mut self, candidate: &Candidate<'_>) -> bool {
        let left = self
            .allowed
            .entry(candidate.pool.metadata.name.clone())
            .or_default();
        if *left == 0 {
            self.outcome.constrained_by_budgets = true;
            return false;
        }
        *left -= 1;
        true
    }

    pub fn has_budget(&mut self, candidate: &Candidate<'_>) -> bool {
        let left = self
            .allowed
            .get(&candidate.pool.metadata.name)
            .copied()
            .unwrap_or(0);
        self.outcome.constrained_by_budgets |= left == 0;
        left > 0
    }

    pub fn block(&mut self, candidate: &Candidate<'_>, why: &str) {
        self.outcome
            .blocked
            .insert(candidate.name.to_owned(), why.to_owned());
    }

    pub fn command(&mut self, method: Method, nodes: &[&Candidate<'_>], found: &Move) -> Command {
        let mut savings: f64 = nodes.iter().map(|candidate| candidate.price).sum();
        let replacements = &found.replacements;
        for replacement in replacements {
            savings -= replacement.price(self.world);
        }
        Command {
            method,
            reason: method.reason(),
            decision: if replacements.is_empty() {
                Decision::Delete
            } else {
                Decision::Replace
            },
            nodes: nodes.iter().map(|candidate| candidate.name.to_owned()).collect(),
            replacements: replacements
                .iter()
                .map(|replacement| replacement.claim(self.world))
                .collect(),
            existing: self
                .world
                .assignments(&found.on_nodes, &|item| item.pod.to_string()),
            savings,
            terminate_first: None,
            termination_grace_seconds: None,
            unhealthy: None,
        }
    }

    fn emptiness(&mut self, mut found: Vec<Candidate<'a>>) -> Option<Command> {
        sort_by_ratio(&mut found);
        let mut empty = Vec::new();
        for candidate in &found {
            if candidate.is_static() {
                continue;
            }
            if consolidation_disabled(candidate) {
                self.block(
                    candidate,
                    &format!(
                        "NodePool {:?} has consolidation disabled",
                        candidate.pool.metadata.name
                    ),
                );
            } else if candidate.is_empty()
                && !candidate.buffered
                && candidate.consolidatable
                && self.spend(candidate)
            {
                empty.push(candidate);
            }
        }
        (!empty.is_empty()).then(|| self.command(Method::Emptiness, &empty, &Move::default()))
    }

    pub fn consolidatable(&mut self, found: Vec<Candidate<'a>>) -> Vec<Candidate<'a>> {
        let mut kept: Vec<Candidate<'a>> = found
            .into_iter()
            .filter(|candidate| {
                if candidate.is_static()
                    || candidate.is_empty()
                    || candidate.pool.packing(&self.world.options) != self.policy
                {
                    return false;
                }
                let pool = &candidate.pool.metadata.name;
                let problem = if candidate.type_index.is_none() {
                    Some("its instance type is not found".to_owned())
                } else if candidate.capacity_type.is_empty() {
                    Some("Node does not have label \"karpenter.sh/capacity-type\"".to_owned())
                } else if candidate.zone.is_empty() && !candidate.is_offered {
                    Some("Node does not have label \"topology.kubernetes.io/zone\"".to_owned())
                } else if consolidation_disabled(candidate) {
                    Some(format!("NodePool {pool:?} has consolidation disabled"))
                } else if candidate.pool.spec.disruption.consolidation_policy == "WhenEmpty" {
                    Some(format!(
                        "NodePool {pool:?} has consolidation policy WhenEmpty, but node is not empty"
                    ))
                } else {
                    None
                };
                if let Some(problem) = &problem {
                    self.block(candidate, problem);
                }
                problem.is_none() && candidate.consolidatable
            })
            .collect();
        sort_by_ratio(&mut kept);
        kept
    }

    /// Whether enough is saved. Pools that want a balance between savings and disruption have a say.
    fn is_worth_it(&mut self, nodes: &[&Candidate<'_>], replacements: &[Replacement]) -> bool {
        let target = replacements
            .iter()
            .map(|replacement| replacement.price(self.world))
            .sum();
        self.is_worth(nodes, target)
    }

    /// The same for what comes in place of the nodes at this price.
    pub fn is_worth(&self, nodes: &[&Candidate<'_>], target: f64) -> bool {
        let source: f64 = nodes.iter().map(|candidate| candidate.price).sum();
        let savings = source - target;
        let minimum = self.world.options.minimum_savings;
        if savings < minimum.per_hour || savings < source * minimum.percent / 100.0 {
            return false;
        }
        let pools: BTreeSet<&str> = nodes
            .iter()
            .map(|candidate| candidate.pool.metadata.name.as_str())
            .collect();
        pools.iter().all(|pool| {
            let own: Vec<&&Candidate<'_>> = nodes
                .iter()
                .filter(|candidate| candidate.pool.metadata.name == *pool)
                .collect();
            if own[0].pool.spec.disruption.consolidation_policy != "Balanced" {
                return true;
            }
            let cost: f64 = own.iter().map(|candidate| candidate.price).sum();
            let share = if pools.len() > 1 && source > 0.0 {
                savings * cost / source
            } else {
                savings
            };
            let disruption = own.iter().map(|candidate| candidate.cost).sum();
            is_worth_it(
                share,
                disruption,
                self.totals.get(*pool).copied().unwrap_or_default(),
            )
        })
    }

    pub fn one(&mut self, found: Vec<Candidate<'a>>) -> Option<Command> {
        let found = self.consolidatable(found);
        for candidate in interleaved(&found) {
            if !self.has_budget(candidate) || !self.could_be_worth_it(candidate) {
                continue;
            }
            match consolidate(self.world, &[candidate], self.others, self.order) {
                Found::Nothing(why) => self.block(candidate, &why),
                Found::Move(found) => {
                    if self.is_worth_it(&[candidate], &found.replacements) {
                        return Some(self.command(Method::SingleNodeConsolidation, &[candidate], &found));
                    }
                    self.block(candidate, "the move saves too little for what it disrupts");
                }
            }
        }
        None
    }

    /// Deleting is the best a move can do; if that is not worth it, nothing is.
    fn could_be_worth_it(&self, candidate: &Candidate<'_>) -> bool {
        let totals = self
            .totals
            .get(&candidate.pool.metadata.name)
            .copied()
            .unwrap_or_default();
        candidate.price >= self.world.options.minimum_savings.per_hour
            && (candidate.pool.spec.disruption.consolidation_policy != "Balanced"
                || totals.cost <= 0.0
                || is_worth_it(candidate.price, candidate.cost, totals))
    }

    pub fn many(&mut self, found: Vec<Candidate<'a>>) -> Option<Command> {
        let found = self.consolidatable(found);
        let mut within = Vec::new();
        for candidate in &found {
            if self.spend(candidate) {
                within.push(candidate);
            }
        }
        if within.len() < 2 {
            return None;
        }
        let (mut low, mut high) = (1, within.len().min(MOST_TOGETHER + 1) - 1);
        let mut best = None;
        while low <= high {
            let middle = usize::midpoint(low, high);
            let nodes = &within[..=middle];
            let found = match consolidate(self.world, nodes, self.others, self.order) {
                Found::Nothing(_) => None,
                Found::Move(found) => self.unlike_the_old(nodes, found),
            };
            let approved = found.filter(|found| self.is_worth_it(nodes, &found.replacements));
            if let Some(found) = approved {
                best = Some((middle, found));
                low = middle + 1;
            } else {
                high = middle - 1;
            }
        }
        let (middle, found) = best?;
        Some(self.command(Method::MultiNodeConsolidation, &within[..=middle], &found))
    }

    /// A replacement of a type that is being removed would only be the old node again: it has to be cheaper than that.
    fn unlike_the_old(&mut self, nodes: &[&Candidate<'_>], mut found: Move) -> Option<Move> {
        if let [replacement] = found.replacements.as_mut_slice() {
            let pool = &self.world.pools[replacement.finished.pool];
            let mut ceiling = f64::MAX;
            for index in replacement.finished.types.iter() {
                let name = &pool.types[*index].name;
                for candidate in nodes {
                    let own = candidate.pool_index.zip(candidate.type_index);
                    if own.is_some_and(|(pool, own)| self.world.pools[pool].types[own].name == *name) {
                        ceiling = ceiling.min(candidate.price);
                    }
                }
            }
            keep_cheaper(self.world, &mut replacement.finished, ceiling).ok()?;
        }
        Some(found)
    }
}

pub(super) fn consolidation_disabled(candidate: &Candidate<'_>) -> bool {
    candidate.pool.spec.disruption.consolidate_after.as_deref() == Some("Never")
}

/// The most saved for what is disrupted comes first; names settle ties.
pub(super) fn sort_by_ratio(candidates: &mut [Candidate<'_>]) {
    candidates.sort_by(|left, right| {
        right
            .ratio()
            .total_cmp(&left.ratio())
            .then_with(|| left.name.cmp(right.name))
    });
}

/// Takes turns between pools, so that one large pool does not hold up the others.
fn interleaved<'c, 'a>(candidates: &'c [Candidate<'a>]) -> Vec<&'c Candidate<'a>> {
    let mut by_pool: BTreeMap<&str, Vec<&Candidate<'a>>> = BTreeMap::new();
    for candidate in candidates {
        by_pool
            .entry(&candidate.pool.metadata.name)
            .or_default()
            .push(candidate);
    }
    let longest = by_pool.values().map(Vec::len).max().unwrap_or(0);
    (0..longest)
        .flat_map(|turn| {
            by_pool
                .values()
                .filter_map(move |own| own.get(turn).copied())
                .collect::<Vec<_>>()
        })
        .collect()
}
