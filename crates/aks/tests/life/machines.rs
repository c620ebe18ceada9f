//! Nodes as Machines: shown for every VM, deleted one by one, chosen by their marks, kept where they must stay, and gone without
//! their VMs where they are switched off.

use std::time::Duration;

use serde_json::{Value, json};
use slipway_azure::workload::nodes::Nodes;
use slipway_kit::{
    objects::{condition, holds, is_deleting, name, of_kind, set_condition},
    workload::{AKS_POOL, Workload},
};

use super::world::{SUBSCRIPTION, World, apply, manifests, merge, pool_manifests, quick, remove};

const MACHINES: &str = "slipway.dev/machines";
const MARK: &str = "cluster.x-k8s.io/delete-machine";
const POOL: &str = "/agentPools/work";

/// What a user applies, with machines switched on for these pools.
fn with_machines(pools: &[(&str, &str, i32)], on: &[&str]) -> Vec<Value> {
    let mut all = manifests(&json!({}), pools);
    for manifest in &mut all {
        let named = on.contains(&manifest["metadata"]["name"].as_str().unwrap_or_default());
        if manifest["kind"] == "AzureManagedMachinePool" && named {
            manifest["metadata"]["annotations"] = json!({(MACHINES): "true"});
        }
    }
    all
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

/// The instance numbers of a pool's VMs in Azure.
fn instances(world: &World, pool: &str) -> Vec<String> {
    let id = format!(
        "/subscriptions/{SUBSCRIPTION}/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet"
    );
    let nodes = world.simulator.azure().nodes(&id);
    nodes
        .into_iter()
        .filter(|node| node.pool == pool)
        .map(|node| node.name)
        .collect()
}

/// Every VM has its object and its Machine, all ready, and nothing else has.
fn is_whole(world: &World, pool: &str, count: usize) -> bool {
    let there = instances(world, pool);
    let shown = of_pool(world, "AzureManagedMachine", pool);
    there.len() == count
        && names(world, "AzureManagedMachine", pool) == there
        && names(world, "Machine", pool) == there
        && shown
            .iter()
            .all(|object| holds(object, "Ready") && !is_deleting(object))
        && of_pool(world, "Machine", pool)
            .iter()
            .all(|machine| machine["spec"]["providerID"].is_string() && !is_deleting(machine))
}

async fn until_whole(world: &World, pool: &str, count: usize) {
    world.until("whole", |world| is_whole(world, pool, count)).await;
}

/// How often AKS was asked to delete machines, and which.
fn deleted(world: &World) -> Vec<String> {
    let azure = world.simulator.azure();
    let asked = azure.requests().filter(|request| {
        request.method == "POST" && request.path.ends_with("/deleteMachines") && request.status < 300
    });
    asked.map(|request| request.path.clone()).collect()
}

async fn started(pools: &[(&str, &str, i32)], on: &[&str]) -> World {
    let world = World::new();
    apply(&world.server, &with_machines(pools, on)).await;
    let all: Vec<&str> = pools.iter().map(|(name, _, _)| *name).collect();
    world.until_ready(&all).await;
    world
}

const POOLS: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 3)];

async fn scale(world: &World, pool: &str, replicas: i32) {
    merge(
        &world.server,
        "MachinePool",
        pool,
        json!({"spec": {"replicas": replicas}}),
    )
    .await;
}

async fn mark(world: &World, machine: &str) {
    let patch = json!({"metadata": {"annotations": {(MARK): ""}}});
    merge(&world.server, "Machine", machine, patch).await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_three_shows_three_machines_and_rests() {
    let world = started(POOLS, &["work"]).await;
    until_whole(&world, "work", 3).await;
    assert!(
        names(&world, "AzureManagedMachine", "system").is_empty(),
        "off by default"
    );
    let pool = world.object("AzureManagedMachinePool", "work").expect("a pool");
    assert_eq!(pool["status"]["infrastructureMachineKind"], "AzureManagedMachine");
    let capacity = json!({"cpu": "2", "memory": "8192Mi", "ephemeral-storage": "128Gi", "pods": "30"});
    assert_eq!(pool["status"]["capacity"], capacity, "for scaling from nothing");
    assert_eq!(pool["status"]["nodeInfo"]["architecture"], "amd64");
    let told: Vec<String> =
        serde_json::from_value(pool["spec"]["providerIDList"].clone()).expect("provider ids");
    let shown = of_pool(&world, "AzureManagedMachine", "work");
    for machine in &shown {
        let id = machine["spec"]["providerID"].as_str().expect("a provider id");
        assert!(told.iter().any(|one| one == id), "{id} of {told:?}");
        assert_eq!(machine["status"]["powerState"], "running");
        assert_eq!(machine["status"]["initialization"]["provisioned"], true);
        let owners = machine["metadata"]["ownerReferences"].as_array().expect("owners");
        let kinds: Vec<(&Value, bool)> = owners
            .iter()
            .map(|owner| (&owner["kind"], owner["controller"] == true))
            .collect();
        assert!(kinds.contains(&(&json!("Machine"), true)), "{kinds:?}");
        assert!(
            kinds.contains(&(&json!("AzureManagedMachinePool"), false)),
            "{kinds:?}"
        );
    }
    world.assert_rests().await;
    world.simulator.azure().forget_requests();
    tokio::time::sleep(Duration::from_hours(2)).await;
    let lists = world.count("GET", "/virtualMachines");
    assert!(
        (11..=13).contains(&lists),
        "one LIST a scale set and read age, not {lists}"
    );
    assert_eq!(
        world.count("GET", "/virtualMachineScaleSets"),
        lists,
        "the scale set is known"
    );
}

#[tokio::test(start_paused = true)]
async fn a_deleted_machine_takes_its_vm_along_and_the_pool_makes_another() {
    let world = started(POOLS, &["work"]).await;
    until_whole(&world, "work", 3).await;
    let before = instances(&world, "work");
    remove(&world.server, "Machine", &before[1]).await;
    world
        .until("deleted", |world| !instances(world, "work").contains(&before[1]))
        .await;
    until_whole(&world, "work", 3).await;
    let after = instances(&world, "work");
    assert!(
        after.contains(&before[0]) && after.contains(&before[2]),
        "{before:?} {after:?}"
    );
    assert_eq!(deleted(&world).len(), 1);
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn marked_machines_go_first_each_once_also_after_a_kill() {
    for kill_after in [None, Some(1), Some(4), Some(20), Some(60)] {
        let mut world = started(POOLS, &["work"]).await;
        until_whole(&world, "work", 3).await;
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
}

#[tokio::test(start_paused = true)]
async fn scaling_out_in_and_to_nothing_takes_the_youngest() {
    let world = started(POOLS, &["work"]).await;
    until_whole(&world, "work", 3).await;
    let before = instances(&world, "work");
    for count in [5, 2] {
        scale(&world, "work", count).await;
        until_whole(&world, "work", usize::try_from(count).expect("few")).await;
    }
    assert_eq!(instances(&world, "work"), before[..2]);
    scale(&world, "work", 0).await;
    until_whole(&world, "work", 0).await;
    scale(&world, "work", 1).await;
    until_whole(&world, "work", 1).await;
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_node_of_a_system_pool_stays_until_there_is_another() {
    let world = started(POOLS, &["system"]).await;
    until_whole(&world, "system", 1).await;
    let before = instances(&world, "system");
    let is_held = |world: &World| {
        let machines = of_pool(world, "Machine", "system");
        machines.iter().any(|machine| {
            let annotations = machine["metadata"]["annotations"].as_object();
            annotations.is_some_and(|all| all.keys().any(|key| key.contains("slipway-last-system-node")))
        })
    };
    world.until("held", is_held).await;
    remove(&world.server, "Machine", &before[0]).await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(instances(&world, "system"), before, "neither drained nor deleted");
    // Its object alone, past core's hook: the condition says why nothing happens.
    remove(&world.server, "AzureManagedMachine", &before[0]).await;
    world
        .until("told", |world| {
            let shown = of_pool(world, "AzureManagedMachine", "system");
            shown
                .iter()
                .any(|one| condition(one, "Ready")["reason"] == "LastSystemNode")
        })
        .await;
    assert_eq!(instances(&world, "system"), before);
    scale(&world, "system", 2).await;
    world
        .until("replaced", |world| {
            !instances(world, "system").contains(&before[0])
        })
        .await;
    until_whole(&world, "system", 2).await;
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn what_aks_scales_and_adds_is_shown_and_not_fought() {
    let mut all = with_machines(&[("system", "System", 1)], &[]);
    let scaling = json!({"scaling": {"minSize": 1, "maxSize": 5}});
    let mut work = pool_manifests("work", "User", 2, &scaling);
    work[1]["metadata"]["annotations"] = json!({(MACHINES): "true"});
    all.extend(work);
    let world = World::new();
    apply(&world.server, &all).await;
    world.until_ready(&["system", "work"]).await;
    until_whole(&world, "work", 2).await;
    let id = format!(
        "/subscriptions/{SUBSCRIPTION}/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet{POOL}"
    );
    let machine = instances(&world, "work").remove(0);
    mark(&world, &machine).await;
    for count in [4, 1] {
        assert!(world.simulator.azure().set_pool_count(&id, count));
        until_whole(&world, "work", usize::try_from(count).expect("few")).await;
    }
    assert_eq!(
        instances(&world, "work"),
        [machine.as_str()],
        "AKS decides, marked or not"
    );
    let pool = world.object("AzureManagedMachinePool", "work").expect("a pool");
    assert!(
        condition_of_pool(&pool, "AgentPoolsReady").contains("autoscaler decides"),
        "{}",
        pool["status"]
    );
    assert!(deleted(&world).is_empty());
    world.assert_rests().await;
}

fn condition_of_pool(pool: &Value, type_: &str) -> String {
    let conditions = pool["status"]["v1beta2"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|one| one["type"] == type_);
    found.map(|one| one["message"].to_string()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_shows_its_surge_and_churns_nothing() {
    let world = started(POOLS, &["work", "system"]).await;
    until_whole(&world, "work", 3).await;
    let before = instances(&world, "work");
    let uids = |world: &World| {
        let machines = of_pool(world, "Machine", "work");
        let mut uids: Vec<String> = machines
            .iter()
            .map(|machine| machine["metadata"]["uid"].to_string())
            .collect();
        uids.sort();
        uids
    };
    let first = uids(&world);
    let version = json!({"spec": {"version": "v1.34.1"}});
    merge(&world.server, "AzureManagedControlPlane", "fleet", version).await;
    world
        .until("upgraded", |world| {
            world.plane()["status"]["version"] == "v1.34.1"
        })
        .await;
    let version = json!({"spec": {"template": {"spec": {"version": "v1.34.1"}}}});
    merge(&world.server, "MachinePool", "work", version).await;
    world
        .until("surging", |world| names(world, "Machine", "work").len() == 4)
        .await;
    world
        .until("through", |world| {
            let pool = world.object("AzureManagedMachinePool", "work").expect("a pool");
            pool["status"]["version"] == "v1.34.1"
        })
        .await;
    until_whole(&world, "work", 3).await;
    assert_eq!(instances(&world, "work"), before);
    assert_eq!(uids(&world), first, "the Machines of before");
    assert!(deleted(&world).is_empty());
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn machines_are_switched_on_for_an_old_pool_and_off_again_without_touching_a_vm() {
    let mut world = started(POOLS, &[]).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(names(&world, "Machine", "work").is_empty());
    let before = instances(&world, "work");
    let writes =
        |world: &World| world.count("PUT", "") + world.count("POST", POOL) + world.count("DELETE", "");
    let at_first = writes(&world);
    world.kill().await;
    world.start_with(|settings| settings.gates = settings.gates.clone().with("AKSMachines", true));
    until_whole(&world, "work", 3).await;
    until_whole(&world, "system", 1).await;
    world.kill().await;
    world.start();
    for pool in ["work", "system"] {
        world
            .until("gone", |world| {
                names(world, "Machine", pool).is_empty()
                    && names(world, "AzureManagedMachine", pool).is_empty()
            })
            .await;
    }
    assert_eq!(writes(&world), at_first, "Azure is not touched");
    world.assert_rests().await;
    assert_eq!(instances(&world, "work"), before);
    let pool = world.object("AzureManagedMachinePool", "work").expect("a pool");
    assert!(pool["status"]["infrastructureMachineKind"].is_null());
}

#[tokio::test(start_paused = true)]
async fn a_failed_health_check_replaces_the_machine() {
    let world = started(POOLS, &["work"]).await;
    until_whole(&world, "work", 3).await;
    let before = instances(&world, "work");
    let machine = world.object("Machine", &before[0]).expect("a Machine");
    for type_ in ["HealthCheckSucceeded", "OwnerRemediated"] {
        set_condition(&world.server, &machine, type_, "False", "WaitingForRemediation").await;
    }
    world
        .until("replaced", |world| !instances(world, "work").contains(&before[0]))
        .await;
    until_whole(&world, "work", 3).await;
    assert_eq!(deleted(&world).len(), 1);
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_vm_is_told_within_the_read_age() {
    let world = started(POOLS, &["work"]).await;
    until_whole(&world, "work", 3).await;
    let id = format!(
        "/subscriptions/{SUBSCRIPTION}/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet{POOL}"
    );
    let stopped = instances(&world, "work").remove(1);
    assert!(world.simulator.azure().set_machine_power(&id, 1, "deallocated"));
    tokio::time::sleep(Duration::from_mins(21)).await;
    let machine = world.object("AzureManagedMachine", &stopped).expect("a machine");
    assert_eq!(machine["status"]["powerState"], "deallocated");
    assert_eq!(condition(&machine, "Ready")["reason"], "NotRunning");
    assert_eq!(instances(&world, "work").len(), 3, "nothing is done about it");
    assert!(world.simulator.azure().set_machine_power(&id, 1, "running"));
    until_whole(&world, "work", 3).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_say_zone_image_and_version_and_one_that_joined_by_itself_is_never_deleted() {
    let workload = Workload::default();
    let world = World::with(quick(), Nodes::connecting_by(workload.connector()));
    apply(&world.server, &with_machines(POOLS, &["work"])).await;
    world.until_ready(&["system", "work"]).await;
    let cluster = format!(
        "/subscriptions/{SUBSCRIPTION}/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet"
    );
    let nodes = world.simulator.azure().nodes(&cluster);
    let labels = |zone: &str| {
        json!({(AKS_POOL): "work", "topology.kubernetes.io/zone": zone,
            "kubernetes.azure.com/node-image-version": "AKSUbuntu-2204gen2containerd-202511.07.0"})
    };
    for node in nodes.iter().filter(|node| node.pool == "work") {
        workload
            .join_with(&node.name, &node.provider_id, &labels("westus3-2"))
            .await;
    }
    until_whole(&world, "work", 3).await;
    let told = |world: &World| {
        of_pool(world, "AzureManagedMachine", "work")
            .iter()
            .all(|machine| {
                let status = &machine["status"];
                status["failureDomain"] == "westus3-2"
                    && status["version"] == "v1.33.3"
                    && status["nodeName"] == machine["metadata"]["name"]
                    && status["image"].is_string()
                    && status["addresses"][0]["type"] == "InternalIP"
            })
    };
    world.until("told by nodes", told).await;
    world.assert_rests().await;
    let own = "azure:///subscriptions/s/resourceGroups/mine/providers/Microsoft.Compute/virtualMachines/own";
    workload.join_with("own", own, &labels("0")).await;
    world
        .until("adopted", |world| {
            let shown = world.object("AzureManagedMachine", "own");
            shown.is_some_and(|one| holds(&one, "Ready")) && world.object("Machine", "own").is_some()
        })
        .await;
    remove(&world.server, "Machine", "own").await;
    // As core does when the object is gone.
    world
        .until("let go", |world| {
            let warned = &world.context().events.recorded();
            warned.iter().any(|event| event.reason == "NotDeleted")
        })
        .await;
    workload.leave("own").await;
    until_whole(&world, "work", 3).await;
    assert!(deleted(&world).is_empty(), "no VM of others is touched");
}

#[tokio::test(start_paused = true)]
async fn machines_go_with_their_pool_and_with_their_cluster() {
    let world = started(
        &[("system", "System", 1), ("work", "User", 2), ("other", "User", 1)],
        &["work", "other", "system"],
    )
    .await;
    until_whole(&world, "work", 2).await;
    until_whole(&world, "other", 1).await;
    remove(&world.server, "MachinePool", "other").await;
    world
        .until("gone with the pool", |world| {
            world.object("MachinePool", "other").is_none()
                && names(world, "Machine", "other").is_empty()
                && names(world, "AzureManagedMachine", "other").is_empty()
        })
        .await;
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    world
        .until("gone with the cluster", |world| {
            let objects = world.server.objects();
            of_kind(&objects, "AzureManagedMachine").next().is_none()
                && of_kind(&objects, "Machine").next().is_none()
        })
        .await;
    assert!(deleted(&world).is_empty(), "AKS deletes them with the pool");
    assert_eq!(world.in_azure(), Vec::<String>::new());
}
