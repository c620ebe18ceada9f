//! The plan of an AzureASOManagedMachinePool: its resources, who scales it, and its nodes' provider ids. Pure.

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;
use slipway_azure::{
    reconcile::planning::{ASK_AGAIN, LAST_SYSTEM_POOL, later},
    workload::{cluster_info::ClusterInfo, machines::count},
};
use slipway_capi::frame::Plan;

use super::observe::Observed;
use crate::{
    mutators::ReplicaManager,
    resources::{self, Wraps},
};

/// What is said of a pool that cannot go.
pub const LAST_SYSTEM_POOL_MESSAGE: &str = "AKS Cluster must have at least one system pool: this one goes when another is there, or with the Cluster";

/// One idempotent call.
#[derive(Clone, Debug)]
pub enum Action {
    Resource(resources::Action),
    /// Say on the MachinePool who decides its replicas; `None`: nobody but the MachinePool.
    SetReplicaManager(Option<&'static str>),
    /// Carry over the count of whoever scales the pool.
    FollowReplicas(i32),
    WriteProviderIds(Vec<String>),
    /// Write the API server's address and CA into the workload cluster, for nodes that are not AKS's own.
    PublishClusterInfo,
}

impl From<resources::Action> for Action {
    fn from(action: resources::Action) -> Self {
        Self::Resource(action)
    }
}

impl Wraps for Action {
    fn resource_action(&self) -> Option<&resources::Action> {
        match self {
            Self::Resource(action) => Some(action),
            _ => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resource(action) => action.fmt(formatter),
            Self::SetReplicaManager(Some(name)) => write!(formatter, "let {name} manage replicas"),
            Self::SetReplicaManager(None) => formatter.write_str("let the MachinePool manage replicas"),
            Self::FollowReplicas(count) => write!(formatter, "follow replicas {count}"),
            Self::WriteProviderIds(ids) => write!(formatter, "write {} provider ids", ids.len()),
            Self::PublishClusterInfo => formatter.write_str("write ConfigMap kube-public/cluster-info"),
        }
    }
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan<Action> {
    let mut plan = Plan::new();
    if observed.held.is_deleting() {
        // AKS refuses to delete a pool by itself while the cluster is being deleted.
        let goes = observed.cluster_id.as_ref().filter(|_| observed.cluster_goes);
        if goes.is_none() && is_last_system_pool(observed) {
            // AKS tells of another system pool only when asked.
            plan.wait(LAST_SYSTEM_POOL, LAST_SYSTEM_POOL_MESSAGE)
                .until(later(now, ASK_AGAIN));
            return plan;
        }
        resources::delete(&observed.held, &mut plan, goes, now);
        return plan;
    }
    resources::plan(&observed.held, &mut plan, now);
    follow(observed, &mut plan);
    plan
}

/// Who scales the pool is said on its MachinePool, the count of who does is carried over, and nodes are told, also while AKS
/// works on something else.
fn follow(observed: &Observed, plan: &mut Plan<Action>) {
    match observed.replica_manager {
        Some(ReplicaManager::Set(name)) => {
            let why = "spec.enableAutoScaling of the node pool is true";
            plan.regardless(Action::SetReplicaManager(Some(name)), why);
        }
        Some(ReplicaManager::Removed) => {
            let why = "AKS no longer scales the pool";
            plan.regardless(Action::SetReplicaManager(None), why);
        }
        _ => {}
    }
    let machine_pool = observed.machine_pool.as_ref();
    if let Some(machine_pool) = machine_pool.filter(|pool| pool.replicas_are_managed_externally())
        && let Some(count) = count(observed.state())
        && observed.replica_manager == Some(ReplicaManager::Kept)
        && machine_pool.spec.replicas != Some(count)
    {
        let before = machine_pool.spec.replicas.unwrap_or(1);
        plan.regardless(Action::FollowReplicas(count), "something else scales the pool")
            .changing("spec.replicas", before, count);
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
    if let Some(problem) = &observed.nodes_problem {
        problem.block(plan).group = None;
    }
}

/// Whether AKS has no other system pool that stays. Not knowing is not having.
fn is_last_system_pool(observed: &Observed) -> bool {
    let is_system = |body: &Value| body["mode"] == "System";
    let own = observed
        .state()
        .body()
        .and_then(|body| body.get("properties"))
        .is_some_and(is_system);
    let name = observed.azure_name().unwrap_or_default();
    let stays = |profile: &&Value| {
        profile["provisioningState"] != "Deleting"
            && profile["name"].as_str().is_some_and(|other| other != name)
    };
    let profiles = observed
        .cluster_state
        .body()
        .and_then(|body| body.pointer("/properties/agentPoolProfiles")?.as_array());
    own && !profiles.into_iter().flatten().filter(stays).any(is_system)
}
