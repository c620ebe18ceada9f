//! Shared informers: one watch for each kind and scope, however many read it, kept as long as somebody does.
//! Readers look objects up, find them by index, or subscribe to every change, deletions included.

mod compression;
mod guard;
mod mailbox;
#[cfg(test)]
mod property_test;
mod reader;
mod shared;
mod store;
#[cfg(test)]
mod tests;
mod tree;
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
    core::ClusterResourceScope,
    runtime::watcher,
};
use parking_lot::{Mutex, RwLock};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch as channel;
use tokio_util::sync::CancellationToken;

use self::{
    compression::Encoding,
    guard::Guarded,
    reader::Handle,
    shared::{Cache, Shared, parse_selector},
    store::Store,
};
pub use self::{
    guard::Malformed,
    mailbox::{Delta, Event, Origin},
    reader::{Index, Informer, Subscription},
};
use crate::{Metrics, Random, Settings, writes::Write};

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
    /// By type, its `Encoding`.
    kept_as_text: Mutex<HashMap<TypeId, Box<dyn Any + Send + Sync>>>,
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
                kept_as_text: Mutex::default(),
            }),
        }
    }

    /// Objects of this kind are kept as text, each as its difference from another of its kind, and decoded for whoever
    /// asks: a fraction of the memory, for some microseconds a read. For kinds of which there are very many, each looked
    /// at by its key: `list` and an index read every object they answer. Watches that are already held stay as they are.
    pub fn keep_as_text<K: Object + Serialize>(&self) {
        let encoding: Encoding<K> = Encoding::json();
        self.inner
            .kept_as_text
            .lock()
            .insert(TypeId::of::<K>(), Box::new(encoding));
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
        let encoding = set
            .kept_as_text
            .lock()
            .get(&TypeId::of::<K>())
            .and_then(|encoding| encoding.downcast_ref::<Encoding<K>>())
            .copied();
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
            store: RwLock::new(Store::new(encoding)),
            synced: channel::Sender::new(false),
            denied: channel::Sender::new(false),
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
