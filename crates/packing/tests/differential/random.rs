//! A small generator of numbers whose sequence never changes, so that recorded outcomes stay true to their seeds.

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D)
    }

    pub fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.between(0, list.len() - 1)].clone()
    }

    /// Some of the list in its order, at least one.
    pub fn some<T: Clone>(&mut self, list: &[T]) -> Vec<T> {
        let mut chosen: Vec<T> = list.iter().filter(|_| self.chance(55)).cloned().collect();
        if chosen.is_empty() {
            chosen.push(self.pick(list));
        }
        chosen
    }
}
