//! The objects of a Cluster as the caches show them, and which of them a change of another enqueues, for the kinds of any
//! provider of AKS clusters.

use std::{
    marker::PhantomData,
    sync::{Arc, OnceLock},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Serialize;
use slipway_capi::{
    finalizer,
    frame::Membership,
    owner,
    view::{Cluster, MachinePool, ObjectReference},
};
use slipway_runtime::{
    Context, Informers, Metrics, ObjectKey, Scope, Settings,
    controller::{Controller, Reconciler, Registration},
    informer,
};

use crate::{ownership::Claim, reconcile::Records, setup::Clouds};

/// What the caches keep of a provider.
pub trait CachedObject: informer::Object + Resource<DynamicType = ()> + Serialize {}

impl<K: informer::Object + Resource<DynamicType = ()> + Serialize> CachedObject for K {}

/// The kinds that a provider makes a Cluster of.
pub trait ClusterKinds: Clone + Default + Send + Sync + 'static {
    type Infrastructure: CachedObject;
    type ControlPlane: CachedObject;
    type Pool: CachedObject;
}

/// The key of what a reference in this namespace means, if that is of kind `K`.
fn referenced<K: CachedObject>(namespace: Option<&str>, reference: &ObjectReference) -> Option<ObjectKey> {
    (reference.kind == K::kind(&()) && reference.api_group == K::group(&()))
        .then(|| ObjectKey::new(namespace, &reference.name))
}

/// The Azure resources in an object's record.
pub fn recorded(metadata: &ObjectMeta) -> Vec<String> {
    Records::of(metadata).ids().map(str::to_owned).collect()
}

/// An object's claim to an Azure resource.
pub fn claim<K: Resource<DynamicType = ()>>(object: &K, id: &str) -> Claim {
    let name = format!("{} {}", K::kind(&()), ObjectKey::of(object));
    Records::of(object.meta()).claim(id, name, object.meta())
}

/// Where the caches look; known when the manager starts.
#[derive(Clone, Debug, Default)]
pub struct Caches<P> {
    scope: Arc<OnceLock<Scope>>,
    kinds: PhantomData<P>,
}

impl<P: ClusterKinds> Caches<P> {
    fn start(&self, settings: &Settings) {
        let _ = self.scope.set(Scope::of_namespace(settings));
    }

    pub fn scope(&self) -> Scope {
        self.scope.get().cloned().unwrap_or_default()
    }

    pub fn cluster(&self, informers: &Informers, key: &ObjectKey) -> Option<Arc<Cluster>> {
        informers.get::<Cluster>(self.scope()).get(key)
    }

    /// The control plane of a Cluster, if it is one of ours.
    pub fn plane_key(cluster: &Cluster) -> Option<ObjectKey> {
        let reference = cluster.spec.control_plane_ref.as_ref()?;
        referenced::<P::ControlPlane>(cluster.metadata.namespace.as_deref(), reference)
    }

    /// The infrastructure of a Cluster, if it is one of ours.
    pub fn infrastructure_key(cluster: &Cluster) -> Option<ObjectKey> {
        let reference = cluster.spec.infrastructure_ref.as_ref()?;
        referenced::<P::Infrastructure>(cluster.metadata.namespace.as_deref(), reference)
    }

    pub fn plane(&self, informers: &Informers, cluster: &Cluster) -> Option<Arc<P::ControlPlane>> {
        let key = Self::plane_key(cluster)?;
        informers.get::<P::ControlPlane>(self.scope()).get(&key)
    }

    pub fn infrastructure(&self, informers: &Informers, cluster: &Cluster) -> Option<Arc<P::Infrastructure>> {
        let key = Self::infrastructure_key(cluster)?;
        informers.get::<P::Infrastructure>(self.scope()).get(&key)
    }

    /// The pools of a Cluster, by name.
    pub fn pools(&self, informers: &Informers, cluster: &ObjectKey) -> Vec<Arc<P::Pool>> {
        informers
            .get::<P::Pool>(self.scope())
            .index("cluster", |pool| owner::by_cluster(pool.meta()))
            .get(&owner::key(cluster.namespace(), cluster.name()))
    }

    /// The MachinePool that a pool is the infrastructure of: the one that owns it, or will.
    pub fn machine_pool(&self, informers: &Informers, pool: &P::Pool) -> Option<Arc<MachinePool>> {
        let pools = informers.get::<MachinePool>(self.scope());
        let (namespace, name) = (pool.meta().namespace.as_deref(), pool.meta().name.as_deref());
        if let Some(name) = owner::owner_machine_pool_name(pool.meta()) {
            return pools.get(&ObjectKey::new(namespace, name));
        }
        pools
            .index("infrastructure", |machine_pool| {
                let reference = &machine_pool.spec.template.spec.infrastructure_ref;
                let namespace = machine_pool.metadata.namespace.as_deref();
                vec![owner::reference_key(namespace, reference)]
            })
            .get(&format!(
                "{}/{}/{}",
                P::Pool::group(&()),
                P::Pool::kind(&()),
                owner::key(namespace, name.unwrap_or_default())
            ))
            .into_iter()
            .next()
    }

    /// The Cluster that an object belongs to by owner reference or label.
    fn cluster_of(&self, informers: &Informers, metadata: &ObjectMeta) -> Option<Arc<Cluster>> {
        let key = ObjectKey::new(metadata.namespace.as_deref(), owner::cluster_name(metadata)?);
        self.cluster(informers, &key)
    }

    /// The pools of the Cluster that an object belongs to.
    fn pools_beside(&self, informers: &Informers, cluster: &ObjectKey) -> Vec<ObjectKey> {
        let pools = self.pools(informers, cluster);
        pools.iter().map(|pool| ObjectKey::of(pool.as_ref())).collect()
    }

    /// The claims of all objects of a kind to an Azure resource. One without its finalizer does nothing, and claims nothing.
    pub fn claims<K: CachedObject>(
        &self,
        informers: &Informers,
        id: &str,
        finalizer: &str,
        claimed: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Vec<Claim> {
        informers
            .get::<K>(self.scope())
            .index("claims", claimed)
            .get(&id.to_lowercase())
            .iter()
            .filter(|object| finalizer::has(object.meta(), finalizer))
            .map(|object| claim(object.as_ref(), id))
            .collect()
    }

    /// Core labels a pool when its MachinePool becomes its owner. Pools of other control planes are not ours.
    pub fn membership_of_pool(&self, informers: &Informers, pool: &P::Pool) -> Membership {
        let membership = Membership::by_owner_or_label(pool.meta());
        if let Membership::Of(name) = &membership {
            let key = ObjectKey::new(pool.meta().namespace.as_deref(), name);
            let cluster = self.cluster(informers, &key);
            if cluster.is_some_and(|cluster| Self::plane_key(&cluster).is_none()) {
                return Membership::LeftAlone("its Cluster has another control plane");
            }
        }
        membership
    }

    /// A Cluster's infrastructure is enqueued by the Cluster and by its control plane.
    pub fn watched_by_infrastructure<R: Reconciler>(&self, controller: Controller<R>) -> Controller<R> {
        let caches = self.clone();
        controller
            .watches::<Cluster>(|cluster, _| Self::infrastructure_key(cluster).into_iter().collect())
            .watches::<P::ControlPlane>(move |plane, context| {
                let cluster = caches.cluster_of(&context.informers, plane.meta());
                let key = cluster.and_then(|cluster| Self::infrastructure_key(&cluster));
                key.into_iter().collect()
            })
    }

    /// A control plane is enqueued by its Cluster, and by the infrastructure and the pools of that Cluster.
    pub fn watched_by_planes<R: Reconciler>(&self, controller: Controller<R>) -> Controller<R> {
        let [pools, machine_pools, infrastructure] = [(); 3].map(|()| self.clone());
        let plane_of = |cluster: Option<Arc<Cluster>>| {
            let key = cluster.and_then(|cluster| Self::plane_key(&cluster));
            key.into_iter().collect()
        };
        controller
            .watches::<Cluster>(|cluster, _| Self::plane_key(cluster).into_iter().collect())
            .watches::<P::Pool>(move |pool, context| {
                plane_of(pools.cluster_of(&context.informers, pool.meta()))
            })
            .watches::<MachinePool>(move |pool, context| {
                let key = ObjectKey::new(pool.metadata.namespace.as_deref(), &pool.spec.cluster_name);
                plane_of(machine_pools.cluster(&context.informers, &key))
            })
            .watches::<P::Infrastructure>(move |object, context| {
                plane_of(infrastructure.cluster_of(&context.informers, object.meta()))
            })
    }

    /// A pool is enqueued by its MachinePool, and by its Cluster and the control plane of that.
    pub fn watched_by_pools<R: Reconciler>(&self, controller: Controller<R>) -> Controller<R> {
        let [clusters, planes] = [(); 2].map(|()| self.clone());
        controller
            .watches::<MachinePool>(|pool, _| {
                let reference = &pool.spec.template.spec.infrastructure_ref;
                let key = referenced::<P::Pool>(pool.metadata.namespace.as_deref(), reference);
                key.into_iter().collect()
            })
            .watches::<Cluster>(move |cluster, context| {
                clusters.pools_beside(&context.informers, &ObjectKey::of(cluster))
            })
            .watches::<P::ControlPlane>(move |plane, context| {
                let metadata = plane.meta();
                let cluster = owner::cluster_name(metadata)
                    .map(|name| ObjectKey::new(metadata.namespace.as_deref(), name));
                cluster.map_or_else(Vec::new, |cluster| {
                    planes.pools_beside(&context.informers, &cluster)
                })
            })
    }

    /// Checks the settings before a controller runs, and tells the caches where to look. Objects of these kinds are large or
    /// mostly empty, and read where something changed: a fleet's are kept as text, whichever controller asks first.
    pub fn prepared(
        self,
        inner: Registration,
        count_held: impl Fn(&Metrics) + Send + Sync + 'static,
    ) -> Registration {
        Registration {
            name: inner.name,
            run: Arc::new(move |context: Context| {
                self.start(&context.settings);
                count_held(&context.metrics);
                context.informers.keep_as_text::<P::Infrastructure>();
                context.informers.keep_as_text::<P::ControlPlane>();
                context.informers.keep_as_text::<P::Pool>();
                let run = Arc::clone(&inner.run);
                Box::pin(async move {
                    Clouds::check(&context.settings)?;
                    run(context).await
                })
            }),
        }
    }
}
