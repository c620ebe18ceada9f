//! The revised simplex method with a dense inverse, for problems whose columns are made while it runs: the caller asks for
//! the prices of the rows, finds a column that is worth more than it costs, and lets it enter.

/// Smaller numbers are zero.
const TINY: f64 = 1e-9;

/// `min cost·x` with `A x = right`, `x >= 0`, at a basis.
#[derive(Clone, Debug)]
pub(super) struct Simplex {
    rows: usize,
    /// Row by row.
    inverse: Vec<f64>,
    /// The caller's names of the columns in the basis, what they cost and how much of each is taken.
    basis: Vec<usize>,
    costs: Vec<f64>,
    values: Vec<f64>,
}

/// A column that is zero but for these rows.
pub(super) type Column = [(usize, f64)];

impl Simplex {
    /// Starts from one column for each row, which has this much of the row and of nothing else.
    pub fn new(diagonal: &[f64], costs: Vec<f64>, names: Vec<usize>, right: &[f64]) -> Self {
        let rows = diagonal.len();
        let mut inverse = vec![0.0; rows * rows];
        for (row, amount) in diagonal.iter().enumerate() {
            inverse[row * rows + row] = 1.0 / amount;
        }
        Simplex {
            rows,
            inverse,
            basis: names,
            costs,
            values: right
                .iter()
                .zip(diagonal)
                .map(|(right, amount)| right / amount)
                .collect(),
        }
    }

    /// What one more unit of each row's right side costs.
    pub fn prices(&self) -> Vec<f64> {
        let mut prices = vec![0.0; self.rows];
        for (row, cost) in self.inverse.chunks_exact(self.rows.max(1)).zip(&self.costs) {
            if *cost != 0.0 {
                for (price, entry) in prices.iter_mut().zip(row) {
                    *price += cost * entry;
                }
            }
        }
        prices
    }

    /// The columns in the basis and how much of each is taken.
    pub fn taken(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.basis.iter().copied().zip(self.values.iter().copied())
    }

    pub fn cost(&self) -> f64 {
        self.costs
            .iter()
            .zip(&self.values)
            .map(|(cost, value)| cost * value)
            .sum()
    }

    /// Takes a column into the basis, for the one that runs out first. Says whether one did; else the column could be taken
    /// without end.
    pub fn enter(&mut self, name: usize, cost: f64, column: &Column) -> bool {
        let mut direction = vec![0.0; self.rows];
        for (row, change) in direction.iter_mut().enumerate() {
            let inverse = &self.inverse[row * self.rows..(row + 1) * self.rows];
            *change = column.iter().map(|(at, amount)| inverse[*at] * amount).sum();
        }
        let Some(leaving) = self.first_to_run_out(&direction) else {
            return false;
        };
        let step = self.values[leaving].max(0.0) / direction[leaving];
        for (value, change) in self.values.iter_mut().zip(&direction) {
            *value = (*value - step * change).max(0.0);
        }
        self.values[leaving] = step;
        let pivot = direction[leaving];
        let (start, end) = (leaving * self.rows, (leaving + 1) * self.rows);
        for entry in &mut self.inverse[start..end] {
            *entry /= pivot;
        }
        let pivot_row: Vec<f64> = self.inverse[start..end].to_vec();
        for (row, change) in direction.iter().enumerate() {
            if row != leaving && *change != 0.0 {
                let entries = &mut self.inverse[row * self.rows..(row + 1) * self.rows];
                for (entry, pivot) in entries.iter_mut().zip(&pivot_row) {
                    *entry -= change * pivot;
                }
            }
        }
        self.basis[leaving] = name;
        self.costs[leaving] = cost;
        true
    }

    /// Of columns that run out at once, the one that changes most: that keeps the numbers small.
    fn first_to_run_out(&self, direction: &[f64]) -> Option<usize> {
        let mut first: Option<(f64, usize)> = None;
        for (row, change) in direction.iter().enumerate() {
            if *change <= TINY {
                continue;
            }
            let after = self.values[row].max(0.0) / change;
            let sooner = first.is_none_or(|(least, other)| {
                after < least - TINY || (after <= least + TINY && *change > direction[other])
            });
            if sooner {
                first = Some((first.map_or(after, |(least, _)| after.min(least)), row));
            }
        }
        first.map(|(_, row)| row)
    }
}

#[cfg(test)]
mod tests {
    use super::Simplex;

    /// Solves `max worth·x`, `A x <= right` over given columns.
    fn best(columns: &[(f64, Vec<(usize, f64)>)], right: &[f64]) -> (f64, Vec<f64>) {
        let rows = right.len();
        let names = (columns.len()..columns.len() + rows).collect();
        // What is left of a row may come back too.
        let left_over = (0..rows).map(|row| (0.0, vec![(row, 1.0)]));
        let columns: Vec<_> = columns.iter().cloned().chain(left_over).collect();
        let mut simplex = Simplex::new(&vec![1.0; rows], vec![0.0; rows], names, right);
        for _ in 0..100 {
            let prices = simplex.prices();
            let gain = |(worth, column): &(f64, Vec<(usize, f64)>)| {
                worth
                    + column
                        .iter()
                        .map(|(row, amount)| prices[*row] * amount)
                        .sum::<f64>()
            };
            let entering = (0..columns.len())
                .map(|index| (gain(&columns[index]), index))
                .filter(|(gain, _)| *gain > 1e-9)
                .max_by(|left, right| left.0.total_cmp(&right.0));
            let Some((_, index)) = entering else { break };
            assert!(
                simplex.enter(index, -columns[index].0, &columns[index].1),
                "bounded"
            );
        }
        let mut taken = vec![0.0; columns.len()];
        for (name, value) in simplex.taken() {
            taken[name] = value;
        }
        (-simplex.cost(), taken)
    }

    #[test]
    fn finds_the_corner_that_is_worth_most() {
        // max 3x + 5y; x <= 4, 2y <= 12, 3x + 2y <= 18: 36 at (2, 6).
        let columns = [(3.0, vec![(0, 1.0), (2, 3.0)]), (5.0, vec![(1, 2.0), (2, 2.0)])];
        let (worth, taken) = best(&columns, &[4.0, 12.0, 18.0]);
        assert!((worth - 36.0).abs() < 1e-9, "{worth}");
        assert!(
            (taken[0] - 2.0).abs() < 1e-9 && (taken[1] - 6.0).abs() < 1e-9,
            "{taken:?}"
        );
    }

    #[test]
    fn an_endless_column_is_told() {
        let mut simplex = Simplex::new(&[1.0], vec![0.0], vec![1], &[1.0]);
        assert!(!simplex.enter(0, -1.0, &[(0, -1.0)]));
    }

    #[test]
    fn ends_where_corners_coincide() {
        // Every ratio ties at the start.
        let columns = [
            (1.0, vec![(0, 1.0), (1, 1.0), (2, 1.0)]),
            (2.0, vec![(0, 1.0), (1, 2.0), (2, 3.0)]),
            (1.5, vec![(1, 1.0), (2, 1.0)]),
        ];
        let (worth, _) = best(&columns, &[0.0, 0.0, 6.0]);
        assert!(worth.abs() < 1e-9, "{worth}");
        let (worth, _) = best(&columns, &[2.0, 4.0, 6.0]);
        assert!((worth - 6.0).abs() < 1e-9, "{worth}");
    }
}
