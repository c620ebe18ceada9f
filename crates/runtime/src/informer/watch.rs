//! Keeps one store true: lists, watches, and starts again after every kind of break, at a bounded pace.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, pin_mut};
use kube::{
    Api, Client,
    client::Body,
    runtime::watcher::{self, watcher},
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{Object, guard::Guarded, mailbox::Origin, shared::Shared};
use crate::{Random, metrics::KindLabel};

const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// A server that accepts watches and ends them at once is asked again no more often than this.
const WATCH_SPACING: Duration = Duration::from_secs(1);

/// A list or watch whose answer has not begun after this long never will.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Runs until cancelled.
pub(super) async fn run<K: Object>(
    shared: Arc<Shared<K>>,
    api: Api<Guarded<K>>,
    config: watcher::Config,
    random: Random,
    cancelled: CancellationToken,
) {
    let mut failures = 0;
    'restart: while !cancelled.is_cancelled() {
        let events = watcher(api.clone(), config.clone());
        pin_mut!(events);
        loop {
            let event = tokio::select! {
                () = cancelled.cancelled() => break 'restart,
                event = events.next() => event,
            };
            match event {
                None => continue 'restart,
                Some(Ok(event)) => {
                    // `Init` is told before the list is asked for, so it proves nothing yet.
                    if !matches!(event, watcher::Event::Init) {
                        failures = 0;
                        note_denied(&shared, false);
                    }
                    take_in(&shared, event);
                }
                Some(Err(error)) => {
                    report(&shared, &error, failures);
                    note_denied(&shared, is_denied(&error));
                    let wait = random.jitter(retry_after(failures), 0.2);
                    failures = failures.saturating_add(1);
                    tokio::select! {
                        () = cancelled.cancelled() => break 'restart,
                        () = sleep(wait) => {}
                    }
                    if must_list_again(&error) {
                        continue 'restart;
                    }
                }
            }
        }
    }
    shared.store.write().close();
}

fn take_in<K: Object>(shared: &Shared<K>, event: watcher::Event<Guarded<K>>) {
    let (delta, malformed) = match event {
        watcher::Event::Init => {
            shared.store.write().begin_list();
            return;
        }
        watcher::Event::InitApply(object) => {
            let object = shared.prune(object);
            shared.store.write().apply(object, Origin::Listed)
        }
        watcher::Event::Apply(object) => {
            let object = shared.prune(object);
            shared.store.write().apply(object, Origin::Live)
        }
        watcher::Event::Delete(object) => {
            let object = shared.prune(object);
            (shared.store.write().delete(object), None)
        }
        watcher::Event::InitDone => {
            let delta = shared.store.write().finish_list();
            shared.metrics.relists.get_or_create(&shared.label()).inc();
            shared.synced.send_replace(true);
            (delta, None)
        }
    };
    shared.count(delta);
    if let Some(malformed) = malformed {
        tracing::warn!(
            kind = shared.resource.kind,
            object = %malformed.key,
            error = malformed.error,
            "Leaving out an object that cannot be read; the others of its kind are not affected"
        );
    }
}

fn report<K: Object>(shared: &Shared<K>, error: &watcher::Error, failures: u32) {
    let label = KindLabel {
        kind: shared.resource.kind.clone(),
    };
    shared.metrics.watch_errors.get_or_create(&label).inc();
    // The first break is ordinary (a restarted server, a closed connection); a lasting one is worth a word, and
    // again about every ten minutes.
    if failures % 20 == 3 {
        tracing::warn!(kind = shared.resource.kind, %error, "Watching keeps failing, retrying");
    } else {
        tracing::debug!(kind = shared.resource.kind, %error, failures, "Watch was interrupted, retrying");
    }
}

/// Whether the server answered that it may not be read.
fn is_denied(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error)
    | watcher::Error::WatchStartFailed(error)
    | watcher::Error::WatchFailed(error)) = error
    else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

fn note_denied<K: Object>(shared: &Shared<K>, denied: bool) {
    shared
        .denied
        .send_if_modified(|known| std::mem::replace(known, denied) != denied);
}

fn retry_after(failures: u32) -> Duration {
    FIRST_RETRY
        .saturating_mul(2_u32.saturating_pow(failures.min(20)))
        .min(LONGEST_RETRY)
}

/// The watcher resumes where it was. That does not help where the position itself is refused as an HTTP status,
/// nor where an event was lost because its line could not be read.
fn must_list_again(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        watcher::Error::WatchFailed(kube::Error::SerdeError(_)) => true,
        _ => false,
    }
}

/// The same client with watches spaced out: the watcher reconnects at once when a watch ends without an error.
pub(super) fn paced(client: &Client) -> Client {
    let last = Arc::new(Mutex::new(None::<Instant>));
    let inner = client.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, last) = (inner.clone(), Arc::clone(&last));
        async move {
            if is_watch(&request) {
                let start = {
                    let mut last = last.lock();
                    let now = Instant::now();
                    let start = last.map_or(now, |last| now.max(last + WATCH_SPACING));
                    *last = Some(start);
                    start
                };
                sleep_until(start).await;
            }
            match timeout(ANSWER_TIMEOUT, client.send(request)).await {
                Ok(answer) => answer,
                Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
            }
        }
    });
    Client::new(service, client.default_namespace().to_owned())
}

fn is_watch(request: &http::Request<Body>) -> bool {
    request
        .uri()
        .query()
        .is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"))
}
