//! Sets of small integers: instance types of a pool, claims, nodes, topology domains.

use smallvec::SmallVec;

/// Grows as needed; bits beyond the end are unset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct BitSet {
    words: SmallVec<[u64; 8]>,
}

impl BitSet {
    pub fn full(length: usize) -> Self {
        let mut set = BitSet {
            words: SmallVec::from_elem(u64::MAX, length.div_ceil(64)),
        };
        if !length.is_multiple_of(64)
            && let Some(last) = set.words.last_mut()
        {
            *last = (1 << (length % 64)) - 1;
        }
        set
    }

    pub fn insert(&mut self, bit: usize) {
        let word = bit / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (bit % 64);
    }

    pub fn remove(&mut self, bit: usize) {
        if let Some(word) = self.words.get_mut(bit / 64) {
            *word &= !(1 << (bit % 64));
        }
    }

    pub fn contains(&self, bit: usize) -> bool {
        self.words
            .get(bit / 64)
            .is_some_and(|word| word & (1 << (bit % 64)) != 0)
    }

    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    pub fn word_count(&self) -> usize {
        self.words.len()
    }

    pub fn intersect_with(&mut self, other: &BitSet) {
        for (index, word) in self.words.iter_mut().enumerate() {
            *word &= other.word(index);
        }
    }

    pub fn union_with(&mut self, other: &BitSet) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    pub fn subtract(&mut self, other: &BitSet) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= !other;
        }
    }

    /// Adds another set, moved up by whole words.
    pub fn union_words(&mut self, other: &BitSet, offset: usize) {
        if self.words.len() < offset + other.words.len() {
            self.words.resize(offset + other.words.len(), 0);
        }
        for (word, other) in self.words[offset..].iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words
            .iter()
            .enumerate()
            .flat_map(|(index, word)| ones(*word).map(move |bit| index * 64 + bit))
    }
}

impl FromIterator<usize> for BitSet {
    fn from_iter<I: IntoIterator<Item = usize>>(bits: I) -> Self {
        let mut set = BitSet::default();
        for bit in bits {
            set.insert(bit);
        }
        set
    }
}

/// A set that is mostly empty and of which there are many: it takes little room until it is used.
#[derive(Clone, Debug, Default)]
pub(crate) struct WideSet {
    words: Vec<u64>,
}

impl WideSet {
    pub fn insert(&mut self, bit: usize) {
        let word = bit / 64;
        if word >= self.words.len() {
            self.words.reserve_exact(word + 1 - self.words.len());
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (bit % 64);
    }

    pub fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    pub fn clear(&mut self) {
        self.words.clear();
    }
}

/// The set bits of one word, lowest first.
pub(crate) fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let bit = word.trailing_zeros() as usize;
        word &= word - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_walks() {
        let set: BitSet = [1, 64, 700].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [1, 64, 700]);
        assert_eq!(set.len(), 3);
        assert!(set.contains(700) && !set.contains(701) && !set.contains(100_000));
        let mut all = BitSet::full(65);
        assert_eq!(all.len(), 65);
        all.intersect_with(&set);
        assert_eq!(all.iter().collect::<Vec<_>>(), [1, 64]);
        all.remove(1);
        assert_eq!(all.iter().next(), Some(64));
        all.union_with(&set);
        assert_eq!(all.len(), 3);
    }
}
