//! The journeys of the fault sweep beside an Azure Service Operator: every fault at every call, the same end, never two writers,
//! nothing orphaned and nothing deleted that was not to go.

use std::sync::atomic::Ordering;

use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use slipway_kit::{
    clusterctl::{put_down, take_away},
    journey::{Journey, Standing, User},
    objects::name,
    sweep::World,
};

use super::{
    operator,
    surroundings::OperatedLife,
    world::{
        apply, cluster, create, find, group, holds, is_settled, managed_cluster, merge, network,
        pool_manifests, remove,
    },
};

const ENGINE: &str = "slipway.dev/azure-engine";
/// These journeys are long, and there are many of them.
const SAMPLE: usize = 8;
const POLICY: &str = "serviceoperator.azure.com/reconcile-policy";
const HOLDERS: [(&str, &str); 3] = [
    ("AzureASOManagedCluster", "fleet"),
    ("AzureASOManagedControlPlane", "fleet"),
    ("AzureASOManagedMachinePool", "system"),
];

fn ready(objects: &[Value]) -> bool {
    HOLDERS
        .iter()
        .all(|(kind, name)| find(objects, kind, name).is_some_and(|object| is_settled(&object)))
}

/// The operator's objects that it may write for.
fn written(objects: &[Value]) -> Vec<&str> {
    let is_its = |object: &&Value| {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        version.contains(".azure.com/") && object["metadata"]["annotations"][POLICY] != "skip"
    };
    objects.iter().filter(is_its).map(name).collect()
}

/// The resources that the operator writes.
fn engines(objects: &[Value]) -> Vec<String> {
    let mut found: Vec<String> = objects
        .iter()
        .filter(|object| HOLDERS.iter().any(|(kind, _)| object["kind"] == *kind))
        .flat_map(|object| object["status"]["resources"].as_array().into_iter().flatten())
        .filter(|line| line["engine"] == "aso")
        .map(|line| line["resource"].to_string())
        .collect();
    found.sort();
    found
}

static FLEET: Standing<OperatedLife> = Standing::after(creation);

/// A cluster with a network of its own and a pool, of which the operator makes all but the infrastructure where that is `native`.
async fn made(world: &World, native: bool) {
    operator::install(&world.server).await;
    operator::run(&world.server, world.clock, true).await;
    let mut all = cluster(&[network(), group()], &[managed_cluster(&json!({}))]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    for manifest in all.iter_mut().filter(|one| native && one["kind"] == HOLDERS[0].0) {
        manifest["metadata"]["annotations"] = json!({(ENGINE): "native"});
    }
    apply(&world.server, &all).await;
    let count = if native { 2 } else { 4 };
    world
        .until("ready", |objects| {
            ready(objects) && engines(objects).len() == count && written(objects).len() == count
        })
        .await;
}

/// All of it by the operator.
fn creation<'a>(_: &'a OperatedLife, world: &'a World) -> BoxFuture<'a, ()> {
    made(world, false).boxed()
}

static MIXED: Standing<OperatedLife> = Standing::after(mixed);

/// Group and network by the native engine, the cluster and its pool by the operator.
fn mixed<'a>(_: &'a OperatedLife, world: &'a World) -> BoxFuture<'a, ()> {
    made(world, true).boxed()
}

async fn ask_for(world: &World, engine: &str) {
    let patch = json!({"metadata": {"annotations": {(ENGINE): engine}}});
    for (kind, name) in HOLDERS {
        merge(&world.server, kind, name, patch.clone()).await;
    }
}

async fn to_native(world: &World) {
    ask_for(world, "native").await;
    world
        .until("native", |objects| {
            let is_left = |object: &Value| {
                let version = object["apiVersion"].as_str().unwrap_or_default();
                version.contains(".azure.com/")
            };
            ready(objects) && !objects.iter().any(is_left)
        })
        .await;
}

/// To the native engine, and back.
fn switched<'a>(_: &'a OperatedLife, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        to_native(world).await;
        ask_for(world, "aso").await;
        world
            .until("back", |objects| {
                ready(objects) && engines(objects).len() == 4 && written(objects).len() == 4
            })
            .await;
    }
    .boxed()
}

/// A pool and a network are added and taken away, and a pool scales.
fn changed<'a>(_: &'a OperatedLife, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        for manifest in pool_manifests("more", "User", 2, &json!({})) {
            create(&world.server, &manifest).await;
        }
        merge(
            &world.server,
            "MachinePool",
            "system",
            json!({"spec": {"replicas": 2}}),
        )
        .await;
        let only_group = json!({"spec": {"resources": [group()]}});
        merge(&world.server, "AzureASOManagedCluster", "fleet", only_group).await;
        world
            .until("changed", |objects| {
                let is_there = |pool: &str, replicas: i64| {
                    find(objects, "AzureASOManagedMachinePool", pool)
                        .is_some_and(|pool| is_settled(&pool) && pool["status"]["replicas"] == replicas)
                };
                ready(objects)
                    && is_there("more", 2)
                    && is_there("system", 2)
                    && find(objects, "VirtualNetwork", "fleet").is_none()
            })
            .await;
        remove(&world.server, "MachinePool", "more").await;
        world
            .until("taken away", |objects| {
                find(objects, "MachinePool", "more").is_none()
                    && written(objects).len() == 3
                    && ready(objects)
            })
            .await;
    }
    .boxed()
}

const MOVED: [&str; 6] = [
    "Cluster",
    "MachinePool",
    "AzureASOManagedCluster",
    "AzureASOManagedControlPlane",
    "AzureASOManagedMachinePool",
    "Secret",
];
const THEIRS: [&str; 4] = [
    "ResourceGroup",
    "VirtualNetwork",
    "ManagedCluster",
    "ManagedClustersAgentPool",
];

/// `clusterctl move` with the operator's objects, where their definitions are labelled for it, or without.
async fn moved(life: &OperatedLife, world: &World, with_objects: bool) {
    let pause = |paused: bool| json!({"spec": {"paused": paused}});
    let (before, count) = world
        .server
        .look(|objects| (engines(objects), written(objects).len()));
    merge(&world.server, "Cluster", "fleet", pause(true)).await;
    world
        .until("paused", |objects| {
            let paused = |object: &Value| {
                let annotations = &object["metadata"]["annotations"];
                holds(object, "Paused") && annotations["clusterctl.cluster.x-k8s.io/block-move"].is_null()
            };
            HOLDERS
                .iter()
                .all(|(kind, name)| find(objects, kind, name).is_some_and(|object| paused(&object)))
                && written(objects).is_empty()
        })
        .await;
    life.moving.store(true, Ordering::SeqCst);
    let ours = |object: &Value| object["metadata"]["name"] != "sign-in";
    let kinds = if with_objects {
        [&MOVED[..], &THEIRS[..]].concat()
    } else {
        MOVED.to_vec()
    };
    let objects = take_away(&world.server, &kinds, ours).await;
    if !with_objects {
        // Nobody takes them along: the collector deletes them with their owners, and they are quiet.
        let gone = |objects: &[Value]| {
            !objects
                .iter()
                .any(|one| THEIRS.iter().any(|kind| one["kind"] == *kind))
        };
        world.until("collected", gone).await;
    }
    put_down(&world.server, &objects).await;
    life.moving.store(false, Ordering::SeqCst);
    merge(&world.server, "Cluster", "fleet", pause(false)).await;
    world
        .until("resumed", |objects| {
            ready(objects) && engines(objects) == before && written(objects).len() == count
        })
        .await;
}

fn moved_with<'a>(life: &'a OperatedLife, world: &'a World) -> BoxFuture<'a, ()> {
    moved(life, world, true).boxed()
}

fn moved_without<'a>(life: &'a OperatedLife, world: &'a World) -> BoxFuture<'a, ()> {
    moved(life, world, false).boxed()
}

fn deleted<'a>(_: &'a OperatedLife, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        remove(&world.server, "Cluster", "fleet").await;
        world
            .until("gone", |objects| {
                !objects.iter().any(|object| {
                    let kind = object["kind"].as_str().unwrap_or_default();
                    let version = object["apiVersion"].as_str().unwrap_or_default();
                    kind == "Cluster" || kind.starts_with("AzureASO") || version.contains(".azure.com/")
                })
            })
            .await;
    }
    .boxed()
}

#[test]
fn an_operator_is_given_a_cluster_whatever_fails() {
    Journey::new("ASO engine: a cluster with a network and a pool", creation).assert_clean_by(SAMPLE);
}

#[test]
fn starting_over_beside_an_operator_changes_nothing_whatever_fails() {
    Journey::start_over(&FLEET, "ASO engine: the controllers start over a cluster").assert_clean_by(SAMPLE);
}

#[test]
fn an_operator_follows_changes_whatever_fails() {
    Journey::from(&FLEET, "ASO engine: a pool and a network come and go", changed).assert_clean_by(SAMPLE);
}

#[test]
fn engines_are_switched_both_ways_whatever_fails() {
    Journey::from(&FLEET, "ASO engine: native, and back", switched).assert_clean_by(SAMPLE);
}

#[test]
fn a_move_with_the_operators_objects_touches_nothing_whatever_fails() {
    Journey::from(&FLEET, "ASO engine: moved with its objects", moved_with).assert_clean_by(SAMPLE);
}

#[test]
fn a_move_without_the_operators_objects_touches_nothing_whatever_fails() {
    Journey::from(&FLEET, "ASO engine: moved without its objects", moved_without).assert_clean_by(SAMPLE);
}

#[test]
fn a_move_with_both_engines_touches_nothing_whatever_fails() {
    Journey::from(&MIXED, "ASO engine: moved with both engines", moved_without).assert_clean_by(SAMPLE);
}

#[test]
fn deletion_beside_an_operator_leaves_nothing_whatever_fails() {
    Journey::from(&FLEET, "ASO engine: deleted", deleted).assert_clean_by(SAMPLE);
}

/// The sweep is not blind to a second writer: somebody lets the operator write what is ours.
#[test]
fn a_second_writer_is_caught() {
    let caught: User<OperatedLife> = |_, world| {
        async move {
            to_native(world).await;
            let mut object = group();
            object["metadata"]["namespace"] = json!("default");
            create(&world.server, &object).await;
            tokio::time::sleep(std::time::Duration::from_mins(10)).await;
        }
        .boxed()
    };
    Journey::from(&FLEET, "ASO engine: meddled with", caught).assert_caught("not noted as the operator's");
}
