//! The journeys of machines in the fault sweep: whatever fails, each VM that is to go goes once and no other does, and where machines
//! are switched off nothing happens to any.

use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use slipway_kit::{
    azure::in_azure,
    journey::{Journey, Standing},
    objects::{is_deleting, name, of_kind},
    sweep::World,
};

use super::{
    surroundings::Life,
    world::{apply, find, holds, manifests, merge, remove},
};

/// The VMs of the pool that the user acts on, in the order of their names.
fn machines(objects: &[Value]) -> Vec<&Value> {
    let mut found: Vec<&Value> = of_kind(objects, "AzureManagedMachine")
        .filter(|one| one["metadata"]["labels"]["cluster.x-k8s.io/pool-name"] == "work")
        .collect();
    found.sort_by_key(|one| name(one));
    found
}

/// So many VMs, each with its Machine, and all at rest.
fn whole(objects: &[Value], count: usize) -> bool {
    let shown = machines(objects);
    let has_machine = |shown: &&Value| {
        let machine = find(objects, "Machine", name(shown));
        machine.is_some_and(|machine| !is_deleting(&machine) && machine["spec"]["providerID"].is_string())
    };
    let pool = find(objects, "AzureManagedMachinePool", "work");
    shown.len() == count
        && shown.iter().all(|one| holds(one, "Ready") && !is_deleting(one))
        && shown.iter().all(has_machine)
        && pool.is_some_and(|pool| {
            holds(&pool, "Ready")
                && pool["status"]["replicas"] == count
                && pool["spec"]["providerIDList"].as_array().map(Vec::len) == Some(count)
        })
}

fn creation<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let pools: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 2)];
        let mut all = manifests(&json!({}), pools);
        for manifest in &mut all {
            if manifest["kind"] == "AzureManagedMachinePool" {
                manifest["metadata"]["annotations"] = json!({"slipway.dev/machines": "true"});
            }
        }
        apply(&world.server, &all).await;
        world.until("whole", |objects| whole(objects, 2)).await;
    }
    .boxed()
}

static FLEET: Standing<Life> = Standing::after(creation);

fn first(world: &World) -> String {
    let objects = world.server.objects();
    machines(&objects)
        .first()
        .map(|one| name(one).to_owned())
        .expect("a machine")
}

/// The older one of two is marked, and one is asked for.
fn scaled_away<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let marked = first(world);
        let mark = json!({"metadata": {"annotations": {"cluster.x-k8s.io/delete-machine": ""}}});
        merge(&world.server, "Machine", &marked, mark).await;
        let patch = json!({"spec": {"replicas": 1}});
        merge(&world.server, "MachinePool", "work", patch).await;
        world
            .until("scaled", |objects| {
                whole(objects, 1) && machines(objects).iter().all(|one| name(one) != marked)
            })
            .await;
    }
    .boxed()
}

/// A Machine is deleted, and the pool makes another.
fn replaced<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let gone = first(world);
        remove(&world.server, "Machine", &gone).await;
        world
            .until("replaced", |objects| {
                whole(objects, 2) && machines(objects).iter().all(|one| name(one) != gone)
            })
            .await;
    }
    .boxed()
}

/// Switched off, and on again.
fn off_and_on<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let before = in_azure(&life.azure);
        let switch = |on: Option<&str>| json!({"metadata": {"annotations": {"slipway.dev/machines": on}}});
        merge(&world.server, "AzureManagedMachinePool", "work", switch(None)).await;
        world
            .until("gone", |objects| {
                let of_work =
                    |one: &&Value| one["metadata"]["labels"]["cluster.x-k8s.io/pool-name"] == "work";
                machines(objects).is_empty() && !of_kind(objects, "Machine").any(|one| of_work(&one))
            })
            .await;
        assert_eq!(in_azure(&life.azure), before);
        merge(
            &world.server,
            "AzureManagedMachinePool",
            "work",
            switch(Some("true")),
        )
        .await;
        world.until("shown again", |objects| whole(objects, 2)).await;
    }
    .boxed()
}

fn deleted<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        remove(&world.server, "Cluster", "fleet").await;
        world
            .until("gone", |objects| {
                [
                    "Cluster",
                    "AzureManagedControlPlane",
                    "Machine",
                    "AzureManagedMachine",
                ]
                .iter()
                .all(|kind| of_kind(objects, kind).next().is_none())
            })
            .await;
    }
    .boxed()
}

#[test]
fn a_marked_machine_goes_once_and_no_other_whatever_fails() {
    Journey::from(&FLEET, "AKS machines: one is marked and scaled away", scaled_away).assert_clean();
}

#[test]
fn a_deleted_machine_is_replaced_once_whatever_fails() {
    Journey::from(&FLEET, "AKS machines: one is deleted", replaced).assert_clean();
}

#[test]
fn machines_are_switched_off_and_on_whatever_fails() {
    Journey::from(&FLEET, "AKS machines: switched off and on", off_and_on).assert_clean();
}

#[test]
fn machines_go_with_their_cluster_whatever_fails() {
    Journey::from(&FLEET, "AKS machines: the Cluster is deleted", deleted).assert_clean();
}
