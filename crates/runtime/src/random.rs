//! Randomness, injected: the same seed gives the same jitter and the same names.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};

/// The letters Kubernetes uses for generated names: no vowels and nothing that reads like another letter.
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A source of randomness that all its clones share.
#[derive(Clone)]
pub struct Random {
    generator: Arc<Mutex<StdRng>>,
}

impl Random {
    /// Seeded by the machine.
    pub fn system() -> Self {
        Self {
            generator: Arc::new(Mutex::new(StdRng::from_os_rng())),
        }
    }

    /// The same seed gives the same sequence.
    pub fn seeded(seed: u64) -> Self {
        Self {
            generator: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))),
        }
    }

    /// An independent source whose seed is drawn from this one.
    pub fn fork(&self) -> Self {
        Self::seeded(self.next())
    }

    pub fn next(&self) -> u64 {
        self.generator.lock().next_u64()
    }

    /// At least 0 and below 1.
    pub fn fraction(&self) -> f64 {
        self.generator.lock().random()
    }

    /// Below `limit`; zero when the limit is.
    pub fn below(&self, limit: usize) -> usize {
        if limit == 0 {
            return 0;
        }
        self.generator.lock().random_range(0..limit)
    }

    /// The duration, longer or shorter by up to the given share of itself.
    pub fn jitter(&self, duration: Duration, share: f64) -> Duration {
        let factor = 1.0 + share * (2.0 * self.fraction() - 1.0);
        duration.mul_f64(factor.max(0.0))
    }

    /// Letters for the end of a generated name, as Kubernetes makes them.
    pub fn name_suffix(&self, length: usize) -> String {
        let mut generator = self.generator.lock();
        (0..length)
            .map(|_| char::from(NAME_LETTERS[generator.random_range(0..NAME_LETTERS.len())]))
            .collect()
    }

    /// A version 4 UUID, in its usual writing.
    pub fn uuid(&self) -> String {
        let mut bytes = [0; 16];
        self.generator.lock().fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Random").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays() {
        let (left, right) = (Random::seeded(7), Random::seeded(7));
        assert_eq!(left.next(), right.next());
        assert_eq!(left.name_suffix(5), right.name_suffix(5));
        assert_eq!(left.uuid(), right.uuid());
        assert_ne!(Random::seeded(8).next(), Random::seeded(7).next());
    }

    #[test]
    fn jitter_stays_within_its_share() {
        let random = Random::seeded(1);
        let (mut shorter, mut longer) = (0, 0);
        for _ in 0..1000 {
            let jittered = random.jitter(Duration::from_secs(10), 0.1);
            assert!((Duration::from_secs(9)..=Duration::from_secs(11)).contains(&jittered));
            if jittered < Duration::from_secs(10) {
                shorter += 1;
            } else {
                longer += 1;
            }
        }
        assert!(
            shorter > 300 && longer > 300,
            "{shorter} shorter, {longer} longer"
        );
    }
}
