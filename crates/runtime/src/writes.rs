//! Read your own writes: remembers what a reconcile wrote until the caches show it, so that the next reconcile of
//! the same object never acts on a state from before.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{ObjectKey, informer::Informers};

/// After this long a write counts as seen: a cache that cannot show it (a field selector, a watch that may no
/// longer be read) must not stop the object for good.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// One write that a cache may not show yet.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub group: String,
    pub kind: String,
    pub key: ObjectKey,
    pub uid: Option<String>,
    /// The version the server gave it.
    pub version: String,
    /// The version it had before, if known.
    pub previous: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// Deleted for good, so no version will come.
    pub gone: bool,
    pub at: Instant,
}

impl Write {
    pub fn is_numeric(&self) -> bool {
        self.version.parse::<u64>().is_ok()
    }
}

type LastWrites = HashMap<(String, String, ObjectKey), Write>;

/// The writes of one controller, by the object whose reconcile made them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    writes: Arc<Mutex<HashMap<ObjectKey, LastWrites>>>,
}

impl Ledger {
    /// The kinds whose caches do not show all that was written for this object; what they show is forgotten.
    pub fn unseen(&self, object: &ObjectKey, informers: &Informers) -> Vec<String> {
        let mut writes = self.writes.lock();
        let Some(pending) = writes.get_mut(object) else {
            return Vec::new();
        };
        pending.retain(|_, write| write.at.elapsed() < LONGEST_WAIT && !informers.have_seen(write));
        let mut kinds: Vec<String> = pending.values().map(|write| write.kind.clone()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if pending.is_empty() {
            writes.remove(object);
        }
        kinds
    }

    /// The object is gone, so nobody will ask.
    pub fn forget(&self, object: &ObjectKey) {
        self.writes.lock().remove(object);
    }
}

/// Where a reconcile notes what it wrote.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    scope: Option<(Ledger, ObjectKey)>,
}

impl Writes {
    /// Notes for the reconcile of this object.
    pub(crate) fn of(ledger: Ledger, object: ObjectKey) -> Self {
        Self {
            scope: Some((ledger, object)),
        }
    }

    /// Notes the answer to a write: the next reconcile waits until the caches have this version or a later one.
    pub fn saw<K: Resource<DynamicType = ()>>(&self, object: &K) {
        self.saw_dynamic(object, &(), None);
    }

    /// The same for kinds learnt at run time, and with the version that was written over, if it is known.
    pub fn saw_dynamic<K: Resource>(&self, object: &K, dynamic: &K::DynamicType, previous: Option<&str>) {
        let Some(version) = object.resource_version() else {
            return;
        };
        // An answer that did not change anything repeats the version.
        if previous == Some(version.as_str()) {
            return;
        }
        self.note(Write {
            group: K::group(dynamic).into_owned(),
            kind: K::kind(dynamic).into_owned(),
            key: ObjectKey::of(object),
            uid: object.uid(),
            version,
            previous: previous.map(str::to_owned),
            labels: object.labels().clone(),
            gone: false,
            at: Instant::now(),
        });
    }

    /// Notes that an object was deleted for good.
    pub fn saw_gone<K: Resource>(&self, object: &K, dynamic: &K::DynamicType) {
        self.note(Write {
            group: K::group(dynamic).into_owned(),
            kind: K::kind(dynamic).into_owned(),
            key: ObjectKey::of(object),
            uid: object.uid(),
            version: String::new(),
            previous: None,
            labels: BTreeMap::new(),
            gone: true,
            at: Instant::now(),
        });
    }

    fn note(&self, write: Write) {
        let Some((ledger, object)) = &self.scope else {
            return;
        };
        let place = (write.group.clone(), write.kind.clone(), write.key.clone());
        let mut writes = ledger.writes.lock();
        writes.entry(object.clone()).or_default().insert(place, write);
    }
}
