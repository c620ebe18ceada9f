//! What one node could hold that is worth most, at given prices of pods; and what it could hold at most, for certain.

use super::problem::{Cap, Kind, Row};
use super::simplex::Simplex;

/// Smaller differences are rounding.
const TINY: f64 = 1e-9;
/// What a pod may seem to be worth beyond its room and is not.
const NEGLIGIBLE: f64 = 1e-11;
/// The most columns that enter before a relaxation is taken as it stands: any multipliers bound, only not as closely.
const STEPS: usize = 80;
/// Nodes that hold no more pods than this are searched from the beginning.
const FEW: f64 = 16.0;

/// What a unit of each resource, and a place under each cap, of one node is worth.
#[derive(Clone, Debug, Default)]
pub(super) struct Multipliers {
    resources: Vec<f64>,
    caps: Vec<f64>,
}

/// A filling of a node: rows with how many of each.
pub(super) type Filling = Vec<(usize, u32)>;

/// A node to fill.
#[derive(Clone, Copy)]
pub(super) struct Knapsack<'a> {
    pub rows: &'a [Row],
    pub caps: &'a [Cap],
    pub room: &'a [f64],
    /// Rows that may come here and fit, each with the most there can be of it.
    pub candidates: &'a [(usize, u32)],
    /// By row.
    pub prices: &'a [f64],
}

/// Rows that may come to a node of the kind and fit it, each with the most that fit and that there are.
pub(super) fn candidates(
    rows: &[Row],
    kind: &Kind,
    allowed: &crate::bits::BitSet,
    left: &[u32],
) -> Vec<(usize, u32)> {
    allowed
        .iter()
        .filter_map(|row| {
            let most = most(&rows[row].size, &kind.room).min(left[row]);
            (most > 0).then_some((row, most))
        })
        .collect()
}

/// How many of a size fit.
pub(super) fn most(size: &[f64], room: &[f64]) -> u32 {
    size.iter()
        .zip(room)
        .filter(|(size, _)| **size > 0.0)
        .map(|(size, room)| (room / size + TINY).floor().max(0.0) as u32)
        .min()
        .unwrap_or(u32::MAX)
}

impl Knapsack<'_> {
    /// No filling is worth more, whatever the multipliers: what a row is worth beyond them counts as often as it could be
    /// taken.
    pub fn bound(&self, multipliers: &Multipliers) -> f64 {
        let resources = multipliers.resources.iter().zip(self.room);
        let caps = multipliers.caps.iter().zip(self.caps);
        resources.map(|(worth, room)| worth * room).sum::<f64>()
            + caps.map(|(worth, cap)| worth * f64::from(cap.most)).sum::<f64>()
            + self
                .candidates
                .iter()
                .map(|(row, most)| self.gain(*row, multipliers).max(0.0) * f64::from(*most))
                .sum::<f64>()
    }

    /// What a pod is worth beyond the room it takes.
    fn gain(&self, row: usize, multipliers: &Multipliers) -> f64 {
        let data = &self.rows[row];
        let mut gain = self.prices[row];
        for (size, worth) in data.size.iter().zip(&multipliers.resources) {
            gain -= size * worth;
        }
        for cap in &data.caps {
            gain -= multipliers.caps[*cap];
        }
        gain
    }

    /// The best multipliers, and how much of each row is taken where pods can be cut to pieces.
    pub fn relax(&self) -> (Multipliers, Vec<(usize, f64)>) {
        let resources = self.room.len();
        let rows = resources + self.caps.len();
        let mut right = self.room.to_vec();
        right.extend(self.caps.iter().map(|cap| f64::from(cap.most)));
        let slack = usize::MAX;
        let mut simplex = Simplex::new(&vec![1.0; rows], vec![0.0; rows], vec![slack; rows], &right);
        let mut column: Vec<(usize, f64)> = Vec::new();
        for _ in 0..STEPS {
            let multipliers = multipliers(&simplex, resources);
            let best = self
                .candidates
                .iter()
                .map(|(row, _)| (self.gain(*row, &multipliers), *row))
                .filter(|(gain, row)| *gain > TINY * self.prices[*row].abs().max(TINY))
                .max_by(|left, right| left.0.total_cmp(&right.0).then(right.1.cmp(&left.1)));
            let Some((_, row)) = best else { break };
            column.clear();
            let data = &self.rows[row];
            column.extend(
                data.size
                    .iter()
                    .copied()
                    .enumerate()
                    .filter(|(_, size)| *size > 0.0),
            );
            column.extend(data.caps.iter().map(|cap| (resources + cap, 1.0)));
            if column.is_empty() || !simplex.enter(row, -self.prices[row], &column) {
                break;
            }
        }
        let taken = simplex
            .taken()
            .filter(|(row, value)| *row != slack && *value > TINY)
            .collect();
        (multipliers(&simplex, resources), taken)
    }

    /// A good filling near the relaxed one, what it is worth, and what no filling exceeds. One that is not worth more than
    /// `enough` is of no interest. `effort` is how many steps the search may take; a search that ends before knows the best
    /// there is.
    pub fn fill(
        &self,
        multipliers: &Multipliers,
        relaxed: &[(usize, f64)],
        enough: f64,
        effort: u32,
    ) -> Filled {
        let bound = self.bound(multipliers);
        let most_of = |row: usize| {
            let position = self.candidates.binary_search_by_key(&row, |(row, _)| *row);
            position.map_or(0, |position| self.candidates[position].1)
        };
        let mut start: Filling = relaxed
            .iter()
            .map(|(row, value)| (*row, ((value + TINY).floor() as u32).min(most_of(*row))))
            .filter(|(_, count)| *count > 0)
            .collect();
        start.sort_unstable();
        let (worth, filling, _) = self.search(multipliers, start, -1.0, effort);
        let mut filled = Filled {
            worth,
            filling,
            bound,
        };
        let pods: f64 = relaxed.iter().map(|(_, value)| value).sum();
        if pods <= FEW && filled.worth.max(enough) < bound - TINY {
            let known = filled.worth.max(enough);
            let (worth, filling, ended) = self.search(multipliers, Vec::new(), known, effort * 4);
            if worth > filled.worth {
                filled.worth = worth;
                filled.filling = filling;
            }
            if ended {
                filled.bound = filled.worth.max(enough).min(bound);
            }
        }
        filled
    }

    /// Adds to a filling what is worth most, by depth first: rows that lose least against the multipliers come first, and a
    /// branch that has lost as much as the best filling loses is left. Says whether every branch was looked at or left.
    fn search(
        &self,
        multipliers: &Multipliers,
        start: Filling,
        known: f64,
        effort: u32,
    ) -> (f64, Filling, bool) {
        let mut order: Vec<(f64, usize, u32)> = self
            .candidates
            .iter()
            .map(|(row, most)| {
                let present = start
                    .iter()
                    .find(|(own, _)| own == row)
                    .map_or(0, |(_, count)| *count);
                let gain = self.gain(*row, multipliers);
                let gain = if gain.abs() < NEGLIGIBLE { 0.0 } else { gain };
                (gain, *row, most.saturating_sub(present))
            })
            .collect();
        let loss = self.bound(multipliers) - known.max(0.0);
        order.retain(|(gain, _, most)| *most > 0 && *gain >= -loss);
        let weight = |row: usize| -> f64 { self.rows[row].size.iter().sum() };
        order.sort_by(|left, right| {
            (right.0)
                .total_cmp(&left.0)
                .then(weight(right.1).total_cmp(&weight(left.1)))
                .then(left.1.cmp(&right.1))
        });
        let mut room = self.room.to_vec();
        let mut places: Vec<u32> = self.caps.iter().map(|cap| cap.most).collect();
        let mut worth = 0.0;
        for (row, count) in &start {
            let data = &self.rows[*row];
            for (room, size) in room.iter_mut().zip(&data.size) {
                *room -= size * f64::from(*count);
            }
            for cap in &data.caps {
                places[*cap] = places[*cap].saturating_sub(*count);
            }
            worth += self.prices[*row] * f64::from(*count);
        }
        let mut search = Search {
            knapsack: self,
            multipliers,
            order,
            best: known,
            found: None,
            taken: Vec::new(),
            effort,
        };
        search.descend(0, &mut room, &mut places, worth);
        let ended = search.effort > 0;
        let Some(added) = search.found else {
            return (worth, start, ended);
        };
        let mut filling = start;
        for (row, count) in added {
            match filling.iter_mut().find(|(own, _)| *own == row) {
                Some((_, present)) => *present += count,
                None => filling.push((row, count)),
            }
        }
        filling.sort_unstable();
        (search.best, filling, ended)
    }
}

pub(super) struct Filled {
    pub worth: f64,
    pub filling: Filling,
    /// No filling is worth more.
    pub bound: f64,
}

struct Search<'k, 'a> {
    knapsack: &'k Knapsack<'a>,
    multipliers: &'k Multipliers,
    /// What a pod is worth beyond the room it takes, its row, and how many there may be.
    order: Vec<(f64, usize, u32)>,
    best: f64,
    found: Option<Filling>,
    taken: Filling,
    effort: u32,
}

impl Search<'_, '_> {
    fn descend(&mut self, position: usize, room: &mut [f64], places: &mut [u32], worth: f64) {
        if worth > self.best + TINY {
            self.best = worth;
            self.found = Some(self.taken.clone());
        }
        if self.effort == 0 {
            return;
        }
        self.effort -= 1;
        let resources = self.multipliers.resources.iter().zip(room.iter());
        let caps = self.multipliers.caps.iter().zip(places.iter());
        let reach = worth
            + resources.map(|(worth, room)| worth * room.max(0.0)).sum::<f64>()
            + caps
                .map(|(worth, places)| worth * f64::from(*places))
                .sum::<f64>();
        for next in position..self.order.len() {
            let (gain, row, most) = self.order[next];
            // Rows after this one lose no less, each.
            if gain <= 0.0 && reach + gain <= self.best + TINY {
                return;
            }
            let data = &self.knapsack.rows[row];
            let mut count = self::most(&data.size, room).min(most);
            for cap in &data.caps {
                count = count.min(places[*cap]);
            }
            while count > 0 {
                if gain > 0.0 || reach + gain * f64::from(count) > self.best + TINY {
                    self.take(row, count, room, places, 1.0);
                    let added = self.knapsack.prices[row] * f64::from(count);
                    self.descend(next + 1, room, places, worth + added);
                    self.take(row, count, room, places, -1.0);
                    if self.effort == 0 {
                        return;
                    }
                }
                count -= 1;
            }
        }
    }

    fn take(&mut self, row: usize, count: u32, room: &mut [f64], places: &mut [u32], sign: f64) {
        let data = &self.knapsack.rows[row];
        for (room, size) in room.iter_mut().zip(&data.size) {
            *room -= sign * size * f64::from(count);
        }
        for cap in &data.caps {
            if sign > 0.0 {
                places[*cap] -= count;
            } else {
                places[*cap] += count;
            }
        }
        if sign > 0.0 {
            self.taken.push((row, count));
        } else {
            self.taken.pop();
        }
    }
}

fn multipliers(simplex: &Simplex, resources: usize) -> Multipliers {
    let prices = simplex.prices();
    let worth = |price: &f64| (-price).max(0.0);
    Multipliers {
        resources: prices[..resources].iter().map(worth).collect(),
        caps: prices[resources..].iter().map(worth).collect(),
    }
}
