//! Every read of the pool controller.

use std::{collections::BTreeMap, time::Duration};

use kube::Api;
use serde_json::{Value, json};
use slipway_azure::{
    Urgency,
    adopted::adopted,
    caches::claim,
    machine::{self, Board, Instances},
    ownership,
    reconcile::{
        Absence, Error, Observations, Records, StepStatus,
        records::Entry,
        step::{self, read_age},
    },
    session::Session,
    takeover::Takeover,
    workload::{
        machines::{self, Machines},
        nodes::Nodes,
    },
};
use slipway_capi::{frame::Subject, view::MachinePool};
use slipway_runtime::{Context, ObjectKey};

use super::plan::Observed;
use crate::{
    access::{Access, subscription},
    api::{AzureManagedControlPlane, AzureManagedMachine, AzureManagedMachinePool},
    caches::{Caches, plane_claims, pool_claims},
    planning::{Problem, Unknown, is_stopped, occupied},
    render::{self, Facts, ids},
};

/// Everything a reconcile works with.
pub struct ReconcileContext {
    pub observed: Observed,
    /// The pool's id in Azure.
    pub id: String,
    pub api_version: String,
    /// Where the nodes' machines are.
    pub node_group: Option<String>,
    pub observations: Observations,
    pub records: Records,
    /// `None`: nothing is asked of Azure in this state.
    pub session: Option<Session>,
    pub max_age: Option<Duration>,
    /// How the last step in Azure went, in this reconcile.
    pub step: Option<StepStatus>,
}

fn initialized(plane: &AzureManagedControlPlane) -> bool {
    plane
        .status
        .as_ref()
        .is_some_and(|status| status.initialized == Some(true))
}

/// What observing needs besides the object.
pub struct Sources<'a> {
    pub access: &'a Access,
    pub caches: &'a Caches,
    pub nodes: &'a Nodes,
    pub machines: &'a Machines,
    pub takeover: &'a Takeover,
    pub instances: &'a Instances,
    pub board: &'a Board,
}

/// How old what is read may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// As old as the tuning says.
    Usual,
    /// Nothing that was read before counts, in Azure or in Kubernetes.
    Now,
}

pub async fn observe(
    subject: &Subject<AzureManagedMachinePool>,
    sources: &Sources<'_>,
    reading: Reading,
    context: &Context,
) -> Result<ReconcileContext, Error> {
    let (pool, cluster) = (subject.object.as_ref(), subject.cluster.as_deref());
    let plane = cluster.and_then(|cluster| sources.caches.plane(&context.informers, cluster));
    let machine_pool = sources.caches.machine_pool(&context.informers, pool);
    let machine_pool = match machine_pool {
        Some(found) if reading == Reading::Now => get_machine_pool(&found, context).await?,
        found => found.map(|found| MachinePool::clone(&found)),
    };
    let mut reconcile = ReconcileContext {
        observed: Observed {
            machine_pool,
            plane: plane.map(|found| AzureManagedControlPlane::clone(&found)),
            cluster_name: subject.cluster_name.clone().unwrap_or_default(),
            cluster_is_deleted: cluster.is_none_or(|cluster| cluster.metadata.deletion_timestamp.is_some()),
            must_detach: !sources.takeover.is_free(&pool.metadata),
            pool: pool.clone(),
            ..Observed::default()
        },
        id: String::new(),
        api_version: String::new(),
        node_group: None,
        observations: Observations::default(),
        records: Records::of(&pool.metadata),
        session: None,
        max_age: match reading {
            Reading::Usual => read_age(&pool.metadata),
            Reading::Now => Some(Duration::ZERO),
        },
        step: None,
    };
    reconcile.observed.remaining = reconcile.records.remaining().map(str::to_owned).collect();
    if asks(&reconcile.observed)
        && let Err(error) = ask(&mut reconcile, sources, context).await
    {
        reconcile.observed.problem = Some(Problem::of(&error));
    }
    if !subject.is_deleting() && reconcile.observed.state.body().is_some() {
        match provider_ids(&reconcile, sources, context).await {
            Ok(ids) => reconcile.observed.provider_ids = ids,
            Err(error) => reconcile.observed.nodes_problem = Some(Problem::of(&error)),
        }
        Box::pin(observe_machines(&mut reconcile, sources, reading, context)).await;
        let cluster = workload_key(&reconcile.observed);
        reconcile.observed.cluster_info = sources.nodes.cluster_info(&cluster, &subject.key()).await;
    } else if subject.is_deleting() {
        let observed = &mut reconcile.observed;
        let is_told = is_told(&observed.pool);
        let machine_pool = observed.machine_pool.as_ref();
        observed.fleet =
            machine::observe::leaving::<AzureManagedMachine>(machine_pool, is_told, context).await;
    }
    Ok(reconcile)
}

/// Under which key the connection to the workload cluster is kept.
pub fn workload_key(observed: &Observed) -> ObjectKey {
    ObjectKey::new(
        observed.pool.metadata.namespace.as_deref(),
        &observed.cluster_name,
    )
}

/// Whether anything is asked of Azure in this state.
fn asks(observed: &Observed) -> bool {
    let Some(plane) = observed.plane.as_ref().filter(|_| !observed.must_detach) else {
        return false;
    };
    let stays = plane.metadata.deletion_timestamp.is_none();
    if observed.pool.metadata.deletion_timestamp.is_some() {
        stays && !observed.cluster_is_deleted
    } else {
        stays && initialized(plane)
    }
}

/// Reads the pool and its cluster in Azure.
async fn ask(
    reconcile: &mut ReconcileContext,
    sources: &Sources<'_>,
    context: &Context,
) -> Result<(), Error> {
    let Some(plane) = reconcile.observed.plane.clone() else {
        return Ok(());
    };
    let cluster_name = reconcile.observed.cluster_name.clone();
    reconcile.observed.subscription = subscription(&plane)?;
    let mut session = sources.access.open(&plane, &cluster_name, context).await?;
    let told = reconcile.observed.pool.status.as_ref();
    session.arm = session.arm.urgent(Urgency::of(
        told.and_then(|status| status.ready),
        told.and_then(|status| status.observed_generation),
        &reconcile.observed.pool.metadata,
    ));
    let facts = Facts {
        plane: &plane,
        cluster_name: &cluster_name,
        subscription: &reconcile.observed.subscription,
        services: None,
        pods: None,
    };
    let aks = ids::managed_cluster(&facts);
    let pool = &reconcile.observed.pool;
    reconcile.id = format!("{aks}/agentPools/{}", pool.azure_name());
    let kind = json!({
        "apiVersion": render::api_version(&plane),
        "kind": "ManagedClustersAgentPool",
        "metadata": {"name": pool.azure_name()},
    });
    reconcile.api_version = step::api_version(&kind)?;
    // A pool that is to be made, or is said to be gone, is asked for by itself.
    let deleting = pool.metadata.deletion_timestamp.is_some();
    let absence = if deleting || reconcile.records.get(&reconcile.id).is_none_or(Entry::existed) {
        Absence::Certain
    } else {
        Absence::Listed
    };
    let (arm, version) = (&session.arm, reconcile.api_version.as_str());
    reconcile
        .observations
        .observe(arm, &reconcile.id, version, absence, reconcile.max_age)
        .await;
    reconcile
        .observations
        .observe(arm, &aks, version, Absence::Listed, reconcile.max_age)
        .await;
    let observed = &mut reconcile.observed;
    observed.state = reconcile.observations.state_of(&reconcile.id).clone();
    observed.unknown = Some(Unknown::of(&reconcile.observations, &reconcile.id));
    observed.is_recorded = reconcile.records.get(&reconcile.id).is_some();
    observed.record = reconcile.records.record(&reconcile.id).cloned();
    let body = reconcile.observations.state_of(&aks).body();
    reconcile.node_group = reconcile
        .observations
        .state_of(&aks)
        .property("nodeResourceGroup")
        .map(str::to_owned);
    observed.all_pools = body
        .and_then(|body| body.pointer("/properties/agentPoolProfiles"))
        .and_then(Value::as_array)
        .map(|profiles| profiles.iter().map(as_resource).collect());
    let cluster_state = reconcile.observations.state_of(&aks);
    let (caches, informers) = (sources.caches, &context.informers);
    let of_cluster = ownership::judge(
        &claim(&plane, &aks),
        &plane_claims(caches, informers, &plane, &aks),
        &cluster_state.tags(),
    );
    let of_pool = ownership::judge(
        &claim(&observed.pool, &reconcile.id),
        &pool_claims(caches, informers, &observed.pool, &reconcile.id),
        &BTreeMap::new(),
    );
    observed.foreign = of_cluster
        .foreign()
        .map(|foreign| (aks.clone(), foreign.clone()))
        .or_else(|| Some((reconcile.id.clone(), of_pool.foreign()?.clone())));
    if deleting && observed.foreign.is_none() {
        let mut adopted = adopted(observed.pool.metadata.uid.as_deref(), context).await?;
        let by = adopted.remove(&reconcile.id.to_lowercase());
        observed.foreign = by.map(|by| (reconcile.id.clone(), by));
    }
    observed.cluster_is_absent = cluster_state.is_absent();
    observed.cluster_is_stopped = is_stopped(cluster_state);
    observed.vanished =
        observed.state.is_absent() && reconcile.records.get(&reconcile.id).is_some_and(Entry::existed);
    reconcile.session = Some(session);
    Ok(())
}

/// The provider ids of the pool's nodes, where they can be told.
async fn provider_ids(
    reconcile: &ReconcileContext,
    sources: &Sources<'_>,
    context: &Context,
) -> Result<Option<Vec<String>>, Error> {
    let observed = &reconcile.observed;
    let pool = machines::Pool {
        object: &ObjectKey::of(&observed.pool),
        cluster: &observed.cluster_name,
        name: observed.pool.azure_name(),
        group: reconcile.node_group.as_deref(),
        state: &observed.state,
        written: &observed.pool.spec.provider_id_list,
    };
    let arm = reconcile.session.as_ref().map(|session| &session.arm);
    let found = sources.machines.provider_ids(&pool, sources.nodes, arm, context);
    found.await
}

/// The MachinePool as it is now.
async fn get_machine_pool(known: &MachinePool, context: &Context) -> Result<Option<MachinePool>, Error> {
    let namespace = known.metadata.namespace.as_deref().unwrap_or_default();
    let name = known.metadata.name.as_deref().unwrap_or_default();
    let api: Api<MachinePool> = Api::namespaced(context.client.clone(), namespace);
    let found = api.get_opt(name).await;
    found.map_err(Error::api(format!("reading MachinePool {name}")))
}

/// Whether its status names the kind of its machines.
fn is_told(pool: &AzureManagedMachinePool) -> bool {
    let status = pool.status.as_ref();
    status.is_some_and(|status| status.infrastructure_machine_kind.is_some())
}

/// The pool's machines, where they are switched on or something is left of them. What belongs to another is not looked at.
async fn observe_machines(
    reconcile: &mut ReconcileContext,
    sources: &Sources<'_>,
    reading: Reading,
    context: &Context,
) {
    let observed = &reconcile.observed;
    if observed.foreign.is_some() {
        return;
    }
    let pool = machine::observe::Pool {
        metadata: &observed.pool.metadata,
        cluster: &observed.cluster_name,
        machine_pool: observed.machine_pool.as_ref(),
        name: observed.pool.azure_name(),
        group: reconcile.node_group.as_deref(),
        state: &observed.state,
        occupied: occupied(&observed.state, observed.unknown.as_ref()),
        is_told: is_told(&observed.pool),
        max_age: read_age(&observed.pool.metadata),
    };
    let of_machines = machine::Sources {
        instances: sources.instances,
        nodes: sources.nodes,
        board: sources.board,
        arm: reconcile.session.as_ref().map(|session| &session.arm),
    };
    let now = reading == Reading::Now;
    let (fleet, problem) =
        machine::observe::observe::<AzureManagedMachine>(&pool, &of_machines, now, context).await;
    let observed = &mut reconcile.observed;
    observed.fleet = fleet;
    if let Some(error) = problem {
        observed.nodes_problem.get_or_insert(Problem::of(&error));
    }
}

/// A profile in a cluster's body, in the form of a resource of its own.
fn as_resource(profile: &Value) -> Value {
    json!({"name": profile["name"], "properties": profile})
}
