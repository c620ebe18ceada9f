//! From a mix that takes fillings in part to whole nodes: what is taken wholly is bought, the rest is mixed again, and in the
//! end the filling that gives most for its money is bought until nothing is left.

use super::columns::{Columns, Mix};
use super::knapsack::{Filling, Multipliers, candidates};
use super::problem::Problem;
use super::work::Work;

/// How often what is left is mixed again.
const MIXES: usize = 6;
/// How many steps one filling may take.
const EFFORT: u32 = 300;

/// How often some nodes of a list are bought again.
const POLISHED: usize = 24;

/// What is known of each kind at some prices.
pub(super) type Known = Vec<Option<Multipliers>>;

/// The most that a kind could be worth for its money, the kind, and rows that may come to it with how many of each.
type Ranked = (f64, usize, Vec<(usize, u32)>);

/// A node to buy.
#[derive(Clone, Debug)]
pub(super) struct Bought {
    pub kind: usize,
    pub filling: Filling,
}

/// Whole nodes for this many pods of each row, the prices of the first mix, and the pods of rows that nothing takes.
pub(super) fn whole_nodes(
    problem: &Problem,
    columns: &mut Columns<'_>,
    first: &Mix,
    left: &mut [u32],
    work: &mut Work<'_>,
) -> Vec<Bought> {
    let mut bought = Vec::new();
    let mut prices = first.prices.clone();
    take_whole(columns, first, left, &mut bought);
    for _ in 1..MIXES {
        if left.iter().all(|left| *left == 0) || !work.go_on(0) {
            break;
        }
        let mix = columns.mix(left, work);
        let before = bought.len();
        take_whole(columns, &mix, left, &mut bought);
        for (price, fresh) in prices.iter_mut().zip(&mix.prices) {
            if *fresh > 0.0 {
                *price = *fresh;
            }
        }
        if bought.len() == before {
            break;
        }
    }
    bought.extend(greedily(
        problem,
        columns,
        &prices,
        left,
        2,
        &mut Known::new(),
        work,
    ));
    bought
}

/// Whole nodes by prices alone: the filling that is worth most for its money, as often as a part of what is left allows, and
/// then the next.
pub(super) fn greedily(
    problem: &Problem,
    columns: &Columns<'_>,
    prices: &[f64],
    left: &mut [u32],
    part: u32,
    known: &mut Known,
    work: &mut Work<'_>,
) -> Vec<Bought> {
    let mut bought = Vec::new();
    while work.go_on(0)
        && let Some(best) = best_for_its_money(problem, columns, prices, left, known, work)
    {
        let often = best
            .filling
            .iter()
            .map(|(row, count)| left[*row] / count / part)
            .min();
        for _ in 0..often.unwrap_or(0).max(1) {
            take(&best, left, &mut bought);
        }
    }
    bought
}

/// Gives up some nodes of a list and buys again for what they held, as long as that saves money: those that give least for
/// their money, with others beside them.
pub(super) fn polish(
    problem: &Problem,
    columns: &Columns<'_>,
    prices: &[f64],
    mut bought: Vec<Bought>,
    work: &mut Work<'_>,
) -> Vec<Bought> {
    let worth = |node: &Bought| -> f64 {
        let all = node
            .filling
            .iter()
            .map(|(row, count)| prices[*row] * f64::from(*count));
        all.sum::<f64>() / columns.cost(node.kind).max(1e-12)
    };
    let cost = |nodes: &[Bought]| -> f64 { nodes.iter().map(|node| columns.cost(node.kind)).sum() };
    let mut known = Known::new();
    for round in 0..POLISHED {
        if bought.len() < 2 || !work.go_on(0) {
            break;
        }
        bought.sort_by(|one, other| worth(one).total_cmp(&worth(other)));
        let worst = (2 + round % 4).min(bought.len());
        let mut taken: Vec<Bought> = bought.drain(..worst).collect();
        for step in 0..round % 3 {
            if !bought.is_empty() {
                let index = (round * 7_919 + step * 104_729) % bought.len();
                taken.push(bought.remove(index));
            }
        }
        let mut left = vec![0; problem.rows.len()];
        for (row, count) in taken.iter().flat_map(|node| &node.filling) {
            left[*row] += count;
        }
        let again = greedily(
            problem,
            columns,
            prices,
            &mut left,
            1 + round as u32 % 2 * 3,
            &mut known,
            work,
        );
        let all = left.iter().all(|left| *left == 0);
        bought.extend(if all && cost(&again) < cost(&taken) - 1e-9 {
            again
        } else {
            taken
        });
    }
    bought
}

fn take_whole(columns: &Columns<'_>, mix: &Mix, left: &mut [u32], bought: &mut Vec<Bought>) {
    for (index, value) in &mix.taken {
        let column = &columns.all[*index];
        for _ in 0..(value + 1e-6).floor() as u32 {
            let whole = column.filling.iter().all(|(row, count)| *count <= left[*row]);
            if !whole {
                break;
            }
            let node = Bought {
                kind: column.kind,
                filling: column.filling.clone(),
            };
            take(&node, left, bought);
        }
    }
}

fn take(node: &Bought, left: &mut [u32], bought: &mut Vec<Bought>) {
    for (row, count) in &node.filling {
        left[*row] -= count;
    }
    bought.push(node.clone());
}

/// Of fillings with what is left, the one that is worth most for what it costs. Kinds that could not be it, by what was known
/// of them at these prices, are not filled.
fn best_for_its_money(
    problem: &Problem,
    columns: &Columns<'_>,
    prices: &[f64],
    left: &[u32],
    known: &mut Known,
    work: &mut Work<'_>,
) -> Option<Bought> {
    known.resize(problem.kinds.len(), None);
    let mut ranked: Vec<Ranked> = Vec::new();
    for (index, kind) in problem.kinds.iter().enumerate() {
        let candidates = candidates(&problem.rows, kind, (columns.allowed)(kind), left);
        if candidates.is_empty() {
            continue;
        }
        work.spend(candidates.len() as u64 * 4);
        let knapsack = columns.knapsack(index, &candidates, prices);
        let bound = known[index]
            .as_ref()
            .map_or(f64::MAX, |known| knapsack.bound(known));
        ranked.push((bound / columns.cost(index).max(1e-12), index, candidates));
    }
    ranked.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    let mut best: Option<(f64, Bought)> = None;
    for (bound, kind, candidates) in ranked {
        if best.as_ref().is_some_and(|(most, _)| bound <= *most) {
            break;
        }
        let cost = columns.cost(kind).max(1e-12);
        let knapsack = columns.knapsack(kind, &candidates, prices);
        let (multipliers, relaxed) = knapsack.relax();
        work.spend(candidates.len() as u64 * 80 + u64::from(EFFORT) * 40);
        let bound = knapsack.bound(&multipliers) / cost;
        if best.as_ref().is_none_or(|(most, _)| bound > *most) {
            let filled = knapsack.fill(&multipliers, &relaxed, 0.0, EFFORT);
            let worth = filled.worth / cost;
            if !filled.filling.is_empty() && best.as_ref().is_none_or(|(most, _)| worth > *most) {
                let filling = filled.filling;
                best = Some((worth, Bought { kind, filling }));
            }
        }
        known[kind] = Some(multipliers);
    }
    best.map(|(_, bought)| bought)
}
