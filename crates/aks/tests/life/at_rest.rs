//! What a manager holds and asks for when nothing happens: nothing of clusters that are gone, and nothing of Kubernetes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use slipway_azure::workload::nodes::Nodes;
use slipway_kit::{
    clusterctl::take_away,
    held::{Held, until_nothing_beyond},
    workload::Workload,
};

use super::world::{CLIENT_SECRET, NAMESPACE, World, apply, create, holds, manifests, merge, quick};

const POOLS: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 1)];
const ELSEWHERE: &str = "00000000-0000-0000-0000-00000000000b";
const CLUSTERS: usize = 50;

/// Workload clusters that all are this one.
fn reachable() -> Nodes {
    Nodes::connecting_by(Workload::default().connector())
}

/// The manifests of a cluster under another name: one of its own resource group and identity.
pub fn named(name: &str, subscription: &str) -> Vec<Value> {
    let text = json!(manifests(&json!({"subscriptionID": subscription}), POOLS))
        .to_string()
        .replace("\"fleet\"", &format!("\"{name}\""))
        .replace("\"fleet-secret\"", &format!("\"{name}-secret\""));
    let mut all: Vec<Value> = serde_json::from_str(&text).expect("manifests");
    for object in &mut all {
        match object["kind"].as_str() {
            Some("MachinePool") => {
                let reference = "/spec/template/spec/infrastructureRef/name";
                for pointer in ["/metadata/name", reference] {
                    let value = object.pointer_mut(pointer).expect(pointer);
                    *value = json!(format!("{name}-{}", value.as_str().expect("a name")));
                }
            }
            Some("AzureManagedMachinePool") => {
                object["metadata"]["name"] = json!(format!(
                    "{name}-{}",
                    object["spec"]["name"].as_str().expect("a name")
                ));
            }
            _ => {}
        }
    }
    all
}

pub async fn apply_named(world: &World, name: &str, subscription: &str) {
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": format!("{name}-secret"), "namespace": NAMESPACE},
        "data": {"clientSecret": k8s_openapi::ByteString(CLIENT_SECRET.as_bytes().to_vec())},
    }))
    .expect("a secret");
    Api::<Secret>::namespaced(world.server.client(), NAMESPACE)
        .create(&PostParams::default(), &secret)
        .await
        .expect("created");
    for manifest in named(name, subscription) {
        create(&world.server, &manifest).await;
    }
}

/// Every cluster and pool is ready.
fn all_ready(world: &World, planes: usize) -> bool {
    let objects = world.server.objects();
    let of = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    of("AzureManagedControlPlane")
        .filter(|plane| holds(plane, "Ready"))
        .count()
        == planes
        && of("AzureManagedMachinePool")
            .filter(|pool| holds(pool, "Ready"))
            .count()
            == planes * POOLS.len()
}

#[tokio::test(start_paused = true)]
async fn fifty_clusters_that_are_moved_away_leave_nothing_behind() {
    let world = World::with(quick(), reachable());
    apply_named(&world, "stays", super::world::SUBSCRIPTION).await;
    world.until("ready", |world| all_ready(world, 1)).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    let before = Held::now(world.context());

    for number in 0..CLUSTERS {
        apply_named(&world, &format!("moves-{number}"), ELSEWHERE).await;
    }
    world.until("ready", |world| all_ready(world, CLUSTERS + 1)).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    let held = Held::now(world.context());
    for (what, count) in [
        ("azure_users", CLUSTERS + 1),
        ("azure_views", 2),
        ("azure_secrets", CLUSTERS + 1),
        ("aks_nodes", CLUSTERS + 1),
        ("workload_clusters", CLUSTERS + 1),
        ("aks_control_plane_takeovers", CLUSTERS + 1),
        ("aks_pool_takeovers", (CLUSTERS + 1) * POOLS.len()),
    ] {
        assert_eq!(
            held.of(what),
            i64::try_from(count).expect("a count"),
            "{what}: {held:#?}"
        );
    }

    // As `clusterctl move` does: what is paused loses its finalizers and is deleted, and nobody plans a deletion.
    for number in 0..CLUSTERS {
        let paused = json!({"spec": {"paused": true}});
        merge(&world.server, "Cluster", &format!("moves-{number}"), paused).await;
    }
    tokio::time::sleep(Duration::from_mins(1)).await;
    let kinds = [
        "Cluster",
        "AzureManagedCluster",
        "AzureManagedControlPlane",
        "MachinePool",
        "AzureManagedMachinePool",
        "AzureClusterIdentity",
        "Secret",
    ];
    let moves = |object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        name.starts_with("moves-")
    };
    let moved = take_away(&world.server, &kinds, moves).await;
    assert!(moved.len() >= CLUSTERS * 9, "{}", moved.len());
    until_nothing_beyond(&before, world.context(), Duration::from_mins(10)).await;
    let azure = world.in_azure();
    let left = azure
        .iter()
        .filter(|id| id.contains("/managedclusters/moves-") && !id.contains("/agentpools/"));
    assert_eq!(left.count(), CLUSTERS, "what they stand for lives on");
}

#[tokio::test(start_paused = true)]
async fn at_rest_nothing_is_asked_of_kubernetes() {
    for nodes in [reachable(), super::world::unreachable()] {
        let world = World::with(quick(), nodes);
        apply(&world.server, &manifests(&json!({}), POOLS)).await;
        world.until_ready(&["system", "work"]).await;
        tokio::time::sleep(Duration::from_mins(30)).await;
        let reconciles = |world: &World| {
            let text = world.context().metrics.encode();
            let lines = text
                .lines()
                .filter(|line| line.starts_with("controller_runtime_reconcile_total"));
            lines
                .filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok())
                .sum::<usize>()
        };
        let (calls, before) = (world.asked().len(), reconciles(&world));
        // Each object is asked to be reconciled, as a resync or a restart would.
        for (kind, name) in [
            ("AzureManagedControlPlane", "fleet"),
            ("AzureManagedMachinePool", "system"),
            ("AzureManagedMachinePool", "work"),
        ] {
            let patch = json!({"metadata": {"labels": {"touched": "once"}}});
            merge(&world.server, kind, name, patch).await;
        }
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert!(reconciles(&world) >= before + 3, "they were reconciled");
        let asked: Vec<String> = world
            .asked()
            .into_iter()
            .skip(calls)
            .filter(|line| !line.starts_with("WATCH ") && !line.starts_with("LIST "))
            .collect();
        assert_eq!(asked, Vec::<String>::new());
    }
}
