//! Every read of an AzureASOManagedMachinePool: its resources, its AKS cluster, its MachinePool from the caches, and its nodes.

use serde_json::Value;
use slipway_azure::{
    ResourceId,
    caches::claim,
    ownership::{self, Foreign},
    reconcile::{
        Absence, Error, ResourceState,
        planning::{Problem, is_stopped},
    },
    workload::{
        cluster_info::ClusterInfo,
        machines::{self, Machines},
        nodes::Nodes,
    },
};
use slipway_capi::{frame::Subject, view::MachinePool};
use slipway_runtime::{Context, ObjectKey};

use crate::{
    api::{AzureASOManagedControlPlane, AzureASOManagedMachinePool},
    caches::claims,
    inline,
    mutators::{AGENT_POOL, CONTAINER_SERVICE, PoolFacts, ReplicaManager, replica_manager, set_agent_pool},
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
    pub pool: AzureASOManagedMachinePool,
    pub machine_pool: Option<MachinePool>,
    /// Whether the AKS cluster goes, with everything in it.
    pub cluster_goes: bool,
    /// The AKS cluster that the pool stands in.
    pub cluster_id: Option<ResourceId>,
    pub cluster_state: ResourceState,
    /// What becomes of the annotation on the MachinePool that says who decides its replicas.
    pub replica_manager: Option<ReplicaManager>,
    /// The provider ids of the pool's nodes, where they can be told.
    pub provider_ids: Option<Vec<String>>,
    /// What kept them from being told.
    pub nodes_problem: Option<Problem>,
    /// Where nodes that are not AKS's own find the API server, in the workload cluster.
    pub cluster_info: ClusterInfo,
    /// Under which key the connection to the workload cluster is kept.
    pub workload: Option<ObjectKey>,
    pub held: Held,
}

/// What observing needs besides the object.
pub struct Sources<'a> {
    pub shared: &'a Shared,
    pub nodes: &'a Nodes,
    pub machines: &'a Machines,
}

fn is_initialized(plane: &AzureASOManagedControlPlane) -> bool {
    let status = plane.status.as_ref();
    plane.metadata.deletion_timestamp.is_none()
        && status.is_some_and(|status| status.initialized == Some(true))
}

pub async fn observe(
    subject: &Subject<AzureASOManagedMachinePool>,
    sources: &Sources<'_>,
    context: &Context,
) -> Result<ReconcileContext, Error> {
    let (pool, cluster) = (subject.object.as_ref(), subject.cluster.as_deref());
    let caches = &sources.shared.caches;
    let plane = cluster.and_then(|cluster| caches.plane(&context.informers, cluster));
    let machine_pool = caches.machine_pool(&context.informers, pool);
    let machine_pool = machine_pool.map(|found| MachinePool::clone(&found));
    let cluster_name = subject.cluster_name.clone().unwrap_or_default();
    let status = pool.status.clone().unwrap_or_default();
    let standing = Standing {
        object: pool,
        cluster_name: &cluster_name,
        ready: status.ready,
        conditions: &status.conditions,
        lines: &status.resources,
        secrets: Vec::new(),
    };
    let initialized = plane.as_deref().is_some_and(is_initialized);
    let deleting = subject.is_deleting();
    let decide = |manifests: &mut [Value], facts: &Facts<'_>| {
        if deleting {
            return Mutation::default();
        }
        decide(manifests, facts, machine_pool.as_ref(), initialized)
    };
    let resources = sources.shared.sources();
    let (held, engine) = resources::observe(&standing, &resources, decide, context).await?;
    let is_leaving = cluster.is_none_or(|cluster| cluster.metadata.deletion_timestamp.is_some());
    let plane_stays = plane
        .as_deref()
        .is_some_and(|plane| plane.metadata.deletion_timestamp.is_none());
    let manager = machine_pool
        .as_ref()
        .and_then(|machine_pool| replica_manager(&pool.spec.resources, machine_pool).ok());
    let mut reconcile = ReconcileContext {
        observed: Observed {
            pool: pool.clone(),
            machine_pool,
            cluster_goes: is_leaving || !plane_stays,
            replica_manager: manager,
            held,
            ..Observed::default()
        },
        engine,
    };
    observe_cluster(&mut reconcile, plane.as_deref(), sources, context).await;
    if !deleting && reconcile.observed.state().body().is_some() {
        match provider_ids(&reconcile, sources, &cluster_name, context).await {
            Ok(ids) => reconcile.observed.provider_ids = ids,
            Err(error) => reconcile.observed.nodes_problem = Some(Problem::of(&error)),
        }
        let workload = ObjectKey::new(pool.metadata.namespace.as_deref(), &cluster_name);
        reconcile.observed.cluster_info = sources.nodes.cluster_info(&workload, &subject.key()).await;
        reconcile.observed.workload = Some(workload);
    }
    Ok(reconcile)
}

impl Observed {
    /// The node pool as AKS shows it.
    pub fn state(&self) -> &ResourceState {
        self.held.state_of_first(AGENT_POOL)
    }

    /// The node pool's name in AKS.
    pub fn azure_name(&self) -> Option<String> {
        let inline = self.held.first(AGENT_POOL)?.inline.as_ref()?;
        Some(inline.object.azure_name())
    }
}

/// Sets what the MachinePool decides in the node pool. Pure.
fn decide(
    manifests: &mut [Value],
    facts: &Facts<'_>,
    machine_pool: Option<&MachinePool>,
    initialized: bool,
) -> Mutation {
    let mut mutation = Mutation::default();
    let inline = facts.first(CONTAINER_SERVICE, AGENT_POOL);
    let index = inline.map(|inline| inline.index);
    let mut wait = |reason: &str, message: &str| {
        if let Some(index) = index {
            mutation.wait = Some((index, reason.to_owned(), message.to_owned()));
        }
    };
    let Some(machine_pool) = machine_pool else {
        wait("WaitingForMachinePool", "no MachinePool owns the node pool yet");
        return mutation;
    };
    if !initialized {
        let message = "the AzureASOManagedControlPlane is not initialized yet";
        wait("WaitingForControlPlane", message);
    }
    let exists = facts.state(CONTAINER_SERVICE, AGENT_POOL).body().is_some();
    let facts = PoolFacts { machine_pool, exists };
    if let Err(problem) = set_agent_pool(manifests, &facts) {
        let index = match problem {
            inline::Problem::NothingDefined { .. } => None,
            _ => index,
        };
        mutation.problem = Some((index, problem));
    }
    mutation
}

/// Looks at the AKS cluster that the pool stands in: whether it is there, whose it is, whether it is stopped.
async fn observe_cluster(
    reconcile: &mut ReconcileContext,
    plane: Option<&AzureASOManagedControlPlane>,
    sources: &Sources<'_>,
    context: &Context,
) {
    let observed = &mut reconcile.observed;
    let Some((id, version)) = observed.held.first(AGENT_POOL).and_then(|resource| {
        let version = resource.api_version().to_owned();
        Some((resource.id.clone()?, version))
    }) else {
        // The object says no longer where its pool is; its record does.
        let recorded = observed
            .held
            .records
            .ids()
            .filter_map(|id| ResourceId::parse(id).ok());
        observed.cluster_id = recorded
            .filter(|id| id.resource_type().to_ascii_lowercase().ends_with("/agentpools"))
            .find_map(|id| id.parent());
        return;
    };
    let Some(cluster) = id.parent() else { return };
    observed.cluster_id = Some(cluster.clone());
    let Some(arm) = reconcile.engine.session(&id).map(|session| session.arm.clone()) else {
        return;
    };
    let max_age = reconcile.engine.max_age;
    let observations = &mut reconcile.engine.observations;
    observations
        .observe(&arm, cluster.as_str(), &version, Absence::Listed, max_age)
        .await;
    let state = observations.state_of(cluster.key()).clone();
    if state.is_absent()
        && let Some(resource) = observed
            .held
            .resources
            .iter_mut()
            .find(|resource| resource.id.as_ref() == Some(&id))
    {
        let message = format!("AKS has no cluster {}", cluster.as_str());
        resource.wait = Some(("WaitingForControlPlane".to_owned(), message));
    }
    if is_stopped(&state) {
        observed.held.stopped = Some(cluster.clone());
    }
    if let Some(plane) = plane {
        let others = claims(&sources.shared.caches, &context.informers, plane, cluster.key());
        let ownership = ownership::judge(&claim(plane, cluster.key()), &others, &state.tags());
        if let Some(foreign) = ownership.foreign() {
            let foreign: Foreign = foreign.clone();
            observed.held.foreign.insert(id.key().to_owned(), foreign);
        }
    }
    observed.cluster_state = state;
}

/// The provider ids of the pool's nodes, where they can be told.
async fn provider_ids(
    reconcile: &ReconcileContext,
    sources: &Sources<'_>,
    cluster_name: &str,
    context: &Context,
) -> Result<Option<Vec<String>>, Error> {
    let observed = &reconcile.observed;
    let (Some(name), Some(resource)) = (observed.azure_name(), observed.held.first(AGENT_POOL)) else {
        return Ok(None);
    };
    let pool = machines::Pool {
        object: &ObjectKey::of(&observed.pool),
        cluster: cluster_name,
        name: &name,
        group: observed.cluster_state.property("nodeResourceGroup"),
        state: observed.state(),
        written: &observed.pool.spec.provider_id_list,
    };
    let session = resource.id.as_ref().and_then(|id| reconcile.engine.session(id));
    let arm = session.map(|session| &session.arm);
    let found = sources.machines.provider_ids(&pool, sources.nodes, arm, context);
    found.await
}
