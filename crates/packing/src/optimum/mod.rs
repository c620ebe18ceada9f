//! Plans that cost less, and how little any plan could cost. Pods are sorted into rows, offerings into kinds; column
//! generation finds the cheapest mix of fillings and with it what each pod is worth. That gives a bound which holds for every
//! plan, and a list of nodes to create; the engine places the pods by the list, under the same rules as ever. The ordinary plan
//! is the start and the answer wherever nothing cheaper is found.

mod bound;
mod columns;
mod dive;
mod improve;
mod knapsack;
mod poured;
mod problem;
mod reach;
mod simplex;
mod work;

use ahash::AHashSet;

use crate::default_spread;
use crate::engine::choice::EqualDomains;
use crate::engine::run::{Item, Run, RunOptions};
use crate::engine::world::World;
use crate::model::{PackingPolicy, Plan, Pod, Snapshot};
use crate::schedule::{Admitted, build, prepare};
use columns::{Columns, Mix};
use problem::Problem;
use work::Work;

/// How many steps are taken at most, unless the caller says otherwise.
pub const STEPS: u64 = 2_000_000_000;

/// What the optimiser came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub plan: Plan,
    /// Per hour, of the plan and of what the policy `karpenter` would have done.
    pub cost: f64,
    pub ordinary_cost: f64,
    /// No plan that places the same pods and keeps the preferences it can keep costs less.
    pub bound: f64,
}

/// What a plan has to keep beside every pod's rules.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// Nodes of other NodePools than those with the policy `cost` are only made as the ordinary plan makes them.
    pub by_policies: bool,
    /// Nodes that have been busy lately take only pods that wait.
    pub spare_busy_nodes: bool,
}

/// Decides where the pods go, at the least cost that is found within [`STEPS`], whatever policies the options and NodePools
/// name.
pub fn plan(snapshot: &Snapshot, pods: &[Pod]) -> Outcome {
    plan_within(snapshot, pods, STEPS, &mut || true)
}

/// The same as far as the policies allow. Where the ordinary plan makes nodes of a NodePool that is not to be packed at the
/// least cost, it is the answer: what the others hold depends on those.
pub fn plan_by_policies(snapshot: &Snapshot, pods: &[Pod]) -> Outcome {
    let rules = Rules {
        by_policies: true,
        ..Rules::default()
    };
    plan_under(snapshot, pods, rules, STEPS, &mut || true)
}

/// The same within a number of steps and as long as `go_on` says so. What is found by then is the answer.
pub fn plan_within(
    snapshot: &Snapshot,
    pods: &[Pod],
    steps: u64,
    go_on: &mut dyn FnMut() -> bool,
) -> Outcome {
    plan_under(snapshot, pods, Rules::default(), steps, go_on)
}

pub(crate) fn plan_under(
    snapshot: &Snapshot,
    pods: &[Pod],
    rules: Rules,
    steps: u64,
    go_on: &mut dyn FnMut() -> bool,
) -> Outcome {
    let mut work = Work::new(steps, go_on);
    let admitted = Admitted::new(snapshot, pods);
    let defaults = default_spread::constraints(snapshot, &admitted.accepted);
    let mut world = build(snapshot, pods);
    world.spare_busy_nodes = rules.spare_busy_nodes;
    let items = prepare(&mut world, &admitted.accepted, &defaults);
    let ordinary = crate::schedule::ordinary(&mut world, &items, &admitted.accepted, true);
    let ordinary_cost = cost(&ordinary.plan);
    let placed = |plan: &Plan| -> Vec<_> {
        let left: AHashSet<&str> = plan
            .unschedulable
            .iter()
            .map(|refusal| refusal.uid.as_str())
            .collect();
        let stays = |pod: usize| !left.contains(admitted.accepted[pod].metadata.uid.as_str());
        items.iter().copied().filter(|item| stays(item.pod)).collect()
    };
    let desired = placed(&ordinary.plan);
    let (problem, standing) = with_run(&mut world, |run| {
        let problem = Problem::new(run, &desired);
        let standing = bound::standing(run, &problem);
        (problem, standing)
    });
    let mut columns = Columns::new(
        &problem,
        |kind| &kind.desired,
        snapshot.options.packing_weights.node,
    );
    let mut search = improve::Search {
        world: &mut world,
        items: &items,
        pods: &admitted.accepted,
        problem: &problem,
        weight: snapshot.options.packing_weights.node,
        others: rules.by_policies.then(|| others(snapshot)),
        best: ordinary,
    };
    let mix = if search.may_improve() {
        search.improve(&mut columns, &mut work)
    } else {
        Mix::at(vec![0.0; problem.rows.len()])
    };
    let best = search.best;
    let reservations = &world.reservations.capacity;
    let mut bound = bound::lower_bound(&problem, &mix, &standing, reservations);
    let asked_for_less = |kind: &problem::Kind| kind.reservation.is_none() && kind.rows != kind.desired;
    if problem.kinds.iter().any(asked_for_less) || snapshot.options.packing_weights.node != 0.0 {
        bound = bound.max(bound_of(&problem, &standing, reservations, &mut work));
    }
    let plan = admitted.with_refusals(best.plan);
    Outcome {
        cost: cost(&plan),
        plan,
        ordinary_cost,
        bound,
    }
}

/// NodePools that are not to be packed at the least cost.
fn others(snapshot: &Snapshot) -> AHashSet<String> {
    snapshot
        .node_pools
        .iter()
        .filter(|pool| pool.packing(&snapshot.options) != PackingPolicy::Cost)
        .map(|pool| pool.metadata.name.clone())
        .collect()
}

/// How little a plan could cost that places every one of these pods that some node takes.
pub fn lower_bound(snapshot: &Snapshot, pods: &[Pod]) -> f64 {
    let admitted = Admitted::new(snapshot, pods);
    let defaults = default_spread::constraints(snapshot, &admitted.accepted);
    let mut world = build(snapshot, pods);
    let items = prepare(&mut world, &admitted.accepted, &defaults);
    let (problem, standing) = with_run(&mut world, |run| {
        let problem = Problem::new(run, &items);
        let standing = bound::standing(run, &problem);
        (problem, standing)
    });
    let go_on = &mut || true;
    bound_of(
        &problem,
        &standing,
        &world.reservations.capacity,
        &mut Work::new(STEPS, go_on),
    )
}

/// The bound by prices that are made for it: of every offering that some valid plan could use.
fn bound_of(problem: &Problem, standing: &[bound::Spare], reservations: &[u32], work: &mut Work<'_>) -> f64 {
    let left: Vec<u32> = problem.rows.iter().map(|row| row.count).collect();
    let mix = if left.len() > improve::MIXED {
        Mix::at(poured::poured(problem, &left, 0.0).0)
    } else {
        Columns::new(problem, |kind| &kind.rows, 0.0).mix(&left, work)
    };
    bound::lower_bound(problem, &mix, standing, reservations)
}

/// By class, what a pod costs at least if pods are poured into new nodes like water; nothing where no new node takes it.
pub(crate) fn worth_of(world: &mut World<'_>, items: &[Item]) -> Vec<f64> {
    let problem = with_run(world, |run| Problem::new(run, items));
    let left: Vec<u32> = problem.rows.iter().map(|row| row.count).collect();
    let (prices, _) = poured::poured(&problem, &left, 0.0);
    let price = |row: &Option<(usize, usize)>| row.map_or(0.0, |(row, _)| prices[row]);
    problem.row_of.iter().map(price).collect()
}

pub(crate) fn cost(plan: &Plan) -> f64 {
    plan.new_claims.iter().map(|claim| claim.cheapest_price).sum()
}

/// Asks a run that places nothing.
fn with_run<T>(world: &mut World<'_>, ask: impl FnOnce(&mut Run<'_, '_>) -> T) -> T {
    let options = RunOptions {
        reserved: world.options.reserved_offering_mode,
        freed_reservation: None,
        spare_busy_nodes: world.spare_busy_nodes,
        equal_domains: EqualDomains::FirstByName,
        least_cost: false,
    };
    let mut run = Run::new(world, options);
    let answer = ask(&mut run);
    run.undo();
    answer
}
