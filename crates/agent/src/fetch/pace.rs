//! A limit on bytes per second as arithmetic on the time that has passed.

use std::time::Duration;

/// Lets a second's worth through at once, then no more than its rate.
#[derive(Debug, Clone)]
pub struct Pace {
    bytes_per_second: f64,
    /// What may still pass; negative while more has passed than was due.
    due: f64,
    /// When `due` was last counted.
    at: Duration,
}

impl Pace {
    /// The shortest wait that is worth one.
    const STEP: Duration = Duration::from_millis(20);

    pub fn new(bytes_per_second: u64) -> Self {
        let bytes_per_second = bytes_per_second.max(1) as f64;
        Self {
            bytes_per_second,
            // A tenth of a second to start with.
            due: bytes_per_second / 10.0,
            at: Duration::ZERO,
        }
    }

    /// These bytes passed at this time since the beginning; how long to wait before the next.
    pub fn passed(&mut self, bytes: usize, now: Duration) -> Duration {
        let elapsed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.due = (self.due + elapsed * self.bytes_per_second).min(self.bytes_per_second / 10.0);
        self.due -= bytes as f64;
        if self.due >= 0.0 {
            return Duration::ZERO;
        }
        let wait = Duration::from_secs_f64((-self.due / self.bytes_per_second).min(60.0));
        if wait < Self::STEP { Duration::ZERO } else { wait }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// E-41: whoever waits as told moves its bytes within ten per cent of the time that the limit gives.
        #[test]
        fn e41_the_rate_is_kept(rate in 10_000_u64..50_000_000, piece in 100_usize..65_536, network_micros in 0_u64..200) {
            let mut pace = Pace::new(rate);
            let (mut now, mut moved) = (Duration::ZERO, 0_u64);
            while moved < rate * 20 && now < Duration::from_mins(10) {
                now += Duration::from_micros(network_micros);
                let wait = pace.passed(piece, now);
                moved += piece as u64;
                now += wait;
            }
            let limit = moved as f64 / rate as f64;
            let network = (moved / piece as u64 * network_micros) as f64 / 1e6;
            let fastest = limit.max(network);
            prop_assert!(now.as_secs_f64() > fastest * 0.9, "too fast: {now:?} for {limit} s");
            prop_assert!(now.as_secs_f64() < fastest * 1.1 + 0.2, "too slow: {now:?} for {limit} s");
        }
    }
}
