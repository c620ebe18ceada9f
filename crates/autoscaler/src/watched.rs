//! What planning reads: the cluster as packing sees it, kept up by watches, and what each NodePool can be given.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::future::join_all;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    coordination::v1::Lease,
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
    storage::v1::{CSINode, StorageClass},
};
use kube::{Api, ResourceExt, api::ListParams};
use parking_lot::Mutex;
use slipway_capi::view::{Cluster, Machine, MachineDeployment, MachinePool, MachineSet};
use slipway_packing::{
    labels,
    model::{self, OfferingOf, Snapshot},
    quantity::Quantity,
    resources,
};
use slipway_runtime::{Context, Informer, ObjectKey, Scope, informer::Object};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    Error,
    api::{
        ClusterAPINodeClass, NodeClaim, NodePool,
        names::{NODE_CLASS_GROUP, annotation, label},
    },
    cluster_api::{Reader, lease_scope, nodes_by_zone},
    disruption::running,
    instances::{Catalog, Demand, Shape, catalog, choose},
    memory::Memory,
    options::Options,
    safety::{self, Rival},
    snapshot::{ConvertError, Store},
    time_zone,
};

/// The cluster, kept up by watches as long as this is held.
pub struct Watched {
    pub(crate) pods: Informer<Pod>,
    pub(crate) nodes: Informer<Node>,
    pub(crate) pools: Informer<NodePool>,
    pub(crate) claims: Informer<NodeClaim>,
    pub(crate) classes: Informer<ClusterAPINodeClass>,
    daemon_sets: Informer<DaemonSet>,
    namespaces: Informer<Namespace>,
    volume_claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    storage_classes: Informer<StorageClass>,
    csi_nodes: Informer<CSINode>,
    budgets: Informer<PodDisruptionBudget>,
    deployments: Informer<MachineDeployment>,
    machines: Informer<Machine>,
    machine_sets: Informer<MachineSet>,
    machine_pools: Informer<MachinePool>,
    clusters: Informer<Cluster>,
    leases: [Informer<Lease>; safety::LEASES.len()],
    /// What was read past the watch.
    claims_read: Mutex<Option<Vec<Arc<NodeClaim>>>>,
    store: Arc<Mutex<Store>>,
}

impl Watched {
    /// Watches everything that planning reads.
    pub fn start(context: &Context, memory: &Memory) -> Self {
        let scope = || Scope::of_namespace(&context.settings);
        let informers = &context.informers;
        Watched {
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
            budgets: informers.get(scope()),
            claims_read: Mutex::default(),
            store: Arc::clone(&memory.store),
        }
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
            self.budgets.synced(),
            self.deployments.synced(),
            self.machines.synced(),
            self.machine_sets.synced(),
            self.machine_pools.synced(),
            self.clusters.synced(),
            join_all(self.leases.iter().map(Informer::synced)),
        );
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

    /// The claims: those that were read past the watch, once.
    fn claims_now(&self) -> Vec<Arc<NodeClaim>> {
        let read = self.claims_read.lock().take();
        read.unwrap_or_else(|| self.claims.list())
    }

    /// Brings the store up to date; each object is converted once a version.
    fn refresh(&self, store: &mut Store, claims: &[Arc<NodeClaim>]) {
        fn objects<K>(list: &[Arc<K>]) -> impl Iterator<Item = &K> {
            list.iter().map(Arc::as_ref)
        }
        let errors: Vec<ConvertError> = [
            store.sync_pods(objects(&self.pods.list())),
            store.sync_nodes(objects(&self.nodes.list())),
            store.sync_node_pools(objects(&self.pools.list())),
            store.sync_node_claims(objects(claims)),
            store.sync_daemon_sets(objects(&self.daemon_sets.list())),
            store.sync_namespaces(objects(&self.namespaces.list())),
            store.sync_volume_claims(objects(&self.volume_claims.list())),
            store.sync_volumes(objects(&self.volumes.list())),
            store.sync_storage_classes(objects(&self.storage_classes.list())),
            store.sync_csi_nodes(objects(&self.csi_nodes.list())),
            store.sync_budgets(objects(&self.budgets.list())),
        ]
        .into_iter()
        .flatten()
        .collect();
        for error in errors {
            tracing::warn!(%error, "An object is left out of planning");
        }
    }

    /// Another number whenever something has changed that planning could see.
    pub fn changes(&self) -> (u64, u64) {
        let mut store = self.store.lock();
        self.refresh(&mut store, &self.claims.list());
        (store.changes(), self.sources())
    }

    /// What machines can be had of, as far as somebody wrote it: what Cluster API notes there changes nothing.
    fn sources(&self) -> u64 {
        fn seen<K: ResourceExt>(objects: &[Arc<K>], hasher: &mut impl Hasher) {
            for object in objects {
                object.uid().hash(hasher);
                object.annotations().hash(hasher);
                object.labels().hash(hasher);
                object.meta().generation.hash(hasher);
            }
        }
        let mut hasher = DefaultHasher::new();
        seen(&self.deployments.list(), &mut hasher);
        seen(&self.machine_sets.list(), &mut hasher);
        seen(&self.machine_pools.list(), &mut hasher);
        seen(&self.classes.list(), &mut hasher);
        hasher.finish()
    }

    pub fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods.get(&ObjectKey::namespaced(namespace, name))
    }
}

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
        // Pods come up before their budget says that another may go.
        changed.to(&watched.budgets, &stop);
        changed.to(&watched.classes, &stop);
        changed.to(&watched.deployments, &stop);
        changed.to(&watched.machine_sets, &stop);
        changed.to(&watched.machine_pools, &stop);
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

/// What a round is planned from.
#[derive(Debug, Default)]
pub struct Observed {
    pub snapshot: Snapshot,
    /// Those that wait, and then those whose node is on its way out.
    pub pods: Vec<model::Pod>,
    /// How many of them wait.
    pub waiting: usize,
    /// Which version of everything above this is: it counts up when something changes that planning could see.
    pub changes: (u64, u64),
    /// By NodePool.
    pub pools: BTreeMap<String, Arc<NodePool>>,
    /// What each NodePool's class can give.
    pub shapes: BTreeMap<String, Vec<Shape>>,
    pub zones: BTreeMap<String, usize>,
    /// How many more claims a NodePool may have on their way, where its machines keep failing; and why.
    pub breakers: BTreeMap<String, (usize, String)>,
    pub rival: Option<Rival>,
}

/// The cluster as it is planned with for pods that wait.
pub async fn observe(
    watched: &Watched,
    reader: &Reader<'_>,
    memory: &Memory,
    options: &Options,
    context: &Context,
) -> Observed {
    read(watched, reader, memory, options, context, false).await
}

/// The same for giving up what stands: nothing is replaced by machines of an object that gave none lately.
pub async fn observe_to_disrupt(
    watched: &Watched,
    reader: &Reader<'_>,
    memory: &Memory,
    options: &Options,
    context: &Context,
) -> Observed {
    read(watched, reader, memory, options, context, true).await
}

async fn read(
    watched: &Watched,
    reader: &Reader<'_>,
    memory: &Memory,
    options: &Options,
    context: &Context,
    is_to_disrupt: bool,
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
    let claims = watched.claims_now();
    let going = going_nodes(&claims);
    for pool in pools.iter().filter(is_ours) {
        let class = &pool.spec.template.spec.node_class_ref.name;
        if !described.contains_key(class) {
            let key = ObjectKey::cluster_scoped(class);
            let mut found = match watched.classes.get(&key) {
                Some(class) => reader.describe(&class, options, now).await.shapes,
                None => Vec::new(),
            };
            for shape in found.iter_mut().filter(|_| is_to_disrupt) {
                let shunned = || memory.is_shunned(&shape.reference, now);
                shape.unavailable = shape.unavailable.take().or_else(shunned);
            }
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
    let (mut snapshot, pods, waiting, changes) = {
        let mut store = watched.store.lock();
        watched.refresh(&mut store, &claims);
        let mut pods = store.waiting();
        let waiting = pods.len();
        pods.extend(store.moving(&going));
        let changes = (store.changes(), watched.sources());
        (store.snapshot(&catalogs, now), pods, waiting, changes)
    };
    snapshot.deleting_nodes = going.into_iter().collect();
    snapshot.offerings = offerings(&claims, &catalogs);
    snapshot.kept_nodes = kept(&claims, &shapes);
    let zones = pools.iter().filter_map(|pool| time_zone::offsets(pool, now));
    snapshot.budget_time_zones = zones.collect();
    snapshot.options.preference_policy = options.preferences;
    snapshot.options.min_values_policy = options.min_values;
    snapshot.options.packing = options.packing;
    snapshot.options.minimum_savings = options.minimum_savings;
    snapshot.options.improvements.busy_destinations = options.busy_destinations;
    snapshot.repair_policies = memory.repair_policies(options);
    snapshot.options.reserved_capacity = options.gates.reserved_capacity;
    snapshot.options.spot_to_spot_consolidation = options.gates.spot_to_spot;
    snapshot.options.terminate_first_drift = options.gates.terminate_first_drift;
    snapshot.options.terminate_first_repair = options.gates.terminate_first_repair;
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
        waiting,
        changes,
        shapes,
        breakers,
    }
}

/// The Nodes of claims that a disruption takes away once their replacements have come.
fn going_nodes(claims: &[Arc<NodeClaim>]) -> BTreeSet<String> {
    running(claims)
        .iter()
        .flat_map(|running| &running.candidates)
        .filter_map(|claim| claim.status.as_ref()?.node_name.clone())
        .collect()
}

/// The object that a claim is assigned to.
fn assigned(claim: &NodeClaim) -> Option<&String> {
    claim.annotations().get(annotation::SCALABLE_RESOURCE)
}

/// Which offering each claim's machine is: types of one name that differ are told apart by their objects, which no label says.
fn offerings(
    claims: &[Arc<NodeClaim>],
    catalogs: &BTreeMap<String, Catalog>,
) -> BTreeMap<String, OfferingOf> {
    let mut by_object: BTreeMap<(&str, String), OfferingOf> = BTreeMap::new();
    for (pool, catalog) in catalogs {
        for (name, offered) in &catalog.offered {
            for one in offered {
                let offering = OfferingOf {
                    instance_type: name.clone(),
                    zone: one.zone.clone(),
                    capacity_type: one.capacity_type.clone(),
                    price: Some(one.price),
                };
                by_object.insert((pool, one.reference.to_string()), offering);
            }
        }
    }
    let of = |claim: &Arc<NodeClaim>| {
        let pool = claim.labels().get(label::NODE_POOL)?;
        let found = by_object.get(&(pool.as_str(), assigned(claim)?.clone()))?;
        Some((claim.name_any(), found.clone()))
    };
    claims.iter().filter_map(of).collect()
}

/// Nodes whose machine would only be made once more, because their object keeps at least so many.
fn kept(claims: &[Arc<NodeClaim>], shapes: &BTreeMap<String, Vec<Shape>>) -> BTreeMap<String, String> {
    let least = shapes.values().flatten().filter(|shape| shape.min_size > 0);
    let by_object: BTreeMap<String, &Shape> =
        least.map(|shape| (shape.reference.to_string(), shape)).collect();
    let mut kept = BTreeMap::new();
    for (object, shape) in by_object {
        let mut on_it: Vec<&Arc<NodeClaim>> = claims
            .iter()
            .filter(|claim| assigned(claim) == Some(&object))
            .collect();
        let is_going = |claim: &Arc<NodeClaim>| {
            claim.metadata.deletion_timestamp.is_some()
                || claim.annotations().contains_key(annotation::DISRUPTED_FOR)
        };
        let going = on_it.iter().filter(|claim| is_going(claim)).count();
        on_it.retain(|claim| !is_going(claim));
        on_it.sort_by_key(|claim| claim.name_any());
        let surplus = usize::try_from(shape.replicas - shape.min_size).unwrap_or(0);
        for claim in on_it.into_iter().skip(surplus.saturating_sub(going)) {
            let node = claim.status.as_ref().and_then(|status| status.node_name.clone());
            let why = format!(
                "{object} has no more than the {} machines it keeps",
                shape.min_size
            );
            kept.extend(node.map(|node| (node, why)));
        }
    }
    kept
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
        // Static NodePools count them themselves.
        let pool = pool.filter(|pool| pool.spec.replicas.is_none());
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
