//! What a manager holds and asks for when nothing happens: nothing of clusters that are gone, and no more of Azure for many
//! clusters than for one.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use slipway_azure::workload::nodes::Nodes;
use slipway_kit::{
    clusterctl::take_away,
    held::{Held, until_nothing_beyond},
    workload::Workload,
};

use super::world::{
    AKS, World, apply, cluster, create, credential, group, is_settled, managed_cluster, merge, network,
    pool_manifests, quick, resource,
};

/// Workload clusters that all are this one, with a node of the pool `system`.
async fn reachable() -> Nodes {
    let workload = Workload::default();
    workload.join("one", "system").await;
    Nodes::connecting_by(workload.connector())
}

/// The manifests of a cluster with a network and a pool under another name, without the credential that all share.
fn named(name: &str) -> Vec<Value> {
    let mut all = cluster(&[network(), group()], &[managed_cluster(&json!({}))]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    let text = json!(&all[1..])
        .to_string()
        .replace("\"fleet\"", &format!("\"{name}\""))
        .replace("\"fleet-system\"", &format!("\"{name}-system\""));
    let mut all: Vec<Value> = serde_json::from_str(&text).expect("manifests");
    for object in &mut all {
        let own = json!(format!("{name}-system"));
        match object["kind"].as_str() {
            Some("MachinePool") => {
                object["metadata"]["name"] = own.clone();
                object["spec"]["template"]["spec"]["infrastructureRef"]["name"] = own;
            }
            Some("AzureASOManagedMachinePool") => object["metadata"]["name"] = own,
            _ => {}
        }
    }
    all
}

async fn until_all_ready(world: &World, clusters: usize) {
    world
        .until("all ready", |world| {
            let objects = world.server.objects();
            let ready = objects.iter().filter(|object| {
                let kind = object["kind"].as_str().unwrap_or_default();
                kind.starts_with("AzureASO") && is_settled(object)
            });
            ready.count() == 3 * clusters
        })
        .await;
}

/// A world with so many clusters, at rest.
async fn with_clusters(names: &[String]) -> World {
    let world = World::with(quick(), reachable().await);
    create(&world.server, &credential("sign-in")).await;
    for name in names {
        apply(&world.server, &named(name)).await;
    }
    until_all_ready(&world, names.len()).await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    world
}

/// Every question to Azure in two hours, by what is asked for.
async fn asked(world: &World) -> BTreeMap<String, usize> {
    world.simulator.azure().forget_requests();
    tokio::time::sleep(Duration::from_hours(2)).await;
    let azure = world.simulator.azure();
    let mut found = BTreeMap::new();
    for request in azure.requests().filter(|one| !one.path.contains("oauth2")) {
        *found
            .entry(format!("{} {}", request.method, request.path))
            .or_default() += 1;
    }
    found
}

#[tokio::test(start_paused = true)]
async fn at_rest_many_clusters_ask_azure_what_one_asks() {
    let one = asked(&with_clusters(&["first".to_owned()]).await).await;
    let names: Vec<String> = (0..8).map(|number| format!("fleet-{number}")).collect();
    let many = asked(&with_clusters(&names).await).await;
    let total = |asked: &BTreeMap<String, usize>| asked.values().sum::<usize>();
    println!(
        "report: aso at rest: {} requests to Azure in two hours for one cluster, {} for eight",
        total(&one),
        total(&many)
    );
    // The lists of three types, each read once in ten minutes.
    assert_eq!(one.len(), 3, "{one:#?}");
    assert!(one.keys().all(|line| line.starts_with("GET ")), "{one:#?}");
    assert!(one.keys().eq(many.keys()), "{many:#?}");
    let most = 2 * 60 / 10 + 1;
    assert!(
        one.values().chain(many.values()).all(|count| *count <= most),
        "{many:#?}"
    );
}

/// Reconciles come and go; what they read comes from watches, a Secret that is not there included.
#[tokio::test(start_paused = true)]
async fn at_rest_nothing_is_asked_of_kubernetes() {
    let world = with_clusters(&["first".to_owned()]).await;
    let calls = world.asked().len();
    for (kind, name) in [
        ("AzureASOManagedCluster", "first"),
        ("AzureASOManagedControlPlane", "first"),
        ("AzureASOManagedMachinePool", "first-system"),
    ] {
        let patch = json!({"metadata": {"labels": {"touched": "once"}}});
        merge(&world.server, kind, name, patch).await;
    }
    tokio::time::sleep(Duration::from_hours(2)).await;
    let asked: Vec<String> = world
        .asked()
        .into_iter()
        .skip(calls)
        .filter(|line| !line.starts_with("WATCH ") && !line.starts_with("LIST "))
        .collect();
    // Whether Azure Service Operator was installed meanwhile: every ten minutes.
    let operator = "GET customresourcedefinitions managedclusters.containerservice.azure.com";
    let (of_operator, asked): (Vec<String>, Vec<String>) =
        asked.into_iter().partition(|line| line == operator);
    assert_eq!(asked, Vec::<String>::new());
    assert!(
        of_operator.len() <= 2 * (2 * 60 / 10 + 1),
        "{}",
        of_operator.len()
    );
}

/// A child that no list shows is asked for by itself, once in `--azure-child-read-age`.
#[tokio::test(start_paused = true)]
async fn children_that_no_list_shows_are_read_once_an_hour() {
    let world = World::with(quick(), reachable().await);
    let window = resource(
        AKS,
        "MaintenanceConfiguration",
        "default",
        &json!({"owner": {"name": "fleet"}, "timeInWeek": [{"day": "Sunday", "hourSlots": [1, 2]}]}),
    );
    let mut all = cluster(&[network(), group()], &[managed_cluster(&json!({})), window]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    until_all_ready(&world, 1).await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    let found = asked(&world).await;
    let (children, lists): (Vec<_>, Vec<_>) = found
        .iter()
        .partition(|(line, _)| line.ends_with("/maintenanceConfigurations/default"));
    assert_eq!(lists.len(), 3, "{found:#?}");
    assert_eq!(children.len(), 1, "{found:#?}");
    let (line, count) = children[0];
    println!("report: aso at rest: a child that no list shows is asked for {count} times in two hours");
    assert!(line.starts_with("GET ") && (1..=3).contains(count), "{found:#?}");
}

#[tokio::test(start_paused = true)]
async fn clusters_that_are_moved_away_leave_nothing_behind() {
    const CLUSTERS: usize = 12;
    let world = with_clusters(&["stays".to_owned()]).await;
    let before = Held::now(world.context());
    let names: Vec<String> = (0..CLUSTERS).map(|number| format!("moves-{number}")).collect();
    for name in &names {
        apply(&world.server, &named(name)).await;
    }
    until_all_ready(&world, CLUSTERS + 1).await;
    let held = Held::now(world.context());
    let clusters = i64::try_from(CLUSTERS + 1).expect("a count");
    assert_eq!(held.of("aso_nodes"), clusters, "{held:#?}");
    for name in &names {
        merge(&world.server, "Cluster", name, json!({"spec": {"paused": true}})).await;
    }
    tokio::time::sleep(Duration::from_mins(1)).await;
    let kinds = [
        "Cluster",
        "AzureASOManagedCluster",
        "AzureASOManagedControlPlane",
        "MachinePool",
        "AzureASOManagedMachinePool",
        "Secret",
    ];
    let moves = |object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        name.starts_with("moves-")
    };
    let moved = take_away(&world.server, &kinds, moves).await;
    assert!(moved.len() >= CLUSTERS * 6, "{}", moved.len());
    until_nothing_beyond(&before, world.context(), Duration::from_mins(10)).await;
    let azure = world.in_azure();
    let left = azure
        .iter()
        .filter(|id| id.contains("/managedclusters/moves-") && !id.contains("/agentpools/"));
    assert_eq!(left.count(), CLUSTERS, "what they stand for lives on");
}
