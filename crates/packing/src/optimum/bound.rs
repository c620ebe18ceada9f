//! A lower bound on the cost of every plan. Any prices of pods give one: what all pods are worth, less what nodes that stand
//! could take for nothing, cut so that no node of any kind holds more than it costs.

use super::columns::Mix;
use super::knapsack::{Knapsack, candidates};
use super::problem::{Kind, Problem};
use crate::bits::BitSet;
use crate::engine::run::Run;

/// How many steps the search for the fullest node of a kind may take.
const EFFORT: u32 = 20_000;
/// What rounding could have added.
const SHAVED: f64 = 1.0 - 1e-6;

/// Room that costs nothing or little and of which there is only so much.
pub(super) struct Spare {
    room: Vec<f64>,
    rows: BitSet,
}

/// Nodes that stand, as far as they could take pods.
pub(super) fn standing(run: &mut Run<'_, '_>, problem: &Problem) -> Vec<Spare> {
    let mut places = Vec::new();
    for node in 0..run.world.nodes.len() {
        let mut rows = BitSet::default();
        for class in 0..problem.row_of.len() {
            if let Some((row, _)) = problem.row_of[class]
                && !rows.contains(row)
                && (0..run.world.classes[class].variants.len())
                    .any(|variant| run.world.node_takes(node, class, variant).is_ok())
            {
                rows.insert(row);
            }
        }
        if !rows.is_empty() {
            let room = problem.room(&run.world.nodes[node].remaining);
            places.push(Spare { room, rows });
        }
    }
    places
}

/// The better of the bounds that the prices of a mix give.
pub(super) fn lower_bound(problem: &Problem, mix: &Mix, standing: &[Spare], reservations: &[u32]) -> f64 {
    let by = |prices: &[f64]| bound_by(problem, prices, standing, reservations);
    by(&mix.prices).max(by(&mix.proven))
}

/// The bound that prices give. Nothing about them has to be right for it to hold.
fn bound_by(problem: &Problem, prices: &[f64], standing: &[Spare], reservations: &[u32]) -> f64 {
    let left: Vec<u32> = problem.rows.iter().map(|row| row.count).collect();
    let mut worth: f64 = prices
        .iter()
        .zip(&left)
        .map(|(price, count)| price * f64::from(*count))
        .sum();
    let mut least: Option<f64> = None;
    for kind in problem.kinds.iter().filter(|kind| kind.reservation.is_none()) {
        let fullest = fullest(problem, kind, &left, prices, least.unwrap_or(f64::MAX));
        if fullest > 0.0 {
            let own = kind.price / fullest;
            least = Some(least.map_or(own, |least| least.min(own)));
        }
    }
    let share = least.unwrap_or(1.0);
    // Prices that no node exceeds its own by.
    let prices: Vec<f64> = prices.iter().map(|price| price * share).collect();
    worth *= share;
    let mut most_of = vec![0.0_f64; reservations.len()];
    for kind in &problem.kinds {
        if let Some(reservation) = kind.reservation {
            let gained = fullest(problem, kind, &left, &prices, f64::MAX) - kind.price;
            most_of[reservation] = most_of[reservation].max(gained);
        }
    }
    for (gained, nodes) in most_of.iter().zip(reservations) {
        worth -= gained * f64::from(*nodes);
    }
    for place in standing {
        let fit: Vec<(usize, u32)> = place
            .rows
            .iter()
            .map(|row| {
                (
                    row,
                    super::knapsack::most(&problem.rows[row].size, &place.room).min(left[row]),
                )
            })
            .filter(|(_, most)| *most > 0)
            .collect();
        worth -= relaxed(problem, &place.room, &fit, &prices);
    }
    (worth * SHAVED).max(0.0)
}

/// No filling of the kind is worth more. Where it does not matter for the share, a rough answer will do.
fn fullest(problem: &Problem, kind: &Kind, left: &[u32], prices: &[f64], share: f64) -> f64 {
    let candidates = candidates(&problem.rows, kind, &kind.rows, left);
    let knapsack = Knapsack {
        rows: &problem.rows,
        caps: &problem.caps,
        room: &kind.room,
        candidates: &candidates,
        prices,
    };
    let (multipliers, relaxed) = knapsack.relax();
    let bound = knapsack.bound(&multipliers);
    if bound * share.min(1.0) <= kind.price {
        return bound;
    }
    knapsack
        .fill(&multipliers, &relaxed, kind.price / share.min(1.0), EFFORT)
        .bound
}

fn relaxed(problem: &Problem, room: &[f64], candidates: &[(usize, u32)], prices: &[f64]) -> f64 {
    let knapsack = Knapsack {
        rows: &problem.rows,
        caps: &problem.caps,
        room,
        candidates,
        prices,
    };
    let (multipliers, _) = knapsack.relax();
    knapsack.bound(&multipliers)
}
