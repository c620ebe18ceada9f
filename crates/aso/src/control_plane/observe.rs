//! Every read of an AzureASOManagedControlPlane: its resources, and the pools of the same Cluster from the caches.

use serde_json::Value;
use slipway_azure::reconcile::Error;
use slipway_capi::{
    frame::Subject,
    secret::Purpose,
    view::{Cluster, MachinePool},
};
use slipway_runtime::{Context, ObjectKey};

use crate::{
    api::{AzureASOManagedControlPlane, AzureASOManagedMachinePool},
    caches::{Caches, unobserved_machine_pools},
    inline::Problem,
    mutators::{
        CONTAINER_SERVICE, ClusterFacts, MANAGED_CLUSTER, Pool, Pools, Profiles, profiles,
        set_managed_cluster,
    },
    resources::{self, Engine, Facts, Held, Mutation, Standing},
    shared::Shared,
};

/// Everything a reconcile works with.
pub struct ReconcileContext {
    pub observed: Observed,
    pub engine: Engine,
}

/// What the plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub plane: AzureASOManagedControlPlane,
    pub cluster_name: String,
    /// The kind of the Cluster's infrastructure, if it is not one that this kind goes with.
    pub other_infrastructure: Option<String>,
    pub held: Held,
}

/// A pool object and the MachinePool that owns it.
struct PoolObject {
    pool: AzureASOManagedMachinePool,
    machine_pool: Option<MachinePool>,
}

fn other_infrastructure(cluster: &Cluster) -> Option<String> {
    let reference = cluster.spec.infrastructure_ref.as_ref();
    match (Caches::infrastructure_key(cluster), reference) {
        (Some(_), _) => None,
        (None, Some(reference)) => Some(reference.kind.clone()),
        (None, None) => Some("none".to_owned()),
    }
}

pub async fn observe(
    subject: &Subject<AzureASOManagedControlPlane>,
    shared: &Shared,
    context: &Context,
) -> Result<ReconcileContext, Error> {
    let plane = subject.object.as_ref();
    let cluster_name = subject.cluster_name.clone().unwrap_or_default();
    let cluster = subject.cluster.as_deref().cloned().unwrap_or_default();
    let key = ObjectKey::new(plane.metadata.namespace.as_deref(), &cluster_name);
    let mut pools: Vec<PoolObject> = shared
        .caches
        .pools(&context.informers, &key)
        .into_iter()
        .filter(|pool| pool.metadata.deletion_timestamp.is_none())
        .map(|pool| PoolObject {
            machine_pool: shared
                .caches
                .machine_pool(&context.informers, &pool)
                .map(|found| MachinePool::clone(&found)),
            pool: AzureASOManagedMachinePool::clone(&pool),
        })
        .collect();
    pools.sort_by(|left, right| left.pool.metadata.name.cmp(&right.pool.metadata.name));
    let status = plane.status.clone().unwrap_or_default();
    let standing = Standing {
        object: plane,
        cluster_name: &cluster_name,
        ready: status.ready,
        conditions: &status.conditions,
        lines: &status.resources,
        secrets: [Purpose::Kubeconfig, Purpose::ClusterCa]
            .map(|purpose| purpose.secret_name(&cluster_name))
            .into(),
    };
    let deleting = subject.is_deleting();
    let unobserved = unobserved_machine_pools(&shared.caches, &context.informers, &key);
    let decide = |manifests: &mut [Value], facts: &Facts<'_>| {
        if deleting {
            return Mutation::default();
        }
        let mut mutation = decide(manifests, facts, &cluster, &plane.spec.version, &pools);
        if pools.is_empty() && !unobserved.is_empty() {
            tell_unobserved(&mut mutation, &unobserved);
        }
        mutation
    };
    let (held, engine) = resources::observe(&standing, &shared.sources(), decide, context).await?;
    let observed = Observed {
        plane: plane.clone(),
        other_infrastructure: subject.cluster.as_deref().and_then(other_infrastructure),
        cluster_name,
        held,
    };
    Ok(ReconcileContext { observed, engine })
}

/// Says why a cluster that waits for pools may wait for ever.
fn tell_unobserved(mutation: &mut Mutation, machine_pools: &[String]) {
    if let Some((_, reason, message)) = &mut mutation.wait {
        "MachinePoolsNotReconciled".clone_into(reason);
        *message = format!(
            "Cluster API has not reconciled MachinePool {}: if that goes on, its feature gate MachinePool is off, and its manager has \
             to be started with --feature-gates=MachinePool=true",
            machine_pools.join(", ")
        );
    }
}

/// Sets what a Cluster, its control plane and its pools decide in the AKS cluster. Pure.
fn decide(
    manifests: &mut [Value],
    facts: &Facts<'_>,
    cluster: &Cluster,
    version: &str,
    pools: &[PoolObject],
) -> Mutation {
    let inline = facts.first(CONTAINER_SERVICE, MANAGED_CLUSTER);
    let state = facts.state(CONTAINER_SERVICE, MANAGED_CLUSTER);
    let has_pools = state
        .body()
        .and_then(|body| body.pointer("/properties/agentPoolProfiles")?.as_array())
        .is_some_and(|profiles| !profiles.is_empty());
    let names: Vec<String> = pools
        .iter()
        .map(|one| one.pool.metadata.name.clone().unwrap_or_default())
        .collect();
    let described: Vec<Pool<'_>> = pools
        .iter()
        .zip(&names)
        .map(|(one, name)| Pool {
            name,
            resources: &one.pool.spec.resources,
            machine_pool: one.machine_pool.as_ref(),
        })
        .collect();
    let mut mutation = Mutation::default();
    let found = match inline {
        Some(inline) if !has_pools => Some(profiles(&inline.object.mapping, &described)),
        _ => None,
    };
    let at_creation = match &found {
        None => Pools::InAzure,
        Some(Profiles::Complete { profiles, .. }) => Pools::AtCreation(profiles),
        Some(Profiles::Incomplete(text)) => {
            let index = inline.map_or(0, |inline| inline.index);
            mutation.wait = Some((index, "WaitingForMachinePools".to_owned(), text.clone()));
            Pools::InAzure
        }
    };
    let facts = ClusterFacts {
        cluster,
        version,
        pools: at_creation,
    };
    if let Err(problem) = set_managed_cluster(manifests, &facts) {
        let index = match problem {
            Problem::NothingDefined { .. } => None,
            _ => inline.map(|inline| inline.index),
        };
        mutation.problem = Some((index, problem));
    }
    mutation
}
