//! The objects of a Cluster as the caches show them, and which of them a change of another enqueues.

use std::sync::{Arc, OnceLock};

use futures::FutureExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use slipway_azure::{ownership::Claim, reconcile::Records, setup::Clouds};
use slipway_capi::{
    finalizer, owner,
    view::{Cluster, MachinePool},
};
use slipway_runtime::{Context, Informers, Metrics, ObjectKey, Scope, Settings, controller::Registration};

use crate::{
    access,
    api::{AzureManagedCluster, AzureManagedControlPlane, AzureManagedMachinePool, GROUP},
    control_plane::{self, plan::PoolObject},
    pool,
    render::{Facts, ids},
};

const BY_CLUSTER: &str = "cluster";

fn recorded(metadata: &ObjectMeta) -> Vec<String> {
    Records::of(metadata).ids().map(str::to_owned).collect()
}

/// The Azure resources that a control plane claims: those in its record, and its AKS cluster.
fn claimed(plane: &AzureManagedControlPlane) -> Vec<String> {
    let mut ids = recorded(&plane.metadata);
    if let Ok(subscription) = access::subscription(plane) {
        let cluster = ids::managed_cluster(&Facts {
            plane,
            cluster_name: "",
            subscription: &subscription,
            services: None,
            pods: None,
        });
        ids.push(cluster.to_lowercase());
    }
    ids.sort();
    ids.dedup();
    ids
}

/// An object's claim to an Azure resource.
pub fn claim<K: kube::Resource<DynamicType = ()>>(object: &K, id: &str) -> Claim {
    let name = format!("{} {}", K::kind(&()), ObjectKey::of(object));
    Records::of(object.meta()).claim(id, name, object.meta())
}

/// Where the caches look; known when the manager starts.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    scope: Arc<OnceLock<Scope>>,
}

impl Caches {
    pub fn start(&self, settings: &Settings) {
        let _ = self.scope.set(Scope::of_namespace(settings));
    }

    fn scope(&self) -> Scope {
        self.scope.get().cloned().unwrap_or_default()
    }

    pub fn cluster(&self, informers: &Informers, key: &ObjectKey) -> Option<Arc<Cluster>> {
        informers.get::<Cluster>(self.scope()).get(key)
    }

    /// The control plane of a Cluster, if it is one of ours.
    pub fn plane_key(cluster: &Cluster) -> Option<ObjectKey> {
        let reference = cluster.spec.control_plane_ref.as_ref()?;
        (reference.kind == "AzureManagedControlPlane" && reference.api_group == GROUP)
            .then(|| ObjectKey::new(cluster.metadata.namespace.as_deref(), &reference.name))
    }

    /// The infrastructure of a Cluster, if it is one of ours.
    pub fn infrastructure_key(cluster: &Cluster) -> Option<ObjectKey> {
        let reference = cluster.spec.infrastructure_ref.as_ref()?;
        (reference.kind == "AzureManagedCluster" && reference.api_group == GROUP)
            .then(|| ObjectKey::new(cluster.metadata.namespace.as_deref(), &reference.name))
    }

    pub fn plane(&self, informers: &Informers, cluster: &Cluster) -> Option<Arc<AzureManagedControlPlane>> {
        let key = Self::plane_key(cluster)?;
        informers.get::<AzureManagedControlPlane>(self.scope()).get(&key)
    }

    pub fn infrastructure(
        &self,
        informers: &Informers,
        cluster: &Cluster,
    ) -> Option<Arc<AzureManagedCluster>> {
        let key = Self::infrastructure_key(cluster)?;
        informers.get::<AzureManagedCluster>(self.scope()).get(&key)
    }

    /// The pools of a Cluster.
    pub fn pools(&self, informers: &Informers, cluster: &ObjectKey) -> Vec<Arc<AzureManagedMachinePool>> {
        informers
            .get::<AzureManagedMachinePool>(self.scope())
            .index(BY_CLUSTER, |pool| owner::by_cluster(&pool.metadata))
            .get(&owner::key(cluster.namespace(), cluster.name()))
    }

    /// The MachinePool that a pool is the infrastructure of: the one that owns it, or will.
    pub fn machine_pool(
        &self,
        informers: &Informers,
        pool: &AzureManagedMachinePool,
    ) -> Option<Arc<MachinePool>> {
        let pools = informers.get::<MachinePool>(self.scope());
        let namespace = pool.metadata.namespace.as_deref();
        if let Some(name) = owner::owner_machine_pool_name(&pool.metadata) {
            return pools.get(&ObjectKey::new(namespace, name));
        }
        pools
            .index("infrastructure", |machine_pool| {
                let reference = &machine_pool.spec.template.spec.infrastructure_ref;
                vec![owner::reference_key(
                    machine_pool.metadata.namespace.as_deref(),
                    reference,
                )]
            })
            .get(&format!(
                "{GROUP}/AzureManagedMachinePool/{}",
                owner::key(namespace, &pool.name_any())
            ))
            .into_iter()
            .next()
    }

    /// The pools of a Cluster with their MachinePools.
    pub fn pool_objects(&self, context: &Context, cluster: &ObjectKey) -> Vec<PoolObject> {
        self.pools(&context.informers, cluster)
            .into_iter()
            .map(|pool| PoolObject {
                machine_pool: self
                    .machine_pool(&context.informers, &pool)
                    .map(|found| MachinePool::clone(&found)),
                pool: AzureManagedMachinePool::clone(&pool),
            })
            .collect()
    }

    /// What a change of an object of a Cluster means for its control plane.
    pub fn plane_of_member(
        &self,
        informers: &Informers,
        namespace: Option<&str>,
        cluster: Option<&str>,
    ) -> Vec<ObjectKey> {
        cluster
            .and_then(|name| self.cluster(informers, &ObjectKey::new(namespace, name)))
            .and_then(|cluster| Self::plane_key(&cluster))
            .into_iter()
            .collect()
    }

    /// The claims of all other control planes to an Azure resource. One that holds no finalizer of ours does nothing, and
    /// claims nothing.
    pub fn plane_claims(
        &self,
        informers: &Informers,
        plane: &AzureManagedControlPlane,
        id: &str,
    ) -> Vec<Claim> {
        informers
            .get::<AzureManagedControlPlane>(self.scope())
            .index("claims", claimed)
            .get(&id.to_lowercase())
            .iter()
            .filter(|other| ObjectKey::of(other.as_ref()) != ObjectKey::of(plane))
            .filter(|other| finalizer::has(&other.metadata, control_plane::FINALIZER))
            .map(|other| claim(other.as_ref(), id))
            .collect()
    }

    /// The claims of all other pools to a node pool in AKS.
    pub fn pool_claims(&self, informers: &Informers, pool: &AzureManagedMachinePool, id: &str) -> Vec<Claim> {
        informers
            .get::<AzureManagedMachinePool>(self.scope())
            .index("claims", |pool| recorded(&pool.metadata))
            .get(&id.to_lowercase())
            .iter()
            .filter(|other| ObjectKey::of(other.as_ref()) != ObjectKey::of(pool))
            .filter(|other| finalizer::has(&other.metadata, pool::FINALIZER))
            .map(|other| claim(other.as_ref(), id))
            .collect()
    }

    /// The control planes that sign in with an identity.
    pub fn planes_of_identity(&self, informers: &Informers, identity: &ObjectKey) -> Vec<ObjectKey> {
        informers
            .get::<AzureManagedControlPlane>(self.scope())
            .index("identity", |plane| vec![access::identity_key(plane).to_string()])
            .get(&identity.to_string())
            .iter()
            .map(|plane| ObjectKey::of(plane.as_ref()))
            .collect()
    }
}

/// Checks the settings before a controller runs, and tells the caches where to look. Our kinds have many fields and most
/// of them are empty: a fleet's are kept as text, whichever controller asks first.
pub fn prepared(
    inner: Registration,
    caches: Caches,
    count_held: impl Fn(&Metrics) + Send + Sync + 'static,
) -> Registration {
    Registration {
        name: inner.name,
        run: Arc::new(move |context: Context| {
            caches.start(&context.settings);
            count_held(&context.metrics);
            context.informers.keep_as_text::<AzureManagedControlPlane>();
            context.informers.keep_as_text::<AzureManagedMachinePool>();
            context.informers.keep_as_text::<AzureManagedCluster>();
            let run = Arc::clone(&inner.run);
            async move {
                Clouds::check(&context.settings)?;
                run(context).await
            }
            .boxed()
        }),
    }
}
