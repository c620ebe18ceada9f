//! Tells who plans when something has changed that planning can see.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use slipway_runtime::{Informer, informer::Object};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::watched::Watched;

/// Says when something has changed.
pub struct Changed {
    notify: Arc<Notify>,
    /// Something changed that was not planned for.
    is_new: Arc<AtomicBool>,
    /// Ends the tasks that listen.
    _stop: DropGuard,
}

impl Changed {
    pub fn listen(watched: &Watched) -> Self {
        let stop = CancellationToken::new();
        let changed = Changed {
            notify: Arc::default(),
            is_new: Arc::default(),
            _stop: stop.clone().drop_guard(),
        };
        changed.to(&watched.claims, &stop);
        changed.to(&watched.nodes, &stop);
        changed.to(&watched.pods, &stop);
        changed.to(&watched.pools, &stop);
        changed.to(&watched.classes, &stop);
        changed.to(&watched.deployments, &stop);
        changed.to(&watched.machine_sets, &stop);
        changed.to(&watched.machine_pools, &stop);
        if let Some(overlays) = &watched.overlays {
            changed.to(overlays, &stop);
        }
        if let Some(buffers) = &watched.buffers {
            changed.to(&buffers.buffers, &stop);
        }
        if let Some(requests) = &watched.requests {
            changed.to(&requests.requests, &stop);
        }
        changed
    }

    /// Waits for the next change.
    pub async fn notified(&self) {
        self.notify.notified().await;
    }

    pub fn notify(&self) -> Arc<Notify> {
        Arc::clone(&self.notify)
    }

    /// Whether something has changed since it was last said to be seen.
    pub fn is_new(&self) -> bool {
        self.is_new.load(Ordering::SeqCst)
    }

    pub fn seen(&self) {
        self.is_new.store(false, Ordering::SeqCst);
    }

    fn to<K: Object>(&self, informer: &Informer<K>, stop: &CancellationToken) {
        let mut subscription = informer.subscribe();
        let (notify, is_new, stop) = (Arc::clone(&self.notify), Arc::clone(&self.is_new), stop.clone());
        tokio::spawn(async move {
            loop {
                let delta = tokio::select! {
                    () = stop.cancelled() => return,
                    delta = subscription.next() => delta,
                };
                if delta.is_none() {
                    return;
                }
                is_new.store(true, Ordering::SeqCst);
                notify.notify_one();
            }
        });
    }
}
