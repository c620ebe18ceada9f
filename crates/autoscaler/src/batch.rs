//! The batching window: when pods that wait are planned for. Pure; the clock is passed in. A window opens with the first pod,
//! ends when no new pod came for a while, and never lasts longer than it may.

use std::{collections::BTreeSet, time::Duration};

use jiff::{SignedDuration, Timestamp};

/// Karpenter's `BATCH_IDLE_DURATION` and `BATCH_MAX_DURATION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub idle: Duration,
    pub most: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            idle: Duration::from_secs(1),
            most: Duration::from_secs(10),
        }
    }
}

/// The window that is open, if one is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    limits: Limits,
    open: Option<Open>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Open {
    since: Timestamp,
    /// When the last new pod came.
    last: Timestamp,
    /// By uid: one that is seen again does not keep the window open.
    pods: BTreeSet<String>,
}

impl Window {
    pub fn new(limits: Limits) -> Self {
        Window { limits, open: None }
    }

    /// A pod waits.
    pub fn add(&mut self, uid: &str, now: Timestamp) {
        let open = self.open.get_or_insert_with(|| Open {
            since: now,
            last: now,
            pods: BTreeSet::new(),
        });
        if open.pods.insert(uid.to_owned()) {
            open.last = now;
        }
    }

    /// When it ends, as far as is known now.
    pub fn ends(&self) -> Option<Timestamp> {
        let open = self.open.as_ref()?;
        let after = |moment: Timestamp, by: Duration| {
            SignedDuration::try_from(by)
                .ok()
                .and_then(|by| moment.checked_add(by).ok())
                .unwrap_or(Timestamp::MAX)
        };
        Some(after(open.last, self.limits.idle).min(after(open.since, self.limits.most)))
    }

    /// Closes the window if it has ended, and says how many pods it gathered.
    pub fn close(&mut self, now: Timestamp) -> Option<usize> {
        let has_ended = self.ends().is_some_and(|end| end <= now);
        has_ended.then(|| self.open.take().map_or(0, |open| open.pods.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).expect("a moment")
    }

    #[test]
    fn a_window_ends_when_it_is_quiet() {
        let mut window = Window::default();
        assert_eq!((window.ends(), window.close(at(0))), (None, None), "nobody waits");
        window.add("a", at(0));
        window.add("b", at(600));
        assert_eq!(window.ends(), Some(at(1600)));
        assert_eq!(window.close(at(1599)), None);
        assert_eq!(window.close(at(1600)), Some(2));
        assert_eq!(window.ends(), None, "the next pod opens another");
        window.add("b", at(5000));
        assert_eq!(window.ends(), Some(at(6000)));
    }

    #[test]
    fn a_pod_that_is_seen_again_does_not_keep_it_open() {
        let mut window = Window::default();
        window.add("a", at(0));
        for moment in [300, 600, 900] {
            window.add("a", at(moment));
        }
        assert_eq!(window.ends(), Some(at(1000)));
    }

    #[test]
    fn it_never_lasts_longer_than_it_may() {
        let mut window = Window::default();
        for number in 0..30 {
            window.add(&number.to_string(), at(number * 500));
        }
        assert_eq!(window.ends(), Some(at(10_000)));
        assert_eq!(window.close(at(10_000)), Some(30));
    }
}
