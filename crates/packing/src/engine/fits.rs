//! Which instance types are large enough, by resource.

use super::catalog::Slot;
use crate::bits::BitSet;
use crate::resources::amount;

/// The types that have at least some amount of a resource, for every amount that matters.
#[derive(Clone, Debug, Default)]
pub(super) struct FitIndex {
    /// Ascending amounts, each with the slots that have at least as much.
    steps: Vec<(i128, BitSet)>,
}

impl FitIndex {
    pub fn build(slots: &[Slot], resource: usize) -> Self {
        let mut values: Vec<i128> = slots
            .iter()
            .map(|slot| amount(&slot.allocatable, resource))
            .collect();
        values.sort_unstable();
        values.dedup();
        let steps = values
            .into_iter()
            .map(|value| {
                let having = |slot: &Slot| amount(&slot.allocatable, resource) >= value;
                (
                    value,
                    slots
                        .iter()
                        .enumerate()
                        .filter(|(_, slot)| having(slot))
                        .map(|(index, _)| index)
                        .collect(),
                )
            })
            .collect();
        FitIndex { steps }
    }

    /// Cuts `set` to what has at least `required`.
    pub fn cut(&self, set: &mut BitSet, required: i128) {
        let position = self.steps.partition_point(|(value, _)| *value < required);
        match self.steps.get(position) {
            Some(_) if position == 0 => {}
            Some((_, having)) => set.intersect_with(having),
            None => set.clear(),
        }
    }
}
