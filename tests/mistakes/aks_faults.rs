//! What Azure refuses, puts off or loses, and what is missing around an AKS cluster: seen in a condition, explained from the Cluster down,
//! and over once that alone is mended.

use http::Method;
use serde_json::{Value, json};
use slipway_azure_sim::Fault;
use slipway_insight::Actor;
use slipway_kit::{
    azure::ask,
    mistakes::Mistake,
    objects::{condition, holds},
};

use crate::{
    aks_life::without_ids,
    aks_world::{PLANE, POOL, World, identity, manifests, pool},
    why::{Expected, stuck, waits},
};

const AZURE: &str = "AKS: what Azure says";
const AROUND: &str = "AKS: what is missing around a cluster";
const CLUSTER: &str = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet";

fn mistake(area: &'static str, what: &str, sees: &str, why: &str, undo: &str) -> Mistake {
    Mistake {
        area,
        what: what.to_owned(),
        sees: without_ids(sees),
        why: Some(without_ids(why)),
        undo: undo.to_owned(),
    }
}

pub async fn see() -> Vec<Mistake> {
    let mut seen = Vec::new();
    for refusal in refusals() {
        seen.push(refusal.see().await);
    }
    seen.push(of_one_pool().await);
    seen.push(stopped().await);
    seen.extend(around().await);
    seen
}

/// What Azure answers to the write of a cluster, for as long as nobody changes that in Azure.
struct Refusal {
    what: &'static str,
    status: u16,
    code: &'static str,
    message: &'static str,
    /// The reason in the condition, if it is not Azure's code.
    reason: Option<&'static str>,
    expected: Expected,
    undo: &'static str,
}

const PLANE_NAME: &str = "AzureManagedControlPlane/fleet";

fn refusals() -> Vec<Refusal> {
    let refused = |what, status, code, message, expected, undo| Refusal {
        what,
        status,
        code,
        message,
        reason: None,
        expected,
        undo,
    };
    vec![
        refused(
            "an identity without a role in the subscription",
            403,
            "AuthorizationFailed",
            "The client does not have authorization to perform action 'Microsoft.ContainerService/managedClusters/write'.",
            stuck(PLANE_NAME, "role").by(Actor::Cloud),
            "assign the role; the cluster goes on by itself",
        ),
        refused(
            "an identity without a role on the network that the cluster uses",
            403,
            "LinkedAuthorizationFailed",
            "The client has permission to perform action 'write', however the linked subscription scope was not authorized.",
            stuck(PLANE_NAME, "role").by(Actor::Cloud),
            "assign the role on what the message names",
        ),
        refused(
            "a policy that forbids the cluster",
            403,
            "RequestDisallowedByPolicy",
            "Resource 'fleet' was disallowed by policy 'allowed-locations'.",
            stuck(PLANE_NAME, "allowed-locations").by(Actor::Cloud),
            "meet the policy, or have an exemption made",
        ),
        refused(
            "a lock on the resource group",
            409,
            "ScopeLocked",
            "The scope '/resourceGroups/fleet' cannot perform write operation because following scope(s) are locked: 'fleet'.",
            stuck(PLANE_NAME, "lock").by(Actor::Cloud),
            "remove the lock; the cluster goes on by itself",
        ),
        refused(
            "a quota that is full",
            409,
            "QuotaExceeded",
            "Operation could not be completed as it results in exceeding approved Total Regional Cores quota.",
            stuck(PLANE_NAME, "quota").by(Actor::Cloud),
            "have the quota raised; the cluster goes on by itself",
        ),
        refused(
            "a size that Azure does not offer there",
            409,
            "SkuNotAvailable",
            "The requested size Standard_D2s_v3 is currently not available in location 'westus3'.",
            stuck(PLANE_NAME, "Standard_D2s_v3"),
            "wait until Azure offers it, or choose another size or location",
        ),
        refused(
            "no machine that is free in Azure",
            409,
            "AllocationFailed",
            "Allocation failed. We do not have sufficient capacity for the requested VM size in this region.",
            waits(PLANE_NAME, "size"),
            "nothing: it is tried again; or choose another size or zone",
        ),
        refused(
            "an Azure that is busy",
            503,
            "ServerBusy",
            "The server is currently unable to receive requests.",
            waits(PLANE_NAME, "busy"),
            "nothing: it is tried again",
        ),
        refused(
            "an Azure that fails",
            500,
            "InternalServerError",
            "Encountered internal server error.",
            waits(PLANE_NAME, "failed"),
            "nothing: it is tried again",
        ),
        Refusal {
            reason: Some("Throttled"),
            ..refused(
                "an Azure that has had too many requests",
                429,
                "TooManyRequests",
                "Number of requests exceeded the limit.",
                waits(PLANE_NAME, "until when"),
                "nothing: it is tried again when Azure said; who else writes in this subscription?",
            )
        },
    ]
}

impl Refusal {
    async fn see(&self) -> Mistake {
        let world = World::new();
        world.simulator.azure().add_fault(Fault {
            method: "PUT".into(),
            path: CLUSTER.into(),
            times: 0,
            status: Some(self.status),
            code: self.code.into(),
            message: self.message.into(),
            retry_after: (self.status == 429).then_some(120),
            ..Fault::default()
        });
        world.apply_secret("right").await;
        world.apply(&[identity()]).await;
        world.apply(&manifests(&json!({}), &json!({}))).await;
        let reason = self.reason.unwrap_or(self.code);
        let said = |world: &World| {
            let plane = world.object(PLANE, "fleet").unwrap_or_default();
            condition(&plane, "Ready").clone()
        };
        world.until(reason, |world| said(world)["reason"] == reason).await;
        let why = world.why(&self.expected);
        let message = self.reason.map_or(self.message, |_| "…");
        let sees = format!("`Ready` False, `{reason}`: {message}");
        world.simulator.azure().clear_faults();
        world.until_ready().await;
        mistake(AZURE, self.what, &sees, &why, self.undo)
    }
}

/// A pool that Azure refuses beside a cluster that is well.
async fn of_one_pool() -> Mistake {
    let world = World::standing().await;
    world.simulator.azure().add_fault(Fault {
        method: "PUT".into(),
        path: "/agentPools/work".into(),
        times: 0,
        status: Some(409),
        code: "ScopeLocked".into(),
        message: "The scope '/resourceGroups/fleet' is locked: 'fleet'.".into(),
        ..Fault::default()
    });
    world.apply(&pool("work", "User", 1, &json!({}))).await;
    let sees = world.seen(POOL, "work", "Ready").await;
    let why = world.why(&stuck("AzureManagedMachinePool/work", "lock").by(Actor::Cloud));
    world.simulator.azure().clear_faults();
    world
        .until("a pool that is ready", |world| is_ready(world, "work"))
        .await;
    mistake(
        AZURE,
        "a lock that forbids one pool of a cluster that is well",
        &sees,
        &why,
        "remove the lock; the pool goes on by itself",
    )
}

fn is_ready(world: &World, pool: &str) -> bool {
    holds(&world.object(POOL, pool).unwrap_or_default(), "Ready")
}

/// Somebody stopped the cluster in Azure.
async fn stopped() -> Mistake {
    let world = World::standing().await;
    world.simulator.azure().settings.require_token = false;
    ask(&world.simulator, Method::POST, &format!("{CLUSTER}/stop"), None);
    let sees = world.seen(PLANE, "fleet", "ManagedClusterRunning").await;
    let why = world.why(&stuck(PLANE_NAME, "start it").by(Actor::Cloud));
    ask(&world.simulator, Method::POST, &format!("{CLUSTER}/start"), None);
    world
        .until("running", |world| {
            holds(
                &world.object(PLANE, "fleet").unwrap_or_default(),
                "ManagedClusterRunning",
            )
        })
        .await;
    world.until_ready().await;
    mistake(
        AZURE,
        "the AKS cluster stopped in the portal",
        &sees,
        &why,
        "start it: `az aks start`; what differs is sent then",
    )
}

/// A cluster without one of its objects, which is then applied.
async fn around() -> Vec<Mistake> {
    let mut seen = Vec::new();
    let all = || manifests(&json!({}), &json!({}));
    let without =
        |kind: &str| -> (Vec<Value>, Vec<Value>) { all().into_iter().partition(|one| one["kind"] != kind) };
    let rows = [
        (
            "a Cluster whose control plane was not applied",
            PLANE,
            stuck(PLANE_NAME, "create it"),
            "apply it; everything goes on by itself",
        ),
        (
            "a Cluster whose infrastructure was not applied",
            "AzureManagedCluster",
            stuck("AzureManagedCluster/fleet", "create it"),
            "apply it; everything goes on by itself",
        ),
        (
            "a MachinePool whose AzureManagedMachinePool was not applied",
            POOL,
            stuck("AzureManagedMachinePool/system", "create it"),
            "apply it; everything goes on by itself",
        ),
        (
            "an AzureManagedMachinePool that no MachinePool names",
            "MachinePool",
            waits(PLANE_NAME, "create one"),
            "apply the MachinePool; everything goes on by itself",
        ),
    ];
    for (what, kind, expected, undo) in rows {
        let world = World::new();
        world.apply_secret("right").await;
        world.apply(&[identity()]).await;
        let (there, missing) = without(kind);
        world.apply(&there).await;
        tokio::time::sleep(std::time::Duration::from_mins(5)).await;
        let why = world.why(&expected);
        world.apply(&missing).await;
        world.until_ready().await;
        let sees = format!("nothing of {kind}, and whoever waits for it says so");
        seen.push(mistake(AROUND, what, &sees, &why, undo));
    }
    seen
}
