//! Lists of nodes, played by the engine; the cheapest plan that comes of it is kept.

use ahash::AHashSet;

use super::columns::{Columns, Mix};
use super::cost;
use super::dive::{Bought, Known, greedily, polish, whole_nodes};
use super::poured::poured;
use super::problem::Problem;
use super::work::Work;
use crate::engine::choice::EqualDomains;
use crate::engine::guided::Target;
use crate::engine::run::Item;
use crate::engine::world::World;
use crate::model::{Plan, Pod};
use crate::schedule::{Attempt, ROUNDING, attempt};

/// Of what is left, the part that one filling may take at once, for each list that is tried.
const PARTS: [u32; 2] = [1, 4];
/// More rows are not mixed: it would take too long.
pub(super) const MIXED: usize = 100;

pub(super) struct Search<'s, 'a> {
    pub world: &'s mut World<'a>,
    pub items: &'s [Item],
    pub pods: &'s [&'a Pod],
    pub problem: &'s Problem,
    /// What a node less is worth.
    pub weight: f64,
    /// NodePools that no node is made of, if only some are to be packed at the least cost.
    pub others: Option<AHashSet<String>>,
    pub best: Attempt,
}

impl Search<'_, '_> {
    /// Whether the plan makes nodes of NodePools alone that are to be packed at the least cost.
    pub fn may_improve(&self) -> bool {
        self.keeps_to_its_pools(&self.best.plan)
    }

    fn keeps_to_its_pools(&self, plan: &Plan) -> bool {
        let is_other = |name: &str| self.others.as_ref().is_some_and(|others| others.contains(name));
        !plan.new_claims.iter().any(|claim| is_other(&claim.node_pool))
    }

    /// Looks for a cheaper plan. Returns the mix it began with.
    pub fn improve(&mut self, columns: &mut Columns<'_>, work: &mut Work<'_>) -> Mix {
        let mut left: Vec<u32> = self.problem.rows.iter().map(|row| row.count).collect();
        for (row, _) in self
            .best
            .on_nodes
            .iter()
            .filter_map(|item| self.problem.row_of[item.class])
        {
            left[row] = left[row].saturating_sub(1);
        }
        let (poured, _) = poured(self.problem, &left, self.weight);
        self.try_lists(&poured, &PARTS, &left, columns, work);
        if left.iter().filter(|left| **left > 0).count() > MIXED {
            return Mix::at(poured);
        }
        let mix = columns.mix(&left, work);
        self.try_lists(&mix.prices, &PARTS[..1], &left, columns, work);
        let bought = whole_nodes(self.problem, columns, &mix, &mut left, work);
        let bought = polish(self.problem, columns, &mix.prices, bought, work);
        self.play(bought, columns, work);
        mix
    }

    /// Lists by prices alone.
    fn try_lists(
        &mut self,
        prices: &[f64],
        parts: &[u32],
        left: &[u32],
        columns: &mut Columns<'_>,
        work: &mut Work<'_>,
    ) {
        for part in parts {
            if work.go_on(0) {
                let bought = greedily(
                    self.problem,
                    columns,
                    prices,
                    &mut left.to_vec(),
                    *part,
                    &mut Known::new(),
                    work,
                );
                let bought = polish(self.problem, columns, prices, bought, work);
                self.play(bought, columns, work);
            }
        }
    }

    /// Places the pods by a list and keeps what comes of it, if it is better. For pods that find nothing on the list it is
    /// made longer.
    fn play(&mut self, bought: Vec<Bought>, columns: &mut Columns<'_>, work: &mut Work<'_>) -> bool {
        let (problem, weight) = (self.problem, self.weight);
        let mut first = Some(bought);
        let mut more = |rest: &[Item]| -> Vec<Target> {
            let bought = first.take().unwrap_or_else(|| {
                let mut left = vec![0; problem.rows.len()];
                for (row, _) in rest.iter().filter_map(|item| problem.row_of[item.class]) {
                    left[row] += 1;
                }
                let (poured, _) = poured(problem, &left, weight);
                greedily(problem, columns, &poured, &mut left, 2, &mut Known::new(), work)
            });
            let target = |node: Bought| {
                let kind = &problem.kinds[node.kind];
                Target::new(kind.pool, kind.slot, node.filling)
            };
            bought.into_iter().map(target).collect()
        };
        let items = self.constrained_first();
        let list = (
            &mut more as &mut dyn FnMut(&[Item]) -> Vec<Target>,
            problem.row_of.as_slice(),
        );
        let played = attempt(
            self.world,
            &items,
            self.pods,
            EqualDomains::FewestClaims,
            Some(list),
            true,
        );
        let better = self.is_better(&played.plan);
        if better {
            self.best = played;
        }
        better
    }

    /// Pods that others decide about come first, pods that fit everywhere last: they fill what is left.
    fn constrained_first(&self) -> Vec<Item> {
        let world = &*self.world;
        let freedom = |item: &Item| {
            let class = &world.classes[item.class];
            let groups = &class.variants[0].groups;
            let by_host = |id: &usize| world.groups[*id].spec.key == world.interner.hostname;
            let by_own = |id: &usize| !by_host(id) && class.counted_by.binary_search(id).is_ok();
            if groups.iter().any(by_own) {
                0
            } else if !groups.iter().all(by_host) {
                1
            } else if groups.is_empty() && class.kept_away_by.is_empty() {
                3
            } else {
                2
            }
        };
        let mut items = self.items.to_vec();
        items.sort_by_key(freedom);
        items
    }

    /// Whether a plan leaves no pod that the best one places, costs no more, and is worth more with nodes weighed.
    fn is_better(&self, plan: &Plan) -> bool {
        let weighed = |plan: &Plan| cost(plan) + self.weight * plan.new_claims.len() as f64;
        let best = &self.best.plan;
        let known: AHashSet<&str> = best
            .unschedulable
            .iter()
            .map(|refusal| refusal.uid.as_str())
            .collect();
        plan.unschedulable
            .iter()
            .all(|refusal| known.contains(refusal.uid.as_str()))
            && self.keeps_to_its_pools(plan)
            && cost(plan) <= cost(best) + ROUNDING
            && weighed(plan) < weighed(best) - ROUNDING
    }
}
