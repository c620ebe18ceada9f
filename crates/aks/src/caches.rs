//! What the caches show of AKS beyond what every Azure provider looks for: pools with their MachinePools, claims to resources in
//! Azure, and who signs in with an identity.

use slipway_azure::{
    caches::{self, ClusterKinds, recorded},
    ownership::Claim,
};
use slipway_capi::view::MachinePool;
use slipway_runtime::{Context, Informers, ObjectKey};

use crate::{
    access,
    api::{AzureManagedCluster, AzureManagedControlPlane, AzureManagedMachinePool},
    control_plane::{self, plan::PoolObject},
    pool,
    render::{Facts, ids},
};

/// The kinds of AKS.
#[derive(Clone, Debug, Default)]
pub struct Aks;

impl ClusterKinds for Aks {
    type Infrastructure = AzureManagedCluster;
    type ControlPlane = AzureManagedControlPlane;
    type Pool = AzureManagedMachinePool;
}

pub type Caches = caches::Caches<Aks>;

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

/// The pools of a Cluster with their MachinePools.
pub fn pool_objects(caches: &Caches, context: &Context, cluster: &ObjectKey) -> Vec<PoolObject> {
    caches
        .pools(&context.informers, cluster)
        .into_iter()
        .map(|pool| PoolObject {
            machine_pool: caches
                .machine_pool(&context.informers, &pool)
                .map(|found| MachinePool::clone(&found)),
            pool: AzureManagedMachinePool::clone(&pool),
        })
        .collect()
}

/// The claims of all other control planes to an Azure resource.
pub fn plane_claims(
    caches: &Caches,
    informers: &Informers,
    plane: &AzureManagedControlPlane,
    id: &str,
) -> Vec<Claim> {
    let mut all = caches.claims(informers, id, control_plane::FINALIZER, claimed);
    all.retain(|other| other.object != caches::claim(plane, id).object);
    all
}

/// The claims of all other pools to a node pool in AKS.
pub fn pool_claims(
    caches: &Caches,
    informers: &Informers,
    pool: &AzureManagedMachinePool,
    id: &str,
) -> Vec<Claim> {
    let recorded = |pool: &AzureManagedMachinePool| recorded(&pool.metadata);
    let mut all = caches.claims(informers, id, pool::FINALIZER, recorded);
    all.retain(|other| other.object != caches::claim(pool, id).object);
    all
}

/// The control planes that sign in with an identity.
pub fn planes_of_identity(caches: &Caches, informers: &Informers, identity: &ObjectKey) -> Vec<ObjectKey> {
    informers
        .get::<AzureManagedControlPlane>(caches.scope())
        .index("identity", |plane| vec![access::identity_key(plane).to_string()])
        .get(&identity.to_string())
        .iter()
        .map(|plane| ObjectKey::of(plane.as_ref()))
        .collect()
}
