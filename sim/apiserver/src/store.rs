//! The store: objects, the global resource version, and the log that watches read.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde_json::Value;

/// `(namespace, name)`; the namespace is empty for cluster-scoped kinds.
pub type Key = (String, String);

/// What happened to one object.
#[derive(Clone, Debug)]
pub struct StoreEvent {
    pub version: u64,
    pub resource: String,
    /// The object before; absent when it was created.
    pub before: Option<Arc<Value>>,
    /// The object after; absent when it was removed.
    pub after: Option<Arc<Value>>,
}

/// Objects in their storage version, by resource (`plural.group`) and key. A clone shares the objects.
#[derive(Clone, Default)]
pub struct Store {
    objects: BTreeMap<String, BTreeMap<Key, Arc<Value>>>,
    version: u64,
    log: VecDeque<StoreEvent>,
    /// Watches from before this version get 410 Gone.
    floor: u64,
    identities: u64,
}

pub fn key_of(object: &Value) -> Key {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

impl Store {
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// A uid that is the same in every run.
    pub fn next_uid(&mut self) -> String {
        self.identities += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.identities)
    }

    pub fn get(&self, resource: &str, key: &Key) -> Option<Arc<Value>> {
        self.objects.get(resource)?.get(key).cloned()
    }

    pub fn list(&self, resource: &str) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.objects.get(resource).into_iter().flatten()
    }

    pub fn all(&self) -> impl Iterator<Item = (&String, &Arc<Value>)> {
        self.objects
            .iter()
            .flat_map(|(resource, objects)| objects.values().map(move |object| (resource, object)))
    }

    /// Stores the object under a new resource version.
    pub fn put(&mut self, resource: &str, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = Value::String(self.version.to_string());
        let key = key_of(&object);
        let object = Arc::new(object);
        let before = self
            .objects
            .entry(resource.to_owned())
            .or_default()
            .insert(key, object.clone());
        self.log.push_back(StoreEvent {
            version: self.version,
            resource: resource.to_owned(),
            before,
            after: Some(object.clone()),
        });
        object
    }

    pub fn remove(&mut self, resource: &str, key: &Key) -> Option<Arc<Value>> {
        let before = self.objects.get_mut(resource)?.remove(key)?;
        self.version += 1;
        let mut last = Value::clone(&before);
        last["metadata"]["resourceVersion"] = Value::String(self.version.to_string());
        let last = Arc::new(last);
        self.log.push_back(StoreEvent {
            version: self.version,
            resource: resource.to_owned(),
            before: Some(last.clone()),
            after: None,
        });
        Some(last)
    }

    /// What happened to a resource after a version.
    pub fn changes_after(&self, resource: &str, version: u64) -> Vec<StoreEvent> {
        let start = self.log.partition_point(|change| change.version <= version);
        self.log
            .iter()
            .skip(start)
            .filter(|change| change.resource == resource)
            .cloned()
            .collect()
    }

    /// Forgets the log, as etcd's compaction does: older watches and continued lists get 410.
    pub fn compact(&mut self) {
        self.floor = self.version;
        self.log.clear();
    }
}
