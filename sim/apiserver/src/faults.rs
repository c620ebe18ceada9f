//! Faults between a client and the world: what happens at the n-th external call.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use crate::{Apiserver, failure::Failure, route::Call, server::is_write};

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
    /// Every watch repeats its last events, oldest first.
    RepeatedEvents,
    /// Leadership goes to another process: this one stops in order.
    LeadershipLost,
    /// An hour passes at once.
    ClockJump,
}

impl Fault {
    pub const ALL: [Self; 14] = [
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
        Self::RepeatedEvents,
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

/// The fault plan of one process: its calls are counted, and one of them may go wrong. Clones share it.
#[derive(Clone, Default)]
pub struct Faults {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    calls: AtomicUsize,
    plan: Mutex<Vec<(usize, Fault)>>,
    log: Mutex<Vec<String>>,
    ending: Mutex<Option<Ending>>,
    ended: Notify,
    server: Mutex<Option<Apiserver>>,
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

    /// The server whose watches a fault may break.
    pub(crate) fn on(self, server: &Apiserver) -> Self {
        *self.inner.server.lock() = Some(server.clone());
        self
    }

    /// How many calls have been made.
    pub fn calls(&self) -> usize {
        self.inner.calls.load(Ordering::SeqCst)
    }

    /// One line a call, in order.
    pub fn log(&self) -> Vec<String> {
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
        self.next(description.to_owned(), writes).await
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
        self.next(line, is_write(&call.method)).await
    }

    async fn next(&self, line: String, writes: bool) -> Fate {
        let index = self.inner.calls.fetch_add(1, Ordering::SeqCst);
        self.inner.log.lock().push(line.clone());
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
            Some(fault) => self.meet(fault, &line, writes).await,
            None => Fate::Pass,
        }
    }

    async fn meet(&self, fault: Fault, line: &str, writes: bool) -> Fate {
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
            | Fault::RepeatedEvents => self.disturb_watches(fault),
        }
        Fate::Pass
    }

    fn end(&self, ending: Ending) {
        *self.inner.ending.lock() = Some(ending);
        self.inner.ended.notify_waiters();
    }

    fn disturb_watches(&self, fault: Fault) {
        let Some(server) = self.inner.server.lock().clone() else {
            return;
        };
        match fault {
            Fault::StaleCache => {
                server.hold_watches();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(30)).await;
                    server.release_watches();
                });
            }
            Fault::DroppedWatch => server.cut_watches(),
            Fault::HistoryGone => {
                server.compact();
                server.cut_watches();
            }
            Fault::RepeatedEvents => server.repeat_events(),
            _ => {}
        }
    }
}
