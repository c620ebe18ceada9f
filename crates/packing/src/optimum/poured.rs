//! Prices of pods that are poured together like water: of the resources they ask for and the places under caps that they take,
//! at what these cost on whole nodes. No node holds more than it costs at such prices, so that they bound the cost of any plan.

use super::problem::{Kind, Problem};
use super::simplex::Simplex;

/// A kind enters if it has more than it costs by this part.
const WORTH_IT: f64 = 1e-9;
/// A price is negative from here on.
const NEGATIVE: f64 = 1e-12;
/// The most kinds that enter.
const STEPS: usize = 400;

/// What nodes have and pods ask for: resources, then places under caps.
struct Poured<'p> {
    problem: &'p Problem,
    node_weight: f64,
    /// How much of each is asked for, and which are asked for at all.
    asked: Vec<f64>,
    desired: Vec<usize>,
}

/// The prices by row, and what they prove that this many pods of each row cost.
pub(super) fn poured(problem: &Problem, left: &[u32], node_weight: f64) -> (Vec<f64>, f64) {
    let resources = problem.kinds.first().map_or(0, |kind| kind.room.len());
    let mut asked = vec![0.0; resources + problem.caps.len()];
    for (row, left) in problem.rows.iter().zip(left) {
        for (asked, size) in asked.iter_mut().zip(&row.size) {
            *asked += size * f64::from(*left);
        }
        for cap in &row.caps {
            asked[resources + cap] += f64::from(*left);
        }
    }
    let desired = (0..asked.len()).filter(|index| asked[*index] > 0.0).collect();
    let poured = Poured {
        problem,
        node_weight,
        asked,
        desired,
    };
    let Some(each) = poured.prices() else {
        return (vec![0.0; left.len()], 0.0);
    };
    let price = |row: &super::problem::Row| -> f64 {
        let sizes = row.size.iter().zip(&each).map(|(size, price)| size * price);
        let caps = row.caps.iter().map(|cap| each[resources + cap]);
        sizes.chain(caps).sum()
    };
    let prices: Vec<f64> = problem.rows.iter().map(price).collect();
    let bound = prices
        .iter()
        .zip(left)
        .map(|(price, left)| price * f64::from(*left))
        .sum();
    (prices, bound)
}

impl Poured<'_> {
    fn kinds(&self) -> impl Iterator<Item = (usize, &Kind)> + Clone {
        let all = self.problem.kinds.iter().enumerate();
        all.filter(|(_, kind)| kind.reservation.is_none())
    }

    fn cost(&self, kind: &Kind) -> f64 {
        (kind.price + self.node_weight).max(f64::MIN_POSITIVE)
    }

    /// What a kind has of a thing.
    fn has(&self, kind: &Kind, index: usize) -> f64 {
        match kind.room.get(index) {
            Some(room) => *room,
            None => f64::from(self.problem.caps[index - kind.room.len()].most),
        }
    }

    fn worth(&self, kind: &Kind, prices: &[f64]) -> f64 {
        let things = self.desired.iter().zip(prices);
        things.map(|(index, price)| self.has(kind, *index) * price).sum()
    }

    /// Prices of single things, if nodes have all that is asked for.
    fn prices(&self) -> Option<Vec<f64>> {
        let mut simplex = self.start()?;
        for _ in 0..STEPS {
            let prices = simplex.prices();
            let lowest = (0..prices.len()).min_by(|left, right| prices[*left].total_cmp(&prices[*right]));
            let best = self
                .kinds()
                .map(|(index, kind)| (self.worth(kind, &prices) / self.cost(kind), index))
                .max_by(|left, right| left.0.total_cmp(&right.0).then(right.1.cmp(&left.1)));
            let entered = if let Some(row) = lowest.filter(|row| prices[*row] < -NEGATIVE) {
                simplex.enter(usize::MAX, 0.0, &[(row, -1.0)])
            } else if let Some((_, index)) = best.filter(|(worth, _)| *worth > 1.0 + WORTH_IT) {
                let kind = &self.problem.kinds[index];
                let column = self.desired.iter().enumerate();
                let column: Vec<(usize, f64)> =
                    column.map(|(row, index)| (row, self.has(kind, *index))).collect();
                simplex.enter(index, self.cost(kind), &column)
            } else {
                false
            };
            if !entered {
                break;
            }
        }
        let prices: Vec<f64> = simplex.prices().iter().map(|price| price.max(0.0)).collect();
        // However far the above came, no node may hold more than it costs.
        let most = self
            .kinds()
            .map(|(_, kind)| self.worth(kind, &prices) / self.cost(kind))
            .fold(1.0, f64::max);
        let mut each = vec![0.0; self.asked.len()];
        for (index, price) in self.desired.iter().zip(prices) {
            each[*index] = price / most;
        }
        Some(each)
    }

    /// Starts with the kind that is cheapest for each thing, as if it had nothing else: dearer than it has to be, and soon
    /// replaced.
    fn start(&self) -> Option<Simplex> {
        let (mut diagonal, mut costs) = (Vec::new(), Vec::new());
        for index in &self.desired {
            let having = self.kinds().filter(|(_, kind)| self.has(kind, *index) > 0.0);
            let each = |kind: &Kind| self.cost(kind) / self.has(kind, *index);
            let (_, cheapest) = having.min_by(|left, right| each(left.1).total_cmp(&each(right.1)))?;
            diagonal.push(self.has(cheapest, *index));
            costs.push(self.cost(cheapest));
        }
        let names = vec![usize::MAX; diagonal.len()];
        let right: Vec<f64> = self.desired.iter().map(|index| self.asked[*index]).collect();
        Some(Simplex::new(&diagonal, costs, names, &right))
    }
}
