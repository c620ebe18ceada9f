//! Every read of the pool controller.

use std::time::Duration;

use serde_json::{Value, json};
use slipway_azure::{
    reconcile::{
        Absence, Error, Observations, Records, ResourceState,
        step::{self, read_age},
    },
    session::Session,
};
use slipway_capi::view::{Cluster, MachinePool};
use slipway_runtime::Context;

use crate::{
    access::{Access, subscription},
    api::{AzureManagedControlPlane, AzureManagedMachinePool},
    caches::Caches,
    plan::pool::Observed,
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
}

fn initialized(plane: &AzureManagedControlPlane) -> bool {
    plane
        .status
        .as_ref()
        .is_some_and(|status| status.initialized == Some(true))
}

pub async fn observe(
    pool: &AzureManagedMachinePool,
    cluster: Option<&Cluster>,
    cluster_name: &str,
    access: &Access,
    caches: &Caches,
    context: &Context,
) -> Result<ReconcileContext, Error> {
    let plane = cluster.and_then(|cluster| caches.plane(&context.informers, cluster));
    let machine_pool = caches.machine_pool(&context.informers, pool);
    let mut reconcile = ReconcileContext {
        observed: Observed {
            machine_pool: machine_pool.map(|found| MachinePool::clone(&found)),
            plane: plane.map(|found| AzureManagedControlPlane::clone(&found)),
            cluster_name: cluster_name.to_owned(),
            cluster_is_deleted: cluster.is_none_or(|cluster| cluster.metadata.deletion_timestamp.is_some()),
            pool: pool.clone(),
            ..Observed::default()
        },
        id: String::new(),
        api_version: String::new(),
        node_group: None,
        observations: Observations::default(),
        records: Records::of(&pool.metadata),
        session: None,
        max_age: read_age(&pool.metadata),
    };
    let deleting = pool.metadata.deletion_timestamp.is_some();
    let goes_along =
        reconcile.observed.cluster_is_deleted || slipway_capi::marks::is_deleted_for_move(&pool.metadata);
    let Some(plane) = reconcile.observed.plane.clone() else {
        return Ok(reconcile);
    };
    let asks = if deleting {
        !goes_along && plane.metadata.deletion_timestamp.is_none()
    } else {
        initialized(&plane) && plane.metadata.deletion_timestamp.is_none()
    };
    if !asks {
        return Ok(reconcile);
    }
    reconcile.observed.subscription = subscription(&plane)?;
    let session = access.open(&plane, cluster_name, context).await?;
    let facts = Facts {
        plane: &plane,
        cluster_name,
        subscription: &reconcile.observed.subscription,
        services: None,
        pods: None,
    };
    let aks = ids::managed_cluster(&facts);
    reconcile.id = format!("{aks}/agentPools/{}", pool.azure_name());
    let kind = json!({
        "apiVersion": render::api_version(&plane),
        "kind": "ManagedClustersAgentPool",
        "metadata": {"name": pool.azure_name()},
    });
    reconcile.api_version = step::api_version(&kind)?;
    // A pool that is to be made, or is said to be gone, is asked for by itself.
    let absence = if deleting || reconcile.records.get(&reconcile.id).is_none() {
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
    reconcile.observed.state = reconcile.observations.state_of(&reconcile.id).clone();
    let body = reconcile.observations.state_of(&aks).body();
    reconcile.node_group = reconcile
        .observations
        .state_of(&aks)
        .property("nodeResourceGroup")
        .map(str::to_owned);
    reconcile.observed.all_pools = body
        .and_then(|body| body.pointer("/properties/agentPoolProfiles"))
        .and_then(Value::as_array)
        .map(|profiles| profiles.iter().map(as_resource).collect());
    reconcile.session = Some(session);
    Ok(reconcile)
}

/// A profile in a cluster's body, in the form of a resource of its own.
fn as_resource(profile: &Value) -> Value {
    json!({"name": profile["name"], "properties": profile})
}

/// What of a pool decides which machines it has: while it stays, its machines do too.
pub fn machines_key(state: &ResourceState) -> Option<String> {
    let properties = state.body()?.get("properties")?;
    let kind = |name: &str| properties.get(name).map(Value::to_string).unwrap_or_default();
    Some(
        [
            "count",
            "nodeImageVersion",
            "currentOrchestratorVersion",
            "powerState",
            "eTag",
        ]
        .map(kind)
        .join("|"),
    )
}
