//! Column generation: the cheapest mix of fillings that takes all pods, where a filling may be taken in part. Its prices say
//! what each pod is worth.

use super::knapsack::{Filling, Knapsack, Multipliers, candidates, most};
use super::poured::poured;
use super::problem::{Kind, Problem};
use super::simplex::Simplex;
use super::work::Work;
use crate::bits::BitSet;

/// A filling enters if it is worth more than it costs by this part.
const WORTH_IT: f64 = 1e-6;
/// How many steps one filling may take, and how many once nothing else is found.
const EFFORT: u32 = 100;
const MORE_EFFORT: u32 = 1_500;
/// Rounds over all kinds.
const ROUNDS: usize = 400;
/// How many kinds are filled in a round.
const FILLED: usize = 12;
/// How far prices stay with the best that were found: those of a mix that is still bad swing from one round to the next.
const STEADY: f64 = 0.75;
/// A mix whose cost is proven to be as close to the least is good enough.
const CLOSE: f64 = 0.001;

/// A price is negative from here on.
const NEGATIVE: f64 = 1e-9;

/// A node that could be bought, with what it holds.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub kind: usize,
    pub filling: Filling,
}

/// Which rows may come to a kind.
pub(super) type Allowed = fn(&Kind) -> &BitSet;

/// Columns found so far, and what is remembered of each kind.
pub(super) struct Columns<'p> {
    problem: &'p Problem,
    pub allowed: Allowed,
    pub all: Vec<Column>,
    /// What a node costs beyond its price.
    node_weight: f64,
    multipliers: Vec<Option<Multipliers>>,
}

/// The cheapest mix.
pub(super) struct Mix {
    /// By row, what a pod is worth: of the mix, and such that no node of any kind is worth more than it costs.
    pub prices: Vec<f64>,
    pub proven: Vec<f64>,
    /// How much of each column is taken.
    pub taken: Vec<(usize, f64)>,
}

impl Mix {
    /// Prices without a mix.
    pub fn at(prices: Vec<f64>) -> Self {
        Mix {
            proven: prices.clone(),
            prices,
            taken: Vec::new(),
        }
    }
}

/// A mix under way.
struct Mixing<'l> {
    simplex: Simplex,
    /// The rows with pods, and where each stands.
    kept: Vec<usize>,
    place: Vec<Option<usize>>,
    left: &'l [u32],
    /// Prices by row of the mix as it is.
    prices: Vec<f64>,
    /// The best that were proven so far, and what they prove.
    proven: Vec<f64>,
    bound: f64,
}

impl Mixing<'_> {
    fn note_prices(&mut self) {
        for (row, price) in self.kept.iter().zip(self.simplex.prices()) {
            self.prices[*row] = price.max(0.0);
        }
    }

    /// A column that is worth more than it costs enters.
    fn enter(&mut self, name: usize, cost: f64, filling: &Filling, work: &mut Work<'_>) -> bool {
        let worth: f64 = filling
            .iter()
            .map(|(row, count)| self.prices[*row] * f64::from(*count))
            .sum();
        if worth <= cost * (1.0 + WORTH_IT) {
            return false;
        }
        let place = |(row, count): &(usize, u32)| Some((self.place[*row]?, f64::from(*count)));
        let entries: Vec<(usize, f64)> = filling.iter().filter_map(place).collect();
        work.spend((self.kept.len() * self.kept.len()) as u64);
        let entered = self.simplex.enter(name, cost, &entries);
        self.note_prices();
        entered
    }

    /// More pods of a row than there are: a row whose price would be negative.
    fn enter_surplus(&mut self) -> bool {
        let mut entered = false;
        for _ in 0..self.kept.len() {
            let prices = self.simplex.prices();
            let lowest = (0..prices.len()).min_by(|left, right| prices[*left].total_cmp(&prices[*right]));
            match lowest.filter(|row| prices[*row] < -NEGATIVE) {
                Some(row) if self.simplex.enter(usize::MAX, 0.0, &[(row, -1.0)]) => entered = true,
                _ => break,
            }
        }
        self.note_prices();
        entered
    }
}

impl<'p> Columns<'p> {
    pub fn new(problem: &'p Problem, allowed: Allowed, node_weight: f64) -> Self {
        Columns {
            problem,
            allowed,
            all: Vec::new(),
            node_weight,
            multipliers: vec![None; problem.kinds.len()],
        }
    }

    pub fn cost(&self, kind: usize) -> f64 {
        self.problem.kinds[kind].price + self.node_weight
    }

    /// The cheapest mix for this many pods of each row. Rows that no kind takes are worth nothing and left out.
    pub fn mix(&mut self, left: &[u32], work: &mut Work<'_>) -> Mix {
        let mut mixing = self.start(left);
        let mut steady = STEADY;
        let mut effort = EFFORT;
        for _ in 0..ROUNDS {
            let mut entered = mixing.enter_surplus();
            entered |= self.enter_known(&mut mixing, work);
            let asked: Vec<f64> = mixing
                .proven
                .iter()
                .zip(&mixing.prices)
                .map(|(proven, price)| proven * steady + price * (1.0 - steady))
                .collect();
            let dear = self.prove(&mut mixing, &asked, work);
            if mixing.bound >= mixing.simplex.cost() * (1.0 - CLOSE) || !work.go_on(0) {
                break;
            }
            for kind in dear {
                let filling = self.fill(kind, &asked, left, effort, work);
                if mixing.enter(self.all.len(), self.cost(kind), &filling, work) {
                    entered = true;
                    self.all.push(Column { kind, filling });
                }
            }
            (steady, effort) = match (entered, steady > 0.0, effort) {
                (true, ..) => (STEADY, effort),
                (false, true, _) => (0.0, effort),
                (false, false, EFFORT) => (0.0, MORE_EFFORT),
                (false, false, _) => break,
            };
        }
        let columns = self.all.len();
        let taken = mixing
            .simplex
            .taken()
            .filter(|(name, value)| *name < columns && *value > 1e-9);
        Mix {
            taken: taken.collect(),
            prices: mixing.prices,
            proven: mixing.proven,
        }
    }

    fn start<'l>(&mut self, left: &'l [u32]) -> Mixing<'l> {
        let mut place = vec![None; left.len()];
        let mut kept = Vec::new();
        let (mut diagonal, mut costs, mut names, mut right) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for row in (0..left.len()).filter(|row| left[*row] > 0) {
            if let Some(column) = self.alone(row, left[row]) {
                place[row] = Some(kept.len());
                kept.push(row);
                diagonal.push(f64::from(column.filling[0].1));
                costs.push(self.cost(column.kind));
                right.push(f64::from(left[row]));
                names.push(self.all.len());
                self.all.push(column);
            }
        }
        let mut mixing = Mixing {
            simplex: Simplex::new(&diagonal, costs, names, &right),
            kept,
            place,
            left,
            prices: vec![0.0; left.len()],
            proven: vec![0.0; left.len()],
            bound: 0.0,
        };
        mixing.note_prices();
        (mixing.proven, mixing.bound) = poured(self.problem, left, self.node_weight);
        mixing
    }

    /// As many pods of one row as the kind that is cheapest for them takes.
    fn alone(&self, row: usize, left: u32) -> Option<Column> {
        let data = &self.problem.rows[row];
        let cap = data
            .caps
            .iter()
            .map(|cap| self.problem.caps[*cap].most)
            .min()
            .unwrap_or(u32::MAX);
        let mut best: Option<(f64, Column)> = None;
        for (kind, own) in self.problem.kinds.iter().enumerate() {
            if !(self.allowed)(own).contains(row) {
                continue;
            }
            let count = most(&data.size, &own.room).min(left).min(cap);
            let each = self.cost(kind) / f64::from(count.max(1));
            if count > 0 && best.as_ref().is_none_or(|(least, _)| each < *least) {
                let filling = vec![(row, count)];
                best = Some((each, Column { kind, filling }));
            }
        }
        best.map(|(_, column)| column)
    }

    /// Columns that were found before, as long as some is worth more than it costs.
    fn enter_known(&self, mixing: &mut Mixing<'_>, work: &mut Work<'_>) -> bool {
        let mut any = false;
        for _ in 0..4 * mixing.kept.len() {
            let gain = |column: &Column| -> f64 {
                let fits = column
                    .filling
                    .iter()
                    .all(|(row, count)| *count <= mixing.left[*row]);
                let worth = column
                    .filling
                    .iter()
                    .map(|(row, count)| mixing.prices[*row] * f64::from(*count));
                if fits {
                    worth.sum::<f64>() / self.cost(column.kind).max(1e-12)
                } else {
                    0.0
                }
            };
            let best = self
                .all
                .iter()
                .enumerate()
                .map(|(index, column)| (gain(column), index));
            let best = best.max_by(|left, right| left.0.total_cmp(&right.0).then(right.1.cmp(&left.1)));
            let Some((_, index)) = best.filter(|(gain, _)| *gain > 1.0 + WORTH_IT) else {
                break;
            };
            let column = &self.all[index];
            let cost = self.cost(column.kind);
            if !work.go_on(self.all.len() as u64 * 4) || !mixing.enter(index, cost, &column.filling, work) {
                break;
            }
            any = true;
        }
        any
    }

    /// What these prices prove, and the kinds whose nodes would be worth more than they cost, by how much.
    fn prove(&mut self, mixing: &mut Mixing<'_>, asked: &[f64], work: &mut Work<'_>) -> Vec<usize> {
        let mut dear: Vec<(f64, usize)> = Vec::new();
        let mut share = f64::MAX;
        for kind in 0..self.problem.kinds.len() {
            let own = &self.problem.kinds[kind];
            let candidates = candidates(&self.problem.rows, own, (self.allowed)(own), mixing.left);
            if candidates.is_empty() || own.reservation.is_some() {
                continue;
            }
            let knapsack = self.knapsack(kind, &candidates, asked);
            let cost = self.cost(kind);
            work.spend(candidates.len() as u64 * 4);
            let known = self.multipliers[kind].as_ref().map(|known| knapsack.bound(known));
            let bound = match known.filter(|known| *known <= cost) {
                Some(known) => known,
                None => {
                    let (multipliers, _) = knapsack.relax();
                    work.spend(candidates.len() as u64 * 80);
                    let bound = knapsack.bound(&multipliers);
                    self.multipliers[kind] = Some(multipliers);
                    bound
                }
            };
            if bound > 0.0 {
                share = share.min(cost / bound);
            }
            dear.push((bound / cost.max(1e-12), kind));
        }
        let worth: f64 = asked
            .iter()
            .zip(mixing.left)
            .map(|(price, left)| price * f64::from(*left))
            .sum();
        let share = share.min(1.0);
        if worth * share > mixing.bound {
            mixing.bound = worth * share;
            mixing.proven = asked.iter().map(|price| price * share).collect();
        }
        dear.sort_by(|left, right| right.0.total_cmp(&left.0).then(left.1.cmp(&right.1)));
        dear.truncate(FILLED);
        dear.into_iter().map(|(_, kind)| kind).collect()
    }

    pub fn knapsack<'k>(
        &'k self,
        kind: usize,
        candidates: &'k [(usize, u32)],
        prices: &'k [f64],
    ) -> Knapsack<'k> {
        Knapsack {
            rows: &self.problem.rows,
            caps: &self.problem.caps,
            room: &self.problem.kinds[kind].room,
            candidates,
            prices,
        }
    }

    /// The filling of the kind that is worth most, as far as it is found.
    fn fill(&self, kind: usize, prices: &[f64], left: &[u32], effort: u32, work: &mut Work<'_>) -> Filling {
        let own = &self.problem.kinds[kind];
        let candidates = candidates(&self.problem.rows, own, (self.allowed)(own), left);
        let knapsack = self.knapsack(kind, &candidates, prices);
        let (multipliers, relaxed) = knapsack.relax();
        work.spend(u64::from(effort) * 40 + candidates.len() as u64 * 80);
        knapsack.fill(&multipliers, &relaxed, 0.0, effort).filling
    }
}
