//! A set walked from many places at once: the first few of its members are spread over all of it.

/// Members of a bit set, and how many there are before each word.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpreadOut {
    words: Vec<u64>,
    before: Vec<u32>,
    total: usize,
}

impl SpreadOut {
    pub fn refill(&mut self, words: impl Iterator<Item = u64>) {
        self.words.clear();
        self.before.clear();
        self.total = 0;
        for word in words {
            self.words.push(word);
            self.before.push(self.total as u32);
            self.total += word.count_ones() as usize;
        }
    }

    /// Every member once. The set is cut into as many parts as are required, or into single members if there are fewer: the
    /// first of each part, then the second of each, and so on.
    pub fn iter(&self, parts: usize) -> impl Iterator<Item = usize> + '_ {
        let parts = parts.min(self.total).max(1);
        let longest = self.total.div_ceil(parts);
        (0..longest).flat_map(move |round| {
            (0..parts).filter_map(move |part| {
                let rank = part * self.total / parts + round;
                (rank < (part + 1) * self.total / parts).then(|| self.member(rank))
            })
        })
    }

    fn member(&self, rank: usize) -> usize {
        let word = self.before.partition_point(|before| *before as usize <= rank) - 1;
        let mut bits = self.words[word];
        for _ in 0..rank - self.before[word] as usize {
            bits &= bits - 1;
        }
        word * 64 + bits.trailing_zeros() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::SpreadOut;

    fn walked(words: &[u64], parts: usize) -> Vec<usize> {
        let mut set = SpreadOut::default();
        set.refill(words.iter().copied());
        set.iter(parts).collect()
    }

    #[test]
    fn few_members_come_in_their_order() {
        assert_eq!(walked(&[0b1011, 0, 0b1], 8), [0, 1, 3, 128]);
        assert_eq!(walked(&[0, 0], 8), [0; 0]);
        assert_eq!(walked(&[], 8), [0; 0]);
    }

    #[test]
    fn many_come_from_all_over_the_set() {
        assert_eq!(walked(&[0b11_1111_1111], 3), [0, 3, 6, 1, 4, 7, 2, 5, 8, 9]);
        let mut all = walked(&[u64::MAX, 0, 0x00F0, u64::MAX], 32);
        assert_eq!(all[..3], [0, 4, 8]);
        all.sort_unstable();
        let expected: Vec<usize> = (0..64).chain(132..136).chain(192..256).collect();
        assert_eq!(all, expected);
    }
}
