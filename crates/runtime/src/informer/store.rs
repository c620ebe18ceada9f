//! The objects of one watch, their indexes and who is told of changes. Every step is taken under one lock, so a
//! subscriber that joins at any moment sees each state exactly once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use ahash::{AHashMap, AHashSet};
use kube::Resource;
use tokio::time::Instant;

use super::{
    compression::{Compressor, Encoding, StoredObject},
    guard::{Guarded, Malformed},
    mailbox::{Mailbox, Origin},
};
use crate::ObjectKey;

/// Computes the values under which an object is found.
pub(super) type IndexFunction<K> = Arc<dyn Fn(&K) -> Vec<String> + Send + Sync>;

struct Index<K> {
    values: IndexFunction<K>,
    keys: AHashMap<String, AHashSet<ObjectKey>>,
}

impl<K> Index<K> {
    fn insert(&mut self, key: &ObjectKey, object: &K) {
        for value in (self.values)(object) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &ObjectKey, object: &K) {
        for value in (self.values)(object) {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }
}

/// An object that cannot be read now, and what it was when it last could.
struct Unreadable<K> {
    malformed: Malformed,
    last_sound: Option<Arc<K>>,
}

/// What one step changed in numbers, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Delta {
    pub objects: i64,
    pub malformed: i64,
}

pub(super) struct Store<K> {
    objects: AHashMap<ObjectKey, StoredObject<K>>,
    compressor: Option<Compressor<K>>,
    unreadable: AHashMap<ObjectKey, Unreadable<K>>,
    indexes: BTreeMap<&'static str, Index<K>>,
    subscribers: Vec<Weak<Mailbox<K>>>,
    listing: Option<Listing>,
    /// The highest resource version up to which every change is known.
    pub mark: Option<u64>,
    /// When the request for the last complete list was made.
    pub listed_at: Option<Instant>,
}

struct Listing {
    started: Instant,
    seen: AHashSet<ObjectKey>,
    highest: Option<u64>,
}

impl<K: Resource> Store<K> {
    pub fn new(encoding: Option<Encoding<K>>) -> Self {
        Self {
            objects: AHashMap::new(),
            compressor: encoding.map(Compressor::new),
            unreadable: AHashMap::new(),
            indexes: BTreeMap::new(),
            subscribers: Vec::new(),
            listing: None,
            mark: None,
            listed_at: None,
        }
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.objects.get(key).map(StoredObject::object)
    }

    pub fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.objects.keys()
    }

    /// All objects, in the order of their keys.
    pub fn list(&self) -> Vec<Arc<K>> {
        let mut objects: Vec<_> = self.objects.iter().collect();
        objects.sort_unstable_by_key(|(key, _)| *key);
        objects.into_iter().map(|(_, kept)| kept.object()).collect()
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn malformed(&self) -> impl Iterator<Item = &Malformed> {
        self.unreadable.values().map(|unreadable| &unreadable.malformed)
    }

    pub fn add_index(&mut self, name: &'static str, values: IndexFunction<K>) {
        if self.indexes.contains_key(name) {
            return;
        }
        let mut index = Index {
            values,
            keys: AHashMap::new(),
        };
        for (key, kept) in &self.objects {
            index.insert(key, &kept.object());
        }
        self.indexes.insert(name, index);
    }

    pub fn indexed(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        let keys = self.indexes.get(name).and_then(|index| index.keys.get(value));
        let mut found: Vec<(&ObjectKey, &StoredObject<K>)> = keys
            .into_iter()
            .flatten()
            .filter_map(|key| self.objects.get_key_value(key))
            .collect();
        // The same order in every run, so that what is computed from it is the same too.
        found.sort_unstable_by_key(|(key, _)| *key);
        found.into_iter().map(|(_, kept)| kept.object()).collect()
    }

    /// A new subscriber is told all there is now, then every change.
    pub fn subscribe(&mut self, mailbox: &Arc<Mailbox<K>>) {
        for (key, kept) in &self.objects {
            mailbox.put(key, None, Some(&kept.object()), None, Origin::Listed);
        }
        self.subscribers
            .retain(|subscriber| subscriber.strong_count() > 0);
        self.subscribers.push(Arc::downgrade(mailbox));
    }

    pub fn close(&mut self) {
        for mailbox in self.subscribers.drain(..).filter_map(|weak| weak.upgrade()) {
            mailbox.close();
        }
    }

    pub fn begin_list(&mut self) {
        self.listing = Some(Listing {
            started: Instant::now(),
            seen: AHashSet::new(),
            highest: None,
        });
    }

    /// Takes in an object of a list or watch. Answers what could not be read, if it is news.
    pub fn apply(&mut self, object: Guarded<K>, origin: Origin) -> (Delta, Option<Malformed>) {
        let meta = object.meta();
        let key = ObjectKey::new(
            meta.namespace.as_deref(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let version = meta.resource_version.clone().unwrap_or_default();
        self.advance(&key, &version, origin);
        match object {
            Guarded::Sound(object) => (self.apply_sound(&key, &version, *object, origin), None),
            Guarded::Malformed { metadata, error } => self.apply_malformed(
                &key,
                Malformed {
                    key: key.clone(),
                    uid: metadata.uid.unwrap_or_default(),
                    resource_version: version,
                    error,
                },
            ),
        }
    }

    fn advance(&mut self, key: &ObjectKey, version: &str, origin: Origin) {
        let number: Option<u64> = version.parse().ok();
        match (&mut self.listing, origin) {
            (Some(listing), Origin::Listed) => {
                listing.seen.insert(key.clone());
                listing.highest = listing.highest.max(number);
            }
            _ => self.mark = self.mark.max(number),
        }
    }

    fn apply_sound(&mut self, key: &ObjectKey, version: &str, object: K, origin: Origin) -> Delta {
        let mut delta = Delta::default();
        let old = if let Some(unreadable) = self.unreadable.remove(key) {
            delta.malformed -= 1;
            unreadable.last_sound
        } else {
            let old = self.objects.get(key).map(StoredObject::object);
            if let Some(old) = &old
                && is_not_newer(version, old.as_ref())
            {
                return delta;
            }
            old
        };
        let new = Arc::new(object);
        let kept = StoredObject::new(&new, self.compressor.as_mut());
        if let Some(held) = self.objects.get_mut(key) {
            *held = kept;
            if let Some(previous) = &old {
                for index in self.indexes.values_mut() {
                    index.remove(key, previous);
                }
            }
        } else {
            self.objects.insert(key.clone(), kept);
            delta.objects += 1;
        }
        for index in self.indexes.values_mut() {
            index.insert(key, &new);
        }
        self.publish(key, old.as_ref(), Some(&new), None, origin);
        delta
    }

    /// Nobody is told: the object still is, and who acts on its last sound state would act on a guess.
    fn apply_malformed(&mut self, key: &ObjectKey, malformed: Malformed) -> (Delta, Option<Malformed>) {
        let mut delta = Delta::default();
        let known = self.unreadable.get(key);
        let news = known.is_none_or(|known| known.malformed.resource_version != malformed.resource_version);
        let last_sound = if let Some(known) = known {
            known.last_sound.clone()
        } else {
            delta.malformed += 1;
            let last_sound = self.objects.remove(key).map(|kept| kept.object());
            if let Some(object) = &last_sound {
                delta.objects -= 1;
                for index in self.indexes.values_mut() {
                    index.remove(key, object);
                }
            }
            last_sound
        };
        self.unreadable.insert(
            key.clone(),
            Unreadable {
                malformed: malformed.clone(),
                last_sound,
            },
        );
        (delta, news.then_some(malformed))
    }

    /// Takes in a deletion with the object's final state.
    pub fn delete(&mut self, object: Guarded<K>) -> Delta {
        let meta = object.meta();
        let key = ObjectKey::new(
            meta.namespace.as_deref(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let number = meta
            .resource_version
            .as_ref()
            .and_then(|version| version.parse().ok());
        self.mark = self.mark.max(number);
        let last = match object {
            Guarded::Sound(object) => Some(Arc::new(*object)),
            Guarded::Malformed { .. } => None,
        };
        self.remove(&key, last, Origin::Live)
    }

    fn remove(&mut self, key: &ObjectKey, last: Option<Arc<K>>, origin: Origin) -> Delta {
        let mut delta = Delta::default();
        let old = if let Some(unreadable) = self.unreadable.remove(key) {
            delta.malformed -= 1;
            unreadable.last_sound
        } else {
            let old = self.objects.remove(key).map(|kept| kept.object());
            if let Some(object) = &old {
                delta.objects -= 1;
                for index in self.indexes.values_mut() {
                    index.remove(key, object);
                }
            }
            old
        };
        let last = last.or_else(|| old.clone());
        if old.is_some() || last.is_some() {
            self.publish(key, old.as_ref(), None, last.as_ref(), origin);
        }
        delta
    }

    /// Ends a list: what it did not contain was deleted while nobody watched.
    pub fn finish_list(&mut self) -> Delta {
        let Some(listing) = self.listing.take() else {
            return Delta::default();
        };
        self.mark = self.mark.max(listing.highest);
        self.listed_at = Some(listing.started);
        let gone: Vec<ObjectKey> = self
            .objects
            .keys()
            .chain(self.unreadable.keys())
            .filter(|key| !listing.seen.contains(*key))
            .cloned()
            .collect();
        let mut delta = Delta::default();
        for key in gone {
            let removed = self.remove(&key, None, Origin::Live);
            delta.objects += removed.objects;
            delta.malformed += removed.malformed;
        }
        delta
    }

    fn publish(
        &mut self,
        key: &ObjectKey,
        old: Option<&Arc<K>>,
        new: Option<&Arc<K>>,
        last: Option<&Arc<K>>,
        origin: Origin,
    ) {
        self.subscribers.retain(|subscriber| {
            let Some(mailbox) = subscriber.upgrade() else {
                return false;
            };
            mailbox.put(key, old, new, last, origin);
            true
        });
    }
}

/// Whether a version of the object is the one already held, or an older one that a list or a replayed watch
/// brought late.
fn is_not_newer<K: Resource>(version: &str, held: &K) -> bool {
    let held = held.meta().resource_version.as_deref().unwrap_or_default();
    if version == held {
        return !version.is_empty();
    }
    match (version.parse::<u64>(), held.parse::<u64>()) {
        (Ok(version), Ok(held)) => version < held,
        _ => false,
    }
}
