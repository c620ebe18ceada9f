//! The journeys of the fault sweep: every fault at every call of a cluster's life, the same end, nothing orphaned in Azure,
//! nothing of others touched.

use std::{sync::atomic::Ordering, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use http::Method;
use serde_json::{Value, json};
use slipway_kit::{
    azure::{THEIRS, ask, in_azure},
    clusterctl::{put_down, take_away},
    journey::{Journey, Standing, User},
    sweep::World,
};

use super::{
    ownership,
    surroundings::Life,
    world::{apply, create, find, holds, is_rivals, manifests, merge, pool_manifests, remove},
};

const OLD: &str = "v1.33.3";
const NEW: &str = "v1.34.1";

fn ready(objects: &[Value], replicas: i64, version: &str) -> bool {
    let plane = find(objects, "AzureManagedControlPlane", "fleet");
    let settled = |object: &Value| {
        holds(object, "Ready") && object["status"]["observedGeneration"] == object["metadata"]["generation"]
    };
    plane.is_some_and(|plane| settled(&plane) && plane["status"]["version"] == version)
        && find(objects, "AzureManagedMachinePool", "work").is_some_and(|pool| {
            settled(&pool)
                && pool["status"]["replicas"] == replicas
                && pool["spec"]["providerIDList"]
                    .as_array()
                    .is_some_and(|ids| ids.len() as i64 == replicas)
        })
        && find(objects, "AzureManagedMachinePool", "system").is_some_and(|pool| settled(&pool))
}

static FLEET: Standing<Life> = Standing::after(creation);

/// A cluster with two pools and an extension.
pub fn creation<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let spec = json!({"extensions": [{"name": "flux", "extensionType": "microsoft.flux"}]});
        let pools: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 1)];
        apply(&world.server, &manifests(&spec, pools)).await;
        world.until("ready", |objects| ready(objects, 1, OLD)).await;
    }
    .boxed()
}

/// A pool from one node to three and back.
pub fn scale<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        for replicas in [3, 1] {
            let patch = json!({"spec": {"replicas": replicas}});
            merge(&world.server, "MachinePool", "work", patch).await;
            world
                .until("scaled", |objects| ready(objects, replicas, OLD))
                .await;
        }
    }
    .boxed()
}

/// A pool is added and taken away.
pub fn pool<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        for manifest in pool_manifests("more", "User", 2, &json!({})) {
            create(&world.server, &manifest).await;
        }
        world
            .until("added", |objects| {
                find(objects, "AzureManagedMachinePool", "more")
                    .is_some_and(|pool| holds(&pool, "Ready") && pool["status"]["replicas"] == 2)
            })
            .await;
        remove(&world.server, "MachinePool", "more").await;
        world
            .until("taken away", |objects| {
                find(objects, "MachinePool", "more").is_none()
                    && find(objects, "AzureManagedMachinePool", "more").is_none()
            })
            .await;
    }
    .boxed()
}

/// To the next minor version; the extension is taken out.
pub fn upgrade<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let patch = json!({"spec": {"version": NEW, "extensions": null}});
        merge(&world.server, "AzureManagedControlPlane", "fleet", patch).await;
        world.until("upgraded", |objects| ready(objects, 1, NEW)).await;
        world
            .until("the extension is gone", |_| {
                !in_azure(&life.azure).iter().any(|id| id.contains("/extensions/"))
            })
            .await;
    }
    .boxed()
}

/// `clusterctl move`: paused, taken away, made again without status, resumed.
pub fn moved<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    const KINDS: [&str; 7] = [
        "Cluster",
        "MachinePool",
        "AzureManagedCluster",
        "AzureManagedControlPlane",
        "AzureManagedMachinePool",
        "AzureClusterIdentity",
        "Secret",
    ];
    async move {
        let pause = |paused: bool| json!({"spec": {"paused": paused}});
        merge(&world.server, "Cluster", "fleet", pause(true)).await;
        world.until("paused", all_paused).await;
        life.moving.store(true, Ordering::SeqCst);
        // Credentials are the user's, on both sides.
        let ours = |object: &Value| object["metadata"]["name"] != "fleet-secret" && !is_rivals(object);
        let objects = take_away(&world.server, &KINDS, ours).await;
        put_down(&world.server, &objects).await;
        merge(&world.server, "Cluster", "fleet", pause(false)).await;
        world.until("resumed", |objects| ready(objects, 1, OLD)).await;
    }
    .boxed()
}

fn all_paused(objects: &[Value]) -> bool {
    let paused = |object: &Value| {
        let conditions = object["status"]["v1beta2"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .any(|one| one["type"] == "Paused" && one["status"] == "True")
            && object["metadata"]["annotations"]["clusterctl.cluster.x-k8s.io/block-move"].is_null()
    };
    let ours = |object: &&Value| {
        let kind = &object["kind"];
        !is_rivals(object) && (kind == "AzureManagedControlPlane" || kind == "AzureManagedMachinePool")
    };
    objects.iter().filter(ours).all(paused)
}

/// The controllers start over a cluster and the user does nothing for an hour.
pub fn left_alone<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        world.until("ready", |objects| ready(objects, 1, OLD)).await;
        tokio::time::sleep(Duration::from_hours(1)).await;
    }
    .boxed()
}

/// A second Cluster that names the same Azure resources comes and goes.
fn rival<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.foreign.store(true, Ordering::SeqCst);
        ownership::apply_rival(&world.server).await;
        world
            .until("refused", |objects| {
                ownership::rival(objects).is_some_and(ownership::is_refused)
            })
            .await;
        ownership::remove_rival(&world.server).await;
        world
            .until("gone", |objects| ownership::rival(objects).is_none())
            .await;
    }
    .boxed()
}

pub fn deletion<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        remove(&world.server, "Cluster", "fleet").await;
        world
            .until("gone", |objects| {
                let mut ours = objects.iter().filter(|object| !is_rivals(object));
                !ours
                    .any(|object| object["kind"] == "Cluster" || object["kind"] == "AzureManagedControlPlane")
            })
            .await;
    }
    .boxed()
}

#[test]
fn creation_ends_the_same_whatever_fails() {
    Journey::new("AKS: a cluster with two pools", creation).assert_clean();
}

#[test]
fn starting_over_a_standing_cluster_changes_nothing_whatever_fails() {
    Journey::start_over(&FLEET, "AKS: the controllers start over a cluster").assert_clean();
}

#[test]
fn scaling_ends_the_same_whatever_fails() {
    Journey::from(&FLEET, "AKS: a pool of one node, three, one", scale).assert_clean();
}

#[test]
fn a_pool_comes_and_goes_whatever_fails() {
    Journey::from(&FLEET, "AKS: a pool added and taken away", pool).assert_clean();
}

#[test]
fn an_upgrade_ends_the_same_whatever_fails() {
    Journey::from(&FLEET, "AKS: the next minor version", upgrade).assert_clean();
}

#[test]
fn a_move_touches_nothing_in_azure_whatever_fails() {
    Journey::from(&FLEET, "AKS: moved", moved).assert_clean();
}

#[test]
fn a_second_object_for_the_same_resources_writes_nothing_whatever_fails() {
    Journey::from(&FLEET, "AKS: a second Cluster names the same resources", rival).assert_clean();
}

#[test]
fn deletion_leaves_nothing_whatever_fails() {
    Journey::from(&FLEET, "AKS: deleted", deletion).assert_clean();
}

/// The sweep is not blind to what it guards: somebody does what a broken controller would.
#[test]
fn what_is_orphaned_and_what_is_taken_from_others_is_caught() {
    let caught = |user: User<Life>, what: &str| {
        Journey::from(&FLEET, "AKS: meddled with", user).assert_caught(what);
    };
    caught(
        |_, world| {
            let torn = json!({"metadata": {"finalizers": null}});
            merge(&world.server, "AzureManagedControlPlane", "fleet", torn).boxed()
        },
        "is orphaned",
    );
    caught(
        |life, world| {
            async move {
                ask(&life.azure, Method::DELETE, THEIRS[1], None);
                tokio::time::sleep(Duration::from_hours(1)).await;
                let seen = json!({"metadata": {"labels": {"seen": "yes"}}});
                merge(&world.server, "AzureManagedControlPlane", "fleet", seen).await;
            }
            .boxed()
        },
        "is not ours and is gone",
    );
    caught(
        |life, world| {
            async move {
                life.moving.store(true, Ordering::SeqCst);
                merge(
                    &world.server,
                    "MachinePool",
                    "work",
                    json!({"spec": {"replicas": 2}}),
                )
                .await;
                tokio::time::sleep(Duration::from_mins(10)).await;
                merge(
                    &world.server,
                    "MachinePool",
                    "work",
                    json!({"spec": {"replicas": 1}}),
                )
                .await;
            }
            .boxed()
        },
        "while the cluster is moved",
    );
}
