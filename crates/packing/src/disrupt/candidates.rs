//! Nodes that could be given up: what they cost, what moving their pods costs, and what protects them.

use ahash::AHashMap;

use super::budget::{BudgetClock, Reason, allowed_disruptions};
use super::eviction;
use super::score::{BASE_COST, Totals, reschedule_cost};
use crate::engine::nodes::ExistingNode;
use crate::engine::run::Item;
use crate::engine::world::World;
use crate::labels;
use crate::model::{InstanceType, Node, NodeClaim, NodePool, Offering, Pod, Snapshot, StringMap};
use crate::time::epoch_seconds;

/// How strict a method is about pods that must not be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Never moves them.
    Graceful,
    /// Moves them in the end where the claim has a termination grace period.
    Eventual,
    /// Moves them in the end where the claim or the repair has a termination grace period, and looks for places for them at
    /// once. What asks not to be disrupted, and what never came up, is repaired all the same.
    Repair,
}

#[derive(Clone, Debug)]
pub(crate) struct Candidate<'a> {
    /// Among the world's nodes.
    pub node: usize,
    pub name: &'a str,
    pub own: &'a Node,
    pub claim: &'a NodeClaim,
    pub initialized: bool,
    pub pool: &'a NodePool,
    pub pool_index: Option<usize>,
    pub type_index: Option<usize>,
    pub capacity_type: &'a str,
    pub zone: &'a str,
    /// The reservation it is in, if it names one.
    pub reservation: Option<&'a str>,
    /// Its type is offered as what it is.
    pub is_offered: bool,
    pub price: f64,
    pub cost: f64,
    /// Pods that would move now.
    pub items: Vec<Item>,
    /// Why pods would not move by themselves.
    pub held_by: Option<String>,
    /// Pods that would move now or later.
    pub has_pods: bool,
    /// Room on it is kept for pods to come.
    pub buffered: bool,
    pub consolidatable: bool,
    pub drifted_since: Option<i64>,
}

impl Candidate<'_> {
    pub fn is_empty(&self) -> bool {
        self.cost <= BASE_COST
    }

    /// Savings for what it costs to disrupt.
    pub fn ratio(&self) -> f64 {
        self.price / self.cost
    }

    pub fn is_static(&self) -> bool {
        self.pool.spec.replicas.is_some()
    }
}

/// A node and why it stays.
pub(crate) type Blocked = (String, String);

/// `item_of` are the world's classes for running pods, by their place among the bound ones.
pub(crate) fn candidates<'a>(
    world: &World<'a>,
    item_of: &AHashMap<usize, Item>,
    class: Class,
) -> (Vec<Candidate<'a>>, Vec<Blocked>) {
    let snapshot = world.snapshot;
    let mut found = Vec::new();
    let mut blocked = Vec::new();
    for (index, node) in world.nodes.iter().enumerate() {
        let (Some(claim), own) = (node.state.claim, node.state.node) else {
            continue;
        };
        let mut refuse = |why: &str| blocked.push((node.name.to_owned(), why.to_owned()));
        let Some(own) = own else {
            refuse("nodeclaim does not have an associated node");
            continue;
        };
        if let Some(why) = why_it_stays(snapshot, node, own, class) {
            refuse(why);
            continue;
        }
        let labels_of = node.state.labels();
        let label = |key: &str| labels_of.get(key).map_or("", String::as_str);
        let pool_name = label(labels::NODE_POOL);
        if pool_name.is_empty() {
            refuse(match class {
                Class::Repair => "repair requires a NodePool to construct and budget a safe replacement",
                _ => "node doesn't have required label (label=karpenter.sh/nodepool)",
            });
            continue;
        }
        let pool = snapshot
            .node_pools
            .iter()
            .find(|pool| pool.metadata.name == pool_name);
        let types = snapshot.instance_types.get(pool_name);
        let (Some(pool), Some(types)) = (pool, types) else {
            refuse(&format!("NodePool not found (NodePool={pool_name})"));
            continue;
        };
        let pods: Vec<(usize, &Pod)> = node
            .pods
            .iter()
            .map(|bound| (*bound, world.bound[*bound].pod))
            .collect();
        let bounded = class == Class::Eventual && claim.spec.termination_grace_period.is_some();
        let held_by = pods.iter().find_map(|(_, pod)| eviction::blocker(snapshot, pod));
        if let Some(why) = held_by.as_ref().filter(|_| !bounded && class != Class::Repair) {
            refuse(why);
            continue;
        }
        let moving: Vec<(usize, &Pod)> = pods
            .into_iter()
            .filter(|(_, pod)| pod.is_reschedulable())
            .collect();
        let told = snapshot.offerings.get(&claim.metadata.name);
        let (kind, zone, capacity_type) = match told {
            Some(own) => (
                own.instance_type.as_str(),
                own.zone.as_str(),
                own.capacity_type.as_str(),
            ),
            None => (
                label(labels::INSTANCE_TYPE),
                label(labels::ZONE),
                label(labels::CAPACITY_TYPE),
            ),
        };
        let offering = offering(types, kind, zone, capacity_type);
        let type_index = node
            .pool
            .and_then(|pool| world.pools[pool].types.iter().position(|own| own.name == kind));
        let drifted = claim
            .condition("Drifted")
            .filter(|condition| condition.status == "True");
        found.push(Candidate {
            node: index,
            name: node.name,
            own,
            claim,
            initialized: node.initialized,
            pool,
            pool_index: node.pool,
            type_index,
            capacity_type,
            zone,
            reservation: labels_of
                .get(&world.options.reservation_label)
                .map(String::as_str),
            is_offered: offering.is_some(),
            // One price that is no number would spoil the sums of its whole pool.
            price: told
                .and_then(|own| own.price)
                .or(offering.map(|offering| offering.price))
                .filter(|price| price.is_finite())
                .unwrap_or(0.0),
            cost: reschedule_cost(moving.iter().map(|(_, pod)| *pod)),
            items: moving
                .iter()
                .filter(|(_, pod)| !bounded || !eviction::is_held_back(snapshot, pod))
                .filter_map(|(bound, _)| item_of.get(bound).copied())
                .collect(),
            held_by,
            has_pods: !moving.is_empty(),
            buffered: snapshot.buffered_nodes.iter().any(|name| name == node.name),
            consolidatable: claim.is_true("Consolidatable"),
            drifted_since: drifted.map(|condition| {
                condition
                    .last_transition_time
                    .as_deref()
                    .and_then(epoch_seconds)
                    .unwrap_or(0)
            }),
        });
    }
    (found, blocked)
}

/// What the node itself says against its going, whatever its pool and pods.
fn why_it_stays<'a>(
    snapshot: &'a Snapshot,
    node: &ExistingNode<'_>,
    own: &Node,
    class: Class,
) -> Option<&'a str> {
    let is_set = |of: &StringMap, key: &str| of.get(key).is_some_and(|value| value == "true");
    if node.state.rebooting() {
        return Some("node is rebooting");
    }
    if !node.initialized {
        if !is_set(&own.metadata.labels, labels::REGISTERED) {
            return Some("node isn't initialized nor registered");
        }
        // Pods are promised to it again and again, and it never comes up: nothing else would replace it.
        return (class != Class::Repair).then_some("node isn't initialized");
    }
    if snapshot.nominated_nodes.iter().any(|name| name == node.name) {
        return Some("node is nominated for a pending pod");
    }
    if class != Class::Repair && is_set(&own.metadata.annotations, labels::DO_NOT_DISRUPT) {
        return Some("disruption is blocked through the \"karpenter.sh/do-not-disrupt\" annotation");
    }
    let kept = snapshot.kept_nodes.get(node.name).map(String::as_str);
    kept.filter(|_| class == Class::Graceful)
}

/// What an instance type is offered as there. Where there are no zones, an offering is in none.
fn offering<'a>(
    types: &'a [InstanceType],
    name: &str,
    zone: &str,
    capacity_type: &str,
) -> Option<&'a Offering> {
    let offered = |offering: &&Offering| {
        let has = |key: &str, value: &str| {
            let own = offering.requirements.iter().find(|own| own.key == key);
            own.is_some_and(|own| own.values.first().map_or("", String::as_str) == value)
        };
        has(labels::ZONE, zone) && has(labels::CAPACITY_TYPE, capacity_type)
    };
    let kind = types.iter().find(|kind| kind.name == name)?;
    kind.offerings.iter().find(offered)
}

/// How many nodes of each pool may go for this reason, after those that are already going.
pub(crate) fn budgets(world: &World<'_>, reason: Reason) -> AHashMap<String, usize> {
    let mut counts: AHashMap<&str, (usize, usize)> = AHashMap::new();
    for (state, ..) in &world.all_nodes {
        let (Some(claim), Some(node)) = (state.claim, state.node) else {
            continue;
        };
        if (!state.initialized() && !state.rebooting()) || claim.is_true("InstanceTerminating") {
            continue;
        }
        let Some(pool) = state.labels().get(labels::NODE_POOL) else {
            continue;
        };
        let ready = node
            .status
            .conditions
            .iter()
            .any(|own| own.kind == "Ready" && own.status == "True");
        let (total, going) = counts.entry(pool).or_default();
        *total += 1;
        if state.deleting() || state.rebooting() || (!ready && reason != Reason::Unhealthy) {
            *going += 1;
        }
    }
    let now = world.options.now.as_deref();
    world
        .snapshot
        .node_pools
        .iter()
        .map(|pool| {
            let (total, going) = counts
                .get(pool.metadata.name.as_str())
                .copied()
                .unwrap_or_default();
            let clock = match world.snapshot.budget_time_zones.get(&pool.metadata.name) {
                None => BudgetClock::Utc,
                Some(Some(offsets)) => BudgetClock::Offsets(offsets),
                Some(None) => BudgetClock::Unknown,
            };
            let allowed = allowed_disruptions(pool, total, reason, now, clock).saturating_sub(going);
            (pool.metadata.name.clone(), allowed)
        })
        .collect()
}

/// Cost and disruption of whole pools, candidates or not.
pub(crate) fn totals(world: &World<'_>, candidates: &[Candidate<'_>]) -> AHashMap<String, Totals> {
    let mut totals: AHashMap<String, Totals> = AHashMap::new();
    for candidate in candidates {
        totals
            .entry(candidate.pool.metadata.name.clone())
            .or_default()
            .cost += candidate.price;
    }
    for (index, node) in world.nodes.iter().enumerate() {
        let Some(pool) = node.state.labels().get(labels::NODE_POOL) else {
            continue;
        };
        let cost = candidates
            .iter()
            .find(|candidate| candidate.node == index)
            .map_or_else(
                || {
                    let pods = node.pods.iter().map(|bound| world.bound[*bound].pod);
                    reschedule_cost(pods.filter(|pod| !pod.is_owned_by_daemon_set()))
                },
                |candidate| candidate.cost,
            );
        totals.entry(pool.clone()).or_default().disruption += cost;
    }
    totals
}
