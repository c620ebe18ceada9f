//! What people are told: conditions and events of what is under way, of what cannot go on, and of what is over.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use slipway_kit::azure::SUBSCRIPTION;

use super::world::{World, apply, condition, holds, manifests, merge, remove};

const CLUSTER: &str = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet";
const POOLS: &[(&str, &str, i32)] = &[("system", "System", 2), ("work", "User", 1)];

async fn standing() -> World {
    let world = World::new();
    apply(&world.server, &manifests(&json!({}), POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    world
}

/// Reasons and notes of the events about an object.
fn events(world: &World, kind: &str, name: &str) -> Vec<(String, bool, String)> {
    let all = world.context().events.recorded();
    all.into_iter()
        .filter(|event| {
            event.regarding.kind.as_deref() == Some(kind) && event.regarding.name.as_deref() == Some(name)
        })
        .map(|event| (event.reason, event.warning, event.note))
        .collect()
}

fn count(world: &World, kind: &str, name: &str, reason: &str) -> usize {
    let all = events(world, kind, name);
    all.iter().filter(|(known, ..)| known == reason).count()
}

fn message(object: &Value, type_: &str) -> String {
    condition(object, type_)["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_stopped_cluster_does_not_run_and_its_changes_wait() {
    let world = standing().await;
    world.ask(Method::POST, &format!("{CLUSTER}/stop"), None);
    world
        .until("stopped", |world| {
            condition(&world.plane(), "ManagedClusterRunning")["reason"] == "Stopped"
        })
        .await;
    let plane = world.plane();
    assert_eq!(condition(&plane, "ManagedClusterRunning")["status"], "False");
    let newer = plane["status"]["v1beta2"]["conditions"]
        .as_array()
        .expect("conditions")
        .clone();
    let available = newer
        .iter()
        .find(|one| one["type"] == "Available")
        .expect("Available");
    assert_eq!(
        (&available["status"], &available["reason"]),
        (&json!("False"), &json!("Stopped"))
    );
    world.simulator.azure().forget_requests();
    let patch = json!({"spec": {"additionalTags": {"team": "blue"}}});
    merge(&world.server, "AzureManagedControlPlane", "fleet", patch).await;
    merge(
        &world.server,
        "MachinePool",
        "work",
        json!({"spec": {"replicas": 3}}),
    )
    .await;
    world
        .until("the pool waits", |world| {
            let pool = world.object("AzureManagedMachinePool", "work").expect("a pool");
            condition(&pool, "AgentPoolsReady")["reason"] == "Stopped"
        })
        .await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(world.count("PUT", "/managedClusters/fleet"), 0);
    world.ask(Method::POST, &format!("{CLUSTER}/start"), None);
    world
        .until("changed", |world| {
            world.ask(Method::GET, CLUSTER, None)["tags"]["team"] == "blue"
                && holds(&world.plane(), "Ready")
                && world.object("AzureManagedMachinePool", "work").expect("a pool")["status"]["replicas"] == 3
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_machine_pool_of_the_last_system_pool_waits_and_says_so() {
    let world = standing().await;
    remove(&world.server, "MachinePool", "system").await;
    world
        .until("told", |world| {
            let pool = world.object("AzureManagedMachinePool", "system").expect("a pool");
            condition(&pool, "AgentPoolsReady")["reason"] == "LastSystemPool"
        })
        .await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(
        count(&world, "AzureManagedMachinePool", "system", "LastSystemPool"),
        1
    );
    assert!(
        world
            .in_azure()
            .iter()
            .any(|id| id.ends_with("/agentpools/system"))
    );
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!(world.in_azure(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_system_pool_scaled_to_nothing_keeps_one_node_and_says_so() {
    let world = standing().await;
    merge(
        &world.server,
        "MachinePool",
        "system",
        json!({"spec": {"replicas": 0}}),
    )
    .await;
    world
        .until("one node", |world| {
            let pool = world.object("AzureManagedMachinePool", "system").expect("a pool");
            pool["status"]["replicas"] == 1 && holds(&pool, "Ready")
        })
        .await;
    let pool = world.object("AzureManagedMachinePool", "system").expect("a pool");
    let newer = pool["status"]["v1beta2"]["conditions"]
        .as_array()
        .expect("conditions")
        .clone();
    for type_ in ["AgentPoolsReady", "Ready"] {
        let one = newer.iter().find(|one| one["type"] == type_).expect(type_);
        assert_eq!(
            one["message"],
            "a system pool keeps one node, though its MachinePool asks for none"
        );
    }
    assert_eq!(
        count(
            &world,
            "AzureManagedMachinePool",
            "system",
            "SystemPoolKeepsOneNode"
        ),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_default_pool_is_not_made_without_a_warning_long_before() {
    let world = World::new();
    let start = world.clock.now();
    apply(&world.server, &manifests(&json!({}), &[])).await;
    let warned =
        |world: &World| count(world, "AzureManagedControlPlane", "fleet", "WaitingForSystemPool") > 0;
    world.until("warned", warned).await;
    let after = world.clock.now().duration_since(start);
    assert!((1..=2).contains(&after.as_mins()), "{after:?}");
    assert_eq!(world.count("PUT", "/managedClusters/fleet"), 0);
    world
        .until("made", |world| world.count("PUT", "/managedClusters/fleet") > 0)
        .await;
    let after = world.clock.now().duration_since(start);
    assert!(after.as_mins() >= 5, "{after:?}");
    world
        .until("said", |world| {
            count(world, "AzureManagedControlPlane", "fleet", "DefaultSystemPool") == 1
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn events_tell_of_creation_upgrade_and_deletion_once_each_and_in_their_own_words() {
    let world = standing().await;
    let id = format!("/subscriptions/{SUBSCRIPTION}{CLUSTER}");
    let of = |world: &World, reason: &str| -> Vec<String> {
        let all = events(world, "AzureManagedControlPlane", "fleet");
        all.into_iter()
            .filter(|(known, ..)| known == reason)
            .map(|(_, _, note)| note)
            .collect()
    };
    let created = of(&world, "Creating");
    for kind in ["ResourceGroup", "VirtualNetwork", "Subnet", "ManagedCluster"] {
        let beginning = format!("ensure {kind} ");
        assert_eq!(
            created.iter().filter(|note| note.starts_with(&beginning)).count(),
            1,
            "{created:#?}"
        );
    }
    let patch = json!({"spec": {"version": "v1.34.1"}});
    merge(&world.server, "AzureManagedControlPlane", "fleet", patch).await;
    world
        .until("under way", |world| {
            condition(&world.plane(), "ManagedClusterRunning")["reason"] == "Updating"
        })
        .await;
    let said = message(&world.plane(), "ManagedClusterRunning");
    assert!(
        said.starts_with("Azure is updating managedClusters/fleet") && said.contains("(since 2026-01-01T"),
        "{said}"
    );
    world
        .until("upgraded", |world| {
            world.plane()["status"]["version"] == "v1.34.1" && holds(&world.plane(), "Ready")
        })
        .await;
    let upgrading = of(&world, "Upgrading");
    assert_eq!(upgrading.len(), 1, "{upgrading:#?}");
    assert!(
        upgrading[0].starts_with(&format!("ensure ManagedCluster {id}: it differs")),
        "{upgrading:?}"
    );
    assert!(
        upgrading[0].contains("properties.kubernetesVersion: \"1.33.3\" -> \"1.34.1\""),
        "{upgrading:?}"
    );
    assert_eq!(
        of(&world, "Upgraded"),
        [format!("ensure ManagedCluster {id}: Kubernetes v1.34.1 runs")]
    );
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    let deleting = of(&world, "Deleting");
    assert_eq!(
        deleting
            .iter()
            .filter(|note| note.contains("delete ManagedCluster "))
            .count(),
        1,
        "{deleting:#?}"
    );
    assert_eq!(of(&world, "Deleted").len(), 1);
    for (reason, _, note) in events(&world, "AzureManagedControlPlane", "fleet") {
        for odd in ["Some(", "None", "Status {", "ApiError"] {
            assert!(!note.contains(odd), "{reason}: {note}");
        }
    }
}

/// Labels whose record cannot be compressed enough to fit into an annotation.
fn incompressible_labels() -> Value {
    let mut seed: u64 = 7;
    let mut letter = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        char::from(b"abcdefghijklmnopqrstuvwxyz0123456789"[(seed >> 33) as usize % 36])
    };
    (0..6000)
        .map(|number| {
            let value: String = (0..63).map(|_| letter()).collect();
            (format!("k{number}"), json!(value))
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[tokio::test(start_paused = true)]
async fn a_record_that_does_not_fit_an_annotation_is_a_condition_until_it_does() {
    let world = standing().await;
    let labelled = |labels: Value| json!({"spec": {"nodeLabels": labels}});
    let pool = |world: &World| world.object("AzureManagedMachinePool", "work").expect("a pool");
    merge(
        &world.server,
        "AzureManagedMachinePool",
        "work",
        labelled(incompressible_labels()),
    )
    .await;
    world
        .until("told", |world| {
            condition(&pool(world), "AgentPoolsReady")["reason"] == "KubernetesError"
        })
        .await;
    let said = message(&pool(&world), "Ready");
    assert!(said.contains("metadata.annotations: Too long"), "{said}");
    let puts = world.count("PUT", "/agentPools/work");
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(
        world.count("PUT", "/agentPools/work") <= puts + 1,
        "Azure is not written to over and over"
    );
    let few = json!({"spec": {"nodeLabels": null}});
    merge(&world.server, "AzureManagedMachinePool", "work", few).await;
    merge(
        &world.server,
        "AzureManagedMachinePool",
        "work",
        labelled(json!({"team": "blue"})),
    )
    .await;
    world.until_ready(&["system", "work"]).await;
}
