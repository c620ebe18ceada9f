//! The slots of a controller: so many of its reconciles run at the same time. A reconcile that only waits for its turn
//! somewhere gives its slot to others meanwhile, so that no object is kept from being heard by others that wait.

use std::{
    fmt,
    future::{Future, ready},
    pin::pin,
    sync::Arc,
};

use futures::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The slots of a controller, first come, first served.
pub(super) struct Slots {
    free: Arc<Semaphore>,
    /// A reconcile stands in line to go on.
    requested: Notify,
}

impl Slots {
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(count)),
            requested: Notify::new(),
        })
    }

    /// A slot for a reconcile that is about to begin.
    pub async fn take(self: &Arc<Self>) -> Slot {
        let held = Held {
            permit: self.permit().await,
            ended: false,
        };
        Slot(Some(Arc::new(Inner {
            slots: Arc::clone(self),
            held: Mutex::new(held),
        })))
    }

    /// Resolves when a reconcile wants to go on: whoever holds a slot without use lets it go.
    pub async fn requested(&self) {
        self.requested.notified().await;
    }

    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        // The slots are never closed.
        Arc::clone(&self.free).acquire_owned().await.ok()
    }
}

/// A handle on the slot of one reconcile, shared by its clones. Outside of a reconcile there is none, and nothing is given.
#[derive(Clone, Default)]
pub struct Slot(Option<Arc<Inner>>);

struct Inner {
    slots: Arc<Slots>,
    held: Mutex<Held>,
}

struct Held {
    permit: Option<OwnedSemaphorePermit>,
    /// The reconcile is over: nothing is taken any more.
    ended: bool,
}

impl Slot {
    /// Awaits `wait`. If that takes any time, others have the slot meanwhile, and this goes on when one is free again.
    pub async fn given_up_for<T>(&self, wait: impl Future<Output = T>) -> T {
        let wait = pin!(wait);
        // What is there at once costs nobody a slot.
        let wait = match select(wait, ready(())).await {
            Either::Left((value, _)) => return value,
            Either::Right(((), wait)) => wait,
        };
        let Some(inner) = &self.0 else {
            return wait.await;
        };
        inner.held.lock().permit = None;
        let value = wait.await;
        inner.take_again().await;
        value
    }

    /// The reconcile is over, or goes on at its own expense.
    pub(super) fn end(&self) {
        if let Some(inner) = &self.0 {
            *inner.held.lock() = Held {
                permit: None,
                ended: true,
            };
        }
    }
}

impl Inner {
    async fn take_again(&self) {
        if self.held.lock().ended {
            return;
        }
        let permit = match select(pin!(self.slots.permit()), ready(())).await {
            Either::Left((permit, _)) => permit,
            // In line by now: a slot that is let go is the next one's.
            Either::Right(((), in_line)) => {
                self.slots.requested.notify_one();
                in_line.await
            }
        };
        let mut held = self.held.lock();
        if !held.ended {
            held.permit = permit;
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Slot")
    }
}
