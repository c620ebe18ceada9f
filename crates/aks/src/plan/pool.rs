//! The plan for a node pool: make it so, follow AKS where AKS scales, delete unless it is the last system pool.

use jiff::Timestamp;
use serde_json::Value;
use slipway_azure::reconcile::{ResourceKind, ResourceState};
use slipway_capi::{marks::is_deleted_for_move, view::MachinePool};

use super::{Action, DesiredResource, Plan, Waiting, control_plane::id_of};
use crate::{
    api::{AzureManagedControlPlane, AzureManagedMachinePool, MODE_SYSTEM},
    render::{Facts, PoolFacts, agent_pool},
};

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
    /// Every pool of the cluster, as AKS shows them; `None` if it did not tell.
    pub all_pools: Option<Vec<Value>>,
}

/// How many nodes AKS says the pool has.
pub fn count(state: &ResourceState) -> Option<i32> {
    let count = state.body()?.pointer("/properties/count")?.as_i64()?;
    i32::try_from(count).ok()
}

/// Whether AKS scales the pool.
pub fn scales(state: &ResourceState) -> bool {
    state
        .body()
        .and_then(|body| body.pointer("/properties/enableAutoScaling"))
        .is_some_and(|value| value == true)
}

pub fn plan(observed: &Observed, _now: Timestamp) -> Plan {
    if observed.pool.metadata.deletion_timestamp.is_some() {
        return delete(observed);
    }
    let Some(machine_pool) = &observed.machine_pool else {
        return vec![Action::Wait(Waiting::ForMachinePool {
            pool: observed.pool.azure_name().to_owned(),
        })];
    };
    let ready = |plane: &&AzureManagedControlPlane| {
        plane.metadata.deletion_timestamp.is_none()
            && plane
                .status
                .as_ref()
                .is_some_and(|status| status.initialized == Some(true))
    };
    let Some(plane) = observed.plane.as_ref().filter(ready) else {
        return vec![Action::Wait(Waiting::ForControlPlane)];
    };
    let facts = facts(observed, plane);
    let pool = PoolFacts {
        class: &observed.pool.spec.class,
        azure_name: observed.pool.azure_name(),
        replicas: machine_pool.spec.replicas.unwrap_or(1),
        version: Some(machine_pool.spec.template.spec.version.as_str()).filter(|version| !version.is_empty()),
        existing: observed.state.body(),
    };
    if observed.state == ResourceState::Unknown {
        let id = agent_pool_id(&facts, observed);
        return vec![Action::Wait(Waiting::ForAzure { id })];
    }
    let manifest = match agent_pool(&facts, &pool) {
        Ok(manifest) => manifest,
        Err(error) => return vec![Action::Wait(error.into())],
    };
    let mut plan = vec![Action::Ensure(DesiredResource {
        kind: ResourceKind::AgentPool,
        id: id_of(&facts, &manifest),
        manifest,
    })];
    if observed.state.body().is_some() {
        match (scales(&observed.state), count(&observed.state)) {
            (true, Some(count))
                if !machine_pool.replicas_are_managed_externally()
                    || machine_pool.spec.replicas != Some(count) =>
            {
                plan.push(Action::FollowReplicas { count });
            }
            (false, _)
                if machine_pool.replicas_are_managed_externally()
                    && observed.pool.spec.class.scaling.is_none() =>
            {
                plan.push(Action::StopFollowingReplicas);
            }
            _ => {}
        }
        plan.push(Action::ListNodes);
    }
    plan
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

fn delete(observed: &Observed) -> Plan {
    let plane = observed
        .plane
        .as_ref()
        .filter(|plane| plane.metadata.deletion_timestamp.is_none());
    // A pool goes with its cluster: AKS refuses to delete it by itself while the cluster is being deleted.
    let goes_along = observed.cluster_is_deleted || is_deleted_for_move(&observed.pool.metadata);
    let Some(plane) = plane.filter(|_| !goes_along) else {
        return vec![Action::RemoveFinalizer];
    };
    let id = agent_pool_id(&facts(observed, plane), observed);
    match &observed.state {
        ResourceState::Absent => vec![Action::RemoveFinalizer],
        ResourceState::Unknown => vec![Action::Wait(Waiting::ForAzure { id })],
        ResourceState::Present(_) if is_last_system_pool(observed) => {
            vec![Action::Wait(Waiting::ForAnotherSystemPool)]
        }
        ResourceState::Present(_) => vec![Action::Delete {
            kind: ResourceKind::AgentPool,
            id,
        }],
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
