//! Nodes as Machines over inline resources. What is every provider's is tested in `slipway-aks`; here is what inline resources do
//! themselves: the count they ask for, policies, the operator that writes them, and what their status says.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use slipway_kit::objects::{condition, holds, is_deleting, name, of_kind};

use super::{
    operator::{self, FakeOperator},
    world::{World, apply, kinds_with_operator, manifests, merge, pool_manifests, remove},
};

const SWITCH: &str = "slipway.dev/machines";
const KIND: &str = "AzureASOManagedMachine";
const POOL: &str = "AzureASOManagedMachinePool";
const POOLS: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 3)];
const AKS: &str = "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet";

async fn switch(world: &World, pool: &str, on: Option<&str>) {
    let patch = json!({"metadata": {"annotations": {(SWITCH): on}}});
    merge(&world.server, POOL, pool, patch).await;
}

fn of_pool(world: &World, kind: &str, pool: &str) -> Vec<Value> {
    let objects = world.server.objects();
    let labelled = |object: &&Value| object["metadata"]["labels"]["cluster.x-k8s.io/pool-name"] == pool;
    of_kind(&objects, kind).filter(labelled).cloned().collect()
}

fn names(world: &World, kind: &str, pool: &str) -> Vec<String> {
    let mut names: Vec<String> = of_pool(world, kind, pool)
        .iter()
        .map(|object| name(object).to_owned())
        .collect();
    names.sort();
    names
}

/// The VMs of a pool in Azure.
fn instances(world: &World, pool: &str) -> Vec<String> {
    let nodes = world.simulator.azure().nodes(AKS);
    let of_pool = nodes.into_iter().filter(|node| node.pool == pool);
    of_pool.map(|node| node.name).collect()
}

/// Every VM has its object and its Machine, all ready, and nothing else has.
fn is_whole(world: &World, pool: &str, count: usize) -> bool {
    let there = instances(world, pool);
    there.len() == count
        && names(world, KIND, pool) == there
        && names(world, "Machine", pool) == there
        && of_pool(world, KIND, pool)
            .iter()
            .all(|object| holds(object, "Ready") && !is_deleting(object))
        && of_pool(world, "Machine", pool)
            .iter()
            .all(|machine| machine["spec"]["providerID"].is_string() && !is_deleting(machine))
}

async fn until_whole(world: &World, pool: &str, count: usize) {
    world.until("whole", |world| is_whole(world, pool, count)).await;
}

/// How often AKS was asked to delete machines.
fn deletions(world: &World) -> usize {
    let azure = world.simulator.azure();
    let asked = azure.requests();
    asked
        .filter(|request| request.path.ends_with("/deleteMachines") && request.status < 300)
        .count()
}

async fn started(world: World) -> World {
    apply(&world.server, &manifests(POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    switch(&world, "work", Some("true")).await;
    until_whole(&world, "work", 3).await;
    world
}

async fn scale(world: &World, pool: &str, replicas: i32) {
    let patch = json!({"spec": {"replicas": replicas}});
    merge(&world.server, "MachinePool", pool, patch).await;
}

async fn mark(world: &World, machine: &str) {
    let patch = json!({"metadata": {"annotations": {"cluster.x-k8s.io/delete-machine": ""}}});
    merge(&world.server, "Machine", machine, patch).await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_made_without_machines_gets_them_and_loses_them_without_a_write_to_azure() {
    let world = World::new();
    apply(&world.server, &manifests(POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    assert!(world.pool("work")["status"]["infrastructureMachineKind"].is_null());
    let (writes, there) = (world.writes(), instances(&world, "work"));
    switch(&world, "work", Some("true")).await;
    until_whole(&world, "work", 3).await;
    let status = world.pool("work")["status"].clone();
    assert_eq!(status["infrastructureMachineKind"], KIND);
    let capacity = &status["capacity"];
    assert_eq!(
        [
            &capacity["cpu"],
            &capacity["memory"],
            &capacity["ephemeral-storage"]
        ],
        ["2", "8192Mi", "128Gi"],
        "for scaling from nothing"
    );
    assert_eq!(status["nodeInfo"]["operatingSystem"], "linux");
    assert!(names(&world, KIND, "system").is_empty(), "off by default");
    assert_eq!(world.writes(), writes);
    // This forgets what was written before.
    world.assert_rests().await;
    switch(&world, "work", None).await;
    world
        .until("gone", |world| {
            names(world, KIND, "work").is_empty() && names(world, "Machine", "work").is_empty()
        })
        .await;
    let status = world.pool("work")["status"].clone();
    assert!(status["infrastructureMachineKind"].is_null() && status["capacity"].is_null());
    assert_eq!(instances(&world, "work"), there);
    assert_eq!((world.writes(), deletions(&world)), (0, 0));
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn a_marked_machine_goes_and_one_that_is_deleted_is_replaced() {
    for kill_after in [None, Some(1), Some(4), Some(20), Some(60)] {
        let mut world = started(World::new()).await;
        let before = instances(&world, "work");
        mark(&world, &before[0]).await;
        scale(&world, "work", 2).await;
        if let Some(seconds) = kill_after {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            world.kill().await;
            tokio::time::sleep(Duration::from_secs(7)).await;
            world.start();
        }
        until_whole(&world, "work", 2).await;
        world.assert_rests().await;
        assert_eq!(
            instances(&world, "work"),
            before[1..],
            "killed after {kill_after:?}"
        );
    }
    let world = started(World::new()).await;
    let before = instances(&world, "work");
    remove(&world.server, "Machine", &before[1]).await;
    world
        .until("deleted", |world| !instances(world, "work").contains(&before[1]))
        .await;
    until_whole(&world, "work", 3).await;
    assert_eq!(deletions(&world), 1);
    world.assert_rests().await;
}

/// Who writes the count into the manifest lowers both; the VM that goes is still chosen by its mark.
#[tokio::test(start_paused = true)]
async fn a_count_in_the_manifest_is_no_conflict_while_vms_are_deleted() {
    let world = started(World::new()).await;
    let before = instances(&world, "work");
    mark(&world, &before[1]).await;
    let pool = pool_manifests("work", "User", 2, &json!({"count": 2})).swap_remove(1);
    scale(&world, "work", 2).await;
    merge(&world.server, POOL, "work", json!({"spec": pool["spec"]})).await;
    until_whole(&world, "work", 2).await;
    world.until_ready(&["work"]).await;
    assert_eq!(
        instances(&world, "work"),
        [before[0].as_str(), before[2].as_str()]
    );
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_only_read_shows_its_machines_and_deletes_none() {
    let world = started(World::new()).await;
    let before = instances(&world, "work");
    let mut pool = pool_manifests("work", "User", 3, &json!({})).swap_remove(1);
    pool["spec"]["resources"][0]["metadata"]["annotations"]["serviceoperator.azure.com/reconcile-policy"] =
        json!("skip");
    merge(&world.server, POOL, "work", json!({"spec": pool["spec"]})).await;
    remove(&world.server, "Machine", &before[0]).await;
    world
        .until("told", |world| {
            let shown = of_pool(world, KIND, "work");
            shown.iter().any(|one| {
                let ready = condition(one, "Ready");
                let message = ready["message"].as_str().unwrap_or_default();
                ready["reason"] == "WaitingForPool" && message.contains("reconcile-policy")
            })
        })
        .await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(instances(&world, "work"), before);
    assert_eq!(deletions(&world), 0);
    merge(
        &world.server,
        POOL,
        "work",
        json!({"spec": pool_manifests("work", "User", 3, &json!({}))[1]["spec"]}),
    )
    .await;
    world
        .until("replaced", |world| !instances(world, "work").contains(&before[0]))
        .await;
    until_whole(&world, "work", 3).await;
}

#[tokio::test(start_paused = true)]
async fn the_last_system_node_stays_and_what_aks_scales_says_so() {
    let world = started(World::new()).await;
    switch(&world, "system", Some("true")).await;
    until_whole(&world, "system", 1).await;
    let last = instances(&world, "system");
    remove(&world.server, KIND, &last[0]).await;
    world
        .until("told", |world| {
            let shown = of_pool(world, KIND, "system");
            shown
                .iter()
                .any(|one| condition(one, "Ready")["reason"] == "LastSystemNode")
        })
        .await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(instances(&world, "system"), last);
    scale(&world, "system", 2).await;
    world
        .until("replaced", |world| !instances(world, "system").contains(&last[0]))
        .await;
    until_whole(&world, "system", 2).await;

    let scaling = json!({"enableAutoScaling": true, "minCount": 1, "maxCount": 5});
    let pool = pool_manifests("work", "User", 3, &scaling).swap_remove(1);
    merge(&world.server, POOL, "work", json!({"spec": pool["spec"]})).await;
    mark(&world, &instances(&world, "work")[0]).await;
    world
        .until("left to AKS", |world| {
            let pool = world.pool("work");
            let ready = condition(&pool, "Ready");
            let message = ready["message"].as_str().unwrap_or_default();
            ready["status"] == "True" && message.contains("autoscaler decides")
        })
        .await;
    assert!(
        world
            .simulator
            .azure()
            .set_pool_count(&format!("{AKS}/agentPools/work"), 4)
    );
    until_whole(&world, "work", 4).await;
    world
        .until("followed", |world| {
            let pool = world.object("MachinePool", "work").expect("a pool");
            pool["spec"]["replicas"] == 4
        })
        .await;
    world.assert_rests().await;
}

/// The operator writes the pool, and goes on doing so; AKS is asked to delete the VM that was chosen.
#[tokio::test(start_paused = true)]
async fn machines_are_deleted_by_name_while_the_operator_writes_the_pool() {
    let world = World::of_kinds(kinds_with_operator());
    let azure = Arc::clone(&world.simulator);
    let ask: operator::Ask = Arc::new(move |request| azure.handle(request));
    tokio::spawn(FakeOperator::new(world.server.clone(), ask).run());
    operator::install(&world.server).await;
    operator::run(&world.server, world.clock, true).await;
    let world = started(world).await;
    let before = instances(&world, "work");
    mark(&world, &before[0]).await;
    scale(&world, "work", 2).await;
    until_whole(&world, "work", 2).await;
    assert_eq!(instances(&world, "work"), before[1..]);
    assert_eq!(deletions(&world), 1);
    let given = || {
        let objects = world.server.objects();
        let found = of_kind(&objects, "ManagedClustersAgentPool").find(|one| name(one) == "fleet-work");
        found.expect("the operator's object")["spec"]["count"].clone()
    };
    world.until("told to the operator", |_| given() == 2).await;
    // More again: the operator makes them.
    scale(&world, "work", 4).await;
    until_whole(&world, "work", 4).await;
    assert_eq!((deletions(&world), given()), (1, json!(4)));
}
