//! How fast bytes come, and when all of them will be there: from what is shown of a download.

use std::time::{Duration, Instant};

use slipway_agent_api::proto::Progress;

/// The rate is measured over stretches of this length.
const STRETCH: Duration = Duration::from_secs(5);

/// Of one download. What was there when it began is no speed.
#[derive(Default)]
pub(super) struct Speed {
    /// When the current stretch began, and how many bytes had come then.
    since: Option<(Instant, u64)>,
    rate: u64,
}

impl Speed {
    /// The same progress, with its rate and the time that is left.
    pub fn of(&mut self, progress: Progress, now: Instant) -> Progress {
        let came = progress.bytes_upstream + progress.bytes_peers;
        let (began, before) = *self.since.get_or_insert((now, came));
        let elapsed = now.saturating_duration_since(began);
        let is_over = elapsed >= STRETCH;
        if elapsed.as_millis() > 0 && (self.rate == 0 || is_over) {
            self.rate = (u128::from(came.saturating_sub(before)) * 1000 / elapsed.as_millis()) as u64;
        }
        if is_over {
            self.since = Some((now, came));
        }
        let left = progress.bytes_total.saturating_sub(progress.bytes_done);
        Progress {
            bytes_per_second: self.rate,
            seconds_left: left.checked_div(self.rate).unwrap_or_default(),
            ..progress
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e39_rate_and_time_left_are_of_what_comes_and_not_of_what_was_there() {
        let mut speed = Speed::default();
        let began = Instant::now();
        let shown = |speed: &mut Speed, seconds: u64, came: u64| {
            let progress = Progress {
                bytes_done: 1_000_000 + came,
                bytes_total: 5_000_000,
                bytes_upstream: came / 2,
                bytes_peers: came - came / 2,
                ..Progress::default()
            };
            let shown = speed.of(progress, began + Duration::from_secs(seconds));
            (shown.bytes_per_second, shown.seconds_left)
        };
        assert_eq!(shown(&mut speed, 0, 0), (0, 0), "nothing is known yet");
        assert_eq!(shown(&mut speed, 1, 100_000), (100_000, 39));
        // Within a stretch the rate stays, and the time that is left goes down with the bytes.
        assert_eq!(shown(&mut speed, 3, 1_000_000), (100_000, 30));
        assert_eq!(shown(&mut speed, 5, 1_500_000), (300_000, 8));
        // It stalls.
        assert_eq!(shown(&mut speed, 11, 1_500_000), (0, 0));
    }
}
