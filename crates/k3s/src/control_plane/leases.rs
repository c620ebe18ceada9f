//! The leases of the servers' nodes: one watch for each, which brings the control plane back when renewals begin, when
//! they stay away and when they return. A renewal in time costs no reconcile.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease as CoreLease;
use kube::{Api, Client, runtime::watcher};
use parking_lot::Mutex;
use slipway_runtime::{Clock, ObjectKey, controller::Trigger};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    health::age,
    liveness::{LEASE_EXPIRED, LEASE_OVERDUE, Lease},
    retry,
};

const NAMESPACE: &str = "kube-node-lease";
/// Past a limit by this much, so that whoever is requeued finds it passed.
const MARGIN: Duration = Duration::from_secs(1);
/// Leases are read besides when something is decided.
const SLOWEST_RETRY: Duration = Duration::from_secs(30);

struct Tracked {
    /// As the host's clock has it: only that it changes says something.
    renew_time: Option<Timestamp>,
    lease: Lease,
}

/// What was seen of leases, by node.
#[derive(Default)]
struct Renewals(HashMap<String, Tracked>);

impl Renewals {
    /// Takes a lease in, and says whether a decision may come out differently now.
    fn note(&mut self, node: &str, lease: &CoreLease, now: Timestamp) -> bool {
        let renew_time = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.renew_time.as_ref())
            .map(|time| time.0);
        match self.0.get_mut(node) {
            None => {
                let lease = Lease {
                    silent_since: now,
                    renewed: false,
                };
                self.0.insert(node.to_owned(), Tracked { renew_time, lease });
                false
            }
            Some(tracked) if tracked.renew_time == renew_time => false,
            Some(tracked) => {
                let news = !tracked.lease.renewed || age(tracked.lease.silent_since, now) > LEASE_OVERDUE;
                tracked.renew_time = renew_time;
                tracked.lease = Lease {
                    silent_since: now,
                    renewed: true,
                };
                news
            }
        }
    }
}

/// Whom to requeue, and by which clock.
#[derive(Clone)]
pub struct Caller {
    pub trigger: Option<Trigger>,
    pub key: ObjectKey,
    pub clock: Clock,
}

impl Caller {
    fn fire(&self) {
        if let Some(trigger) = &self.trigger {
            trigger.fire(&self.key);
        }
    }
}

pub struct Leases {
    client: Client,
    caller: Caller,
    seen: Arc<Mutex<Renewals>>,
    watches: Mutex<HashMap<String, DropGuard>>,
}

impl Leases {
    pub fn new(client: Client, caller: Caller) -> Self {
        Self {
            client,
            caller,
            seen: Arc::default(),
            watches: Mutex::default(),
        }
    }

    /// Watches the leases of these nodes and of no others.
    pub fn follow<'name>(&self, nodes: impl Iterator<Item = &'name str>) {
        let mut watches = self.watches.lock();
        let mut before = std::mem::take(&mut *watches);
        for node in nodes {
            let guard = before.remove(node).unwrap_or_else(|| {
                let stop = CancellationToken::new();
                tokio::spawn(watch(
                    self.client.clone(),
                    node.to_owned(),
                    Arc::clone(&self.seen),
                    self.caller.clone(),
                    stop.clone(),
                ));
                stop.drop_guard()
            });
            watches.insert(node.to_owned(), guard);
        }
        let mut seen = self.seen.lock();
        seen.0.retain(|node, _| watches.contains_key(node));
    }

    pub fn len(&self) -> usize {
        self.watches.lock().len()
    }

    pub fn is_followed(&self, node: &str) -> bool {
        self.watches.lock().contains_key(node)
    }

    pub fn of(&self, node: &str) -> Option<Lease> {
        self.seen.lock().0.get(node).map(|tracked| tracked.lease)
    }

    pub(super) fn api(&self) -> Api<CoreLease> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// A lease that was read past the watch.
    pub fn note(&self, node: &str, lease: &CoreLease, now: Timestamp) {
        self.seen.lock().note(node, lease, now);
    }
}

async fn watch(
    client: Client,
    node: String,
    seen: Arc<Mutex<Renewals>>,
    caller: Caller,
    stop: CancellationToken,
) {
    let leases: Api<CoreLease> = Api::namespaced(client, NAMESPACE);
    let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let mut stream = retry::watch(watcher(leases, config), SLOWEST_RETRY);
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = stream.next() => event,
            () = limit(&seen, &node, &caller) => {
                caller.fire();
                continue;
            }
        };
        match event {
            None => return,
            Some(Ok(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease))) => {
                let news = seen.lock().note(&node, &lease, caller.clock.now());
                if news {
                    caller.fire();
                }
            }
            Some(Ok(watcher::Event::Delete(_))) => {
                seen.lock().0.remove(&node);
                caller.fire();
            }
            // A watch that breaks says nothing: the silence that follows is what counts.
            Some(Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_)) => {}
        }
    }
}

/// Ends when the next limit of silence has passed.
async fn limit(seen: &Mutex<Renewals>, node: &str, caller: &Caller) {
    let silence = seen
        .lock()
        .0
        .get(node)
        .map(|tracked| age(tracked.lease.silent_since, caller.clock.now()));
    let next = silence.and_then(|silence| {
        [LEASE_OVERDUE + MARGIN, LEASE_EXPIRED + MARGIN]
            .into_iter()
            .find(|limit| *limit > silence)
            .map(|limit| limit.saturating_sub(silence))
    });
    match next {
        Some(after) => tokio::time::sleep(after).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(renew_time: &str) -> CoreLease {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"renewTime": renew_time}})).unwrap()
    }

    #[test]
    fn only_a_renewal_that_is_seen_counts_whatever_the_clock_of_the_host_says() {
        let mut seen = Renewals::default();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let at = |seconds: i64| now + jiff::SignedDuration::from_secs(seconds);
        assert!(!seen.note("a", &lease("2031-01-01T00:00:00.000000Z"), now));
        assert!(!seen.0["a"].lease.renewed, "its host may be dead since 2031");
        assert!(!seen.note("a", &lease("2031-01-01T00:00:00.000000Z"), at(5)));
        assert!(seen.note("a", &lease("2031-01-01T00:00:10.000000Z"), at(10)));
        let renewed = seen.0["a"].lease;
        assert_eq!((renewed.renewed, renewed.silent_since), (true, at(10)));
        assert!(
            !seen.note("a", &lease("2031-01-01T00:00:20.000000Z"), at(20)),
            "a renewal in time is no news"
        );
        assert!(seen.note("a", &lease("2031-01-01T00:01:20.000000Z"), at(80)));
    }
}
