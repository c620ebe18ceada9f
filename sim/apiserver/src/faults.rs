//! Faults between a client and the world: what happens at the n-th external call.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::Notify, time::Instant};

use crate::{Apiserver, Held, failure::Failure, route::Call, server::is_write};

/// What becomes of one call.
#[derive(Debug)]
pub enum Fate {
    Pass,
    /// Refused by the server, without effect.
    Refuse(Failure),
    /// Never reached the server.
    Lose,
    /// Reached the server and took effect; the answer was lost.
    LoseAnswer,
    /// Never reached the server and is never answered: whoever asked is dead.
    Hang,
    /// Took effect and is never answered: the connection's read timeout ends it.
    HangAnswer,
}

/// One thing that goes wrong at one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The process dies before the request is sent.
    CrashBeforeSend,
    /// The process dies after the server has committed.
    CrashAfterCommit,
    /// The connection breaks before the request is sent.
    LostRequest,
    /// The connection breaks after the server has committed.
    LostAnswer,
    /// 409; writes only.
    Conflict,
    /// 429 with `Retry-After`.
    Throttled,
    /// 500.
    ServerError,
    /// The server commits and never answers; the client's own deadline must end it.
    TimeoutAfterCommit,
    /// Watch events stop for half a minute: caches stay in the past.
    StaleCache,
    /// Every watch breaks and is opened again from where it was.
    DroppedWatch,
    /// Every watch breaks and history is gone: 410, then a new list.
    HistoryGone,
    /// Every watch breaks and its next list is cut into pages; the token for the second has expired: 410, then a
    /// list from the start.
    ExpiredList,
    /// Every watch repeats its last events, oldest first.
    RepeatedEvents,
    /// Events of one watch overtake each other, wherever they are of different objects.
    ReorderedEvents,
    /// The watches of this call's kind stop for half a minute: other kinds' events overtake it.
    OvertakenKind,
    /// The watches of all other kinds stop for half a minute: this kind's events overtake them.
    OvertakingKind,
    /// Leadership goes to another process: this one stops in order.
    LeadershipLost,
    /// An hour passes at once.
    ClockJump,
}

impl Fault {
    pub const ALL: [Self; 18] = [
        Self::CrashBeforeSend,
        Self::CrashAfterCommit,
        Self::LostRequest,
        Self::LostAnswer,
        Self::Conflict,
        Self::Throttled,
        Self::ServerError,
        Self::TimeoutAfterCommit,
        Self::StaleCache,
        Self::DroppedWatch,
        Self::HistoryGone,
        Self::ExpiredList,
        Self::RepeatedEvents,
        Self::ReorderedEvents,
        Self::OvertakenKind,
        Self::OvertakingKind,
        Self::LeadershipLost,
        Self::ClockJump,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// How the process under test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Crash,
    LeadershipLost,
}

/// One call as it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// What was asked of whom.
    pub line: String,
    pub writes: bool,
    /// The version of the apiserver under test, just before.
    pub version: u64,
    /// How long after the first call.
    pub after: Duration,
}

/// The fault plan of one run: calls are counted, and one of them may go wrong. Clones share it, and are the same process.
#[derive(Clone, Default)]
pub struct Faults {
    inner: Arc<Inner>,
    /// Whether the process that calls has crashed.
    dead: Arc<AtomicBool>,
}

#[derive(Default)]
struct Inner {
    calls: AtomicUsize,
    plan: Mutex<Vec<(usize, Fault)>>,
    log: Mutex<Vec<Called>>,
    first: OnceLock<Instant>,
    ending: Mutex<Option<Ending>>,
    ended: Notify,
    servers: Mutex<Vec<Apiserver>>,
}

impl Faults {
    pub fn none() -> Self {
        Self::default()
    }

    /// The `index`-th call (from 0) meets this fault.
    pub fn at(self, index: usize, fault: Fault) -> Self {
        self.inner.plan.lock().push((index, fault));
        self
    }

    /// The same plan for another process. What is left of one that crashed, a reconcile that still waits for an answer,
    /// calls nobody any more.
    pub fn of_another_process(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            dead: Arc::default(),
        }
    }

    /// A server whose watches a fault may break. A process may talk to several.
    pub(crate) fn on(self, server: &Apiserver) -> Self {
        let mut servers = self.inner.servers.lock();
        if !servers.iter().any(|known| known.is(server)) {
            servers.push(server.clone());
        }
        drop(servers);
        self
    }

    /// How many calls have been made.
    pub fn calls(&self) -> usize {
        self.inner.calls.load(Ordering::SeqCst)
    }

    /// Every call, in order.
    pub fn log(&self) -> Vec<Called> {
        self.inner.log.lock().clone()
    }

    /// Waits until a fault ends the process, and says how. The next process starts without a verdict.
    pub async fn ending(&self) -> Ending {
        loop {
            let notified = self.inner.ended.notified();
            if let Some(ending) = self.inner.ending.lock().take() {
                return ending;
            }
            notified.await;
        }
    }

    /// Counts a call to something that is not the apiserver (ARM, a host) and says what becomes of it.
    /// `writes` says whether it changes anything.
    pub async fn external(&self, description: &str, writes: bool) -> Fate {
        self.next(description.to_owned(), None, writes).await
    }

    pub(crate) async fn before(&self, call: &Call) -> Fate {
        let place: Vec<&str> = [call.namespace.as_deref(), call.name.as_deref()]
            .into_iter()
            .flatten()
            .collect();
        let subresource = call
            .subresource
            .as_ref()
            .map(|name| format!("/{name}"))
            .unwrap_or_default();
        let line = format!("{} {}{subresource} {}", call.verb(), call.plural, place.join("/"));
        self.next(line, Some(call.resource()), is_write(&call.method))
            .await
    }

    async fn next(&self, line: String, resource: Option<String>, writes: bool) -> Fate {
        if self.dead.load(Ordering::SeqCst) {
            return Fate::Hang;
        }
        let index = self.inner.calls.fetch_add(1, Ordering::SeqCst);
        let version = self.inner.servers.lock().first().map(Apiserver::version);
        self.inner.log.lock().push(Called {
            line: line.clone(),
            writes,
            version: version.unwrap_or_default(),
            after: self.inner.first.get_or_init(Instant::now).elapsed(),
        });
        // One turn of the executor for every call: nothing answers before it is asked.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let fault = self
            .inner
            .plan
            .lock()
            .iter()
            .find(|(at, _)| *at == index)
            .map(|(_, fault)| *fault);
        match fault {
            Some(fault) => self.meet(fault, &line, resource, writes).await,
            None => Fate::Pass,
        }
    }

    async fn meet(&self, fault: Fault, line: &str, resource: Option<String>, writes: bool) -> Fate {
        match fault {
            Fault::CrashBeforeSend => {
                self.end(Ending::Crash);
                return Fate::Hang;
            }
            Fault::CrashAfterCommit => {
                self.end(Ending::Crash);
                return Fate::HangAnswer;
            }
            Fault::LostRequest => return Fate::Lose,
            Fault::LostAnswer => return Fate::LoseAnswer,
            Fault::TimeoutAfterCommit => return Fate::HangAnswer,
            Fault::Conflict if writes => {
                return Fate::Refuse(Failure::conflict(line, "", &Failure::stale().message));
            }
            Fault::Throttled => {
                return Fate::Refuse(Failure {
                    code: StatusCode::TOO_MANY_REQUESTS,
                    reason: "TooManyRequests",
                    message: "too many requests, please try again later".to_owned(),
                    details: json!({"retryAfterSeconds": 7}),
                });
            }
            Fault::ServerError => {
                return Fate::Refuse(Failure::internal(
                    "an error on the server has prevented the request",
                ));
            }
            Fault::LeadershipLost => self.end(Ending::LeadershipLost),
            Fault::ClockJump => tokio::time::advance(Duration::from_hours(1)).await,
            Fault::Conflict
            | Fault::StaleCache
            | Fault::DroppedWatch
            | Fault::HistoryGone
            | Fault::ExpiredList
            | Fault::RepeatedEvents
            | Fault::ReorderedEvents
            | Fault::OvertakenKind
            | Fault::OvertakingKind => self.disturb_watches(fault, resource.as_deref()),
        }
        Fate::Pass
    }

    fn end(&self, ending: Ending) {
        self.dead.store(ending == Ending::Crash, Ordering::SeqCst);
        *self.inner.ending.lock() = Some(ending);
        self.inner.ended.notify_waiters();
    }

    fn disturb_watches(&self, fault: Fault, resource: Option<&str>) {
        let servers = self.inner.servers.lock().clone();
        for server in servers {
            Self::disturb(server, fault, resource.map(ToOwned::to_owned));
        }
    }

    fn disturb(server: Apiserver, fault: Fault, resource: Option<String>) {
        match (fault, resource) {
            (Fault::OvertakenKind, Some(resource)) => hold(server, Held::Only(resource)),
            (Fault::OvertakingKind, Some(resource)) => hold(server, Held::AllBut(resource)),
            // What is not the apiserver has no kind: all of them stay behind it.
            (Fault::StaleCache, _) | (Fault::OvertakingKind, None) => hold(server, Held::All),
            (Fault::DroppedWatch, _) => server.cut_watches(),
            (Fault::HistoryGone, _) => {
                server.compact();
                server.cut_watches();
            }
            (Fault::ExpiredList, _) => {
                server.expire_next_lists();
                server.compact();
                server.cut_watches();
            }
            (Fault::RepeatedEvents, _) => server.repeat_events(),
            (Fault::ReorderedEvents, _) => {
                server.hold_watches(Held::All);
                tokio::spawn(async move {
                    tokio::time::sleep(GATHERING).await;
                    server.release_reordered();
                });
            }
            _ => {}
        }
    }
}

/// How long caches of a kind stay behind.
const LAG: Duration = Duration::from_secs(30);

/// Events can overtake each other only where there are several.
const GATHERING: Duration = Duration::from_secs(5);

fn hold(server: Apiserver, held: Held) {
    server.hold_watches(held);
    tokio::spawn(async move {
        tokio::time::sleep(LAG).await;
        server.release_watches();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_left_of_a_crashed_process_calls_nobody() {
        let plan = Faults::none().at(0, Fault::CrashAfterCommit);
        let first = plan.of_another_process();
        assert!(matches!(first.external("GET a", false).await, Fate::HangAnswer));
        assert_eq!(plan.ending().await, Ending::Crash);
        assert!(matches!(first.clone().external("PUT a", true).await, Fate::Hang));
        let second = plan.of_another_process();
        assert!(matches!(second.external("PUT a", true).await, Fate::Pass));
        let lines: Vec<String> = plan.log().into_iter().map(|call| call.line).collect();
        assert_eq!(lines, ["GET a", "PUT a"], "the dead one's is none");
    }
}
