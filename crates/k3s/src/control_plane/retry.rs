//! A watch on a workload cluster that may be down for long: it is tried again less and less often, and nobody is told that it
//! begins before anything was answered.

use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt, future, stream::BoxStream};
use kube::runtime::{
    WatchStreamExt,
    utils::Backoff,
    watcher::{Error, Event, Result},
};

const FIRST: Duration = Duration::from_millis(800);

struct Retry {
    next: Duration,
    slowest: Duration,
}

impl Iterator for Retry {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.next;
        self.next = (wait * 2).min(self.slowest);
        Some(wait)
    }
}

impl Backoff for Retry {
    fn reset(&mut self) {
        self.next = FIRST;
    }
}

/// Tried at least every `slowest`. `Init` is told before the list is asked for, so it proves nothing: to everybody who hears it, a cluster that is down seems to
/// have come back.
pub fn watch<K: Send + 'static>(
    events: impl Stream<Item = Result<Event<K>>> + Send + 'static,
    slowest: Duration,
) -> BoxStream<'static, std::result::Result<Event<K>, Error>> {
    events
        .try_filter(|event| future::ready(!matches!(event, Event::Init)))
        .backoff(Retry { next: FIRST, slowest })
        .boxed()
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    const SLOWEST: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_is_down_is_asked_less_and_less_often() {
        // What a watcher tells of a cluster that does not answer.
        let events =
            stream::iter((0..40).flat_map(|_| [Ok(Event::<()>::Init), Err(Error::NoResourceVersion)]));
        let mut told = watch(events, SLOWEST);
        let started = tokio::time::Instant::now();
        let mut failures = 0;
        while let Some(event) = told.next().await {
            assert!(event.is_err());
            failures += 1;
        }
        assert_eq!(failures, 40);
        assert!(started.elapsed() > SLOWEST * 35, "{:?}", started.elapsed());
    }
}
