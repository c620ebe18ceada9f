//! Faults between a client and the server: what happens to the n-th call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::json;

use crate::{failure::Failure, route::Call};

/// What becomes of one call.
pub enum Fate {
    Pass,
    /// Refused by the server, without effect.
    Refuse(Failure),
    /// Never reached the server.
    Lose,
    /// Reached the server and took effect; the answer was lost.
    LoseAnswer,
    /// Never answered.
    Hang,
}

/// One fault, for one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks before the request is sent.
    LostRequest,
    /// The connection breaks after the server has committed.
    LostAnswer,
    Conflict,
    /// 429 with `Retry-After: 1`.
    Throttled,
    ServerError,
}

impl Fault {
    pub const ALL: [Self; 5] = [
        Self::LostRequest,
        Self::LostAnswer,
        Self::Conflict,
        Self::Throttled,
        Self::ServerError,
    ];

    fn fate(self, call: &Call) -> Fate {
        let name = call.name.clone().unwrap_or_default();
        match self {
            Self::LostRequest => Fate::Lose,
            Self::LostAnswer => Fate::LoseAnswer,
            Self::Conflict => Fate::Refuse(Failure::conflict(&call.plural, &name, &Failure::stale().message)),
            Self::Throttled => Fate::Refuse(Failure {
                code: StatusCode::TOO_MANY_REQUESTS,
                reason: "TooManyRequests",
                message: "too many requests, please try again later".to_owned(),
                details: json!({"retryAfterSeconds": 1}),
            }),
            Self::ServerError => Fate::Refuse(Failure::internal(
                "an error on the server has prevented the request",
            )),
        }
    }
}

/// A hook that sees every call before it is answered.
pub type Observer = Arc<dyn Fn(usize, &Call) + Send + Sync>;

/// The fault plan of one client. Clones share it.
#[derive(Clone, Default)]
pub struct Faults {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    calls: AtomicUsize,
    plan: Mutex<Vec<(usize, Fault)>>,
    log: Mutex<Vec<String>>,
    observer: Mutex<Option<Observer>>,
    /// Once set, every call hangs: the process behind this client is dead.
    dead_after: Mutex<Option<usize>>,
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

    /// From the `index`-th call on nothing is answered: the process is gone.
    pub fn dead_from(self, index: usize) -> Self {
        *self.inner.dead_after.lock() = Some(index);
        self
    }

    pub fn observed_by(self, observer: Observer) -> Self {
        *self.inner.observer.lock() = Some(observer);
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

    pub(crate) async fn before(&self, call: &Call) -> Fate {
        let index = self.inner.calls.fetch_add(1, Ordering::SeqCst);
        let place = [call.namespace.as_deref(), call.name.as_deref()]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>();
        let subresource = call
            .subresource
            .as_ref()
            .map(|name| format!("/{name}"))
            .unwrap_or_default();
        self.inner.log.lock().push(format!(
            "{} {}{subresource} {}",
            call.verb(),
            call.plural,
            place.join("/")
        ));
        let observer = self.inner.observer.lock().clone();
        if let Some(observer) = observer {
            observer(index, call);
        }
        // One turn of the executor for every call: nothing answers before it is asked.
        tokio::time::sleep(Duration::ZERO).await;
        if self.inner.dead_after.lock().is_some_and(|dead| index >= dead) {
            return Fate::Hang;
        }
        let fault = self
            .inner
            .plan
            .lock()
            .iter()
            .find(|(at, _)| *at == index)
            .map(|(_, fault)| *fault);
        fault.map_or(Fate::Pass, |fault| fault.fate(call))
    }
}
