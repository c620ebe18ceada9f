//! Time, injected. Durations are measured on tokio's clock, which tests pause; wall time is
//! derived from it, so that both move together.

use jiff::Timestamp;
use tokio::time::Instant;

/// Tells wall time. [`Clock::system`] follows the machine's clock; [`Clock::starting_at`] moves only as
/// tokio's (possibly paused) clock does.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Option<(Timestamp, Instant)>,
}

impl Clock {
    pub fn system() -> Self {
        Self { start: None }
    }

    pub fn starting_at(timestamp: Timestamp) -> Self {
        Self {
            start: Some((timestamp, Instant::now())),
        }
    }

    pub fn now(&self) -> Timestamp {
        match self.start {
            None => Timestamp::now(),
            Some((timestamp, instant)) => timestamp + instant.elapsed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_held_clock_moves_with_paused_time() {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now().as_second(), 90);
    }
}
