//! The journeys of the fault sweep: every fault at every call of a cluster's life, the same end, nothing orphaned in Azure,
//! nothing of others touched.

use std::{sync::atomic::Ordering, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use slipway_kit::{
    azure::{THEIRS, ask, in_azure},
    clusterctl::{put_down, take_away},
    journey::{Journey, Standing, User},
    sweep::World,
};

use super::{
    surroundings::Life,
    world::{
        NEW, OLD, apply, cluster, create, find, group, holds, is_settled, managed_cluster, merge, network,
        pool_manifests, remove, token_ends,
    },
};

fn ready(objects: &[Value], replicas: i64, version: &str) -> bool {
    let settled = |kind: &str, name: &str| {
        let object = find(objects, kind, name);
        object.filter(is_settled)
    };
    settled("AzureASOManagedControlPlane", "fleet").is_some_and(|plane| plane["status"]["version"] == version)
        && settled("AzureASOManagedCluster", "fleet").is_some()
        && settled("AzureASOManagedMachinePool", "system").is_some()
        && settled("AzureASOManagedMachinePool", "work").is_some_and(|pool| {
            pool["status"]["replicas"] == replicas
                && pool["spec"]["providerIDList"]
                    .as_array()
                    .is_some_and(|ids| ids.len() as i64 == replicas)
        })
}

static FLEET: Standing<Life> = Standing::after(creation);

/// A cluster with a network of its own and two pools.
fn creation<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let mut all = cluster(&[network(), group()], &[managed_cluster(&json!({}))]);
        all.extend(pool_manifests("system", "System", 1, &json!({})));
        all.extend(pool_manifests("work", "User", 1, &json!({})));
        apply(&world.server, &all).await;
        world.until("ready", |objects| ready(objects, 1, OLD)).await;
    }
    .boxed()
}

/// A pool from one node to three and back.
fn scale<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
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

/// A pool and a network are added and taken away.
fn change<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        for manifest in pool_manifests("more", "User", 2, &json!({})) {
            create(&world.server, &manifest).await;
        }
        let mut second = network();
        second["metadata"]["name"] = json!("second");
        let more = json!({"spec": {"resources": [network(), group(), second]}});
        merge(&world.server, "AzureASOManagedCluster", "fleet", more).await;
        world
            .until("added", |objects| {
                let is_there = |id: &String| id.ends_with("/virtualnetworks/second");
                find(objects, "AzureASOManagedMachinePool", "more")
                    .is_some_and(|pool| is_settled(&pool) && pool["status"]["replicas"] == 2)
                    && in_azure(&life.azure).iter().any(is_there)
                    && ready(objects, 1, OLD)
            })
            .await;
        let before = json!({"spec": {"resources": [network(), group()]}});
        merge(&world.server, "AzureASOManagedCluster", "fleet", before).await;
        remove(&world.server, "MachinePool", "more").await;
        world
            .until("taken away", |objects| {
                let there = in_azure(&life.azure);
                let is_left =
                    |id: &String| id.ends_with("/virtualnetworks/second") || id.ends_with("/agentpools/more");
                find(objects, "MachinePool", "more").is_none()
                    && !there.iter().any(is_left)
                    && ready(objects, 1, OLD)
            })
            .await;
    }
    .boxed()
}

/// The next minor version: the control plane, then the pools.
fn upgrade<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let version = json!({"spec": {"version": NEW}});
        merge(&world.server, "AzureASOManagedControlPlane", "fleet", version).await;
        world.until("upgraded", |objects| ready(objects, 1, NEW)).await;
        let version = json!({"spec": {"template": {"spec": {"version": NEW}}}});
        for pool in ["system", "work"] {
            merge(&world.server, "MachinePool", pool, version.clone()).await;
        }
        world
            .until("pools upgraded", |objects| {
                let is_sent = |pool: &str| {
                    let found = find(objects, "AzureASOManagedMachinePool", pool);
                    found.is_some_and(|pool| {
                        let record = pool["metadata"]["annotations"]["slipway.dev/azure-applied"].as_str();
                        record.is_some_and(|text| text.contains("1.34.1"))
                    })
                };
                is_sent("system") && is_sent("work") && ready(objects, 1, NEW)
            })
            .await;
    }
    .boxed()
}

/// `clusterctl move`: paused, taken away, made again without status, resumed.
fn moved<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    const KINDS: [&str; 6] = [
        "Cluster",
        "MachinePool",
        "AzureASOManagedCluster",
        "AzureASOManagedControlPlane",
        "AzureASOManagedMachinePool",
        "Secret",
    ];
    async move {
        let pause = |paused: bool| json!({"spec": {"paused": paused}});
        merge(&world.server, "Cluster", "fleet", pause(true)).await;
        world.until("paused", all_paused).await;
        life.moving.store(true, Ordering::SeqCst);
        // Credentials are the user's, on both sides.
        let ours = |object: &Value| object["metadata"]["name"] != "sign-in";
        let objects = take_away(&world.server, &KINDS, ours).await;
        put_down(&world.server, &objects).await;
        merge(&world.server, "Cluster", "fleet", pause(false)).await;
        world.until("resumed", |objects| ready(objects, 1, OLD)).await;
    }
    .boxed()
}

fn all_paused(objects: &[Value]) -> bool {
    let paused = |object: &Value| {
        let annotations = &object["metadata"]["annotations"];
        holds(object, "Paused") && annotations["clusterctl.cluster.x-k8s.io/block-move"].is_null()
    };
    let ours = |object: &&Value| {
        let kind = object["kind"].as_str().unwrap_or_default();
        kind.starts_with("AzureASO")
    };
    objects.iter().filter(ours).all(paused)
}

fn deletion<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        remove(&world.server, "Cluster", "fleet").await;
        world
            .until("gone", |objects| {
                !objects.iter().any(|object| {
                    let kind = object["kind"].as_str().unwrap_or_default();
                    kind == "Cluster" || kind.starts_with("AzureASO")
                })
            })
            .await;
    }
    .boxed()
}

static WITHOUT_LOCAL_ACCOUNTS: Standing<Life> = Standing::after(creation_without_local_accounts);

fn creation_without_local_accounts<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let entra = managed_cluster(&json!({
            "disableLocalAccounts": true, "aadProfile": {"managed": true, "enableAzureRBAC": true},
            "operatorSpec": {"secrets": {"userCredentials": {"name": "fleet-people", "key": "value"}}},
        }));
        let mut all = cluster(&[group()], &[entra]);
        all.extend(pool_manifests("system", "System", 1, &json!({})));
        apply(&world.server, &all).await;
        world
            .until("ready", |objects| {
                let plane = find(objects, "AzureASOManagedControlPlane", "fleet");
                plane.is_some_and(|plane| is_settled(&plane)) && token_ends(objects).is_some()
            })
            .await;
    }
    .boxed()
}

/// Three hours of somebody who reads the kubeconfig every minute: whoever meets a token that has ended leaves a note. After a clock
/// that jumped, which ends any token, a resync may pass.
fn renewal<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let begun = world.clock.now();
        let ends = |world: &World| world.server.look(token_ends);
        let (mut before, mut jumped) = (begun, Timestamp::MIN);
        for _ in 0..180 {
            tokio::time::sleep(Duration::from_mins(1)).await;
            let now = world.clock.now();
            if now.duration_since(before) > SignedDuration::from_mins(2) {
                jumped = now;
            }
            before = now;
            let is_calm = now.duration_since(jumped) > SignedDuration::from_mins(15);
            if is_calm && ends(world).is_none_or(|ends| ends <= now) {
                let note = json!({"apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": "met-no-good-token", "namespace": "default"}});
                create(&world.server, &note).await;
                return;
            }
        }
        let renewed = ends(world).is_some_and(|ends| ends > begun + SignedDuration::from_hours(3));
        assert!(renewed, "the token was renewed");
    }
    .boxed()
}

#[test]
fn a_token_is_renewed_before_it_ends_whatever_fails() {
    let report = Journey::from(&WITHOUT_LOCAL_ACCOUNTS, "ASO: tokens are renewed", renewal).assert_clean();
    assert!(report.calls > 20, "{report:?}");
}

#[test]
fn creation_ends_the_same_whatever_fails() {
    Journey::new("ASO: a cluster with a network and two pools", creation).assert_clean();
}

#[test]
fn starting_over_a_standing_cluster_changes_nothing_whatever_fails() {
    Journey::start_over(&FLEET, "ASO: the controllers start over a cluster").assert_clean();
}

#[test]
fn scaling_ends_the_same_whatever_fails() {
    Journey::from(&FLEET, "ASO: a pool of one node, three, one", scale).assert_clean();
}

#[test]
fn resources_come_and_go_whatever_fails() {
    Journey::from(&FLEET, "ASO: a pool and a network added and taken away", change).assert_clean();
}

#[test]
fn an_upgrade_ends_the_same_whatever_fails() {
    Journey::from(&FLEET, "ASO: the next minor version", upgrade).assert_clean();
}

#[test]
fn a_move_touches_nothing_in_azure_whatever_fails() {
    Journey::from(&FLEET, "ASO: moved", moved).assert_clean();
}

#[test]
fn deletion_leaves_nothing_whatever_fails() {
    Journey::from(&FLEET, "ASO: deleted", deletion).assert_clean();
}

/// The sweep is not blind to what it guards: somebody does what a broken controller would.
#[test]
fn what_is_orphaned_and_what_is_taken_from_others_is_caught() {
    let caught = |user: User<Life>, what: &str| {
        Journey::from(&FLEET, "ASO: meddled with", user).assert_caught(what);
    };
    caught(
        |_, world| {
            let torn = json!({"metadata": {"finalizers": null}});
            merge(&world.server, "AzureASOManagedControlPlane", "fleet", torn).boxed()
        },
        "is orphaned",
    );
    caught(
        |life, world| {
            async move {
                ask(&life.azure, Method::DELETE, THEIRS[1], None);
                tokio::time::sleep(Duration::from_hours(1)).await;
                let seen = json!({"metadata": {"labels": {"seen": "yes"}}});
                merge(&world.server, "AzureASOManagedControlPlane", "fleet", seen).await;
            }
            .boxed()
        },
        "is not ours and is gone",
    );
}
