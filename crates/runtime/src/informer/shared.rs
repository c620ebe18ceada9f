//! The store of one watch as all its readers share it: what it counts, and which writes it already shows.

use std::collections::BTreeMap;

use kube::{
    api::ApiResource,
    core::{Selector, SelectorExt as _},
};
use parking_lot::RwLock;
use tokio::sync::watch as channel;

use super::{
    Object, Scope,
    guard::Guarded,
    store::{Delta, Store},
};
use crate::{Metrics, metrics::KindLabel, writes::Write};

/// What can be asked of a store without knowing its type.
pub(super) trait Cache: Send + Sync {
    fn has_seen(&self, write: &Write) -> bool;
    fn is_synced(&self) -> bool;
}

/// A label selector, if it is made of equalities alone.
pub(super) fn parse_selector(text: &str) -> Option<Selector> {
    let mut labels = BTreeMap::new();
    for pair in text.split(',') {
        let (name, value) = pair.split_once('=')?;
        if name.ends_with('!') || name.contains(' ') {
            return None;
        }
        labels.insert(
            name.trim().to_owned(),
            value.trim_start_matches('=').trim().to_owned(),
        );
    }
    Some(Selector::from_iter(labels))
}

/// One store and all that surrounds it: held by the watch that fills it and by whoever reads it.
pub(super) struct Shared<K: Object> {
    pub resource: ApiResource,
    pub scope: Scope,
    /// The label selector, where it is simple enough to be evaluated here.
    pub selector: Option<Selector>,
    pub store: RwLock<Store<K>>,
    pub synced: channel::Sender<bool>,
    /// Whether the server last answered that it may not be read.
    pub denied: channel::Sender<bool>,
    pub metrics: Metrics,
    pub prune: Option<fn(&mut K)>,
}

impl<K: Object> Shared<K> {
    pub fn label(&self) -> KindLabel {
        KindLabel {
            kind: self.resource.kind.clone(),
        }
    }

    pub fn prune(&self, mut object: Guarded<K>) -> Guarded<K> {
        if let (Some(prune), Guarded::Sound(object)) = (self.prune, &mut object) {
            prune(object);
        }
        object
    }

    pub fn count(&self, delta: Delta) {
        if delta == Delta::default() {
            return;
        }
        let label = self.label();
        self.metrics
            .cached_objects
            .get_or_create(&label)
            .inc_by(delta.objects);
        self.metrics
            .malformed_objects
            .get_or_create(&label)
            .inc_by(delta.malformed);
    }
}

impl<K: Object> Drop for Shared<K> {
    fn drop(&mut self) {
        let store = self.store.get_mut();
        let delta = Delta {
            objects: -(store.len() as i64),
            malformed: -(store.malformed().count() as i64),
        };
        self.count(delta);
        self.metrics.informers.get_or_create(&self.label()).dec();
    }
}

impl<K: Object> Cache for Shared<K> {
    fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    fn has_seen(&self, write: &Write) -> bool {
        if self.scope.namespace.is_some() && self.scope.namespace.as_deref() != write.key.namespace() {
            return true;
        }
        let store = self.store.read();
        // A list asked for after the write shows it, or shows that it is gone again.
        if store.listed_at.is_some_and(|listed| listed > write.at) {
            return true;
        }
        // Changes of one kind arrive in the order of their versions, whichever objects they are of.
        if !write.gone
            && let (Some(mark), Ok(version)) = (store.mark, write.version.parse::<u64>())
            && mark >= version
        {
            return true;
        }
        let object = store.get(&write.key);
        let cached = object.as_ref().map(|object| object.meta());
        if write.gone {
            return cached.is_none_or(|cached| cached.uid != write.uid);
        }
        match cached {
            Some(cached) => {
                let cached = cached.resource_version.as_deref().unwrap_or_default();
                cached == write.version || (!write.is_numeric() && Some(cached) != write.previous.as_deref())
            }
            None => self
                .selector
                .as_ref()
                .is_some_and(|selector| !selector.matches(&write.labels)),
        }
    }
}
