//! What the provisioner reads: the cluster as packing sees it, kept up by watches, and what each NodePool can be given.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    coordination::v1::Lease,
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSINode, StorageClass},
};
use kube::{Api, Resource, ResourceExt, api::ListParams};
use parking_lot::Mutex;
use slipway_capi::view::{Cluster, Machine, MachineDeployment, MachinePool, MachineSet};
use slipway_packing::{
    labels,
    model::{self, Snapshot},
    quantity::Quantity,
    resources,
};
use slipway_runtime::{
    Context, Informer, ObjectKey, Scope,
    informer::{Delta, Object},
};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    Error,
    api::{
        ClusterAPINodeClass, NodeClaim, NodePool,
        names::{NODE_CLASS_GROUP, annotation, label},
    },
    cluster_api::{Reader, lease_scope, nodes_by_zone},
    instances::{Catalog, Demand, Shape, catalog, choose},
    memory::Memory,
    options::Options,
    safety::{self, Rival},
    snapshot::{ConvertError, Store},
};

/// The cluster, kept up by watches as long as this is held.
pub struct Watched {
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    pools: Informer<NodePool>,
    claims: Informer<NodeClaim>,
    classes: Informer<ClusterAPINodeClass>,
    daemon_sets: Informer<DaemonSet>,
    namespaces: Informer<Namespace>,
    volume_claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    storage_classes: Informer<StorageClass>,
    csi_nodes: Informer<CSINode>,
    deployments: Informer<MachineDeployment>,
    machines: Informer<Machine>,
    machine_sets: Informer<MachineSet>,
    machine_pools: Informer<MachinePool>,
    clusters: Informer<Cluster>,
    leases: [Informer<Lease>; safety::LEASES.len()],
    /// What was read past the watch.
    claims_read: Mutex<Option<Vec<Arc<NodeClaim>>>>,
    store: Mutex<Store>,
    waiting: Arc<Mutex<Waiting>>,
    /// Ends the tasks that listen.
    _stop: DropGuard,
}

/// Who waits for a node.
#[derive(Default)]
struct Waiting {
    /// By uid.
    pods: BTreeSet<String>,
    /// Those that came since they were last asked for.
    came: BTreeSet<String>,
    /// Something happened that the others may have waited for.
    is_due: bool,
    due_at: Option<Instant>,
}

/// Whether kube-scheduler has given up on a pod.
fn waits(pod: &Pod) -> bool {
    let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut conditions = conditions.filter(|condition| condition.type_ == "PodScheduled");
    !is_bound
        && pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|condition| condition.reason.as_deref() == Some("Unschedulable"))
}

impl Watched {
    /// Watches everything that planning reads; `changed` is told when a pod comes to wait.
    pub fn start(context: &Context, changed: &Arc<Notify>) -> Self {
        let scope = || Scope::of_namespace(&context.settings);
        let informers = &context.informers;
        let stop = CancellationToken::new();
        let waiting: Arc<Mutex<Waiting>> = Arc::default();
        let watched = Watched {
            pods: informers.get(scope()),
            nodes: informers.get(scope()),
            pools: informers.get(scope()),
            claims: informers.get(scope()),
            classes: informers.get(scope()),
            daemon_sets: informers.get(scope()),
            namespaces: informers.get(scope()),
            volume_claims: informers.get(scope()),
            volumes: informers.get(scope()),
            storage_classes: informers.get(scope()),
            csi_nodes: informers.get(scope()),
            deployments: informers.get(scope()),
            machines: informers.get(scope()),
            machine_sets: informers.get(scope()),
            machine_pools: informers.get(scope()),
            clusters: informers.get(scope()),
            leases: safety::LEASES.map(|(name, _)| informers.get(lease_scope(name))),
            claims_read: Mutex::default(),
            store: Mutex::default(),
            waiting: Arc::clone(&waiting),
            _stop: stop.clone().drop_guard(),
        };
        let listen = Listener {
            waiting,
            changed: Arc::clone(changed),
            stop,
        };
        listen.to(&watched.pods, |delta, waiting| {
            let uid = delta
                .objects()
                .next()
                .and_then(|pod| pod.uid())
                .unwrap_or_default();
            match &delta.new {
                Some(pod) if waits(pod) => {
                    waiting.came.insert(uid.clone());
                    waiting.pods.insert(uid)
                }
                _ => {
                    waiting.came.remove(&uid);
                    waiting.pods.remove(&uid);
                    false
                }
            }
        });
        listen.to(&watched.claims, |delta, waiting| {
            let leaves = |claim: &Arc<NodeClaim>| claim.metadata.deletion_timestamp.is_some();
            let was_leaving = delta.old.as_ref().is_some_and(leaves);
            let is_leaving = delta.new.as_ref().is_none_or(leaves);
            waiting.is_due |= is_leaving && (!was_leaving || delta.new.is_none());
            waiting.is_due
        });
        listen.to(&watched.pools, |delta, waiting| {
            let generation = |pool: &Option<Arc<NodePool>>| {
                pool.as_ref().map(|pool| {
                    let is_frozen = pool.annotations().contains_key(annotation::FROZEN);
                    (pool.metadata.generation, is_frozen)
                })
            };
            waiting.is_due |= generation(&delta.old) != generation(&delta.new);
            waiting.is_due
        });
        listen.to(&watched.classes, |delta, waiting| {
            let generation = |class: &Option<Arc<ClusterAPINodeClass>>| {
                class.as_ref().map(|class| class.metadata.generation)
            };
            waiting.is_due |= generation(&delta.old) != generation(&delta.new);
            waiting.is_due
        });
        watched
    }

    /// Before everything has been read once, nothing is known: whether a Cluster is paused, or another autoscaler holds its lease.
    pub async fn synced(&self) {
        tokio::join!(
            self.pods.synced(),
            self.nodes.synced(),
            self.pools.synced(),
            self.claims.synced(),
            self.classes.synced(),
            self.daemon_sets.synced(),
            self.namespaces.synced(),
            self.volume_claims.synced(),
            self.volumes.synced(),
            self.storage_classes.synced(),
            self.csi_nodes.synced(),
            self.deployments.synced(),
            self.machines.synced(),
            self.machine_sets.synced(),
            self.machine_pools.synced(),
            self.clusters.synced(),
            join_all(self.leases.iter().map(Informer::synced)),
        );
    }

    /// Those who came to wait; everybody, where something happened that they may have waited for.
    pub fn take_waiting(&self) -> Vec<String> {
        let mut waiting = self.waiting.lock();
        let is_time = waiting.due_at.is_some_and(|at| at <= Instant::now());
        let is_due = std::mem::take(&mut waiting.is_due) || is_time;
        let mut came: Vec<String> = std::mem::take(&mut waiting.came).into_iter().collect();
        if is_due {
            waiting.due_at = None;
            came = waiting.pods.iter().cloned().collect();
            // Pods that will have to move wait for nobody to say so.
            came.push("moving".to_owned());
        }
        came
    }

    /// How long until everybody is planned for again, if somebody waits.
    pub fn due_in(&self) -> Option<Duration> {
        let waiting = self.waiting.lock();
        let at = waiting.due_at?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    /// Whoever still waits is planned for again after this.
    pub fn wake_after(&self, after: Duration) {
        let mut waiting = self.waiting.lock();
        waiting.due_at = (!waiting.pods.is_empty()).then(|| Instant::now() + after);
    }

    /// Reads the claims from the apiserver: the watch may not show the last ones yet.
    pub async fn read_claims_again(&self, context: &Context) -> Result<(), Error> {
        let claims: Api<NodeClaim> = Api::all(context.client.clone());
        let read = claims
            .list(&ListParams::default())
            .await
            .map_err(Error::api("reading the NodeClaims"))?;
        *self.claims_read.lock() = Some(read.items.into_iter().map(Arc::new).collect());
        Ok(())
    }

    /// Brings the store up to date; each object is converted once a version.
    fn refresh(&self, store: &mut Store) {
        fn objects<K>(list: &[Arc<K>]) -> impl Iterator<Item = &K> {
            list.iter().map(Arc::as_ref)
        }
        let claims = self
            .claims_read
            .lock()
            .take()
            .unwrap_or_else(|| self.claims.list());
        let errors: Vec<ConvertError> = [
            store.sync_pods(objects(&self.pods.list())),
            store.sync_nodes(objects(&self.nodes.list())),
            store.sync_node_pools(objects(&self.pools.list())),
            store.sync_node_claims(objects(&claims)),
            store.sync_daemon_sets(objects(&self.daemon_sets.list())),
            store.sync_namespaces(objects(&self.namespaces.list())),
            store.sync_volume_claims(objects(&self.volume_claims.list())),
            store.sync_volumes(objects(&self.volumes.list())),
            store.sync_storage_classes(objects(&self.storage_classes.list())),
            store.sync_csi_nodes(objects(&self.csi_nodes.list())),
        ]
        .into_iter()
        .flatten()
        .collect();
        for error in errors {
            tracing::warn!(%error, "An object is left out of planning");
        }
    }

    pub fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods.get(&ObjectKey::namespaced(namespace, name))
    }
}

struct Listener {
    waiting: Arc<Mutex<Waiting>>,
    changed: Arc<Notify>,
    stop: CancellationToken,
}

impl Listener {
    /// Notes what a change means for who waits; it says whether somebody has to look.
    fn to<K>(&self, informer: &Informer<K>, note: fn(&Delta<K>, &mut Waiting) -> bool)
    where
        K: Object + Resource<DynamicType = ()>,
    {
        let mut subscription = informer.subscribe();
        let (waiting, changed) = (Arc::clone(&self.waiting), Arc::clone(&self.changed));
        let stop = self.stop.clone();
        tokio::spawn(async move {
            loop {
                let delta = tokio::select! {
                    () = stop.cancelled() => return,
                    delta = subscription.next() => delta,
                };
                let Some(delta) = delta else { return };
                if note(&delta, &mut waiting.lock()) {
                    changed.notify_one();
                }
            }
        });
    }
}

/// What a round is planned from.
#[derive(Debug, Default)]
pub struct Observed {
    pub snapshot: Snapshot,
    pub pods: Vec<model::Pod>,
    /// By NodePool.
    pub pools: BTreeMap<String, Arc<NodePool>>,
    /// What each NodePool's class can give.
    pub shapes: BTreeMap<String, Vec<Shape>>,
    pub zones: BTreeMap<String, usize>,
    /// How many more claims a NodePool may have on their way, where its machines keep failing; and why.
    pub breakers: BTreeMap<String, (usize, String)>,
    pub rival: Option<Rival>,
}

pub async fn observe(
    watched: &Watched,
    reader: &Reader<'_>,
    memory: &Memory,
    options: &Options,
    context: &Context,
) -> Observed {
    let now = context.clock.now();
    let pools = watched.pools.list();
    let is_ours = |pool: &&Arc<NodePool>| {
        pool.spec.template.spec.node_class_ref.group == NODE_CLASS_GROUP
            && pool.metadata.deletion_timestamp.is_none()
    };
    let mut described: BTreeMap<String, Vec<Shape>> = BTreeMap::new();
    let mut shapes: BTreeMap<String, Vec<Shape>> = BTreeMap::new();
    let mut catalogs: BTreeMap<String, Catalog> = BTreeMap::new();
    for pool in pools.iter().filter(is_ours) {
        let class = &pool.spec.template.spec.node_class_ref.name;
        if !described.contains_key(class) {
            let key = ObjectKey::cluster_scoped(class);
            let found = match watched.classes.get(&key) {
                Some(class) => reader.describe(&class, options, now).await.shapes,
                None => Vec::new(),
            };
            described.insert(class.clone(), found);
        }
        let of_class = described[class].clone();
        let template = &pool.spec.template;
        let keys: BTreeSet<String> = template
            .metadata
            .labels
            .keys()
            .cloned()
            .chain(template.spec.requirements.iter().map(|one| one.key.clone()))
            .collect();
        let taints: Vec<model::Taint> = template
            .spec
            .taints
            .iter()
            .chain(&template.spec.startup_taints)
            .cloned()
            .collect();
        let name = pool.name_any();
        catalogs.insert(name.clone(), catalog(&of_class, &name, &keys, &taints));
        shapes.insert(name, of_class);
    }
    let (mut snapshot, pods) = {
        let mut store = watched.store.lock();
        watched.refresh(&mut store);
        let mut pods = store.waiting();
        pods.extend(store.moving());
        (store.snapshot(&catalogs, now), pods)
    };
    snapshot.options.preference_policy = options.preferences;
    snapshot.options.min_values_policy = options.min_values;
    complete_claims(&mut snapshot, &shapes);
    options.startup_taints.forget(&mut snapshot);
    let breakers = broken(&snapshot, memory);
    charge_leaving(&mut snapshot);
    let nodes = watched.nodes.list();
    Observed {
        zones: nodes_by_zone(nodes.iter().map(Arc::as_ref)),
        rival: reader.rival(now),
        pools: pools
            .iter()
            .map(|pool| (pool.name_any(), Arc::clone(pool)))
            .collect(),
        snapshot,
        pods,
        shapes,
        breakers,
    }
}

/// A claim whose status says nothing yet is as large as the machine it will get, and has its labels: otherwise the pods it was
/// made for would be planned for again.
fn complete_claims(snapshot: &mut Snapshot, shapes: &BTreeMap<String, Vec<Shape>>) {
    for claim in &mut snapshot.node_claims {
        if !claim.status.capacity.is_empty() {
            continue;
        }
        let Some(known) = claim
            .metadata
            .labels
            .get(labels::NODE_POOL)
            .and_then(|pool| shapes.get(pool))
        else {
            continue;
        };
        let assigned = claim.metadata.annotations.get(annotation::SCALABLE_RESOURCE);
        let named = known
            .iter()
            .find(|shape| assigned.is_some_and(|assigned| *assigned == shape.reference.to_string()));
        let demand = Demand {
            requirements: claim.spec.requirements.clone(),
            requests: claim.spec.resources.requests.clone(),
            taints: claim
                .spec
                .taints
                .iter()
                .chain(&claim.spec.startup_taints)
                .cloned()
                .collect(),
        };
        let shape = named.or_else(|| {
            let chosen = choose(&demand, known, &BTreeMap::new());
            chosen.ok().map(|choice| choice.shape)
        });
        match shape {
            Some(shape) => {
                claim.status.capacity = shape.capacity.clone();
                claim.status.allocatable = shape.allocatable();
                for (key, value) in shape.claim_labels() {
                    claim.metadata.labels.insert(key, value);
                }
            }
            // At the least what it was asked for.
            None => {
                claim.status.capacity = demand.requests.clone();
                claim.status.allocatable = demand.requests;
            }
        }
    }
}

/// Nodes on their way out are still there: limits count them until they are gone.
fn charge_leaving(snapshot: &mut Snapshot) {
    let leaving = snapshot
        .node_claims
        .iter()
        .filter(|claim| claim.metadata.deletion_timestamp.is_some());
    for claim in leaving {
        let pool = claim.metadata.labels.get(labels::NODE_POOL);
        let pool = snapshot
            .node_pools
            .iter_mut()
            .find(|one| pool.is_some_and(|pool| *pool == one.metadata.name));
        let Some(limits) = pool.map(|pool| &mut pool.spec.limits) else {
            continue;
        };
        for (name, left) in limits.iter_mut() {
            let taken = if name == resources::NODES {
                Quantity::from_units(1)
            } else {
                claim.status.capacity.get(name).copied().unwrap_or_default()
            };
            *left = (*left - taken).max(Quantity::ZERO);
        }
    }
}

fn broken(snapshot: &Snapshot, memory: &Memory) -> BTreeMap<String, (usize, String)> {
    let pools = snapshot.node_pools.iter().map(|pool| &pool.metadata.name);
    let of = |pool: &String| {
        let breaker = memory.breaker(pool);
        let (most, why) = (breaker.at_most()?, breaker.open()?);
        let on_their_way = snapshot.node_claims.iter().filter(|claim| {
            claim.metadata.labels.get(label::NODE_POOL) == Some(pool)
                && claim.metadata.deletion_timestamp.is_none()
                && !claim.is_true("Registered")
        });
        Some((pool.clone(), (most.saturating_sub(on_their_way.count()), why)))
    };
    pools.filter_map(of).collect()
}
