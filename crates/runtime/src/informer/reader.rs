//! What a reader holds: lookups, indexes and subscriptions. The watch lives as long as one of these does.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use kube::api::ApiResource;
use tokio::sync::watch as channel;
use tokio_util::sync::CancellationToken;

use super::{
    Malformed, Object, Set, WatchKey,
    mailbox::{Delta, Mailbox},
    shared::Shared,
};
use crate::ObjectKey;

/// Held by whoever reads; when the last is gone the watch stops.
pub(super) struct Handle<K: Object> {
    pub shared: Arc<Shared<K>>,
    pub set: Weak<Set>,
    pub key: WatchKey,
    pub id: u64,
    pub cancelled: CancellationToken,
}

impl<K: Object> Drop for Handle<K> {
    fn drop(&mut self) {
        self.cancelled.cancel();
        let Some(set) = self.set.upgrade() else { return };
        let mut entries = set.entries.lock();
        if entries.get(&self.key).is_some_and(|entry| entry.id == self.id) {
            entries.remove(&self.key);
        }
    }
}

/// The objects of one kind and scope, kept true by a watch. Clones read the same store.
pub struct Informer<K: Object> {
    pub(super) handle: Arc<Handle<K>>,
}

impl<K: Object> Informer<K> {
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.handle.shared.store.read().get(key)
    }

    /// All objects, in the order of their keys.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.handle.shared.store.read().list()
    }

    /// The keys of all objects, in no order.
    pub fn keys(&self) -> Vec<ObjectKey> {
        let store = self.handle.shared.store.read();
        store.keys().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.handle.shared.store.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Objects that were received and could not be read.
    pub fn malformed(&self) -> Vec<Malformed> {
        self.handle.shared.store.read().malformed().cloned().collect()
    }

    /// Finds objects by computed values. Indexes are shared by name: a name must always mean the same function.
    pub fn index(
        &self,
        name: &'static str,
        values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Index<K> {
        self.handle.shared.store.write().add_index(name, Arc::new(values));
        Index {
            informer: self.clone(),
            name,
        }
    }

    /// Everything there is now, as listed additions, then every change.
    pub fn subscribe(&self) -> Subscription<K> {
        let mailbox = Arc::new(Mailbox::new());
        self.handle.shared.store.write().subscribe(&mailbox);
        if self.handle.cancelled.is_cancelled() {
            mailbox.close();
        }
        Subscription {
            mailbox,
            _informer: self.clone(),
        }
    }

    pub fn is_synced(&self) -> bool {
        *self.handle.shared.synced.borrow()
    }

    /// Resolves when the first full list is in.
    pub async fn synced(&self) {
        let mut synced = self.handle.shared.synced.subscribe();
        // The sender lives as long as the handle that is borrowed here.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Whether the server last answered that these objects may not be read. The receiver lives as long as the informer.
    pub fn denied(&self) -> channel::Receiver<bool> {
        self.handle.shared.denied.subscribe()
    }

    pub fn resource(&self) -> &ApiResource {
        &self.handle.shared.resource
    }
}

impl<K: Object> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self {
            handle: Arc::clone(&self.handle),
        }
    }
}

impl<K: Object> fmt::Debug for Informer<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Informer")
            .field("kind", &self.handle.shared.resource.kind)
            .field("scope", &self.handle.shared.scope)
            .finish_non_exhaustive()
    }
}

/// Objects found by a computed value.
#[derive(Clone, Debug)]
pub struct Index<K: Object> {
    informer: Informer<K>,
    name: &'static str,
}

impl<K: Object> Index<K> {
    /// The objects that have this value, in the order of their keys.
    pub fn get(&self, value: &str) -> Vec<Arc<K>> {
        self.informer.handle.shared.store.read().indexed(self.name, value)
    }
}

/// The changes of an informer, for one reader.
pub struct Subscription<K: Object> {
    mailbox: Arc<Mailbox<K>>,
    _informer: Informer<K>,
}

impl<K: Object> Subscription<K> {
    /// The next change; nothing once the informers were stopped. May be dropped without losing a change.
    pub async fn next(&mut self) -> Option<Delta<K>> {
        self.mailbox.next().await
    }
}
