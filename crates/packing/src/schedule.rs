//! `schedule(snapshot, pods) -> plan`.

use ahash::AHashSet;

use crate::default_spread;
use crate::engine::choice::EqualDomains;
use crate::engine::guided::{Rows, Target};
use crate::engine::run::{Item, Refused, Run, RunOptions};
use crate::engine::which_claim::KEEP_THEIR_ORDER;
use crate::engine::world::World;
use crate::model::{
    NodePool, PackingPolicy, Plan, Pod, PodRefusal, RefusalReason, Snapshot, TopologySpreadConstraint,
};
use crate::resources::amount;
use crate::storage::Storage;
use crate::validate;

/// Decides where the pods go and what has to be created for them.
pub fn schedule(snapshot: &Snapshot, pods: &[Pod]) -> Plan {
    let at_the_least_cost = |pool: &NodePool| pool.packing(&snapshot.options) == PackingPolicy::Cost;
    if snapshot.node_pools.iter().any(at_the_least_cost) {
        return crate::optimum::plan_by_policies(snapshot, pods).plan;
    }
    let admitted = Admitted::new(snapshot, pods);
    let defaults = default_spread::constraints(snapshot, &admitted.accepted);
    let mut world = build(snapshot, pods);
    let items = prepare(&mut world, &admitted.accepted, &defaults);
    let attempt = ordinary(&mut world, &items, &admitted.accepted, false);
    admitted.with_refusals(attempt.plan)
}

/// The pods that are considered, and what is said to the others.
pub(crate) struct Admitted<'a> {
    pub accepted: Vec<&'a Pod>,
    refusals: Vec<PodRefusal>,
}

impl<'a> Admitted<'a> {
    pub fn new(snapshot: &Snapshot, pods: &'a [Pod]) -> Self {
        let storage = Storage::new(snapshot);
        let mut refusals: Vec<PodRefusal> = Vec::new();
        let mut accepted: Vec<&Pod> = Vec::with_capacity(pods.len());
        for pod in pods {
            let refuse = |reason, message| PodRefusal {
                pod: pod.metadata.reference(),
                uid: pod.metadata.uid.clone(),
                reason,
                message,
                candidates: Vec::new(),
            };
            let problem = if pod.spec.node_name.is_empty() {
                validate::problem(pod, &snapshot.options, &storage)
            } else {
                None
            };
            if let Some(problem) = problem {
                refusals.push(refuse(RefusalReason::Invalid, format!("ignoring pod, {problem}")));
            } else if snapshot.options.ignore_dynamic_resources && pod.has_dynamic_resources() {
                let message =
                    "pod has Dynamic Resource Allocation requirements that are not simulated".to_owned();
                refusals.push(refuse(RefusalReason::DynamicResources, message));
            } else {
                accepted.push(pod);
            }
        }
        Admitted { accepted, refusals }
    }

    pub fn with_refusals(self, mut plan: Plan) -> Plan {
        let mut refusals = self.refusals;
        refusals.append(&mut plan.unschedulable);
        plan.unschedulable = refusals;
        plan
    }
}

/// The cluster before any of the pods is placed.
pub(crate) fn build<'a>(snapshot: &'a Snapshot, pods: &[Pod]) -> World<'a> {
    let moving: AHashSet<&str> = pods.iter().map(|pod| pod.metadata.uid.as_str()).collect();
    World::build(snapshot, &moving)
}

/// What came of one run.
pub(crate) struct Attempt {
    pub plan: Plan,
    /// Of equal domains one was taken, and there are so few claims that the price had no say in which of them a pod went to.
    may_improve: bool,
    /// Pods that went to nodes that stand.
    pub on_nodes: Vec<Item>,
}

/// Gives a list of nodes to create for pods, and rows by which it says what they hold.
pub(crate) type List<'l> = (&'l mut dyn FnMut(&[Item]) -> Vec<Target>, Rows<'l>);

/// Karpenter's plan, or one that is better in no way worse. With `again` the world is left as it was before.
pub(crate) fn ordinary(world: &mut World<'_>, items: &[Item], pods: &[&Pod], again: bool) -> Attempt {
    let first = attempt(world, items, pods, EqualDomains::FirstByName, None, again);
    if first.may_improve {
        let other = attempt(world, items, pods, EqualDomains::FewestClaims, None, again);
        if is_better(&other.plan, &first.plan) {
            return other;
        }
    }
    first
}

/// One run over a world, by a list if there is one. The world is then as it was before, if `again` asks for it or another run
/// could do better.
pub(crate) fn attempt(
    world: &mut World<'_>,
    items: &[Item],
    pods: &[&Pod],
    equal_domains: EqualDomains,
    list: Option<List<'_>>,
    again: bool,
) -> Attempt {
    let name_of = |item: Item| pods[item.pod].metadata.reference();
    let options = RunOptions {
        reserved: world.options.reserved_offering_mode,
        freed_reservation: None,
        spare_busy_nodes: world.spare_busy_nodes,
        equal_domains,
        least_cost: list.is_some(),
    };
    let mut run = Run::new(world, options);
    let left = match list {
        Some((more, row_of)) => run.solve_guided(items, row_of, more),
        None => run.solve(items),
    };
    let mut plan = Plan {
        existing: run.world.assignments(&run.on_nodes, &name_of),
        ..Plan::default()
    };
    let mut explained: ahash::AHashMap<usize, (String, Vec<crate::model::CandidateRefusal>)> =
        ahash::AHashMap::new();
    for (item, refused) in left {
        let (message, candidates) = explained
            .entry(item.class)
            .or_insert_with(|| run.explain(item.class))
            .clone();
        let (reason, message) = match refused {
            Refused::Unschedulable => (RefusalReason::Unschedulable, message),
            Refused::ReservedPending => (
                RefusalReason::ReservedCapacityPending,
                "reserved capacity fits the pod but could not be reserved in this round".to_owned(),
            ),
        };
        plan.unschedulable.push(PodRefusal {
            pod: name_of(item),
            uid: pods[item.pod].metadata.uid.clone(),
            reason,
            message,
            candidates,
        });
    }
    for finished in run.finish_claims(&name_of) {
        match finished.problem {
            None => plan.new_claims.push(finished.claim),
            Some(problem) => plan
                .unschedulable
                .extend(finished.items.iter().map(|item| PodRefusal {
                    pod: name_of(*item),
                    uid: pods[item.pod].metadata.uid.clone(),
                    reason: RefusalReason::Unschedulable,
                    message: problem.clone(),
                    candidates: Vec::new(),
                })),
        }
    }
    let may_improve = run.domains_were_equal && run.claims.len() <= KEEP_THEIR_ORDER;
    let on_nodes = run.on_nodes.iter().map(|(_, item)| *item).collect();
    if may_improve || again {
        run.undo();
    }
    Attempt {
        plan,
        may_improve,
        on_nodes,
    }
}

/// Whether a plan leaves no more pods, creates no more nodes and costs no more than another, and less of one of them.
fn is_better(plan: &Plan, other: &Plan) -> bool {
    let cost = |plan: &Plan| -> f64 { plan.new_claims.iter().map(|claim| claim.cheapest_price).sum() };
    let (left, more_left) = (plan.unschedulable.len(), other.unschedulable.len());
    let (claims, more_claims) = (plan.new_claims.len(), other.new_claims.len());
    let saved = cost(other) - cost(plan);
    left <= more_left
        && claims <= more_claims
        && saved > -ROUNDING
        && (left < more_left || claims < more_claims || saved > ROUNDING)
}

/// Prices that differ by less are the same, added up in another order.
pub(crate) const ROUNDING: f64 = 1e-9;

/// Sorts pods into classes and into the order in which they are tried: the largest first.
pub(crate) fn prepare<'a>(
    world: &mut World<'a>,
    pods: &[&'a Pod],
    defaults: &'a [Option<Vec<TopologySpreadConstraint>>],
) -> Vec<Item> {
    let spread_of = |index: usize, pod: &'a Pod| -> &'a [TopologySpreadConstraint] {
        defaults[index]
            .as_deref()
            .unwrap_or(&pod.spec.topology_spread_constraints)
    };
    for (index, pod) in pods.iter().enumerate() {
        world.note_selectors(pod, spread_of(index, pod));
    }
    for index in 0..world.bound.len() {
        world.note_selectors(world.bound[index].pod, &[]);
    }
    world.index_bound_pods();
    world.add_running_anti_affinity();
    let leaving: AHashSet<&str> = world
        .all_nodes
        .iter()
        .filter(|(state, ..)| state.deleting())
        .filter_map(|(state, ..)| state.node.map(|node| node.metadata.name.as_str()))
        .collect();
    let mut items: Vec<Item> = pods
        .iter()
        .enumerate()
        .map(|(index, pod)| {
            let waits = pod.spec.node_name.is_empty() || leaving.contains(pod.spec.node_name.as_str());
            Item {
                pod: index,
                class: world.class(pod, spread_of(index, pod), waits),
            }
        })
        .collect();
    world.finish_pools();
    world.link_classes();
    let (cpu, memory) = (0, 1);
    items.sort_by(|left, right| {
        let (one, other) = (
            &world.classes[left.class].requests,
            &world.classes[right.class].requests,
        );
        let (one_pod, other_pod) = (&pods[left.pod].metadata, &pods[right.pod].metadata);
        amount(other, cpu)
            .cmp(&amount(one, cpu))
            .then_with(|| amount(other, memory).cmp(&amount(one, memory)))
            .then_with(|| one_pod.creation_timestamp.cmp(&other_pod.creation_timestamp))
            .then_with(|| one_pod.uid.cmp(&other_pod.uid))
            .then_with(|| left.pod.cmp(&right.pod))
    });
    items
}
