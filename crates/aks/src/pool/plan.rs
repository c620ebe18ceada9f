//! The plan for a node pool: make it so, follow AKS where AKS scales, delete unless it is the last system pool.

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;
pub use slipway_azure::workload::machines::{count, scales};
use slipway_azure::{
    diff::Record,
    machine::{self, Fleet},
    ownership::Foreign,
    reconcile::{ResourceKind, ResourceState},
    workload::cluster_info::ClusterInfo,
};
use slipway_capi::{frame::Plan, view::MachinePool};

use crate::{
    api::{AzureManagedControlPlane, AzureManagedMachinePool, MODE_SYSTEM},
    control_plane::plan::id_of,
    planning::{
        DesiredResource, ORPHAN, Problem, Unknown, Waiting, compare, has_reason, is_going, is_orphaned,
        remains, wait,
    },
    render::{Facts, PoolFacts, agent_pool},
    status::{LAST_SYSTEM_POOL, VANISHED, condition_of},
    version::with_v,
};

/// One idempotent call.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Detach what another installation kept for the same resources.
    Detach,
    /// Note on the object what is about to be asked for.
    Record {
        id: String,
    },
    /// It was there and is gone, and nothing here deleted it: report that before it is made again.
    AcceptVanished {
        id: String,
    },
    /// Compare with Azure once more and send what differs.
    Ensure(DesiredResource),
    Delete {
        id: String,
    },
    /// AKS scales the pool: say so on the MachinePool, and carry over its count.
    FollowReplicas {
        count: i32,
    },
    /// AKS no longer scales the pool: take the annotation off the MachinePool.
    StopFollowingReplicas,
    WriteProviderIds(Vec<String>),
    /// Write the API server's address and CA into the workload cluster, for nodes that are not AKS's own.
    PublishClusterInfo,
    /// Note on the object what was applied.
    StoreRecords,
    /// Something for the pool's machines.
    Machine(machine::Action),
}

impl From<machine::Action> for Action {
    fn from(action: machine::Action) -> Self {
        Self::Machine(action)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Detach => formatter.write_str("detach objects of Azure Service Operator"),
            Self::Record { id } => write!(formatter, "record {id}"),
            Self::AcceptVanished { id } => write!(formatter, "report vanished {id}"),
            Self::Ensure(desired) => write!(formatter, "ensure {:?} {}", desired.kind, desired.id),
            Self::Delete { id } => write!(formatter, "delete {:?} {id}", ResourceKind::AgentPool),
            Self::FollowReplicas { count } => write!(formatter, "follow replicas {count}"),
            Self::StopFollowingReplicas => formatter.write_str("stop following replicas"),
            Self::WriteProviderIds(ids) => write!(formatter, "write {} provider ids", ids.len()),
            Self::PublishClusterInfo => formatter.write_str("write ConfigMap kube-public/cluster-info"),
            Self::StoreRecords => formatter.write_str("store what was applied"),
            Self::Machine(action) => action.fmt(formatter),
        }
    }
}

/// What the plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub pool: AzureManagedMachinePool,
    pub machine_pool: Option<MachinePool>,
    pub plane: Option<AzureManagedControlPlane>,
    pub cluster_name: String,
    /// Whether the whole Cluster is going.
    pub cluster_is_deleted: bool,
    pub subscription: String,
    /// This pool in AKS.
    pub state: ResourceState,
    /// Why its state is not known, where it is not.
    pub unknown: Option<Unknown>,
    /// Every pool of the cluster, as AKS shows them; `None` if it did not tell.
    pub all_pools: Option<Vec<Value>>,
    /// Another installation may still hold objects for the same resources: Azure was not asked.
    pub must_detach: bool,
    /// Why the node pool, or the whole AKS cluster, is another's: the id, and the reason.
    pub foreign: Option<(String, Foreign)>,
    /// Whether the AKS cluster is stopped, and takes no changes.
    pub cluster_is_stopped: bool,
    /// Whether AKS has no such cluster: its control plane decides what becomes of that.
    pub cluster_is_absent: bool,
    /// Whether the pool was there and is gone, though nothing here deleted it.
    pub vanished: bool,
    /// What is left in Azure if the object goes now.
    pub remaining: Vec<String>,
    /// What kept Azure from being asked: the identity, its secret or the settings are not right.
    pub problem: Option<Problem>,
    /// Whether the pool is on the list of what we ask for, with what was applied last.
    pub is_recorded: bool,
    pub record: Option<Record>,
    /// The provider ids of the pool's nodes, where they can be told.
    pub provider_ids: Option<Vec<String>>,
    /// What kept them from being told.
    pub nodes_problem: Option<Problem>,
    /// Where nodes that are not AKS's own find the API server, in the workload cluster.
    pub cluster_info: ClusterInfo,
    /// The pool's machines, where they are switched on.
    pub fleet: Fleet,
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan<Action> {
    let mut plan = Plan::new();
    if observed.must_detach {
        let why = "nothing is asked of Azure while another installation may write the same resources";
        plan.then(Action::Detach, why);
        return plan;
    }
    if observed.pool.metadata.deletion_timestamp.is_some() {
        delete(observed, &mut plan, now);
        return plan;
    }
    if let Some(problem) = &observed.problem {
        problem.block(&mut plan);
        return plan;
    }
    match desired(observed) {
        Err(Some(waiting)) => {
            wait(&mut plan, &waiting, now);
        }
        Err(None) => {
            let id = observed
                .plane
                .as_ref()
                .map(|plane| agent_pool_id(&facts(observed, plane), observed));
            let unknown = observed.unknown.as_ref().unwrap_or(&Unknown::Silent);
            unknown.wait(&mut plan, &id.unwrap_or_default(), now);
        }
        Ok(desired) => {
            if loses_its_machine_pool(observed) {
                wait_for_another_system_pool(observed, &mut plan, now);
            } else {
                ensure(observed, &mut plan, desired, now);
            }
            follow(observed, &mut plan);
            observed.fleet.plan(&mut plan);
        }
    }
    plan
}

/// The pool as it should be in AKS; else what is waited for, which is Azure if nothing is named.
fn desired(observed: &Observed) -> Result<DesiredResource, Option<Waiting>> {
    let machine_pool = observed
        .machine_pool
        .as_ref()
        .ok_or_else(|| Waiting::ForMachinePool {
            pool: observed.pool.azure_name().to_owned(),
        })?;
    let ready = |plane: &&AzureManagedControlPlane| {
        plane.metadata.deletion_timestamp.is_none()
            && plane
                .status
                .as_ref()
                .is_some_and(|status| status.initialized == Some(true))
    };
    let plane = observed.plane.as_ref().filter(ready);
    let facts = facts(observed, plane.ok_or(Waiting::ForControlPlane)?);
    if observed.cluster_is_absent {
        return Err(Some(Waiting::ForControlPlane));
    }
    if let Some((id, foreign)) = observed.foreign.clone() {
        return Err(Some(Waiting::OwnedByAnother { id, foreign }));
    }
    if observed.state == ResourceState::Unknown {
        return Err(None);
    }
    let pool = PoolFacts {
        class: &observed.pool.spec.class,
        azure_name: observed.pool.azure_name(),
        replicas: observed
            .fleet
            .replicas_to_ask_for(machine_pool.spec.replicas.unwrap_or(1)),
        version: Some(machine_pool.spec.template.spec.version.as_str()).filter(|version| !version.is_empty()),
        existing: observed.state.body(),
    };
    let manifest = agent_pool(&facts, &pool).map_err(Waiting::ForTheUser)?;
    Ok(DesiredResource {
        kind: ResourceKind::AgentPool,
        id: id_of(&facts, &manifest),
        manifest,
    })
}

/// Whether the MachinePool of the last system pool is deleted. Admission keeps the pool itself.
fn loses_its_machine_pool(observed: &Observed) -> bool {
    let machine_pool = observed.machine_pool.as_ref();
    let is_deleted = machine_pool.is_some_and(|pool| pool.metadata.deletion_timestamp.is_some());
    is_deleted && !observed.cluster_is_deleted && is_last_system_pool(observed)
}

fn wait_for_another_system_pool(observed: &Observed, plan: &mut Plan<Action>, now: Timestamp) {
    let status = observed.pool.status.as_ref();
    let conditions = status.and_then(|status| status.v1beta2.as_ref());
    let is_known = has_reason(
        conditions,
        condition_of(ResourceKind::AgentPool),
        LAST_SYSTEM_POOL,
    );
    let entry = wait(plan, &Waiting::ForAnotherSystemPool, now);
    if !is_known {
        entry.warned(LAST_SYSTEM_POOL);
    }
}

/// Whether a system pool keeps a node that its MachinePool does not ask for.
pub fn keeps_one_node(observed: &Observed) -> bool {
    let asked = observed.machine_pool.as_ref().and_then(|pool| pool.spec.replicas);
    let class = &observed.pool.spec.class;
    asked == Some(0) && class.mode == MODE_SYSTEM && class.scaling.is_none()
}

/// What is said of it.
pub const KEEPS_ONE_NODE: &str = "a system pool keeps one node, though its MachinePool asks for none";

/// The version that the nodes run now, if the status shows another.
fn upgraded(observed: &Observed) -> Option<String> {
    let running = with_v(observed.state.property("currentOrchestratorVersion")?);
    let before = observed.pool.status.as_ref()?.version.as_deref()?;
    (before != running).then_some(running)
}

fn ensure(observed: &Observed, plan: &mut Plan<Action>, desired: DesiredResource, now: Timestamp) {
    if observed.vanished {
        let why = "AKS no longer has the pool, and nothing here deleted it: it is made again";
        plan.then(Action::AcceptVanished { id: desired.id }, why)
            .warned(VANISHED);
        return;
    }
    if !observed.is_recorded {
        let id = desired.id.clone();
        plan.then(
            Action::Record { id },
            "nothing is made that is not known to be ours",
        );
    }
    let (unknown, record) = (observed.unknown.as_ref(), observed.record.as_ref());
    let Some(comparison) = compare(&desired, &observed.subscription, &observed.state, unknown, record) else {
        return;
    };
    if observed.cluster_is_stopped && comparison.event.is_some() {
        let id = desired
            .id
            .rsplit_once("/agentPools/")
            .map_or("", |(cluster, _)| cluster)
            .to_owned();
        wait(plan, &Waiting::ForStart { id }, now);
        return;
    }
    let runs = upgraded(observed).filter(|_| comparison.is_settling());
    let why = runs.as_ref().map_or(comparison.why.clone(), |version| {
        format!("Kubernetes {version} runs")
    });
    let entry = plan.then(Action::Ensure(desired), why);
    comparison.describe(entry);
    if runs.is_some() {
        entry.announced("Upgraded");
    }
    if keeps_one_node(observed) && comparison.event.is_some() {
        entry.why = format!("{}; {KEEPS_ONE_NODE}", entry.why);
        entry.warned("SystemPoolKeepsOneNode");
    }
}

/// AKS's count is followed, and its nodes are told, also while it works on something else.
fn follow(observed: &Observed, plan: &mut Plan<Action>) {
    let Some(machine_pool) = observed
        .machine_pool
        .as_ref()
        .filter(|_| observed.state.body().is_some())
    else {
        return;
    };
    match (scales(&observed.state), count(&observed.state)) {
        (true, Some(count))
            if !machine_pool.replicas_are_managed_externally()
                || machine_pool.spec.replicas != Some(count) =>
        {
            let before = machine_pool.spec.replicas.unwrap_or(1);
            plan.regardless(Action::FollowReplicas { count }, "AKS scales the pool")
                .changing("spec.replicas", before, count);
        }
        (false, _)
            if machine_pool.replicas_are_managed_externally()
                && observed.pool.spec.class.scaling.is_none() =>
        {
            plan.regardless(Action::StopFollowingReplicas, "AKS no longer scales the pool");
        }
        _ => {}
    }
    if let Some(problem) = &observed.nodes_problem {
        problem.block(plan).group = None;
    }
    let known = &observed.pool.spec.provider_id_list;
    if let Some(ids) = observed.provider_ids.as_ref().filter(|ids| *ids != known) {
        plan.regardless(Action::WriteProviderIds(ids.clone()), "nodes came or went")
            .changing("spec.providerIDList", known.len(), ids.len());
    }
    let why = "nodes that are not AKS's own find the API server and its CA there";
    match &observed.cluster_info {
        ClusterInfo::Missing => {
            plan.regardless(Action::PublishClusterInfo, why);
        }
        ClusterInfo::Differs { path, from, to } => {
            plan.regardless(Action::PublishClusterInfo, why)
                .changing(*path, from, to);
        }
        ClusterInfo::Unknown | ClusterInfo::Good => {}
    }
}

fn facts<'a>(observed: &'a Observed, plane: &'a AzureManagedControlPlane) -> Facts<'a> {
    Facts {
        plane,
        cluster_name: &observed.cluster_name,
        subscription: &observed.subscription,
        services: None,
        pods: None,
    }
}

fn agent_pool_id(facts: &Facts<'_>, observed: &Observed) -> String {
    format!(
        "{}/agentPools/{}",
        crate::render::ids::managed_cluster(facts),
        observed.pool.azure_name()
    )
}

fn delete(observed: &Observed, plan: &mut Plan<Action>, now: Timestamp) {
    observed.fleet.let_go(plan);
    let plane = observed
        .plane
        .as_ref()
        .filter(|plane| plane.metadata.deletion_timestamp.is_none());
    // AKS refuses to delete a pool by itself while the cluster is being deleted.
    let Some(plane) = plane.filter(|_| !observed.cluster_is_deleted) else {
        plan.release_finalizer("the pool goes with its cluster");
        return;
    };
    if let Some(problem) = &observed.problem {
        if observed.remaining.is_empty() {
            plan.release_finalizer("the pool made nothing in Azure");
        } else if is_orphaned(&observed.pool.metadata) {
            let remaining = observed.remaining.join(", ");
            let why = format!("{ORPHAN} is set: what remains in Azure is not deleted: {remaining}");
            plan.release_finalizer(why).warned("Orphaned");
        } else {
            remains(problem, &observed.remaining, "AzureManagedMachinePool").block(plan);
        }
        return;
    }
    if observed.foreign.is_some() {
        plan.release_finalizer("another owns the node pool");
        return;
    }
    let id = agent_pool_id(&facts(observed, plane), observed);
    match &observed.state {
        ResourceState::Absent => {
            plan.release_finalizer("AKS has no such pool");
        }
        ResourceState::Unknown => {
            let unknown = observed.unknown.as_ref().unwrap_or(&Unknown::Silent);
            unknown.wait(plan, &id, now);
        }
        ResourceState::Present(_) if is_last_system_pool(observed) => {
            wait_for_another_system_pool(observed, plan, now);
        }
        ResourceState::Present(_) if observed.cluster_is_stopped => {
            let id = crate::render::ids::managed_cluster(&facts(observed, plane));
            wait(plan, &Waiting::ForStart { id }, now);
        }
        ResourceState::Present(_) => {
            let entry = plan.then(Action::Delete { id }, "the pool is deleted");
            if !is_going(&observed.state, observed.unknown.as_ref()) {
                entry.announced("Deleting");
            }
            plan.release_finalizer("AKS has deleted the pool")
                .announced("Deleted");
        }
    }
}

/// Whether AKS has no other system pool that stays. Not knowing is not having.
fn is_last_system_pool(observed: &Observed) -> bool {
    let is_system = |body: &Value| {
        body.pointer("/properties/mode")
            .is_some_and(|mode| mode == MODE_SYSTEM)
    };
    if !observed.state.body().is_some_and(is_system) {
        return false;
    }
    let stays = |body: &&Value| {
        body.pointer("/properties/provisioningState")
            .is_none_or(|state| state != "Deleting")
            && body["name"]
                .as_str()
                .is_some_and(|name| name != observed.pool.azure_name())
    };
    !observed.all_pools.iter().flatten().filter(stays).any(is_system)
}
