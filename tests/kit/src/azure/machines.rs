//! What users and others do with nodes as Machines, as journeys of any provider of AKS pools: whatever fails, each VM that is to go
//! goes once and no other does. They act on the pool `work` of the Cluster `fleet`, which has two nodes and machines switched on.

use std::sync::atomic::Ordering;

use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};

use super::{AzureProvider, Life, SUBSCRIPTION, in_azure, merge, remove};
use crate::{
    clusterctl::{put_down, take_away},
    objects::{find, holds, is_deleting, name, of_kind, set_condition},
    sweep::World,
};

/// Switches machines on for a pool.
pub const SWITCH: &str = "slipway.dev/machines";
const MARK: &str = "cluster.x-k8s.io/delete-machine";
const POOL: &str = "work";
const NEXT: &str = "v1.34.1";

/// The same manifests with machines switched on for every pool.
pub fn switched_on<P: AzureProvider>(mut manifests: Vec<Value>) -> Vec<Value> {
    for manifest in manifests.iter_mut().filter(|one| one["kind"] == P::POOL) {
        manifest["metadata"]["annotations"][SWITCH] = json!("true");
    }
    manifests
}

/// The VMs of the pool that the user acts on, in the order of their names.
fn machines<P: AzureProvider>(objects: &[Value]) -> Vec<&Value> {
    let mut found: Vec<&Value> = of_kind(objects, P::MACHINE)
        .filter(|one| one["metadata"]["labels"]["cluster.x-k8s.io/pool-name"] == POOL)
        .collect();
    found.sort_by_key(|one| name(one));
    found
}

fn names<P: AzureProvider>(world: &World) -> Vec<String> {
    let objects = world.server.objects();
    let machines = machines::<P>(&objects);
    machines.into_iter().map(|one| name(one).to_owned()).collect()
}

fn first<P: AzureProvider>(world: &World) -> String {
    names::<P>(world).into_iter().next().expect("a machine")
}

/// So many VMs, each with its Machine, and all at rest.
pub fn whole<P: AzureProvider>(objects: &[Value], count: usize) -> bool {
    let shown = machines::<P>(objects);
    let has_machine = |shown: &&Value| {
        let machine = find(objects, "Machine", name(shown));
        machine.is_some_and(|machine| !is_deleting(machine) && machine["spec"]["providerID"].is_string())
    };
    let pool = find(objects, P::POOL, POOL);
    shown.len() == count
        && shown.iter().all(|one| holds(one, "Ready") && !is_deleting(one))
        && shown.iter().all(has_machine)
        && pool.is_some_and(|pool| {
            holds(pool, "Ready")
                && pool["status"]["replicas"] == count
                && pool["spec"]["providerIDList"].as_array().map(Vec::len) == Some(count)
        })
}

async fn replicas(world: &World, replicas: i32) {
    let patch = json!({"spec": {"replicas": replicas}});
    merge(&world.server, "MachinePool", POOL, patch).await;
}

/// The older one of two is marked, and one is asked for.
pub fn scaled_away<'a, P: AzureProvider>(_: &'a Life<P>, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let marked = first::<P>(world);
        let mark = json!({"metadata": {"annotations": {(MARK): ""}}});
        merge(&world.server, "Machine", &marked, mark).await;
        replicas(world, 1).await;
        world
            .until("scaled", |objects| {
                whole::<P>(objects, 1) && machines::<P>(objects).iter().all(|one| name(one) != marked)
            })
            .await;
    }
    .boxed()
}

/// A Machine is deleted, and the pool makes another.
pub fn replaced<'a, P: AzureProvider>(_: &'a Life<P>, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let gone = first::<P>(world);
        remove(&world.server, "Machine", &gone).await;
        world
            .until("replaced", |objects| {
                whole::<P>(objects, 2) && machines::<P>(objects).iter().all(|one| name(one) != gone)
            })
            .await;
    }
    .boxed()
}

/// A health check gives a Machine up, and the pool makes another.
pub fn given_up<'a, P: AzureProvider>(_: &'a Life<P>, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let gone = first::<P>(world);
        let objects = world.server.objects();
        let machine = find(&objects, "Machine", &gone).expect("a Machine");
        for type_ in ["HealthCheckSucceeded", "OwnerRemediated"] {
            set_condition(&world.server, machine, type_, "False", "Told").await;
        }
        world
            .until("replaced", |objects| {
                whole::<P>(objects, 2) && machines::<P>(objects).iter().all(|one| name(one) != gone)
            })
            .await;
    }
    .boxed()
}

/// The next minor version: AKS adds a node for a while, and no Machine of before goes.
pub fn upgraded<'a, P: AzureProvider>(_: &'a Life<P>, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let before = names::<P>(world);
        let version = json!({"spec": {"version": NEXT}});
        merge(&world.server, P::CONTROL_PLANE, "fleet", version).await;
        world
            .until("a new control plane", |objects| {
                let plane = find(objects, P::CONTROL_PLANE, "fleet");
                plane.is_some_and(|plane| plane["status"]["version"] == NEXT && holds(plane, "Ready"))
            })
            .await;
        let version = json!({"spec": {"template": {"spec": {"version": NEXT}}}});
        merge(&world.server, "MachinePool", POOL, version).await;
        world
            .until("a node more", |objects| {
                machines::<P>(objects).len() == before.len() + 1
            })
            .await;
        world
            .until("upgraded", |objects| {
                let there: Vec<&str> = machines::<P>(objects).into_iter().map(name).collect();
                whole::<P>(objects, before.len()) && there == before
            })
            .await;
    }
    .boxed()
}

/// Switched off, and on again.
pub fn off_and_on<'a, P: AzureProvider>(life: &'a Life<P>, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let before = in_azure(&life.azure);
        let switch = |on: Option<&str>| json!({"metadata": {"annotations": {(SWITCH): on}}});
        merge(&world.server, P::POOL, POOL, switch(None)).await;
        world
            .until("gone", |objects| {
                let of_pool = |one: &&Value| one["metadata"]["labels"]["cluster.x-k8s.io/pool-name"] == POOL;
                machines::<P>(objects).is_empty() && !of_kind(objects, "Machine").any(|one| of_pool(&one))
            })
            .await;
        assert_eq!(in_azure(&life.azure), before);
        merge(&world.server, P::POOL, POOL, switch(Some("true"))).await;
        world.until("shown again", |objects| whole::<P>(objects, 2)).await;
    }
    .boxed()
}

/// AKS' own autoscaler is switched on by `scaling`, a patch of the pool, and takes and gives nodes as it likes.
pub async fn scaled_by_aks<P: AzureProvider>(life: &Life<P>, world: &World, scaling: Value) {
    merge(&world.server, P::POOL, POOL, scaling).await;
    world
        .until("left to AKS", |objects| {
            let pool = find(objects, "MachinePool", POOL);
            pool.is_some_and(|pool| {
                pool["metadata"]["annotations"]["cluster.x-k8s.io/replicas-managed-by"].is_string()
            }) && whole::<P>(objects, 2)
        })
        .await;
    let marked = first::<P>(world);
    let mark = json!({"metadata": {"annotations": {(MARK): ""}}});
    merge(&world.server, "Machine", &marked, mark).await;
    let id = format!(
        "/subscriptions/{SUBSCRIPTION}/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet/agentPools/{POOL}"
    );
    for count in [3, 1] {
        assert!(life.azure.azure().set_pool_count(&id, count));
        let expected = usize::try_from(count).expect("few");
        world
            .until("followed", |objects| whole::<P>(objects, expected))
            .await;
    }
    // The simulated AKS takes the youngest, marked or not.
    assert_eq!(names::<P>(world), [marked]);
}

/// `clusterctl move`: paused, taken away, made again without status, resumed. No VM and no node is touched.
pub fn moved<'a, P: AzureProvider>(life: &'a Life<P>, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let before = names::<P>(world);
        let pause = |paused: bool| json!({"spec": {"paused": paused}});
        merge(&world.server, "Cluster", "fleet", pause(true)).await;
        world.until("paused", all_paused::<P>).await;
        life.moving.store(true, Ordering::SeqCst);
        // Credentials are the user's, on both sides.
        let ours = |object: &Value| name(object) != P::CREDENTIAL;
        let kinds = [P::MOVED, &["Machine", P::MACHINE]].concat();
        let objects = take_away(&world.server, &kinds, ours).await;
        put_down(&world.server, &objects).await;
        merge(&world.server, "Cluster", "fleet", pause(false)).await;
        world
            .until("resumed", |objects| {
                let there: Vec<&str> = machines::<P>(objects).into_iter().map(name).collect();
                let pool = find(objects, P::POOL, POOL);
                whole::<P>(objects, 2)
                    && there == before
                    && pool.is_some_and(|pool| pool["status"]["infrastructureMachineKind"] == P::MACHINE)
            })
            .await;
    }
    .boxed()
}

fn all_paused<P: AzureProvider>(objects: &[Value]) -> bool {
    let is_paused = |object: &Value| {
        let status = &object["status"];
        let conditions = [&status["conditions"], &status["v1beta2"]["conditions"]];
        let mut conditions = conditions.into_iter().filter_map(Value::as_array).flatten();
        conditions.any(|one| one["type"] == "Paused" && one["status"] == "True")
            && object["metadata"]["annotations"]["clusterctl.cluster.x-k8s.io/block-move"].is_null()
    };
    [P::CONTROL_PLANE, P::POOL, P::MACHINE]
        .iter()
        .all(|kind| of_kind(objects, kind).all(is_paused))
}

pub fn deleted<'a, P: AzureProvider>(_: &'a Life<P>, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        remove(&world.server, "Cluster", "fleet").await;
        world
            .until("gone", |objects| {
                ["Cluster", P::CONTROL_PLANE, "Machine", P::MACHINE]
                    .iter()
                    .all(|kind| of_kind(objects, kind).next().is_none())
            })
            .await;
    }
    .boxed()
}
