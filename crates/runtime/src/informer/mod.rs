//! Shared informers: one watch for each kind and scope, however many read it, kept as long as somebody does.
//! Readers look objects up, find them by index, or subscribe to every change, deletions included.

mod guard;
mod mailbox;
mod store;
#[cfg(test)]
mod tests;
mod watch;

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
    hash::Hash,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, PartialObjectMeta},
    core::{ClusterResourceScope, Selector},
    runtime::watcher,
};
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use tokio::sync::watch as channel;
use tokio_util::sync::CancellationToken;

use self::{
    guard::Guarded,
    mailbox::Mailbox,
    store::{Delta, Store},
};
pub use self::{
    guard::Malformed,
    mailbox::{Change, Event, Origin},
};
use crate::{Metrics, ObjectKey, Random, Settings, metrics::KindLabel, writes::Write};

/// The label by which several managers share the objects of one cluster.
pub const WATCH_FILTER_LABEL: &str = "cluster.x-k8s.io/watch-filter";

/// Objects asked for in one page of a list.
const PAGE_SIZE: u32 = 500;

/// What can be kept in an informer.
pub trait Object:
    Resource<DynamicType: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static, Scope: 'static>
    + Clone
    + fmt::Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static, Scope: 'static>
        + Clone
        + fmt::Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// Which objects of a kind are watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope {
    /// All namespaces if absent. A cluster-scoped kind is watched whole in any case.
    pub namespace: Option<String>,
    pub labels: Option<String>,
    pub fields: Option<String>,
}

impl Scope {
    pub fn all() -> Self {
        Self::default()
    }

    pub fn namespace(namespace: impl Into<String>) -> Self {
        Self {
            namespace: Some(namespace.into()),
            ..Self::default()
        }
    }

    /// Where the manager may look: `--namespace`, without the watch filter, which only the objects that a
    /// controller works on carry.
    pub fn of_namespace(settings: &Settings) -> Self {
        Self {
            namespace: settings.namespace.clone(),
            ..Self::default()
        }
    }

    /// The objects a controller works on: `--namespace` and `--watch-filter`.
    pub fn of_work(settings: &Settings) -> Self {
        Self {
            labels: settings
                .watch_filter
                .as_ref()
                .map(|filter| format!("{WATCH_FILTER_LABEL}={filter}")),
            ..Self::of_namespace(settings)
        }
    }

    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }
}

/// Drops what nobody reads before an object is stored. Informers are shared by name, so a name must always mean
/// the same function. `managedFields` is always dropped.
pub struct Pruning<K> {
    pub name: &'static str,
    pub prune: fn(&mut K),
}

impl<K> Clone for Pruning<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Pruning<K> {}

/// The informers of one cluster. Clones share them.
#[derive(Clone)]
pub struct Informers {
    inner: Arc<Set>,
}

struct Set {
    client: Client,
    metrics: Metrics,
    random: Random,
    stopped: CancellationToken,
    entries: Mutex<HashMap<WatchKey, Entry>>,
    next_id: AtomicU64,
    tasks: Arc<AtomicUsize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct WatchKey {
    type_id: TypeId,
    group: String,
    version: String,
    kind: String,
    plural: String,
    scope: Scope,
    pruning: Option<&'static str>,
}

struct Entry {
    id: u64,
    /// A `Weak<Handle<K>>`.
    handle: Box<dyn Any + Send + Sync>,
    cache: Weak<dyn Cache>,
}

/// What can be asked of a store without knowing its type.
trait Cache: Send + Sync {
    fn has_seen(&self, write: &Write) -> bool;
    fn is_synced(&self) -> bool;
}

impl Informers {
    /// Informers run until `stopped` is cancelled, or until nobody holds them.
    pub fn new(client: Client, metrics: Metrics, random: Random, stopped: CancellationToken) -> Self {
        Self {
            inner: Arc::new(Set {
                client,
                metrics,
                random,
                stopped,
                entries: Mutex::default(),
                next_id: AtomicU64::new(0),
                tasks: Arc::default(),
            }),
        }
    }

    /// The informer of a kind known at compile time. `PartialObjectMeta<K>` watches metadata alone.
    pub fn get<K>(&self, scope: Scope) -> Informer<K>
    where
        K: Object + Resource<DynamicType = ()>,
    {
        self.get_with(&(), scope, None)
    }

    /// The same with parts of every object dropped before it is stored.
    pub fn get_pruned<K>(&self, scope: Scope, pruning: Pruning<K>) -> Informer<K>
    where
        K: Object + Resource<DynamicType = ()>,
    {
        self.get_with(&(), scope, Some(pruning))
    }

    /// The informer of a kind learnt at run time.
    pub fn get_dynamic(&self, resource: &ApiResource, scope: Scope) -> Informer<DynamicObject> {
        self.get_with(resource, scope, None)
    }

    /// The metadata of a kind learnt at run time.
    pub fn get_metadata(
        &self,
        resource: &ApiResource,
        scope: Scope,
    ) -> Informer<PartialObjectMeta<DynamicObject>> {
        self.get_with(resource, scope, None)
    }

    pub fn get_with<K: Object>(
        &self,
        dynamic: &K::DynamicType,
        mut scope: Scope,
        pruning: Option<Pruning<K>>,
    ) -> Informer<K> {
        if TypeId::of::<K::Scope>() == TypeId::of::<ClusterResourceScope>() {
            scope.namespace = None;
        }
        let resource = guard::describe::<K>(dynamic);
        let key = WatchKey {
            type_id: TypeId::of::<K>(),
            group: resource.group.clone(),
            version: resource.version.clone(),
            kind: resource.kind.clone(),
            plural: resource.plural.clone(),
            scope,
            pruning: pruning.map(|pruning| pruning.name),
        };
        let mut entries = self.inner.entries.lock();
        if let Some(entry) = entries.get(&key)
            && let Some(handle) = entry
                .handle
                .downcast_ref::<Weak<Handle<K>>>()
                .and_then(Weak::upgrade)
        {
            return Informer { handle };
        }
        let id = self.inner.next_id.fetch_add(1, Ordering::Relaxed);
        let handle = Arc::new(self.start(dynamic, resource, key.clone(), id, pruning));
        let shared: Arc<dyn Cache> = handle.shared.clone();
        entries.insert(
            key,
            Entry {
                id,
                handle: Box::new(Arc::downgrade(&handle)),
                cache: Arc::downgrade(&shared),
            },
        );
        Informer { handle }
    }

    fn start<K: Object>(
        &self,
        dynamic: &K::DynamicType,
        resource: ApiResource,
        key: WatchKey,
        id: u64,
        pruning: Option<Pruning<K>>,
    ) -> Handle<K> {
        let set = &self.inner;
        let scope = key.scope.clone();
        let client = watch::paced(&set.client);
        let api: Api<Guarded<K>> = match &scope.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, dynamic),
            None => Api::all_with(client, dynamic),
        };
        let config = watcher::Config {
            label_selector: scope.labels.clone(),
            field_selector: scope.fields.clone(),
            page_size: Some(PAGE_SIZE),
            ..watcher::Config::default()
        };
        let shared = Arc::new(Shared {
            resource,
            selector: scope.labels.as_deref().and_then(parse_selector),
            scope,
            store: RwLock::new(Store::new()),
            synced: channel::Sender::new(false),
            metrics: set.metrics.clone(),
            prune: pruning.map(|pruning| pruning.prune),
        });
        shared.metrics.informers.get_or_create(&shared.label()).inc();
        let cancelled = set.stopped.child_token();
        let task = watch::run(
            Arc::clone(&shared),
            api,
            config,
            set.random.clone(),
            cancelled.clone(),
        );
        let running = Running::new(&set.tasks);
        tokio::spawn(async move {
            task.await;
            drop(running);
        });
        Handle {
            shared,
            set: Arc::downgrade(set),
            key,
            id,
            cancelled,
        }
    }

    /// The kinds whose first full list is not in yet.
    pub fn unsynced(&self) -> Vec<String> {
        let entries = self.inner.entries.lock();
        let mut kinds: Vec<String> = entries
            .iter()
            .filter(|(_, entry)| entry.cache.upgrade().is_some_and(|cache| !cache.is_synced()))
            .map(|(key, _)| key.kind.clone())
            .collect();
        kinds.sort_unstable();
        kinds
    }

    /// How many watches are held now.
    pub fn len(&self) -> usize {
        self.inner.entries.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many tasks still run for watches, also for those already let go.
    pub fn tasks(&self) -> usize {
        self.inner.tasks.load(Ordering::Acquire)
    }

    /// Whether every informer that would show this write has it.
    pub(crate) fn have_seen(&self, write: &Write) -> bool {
        let caches: Vec<_> = self
            .inner
            .entries
            .lock()
            .iter()
            .filter(|(key, _)| key.group == write.group && key.kind == write.kind)
            .filter_map(|(_, entry)| entry.cache.upgrade())
            .collect();
        caches.iter().all(|cache| cache.has_seen(write))
    }
}

impl fmt::Debug for Informers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.inner.entries.lock();
        formatter
            .debug_set()
            .entries(entries.keys().map(|key| &key.kind))
            .finish()
    }
}

/// Counts a task as long as it lives.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(tasks: &Arc<AtomicUsize>) -> Self {
        tasks.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(tasks))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn parse_selector(text: &str) -> Option<Selector> {
    let mut labels = std::collections::BTreeMap::new();
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

struct Shared<K: Object> {
    resource: ApiResource,
    scope: Scope,
    /// The label selector, where it is simple enough to be evaluated here.
    selector: Option<Selector>,
    store: RwLock<Store<K>>,
    synced: channel::Sender<bool>,
    metrics: Metrics,
    prune: Option<fn(&mut K)>,
}

impl<K: Object> Shared<K> {
    fn label(&self) -> KindLabel {
        KindLabel {
            kind: self.resource.kind.clone(),
        }
    }

    fn prune(&self, mut object: Guarded<K>) -> Guarded<K> {
        if let (Some(prune), Guarded::Sound(object)) = (self.prune, &mut object) {
            prune(object);
        }
        object
    }

    fn count(&self, delta: Delta) {
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
        use kube::core::SelectorExt as _;
        if self.scope.namespace.is_some() && self.scope.namespace.as_deref() != write.key.namespace() {
            return true;
        }
        let store = self.store.read();
        // A list asked for after the write shows it, or shows that it is gone again.
        if store.listed_at.is_some_and(|listed| listed > write.at) {
            return true;
        }
        let cached = store.get(&write.key).map(|object| object.meta());
        if write.gone {
            return cached.is_none_or(|cached| cached.uid != write.uid);
        }
        // Changes of one kind arrive in the order of their versions, whichever objects they are of.
        if let (Some(mark), Ok(version)) = (store.mark, write.version.parse::<u64>())
            && mark >= version
        {
            return true;
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

/// Held by whoever reads; when the last is gone the watch stops.
struct Handle<K: Object> {
    shared: Arc<Shared<K>>,
    set: Weak<Set>,
    key: WatchKey,
    id: u64,
    cancelled: CancellationToken,
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
    handle: Arc<Handle<K>>,
}

impl<K: Object> Informer<K> {
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.handle.shared.store.read().get(key).cloned()
    }

    /// All objects, in the order of their keys.
    pub fn list(&self) -> Vec<Arc<K>> {
        let store = self.handle.shared.store.read();
        let mut objects: Vec<_> = store.objects().collect();
        objects.sort_unstable_by_key(|(key, _)| *key);
        objects
            .into_iter()
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    /// The keys of all objects, in no order.
    pub fn keys(&self) -> Vec<ObjectKey> {
        let store = self.handle.shared.store.read();
        store.objects().map(|(key, _)| key.clone()).collect()
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
    pub async fn next(&mut self) -> Option<Change<K>> {
        self.mailbox.next().await
    }
}
