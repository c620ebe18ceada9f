//! A cluster's whole life: made, scaled, upgraded, paused, restarted, deleted; and rest in between.

use std::time::Duration;

use serde_json::{Value, json};

use super::world::{
    CLIENT_SECRET, NEW, OLD, World, apply, condition, holds, is_settled, manifests, merge, pool_manifests,
    remove,
};

const TWO_POOLS: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 2)];

fn ids(world: &World, pool: &str) -> Vec<String> {
    let pool = world.pool(pool);
    serde_json::from_value(pool["spec"]["providerIDList"].clone()).unwrap_or_default()
}

async fn assert_is_told_while_it_is_made(world: &World) {
    // Nothing is said to be there before AKS has answered.
    let mut told = Vec::new();
    while !holds(&world.plane(), "Ready") {
        let plane = world.plane();
        let message = condition(&plane, "ResourcesReady")["message"].as_str();
        told.push(message.unwrap_or_default().to_owned());
        if plane["status"]["controlPlaneEndpoint"].is_null() {
            assert_ne!(plane["status"]["initialized"], true);
            assert_ne!(plane["status"]["ready"], true);
            assert_eq!(world.object("Secret", "fleet-kubeconfig"), None);
            assert_ne!(world.infrastructure()["status"]["ready"], true);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(told.len() < 5000, "{told:?}");
    }
    told.dedup();
    assert!(
        told.iter()
            .any(|text| text.contains("Azure is creating managedClusters/fleet")),
        "AKS's own words: {told:?}"
    );
}

fn assert_status_of_a_standing_cluster(world: &World) {
    let plane = world.plane();
    assert_eq!(plane["status"]["version"], OLD);
    assert_eq!(plane["status"]["versions"], json!([{"version": OLD}]));
    assert_eq!(plane["status"]["initialization"]["controlPlaneInitialized"], true);
    assert_eq!(plane["status"]["externalManagedControlPlane"], true);
    let host = plane["status"]["controlPlaneEndpoint"]["host"].clone();
    assert!(host.as_str().expect("a host").ends_with(".azmk8s.io"), "{host}");
    let infrastructure = world.infrastructure();
    assert_eq!(infrastructure["spec"]["controlPlaneEndpoint"]["host"], host);
    assert_eq!(infrastructure["status"]["initialization"]["provisioned"], true);
    let line = &plane["status"]["resources"][0];
    assert_eq!(
        (&line["ready"], &line["state"]),
        (&json!(true), &json!("Succeeded"))
    );
    assert!(
        line["since"].is_string()
            && line["id"]
                .as_str()
                .expect("an id")
                .ends_with("/managedClusters/fleet")
    );
    let secret = world.object("Secret", "fleet-kubeconfig").expect("a kubeconfig");
    assert_eq!(secret["type"], "cluster.x-k8s.io/secret");
    assert_eq!(
        secret["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"],
        "fleet"
    );
    assert_eq!(
        secret["metadata"]["ownerReferences"][0]["kind"],
        "AzureASOManagedControlPlane"
    );
}

async fn upgrade(world: &World) {
    merge(
        &world.server,
        "AzureASOManagedControlPlane",
        "fleet",
        json!({"spec": {"version": NEW}}),
    )
    .await;
    world
        .until("upgraded", |world| {
            let plane = world.plane();
            plane["status"]["version"] == NEW && is_settled(&plane)
        })
        .await;
    assert_eq!(world.plane()["status"]["initialized"], true);
    let version = json!({"spec": {"template": {"spec": {"version": NEW}}}});
    for pool in ["system", "work"] {
        merge(&world.server, "MachinePool", pool, version.clone()).await;
    }
    world
        .until("pools upgraded", |world| {
            let azure = world.simulator.azure();
            azure
                .state()
                .resources
                .iter()
                .filter(|one| one.id.contains("/agentPools/"))
                .all(|pool| pool.document["properties"]["currentOrchestratorVersion"] == "1.34.1")
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_lives() {
    let world = World::new();
    apply(&world.server, &manifests(TWO_POOLS)).await;
    assert_is_told_while_it_is_made(&world).await;
    world.until_ready(&["system", "work"]).await;
    assert_status_of_a_standing_cluster(&world);
    assert_eq!(
        world.count("PUT", "/managedClusters/fleet"),
        1,
        "pools are made with their cluster"
    );
    world.until("nodes", |world| ids(world, "work").len() == 2).await;
    assert!(ids(&world, "work")[0].starts_with("azure:///subscriptions/"));
    assert_eq!(world.pool("work")["status"]["replicas"], 2);
    world.assert_rests().await;

    merge(
        &world.server,
        "MachinePool",
        "work",
        json!({"spec": {"replicas": 4}}),
    )
    .await;
    world
        .until("scaled", |world| {
            let pool = world.pool("work");
            pool["status"]["replicas"] == 4 && is_settled(&pool) && ids(world, "work").len() == 4
        })
        .await;
    assert_eq!(world.count("PUT", "/agentPools/work"), 1);

    upgrade(&world).await;
    world.until_ready(&["system", "work"]).await;
    world.assert_rests().await;

    for object in world.server.objects() {
        if object["metadata"]["name"] != "sign-in" {
            assert!(!object.to_string().contains(CLIENT_SECRET), "{object}");
        }
    }
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!(world.in_azure(), Vec::<String>::new());
    assert_eq!(
        world.count("DELETE", "/agentPools/"),
        0,
        "pools go with their cluster"
    );
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_with_what_azure_is_doing() {
    let mut world = World::new();
    apply(&world.server, &manifests(TWO_POOLS)).await;
    world
        .until("asked for", |world| {
            world.count("PUT", "/managedClusters/fleet") == 1
        })
        .await;
    world.kill().await;
    world.start();
    world.until_ready(&["system", "work"]).await;
    assert_eq!(world.count("PUT", "/managedClusters/fleet"), 1);
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_touched_while_paused() {
    let world = World::new();
    apply(&world.server, &manifests(TWO_POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    let pause = |paused: Value| json!({"spec": {"paused": paused}});
    merge(&world.server, "Cluster", "fleet", pause(json!(true))).await;
    world
        .until("paused", |world| {
            let is_paused = |object: &Value| {
                let annotations = &object["metadata"]["annotations"];
                holds(object, "Paused") && annotations["clusterctl.cluster.x-k8s.io/block-move"].is_null()
            };
            is_paused(&world.plane())
                && is_paused(&world.infrastructure())
                && ["system", "work"].iter().all(|pool| is_paused(&world.pool(pool)))
        })
        .await;
    let (version, writes) = (world.server.version(), world.count("PUT", ""));
    let five = json!({"spec": {"replicas": 5}});
    merge(&world.server, "MachinePool", "work", five).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(world.count("PUT", ""), writes);
    assert_eq!(world.server.version(), version + 1, "only the user wrote");
    merge(&world.server, "Cluster", "fleet", pause(Value::Null)).await;
    world
        .until("scaled", |world| world.pool("work")["status"]["replicas"] == 5)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_is_not_made_before_its_pools_are_known() {
    let world = World::new();
    let mut all = manifests(&[]);
    let mut pools = pool_manifests("system", "User", 1, &json!({}));
    all.extend(pools.clone());
    apply(&world.server, &all).await;
    let told = |world: &World| {
        let plane = world.plane();
        let ready = condition(&plane, "Ready");
        (
            ready["reason"].as_str().unwrap_or_default().to_owned(),
            ready["message"].as_str().unwrap_or_default().to_owned(),
        )
    };
    world
        .until("waiting", |world| {
            let (reason, message) = told(world);
            reason == "WaitingForMachinePools" && message.contains("set mode: System in one of them")
        })
        .await;
    assert_eq!(world.count("PUT", "/managedClusters/"), 0);
    pools[1]["spec"]["resources"][0]["spec"]["mode"] = json!("System");
    let resources = pools[1]["spec"]["resources"]
        .as_array()
        .expect("resources")
        .clone();
    world
        .replace_resources("AzureASOManagedMachinePool", "system", &resources)
        .await;
    world.until_ready(&["system"]).await;
}

#[tokio::test(start_paused = true)]
async fn machine_pools_that_nobody_reconciles_are_told() {
    let world = World::new();
    apply(&world.server, &manifests(&[])).await;
    let reason = |world: &World| condition(&world.plane(), "Ready")["reason"].clone();
    world
        .until("waiting", |world| reason(world) == "WaitingForMachinePools")
        .await;
    world.stop_core();
    apply(&world.server, &pool_manifests("system", "System", 1, &json!({}))).await;
    world
        .until("told", |world| {
            let message = condition(&world.plane(), "Ready")["message"].clone();
            reason(world) == "MachinePoolsNotReconciled"
                && message
                    .as_str()
                    .is_some_and(|text| text.contains("--feature-gates=MachinePool=true"))
        })
        .await;
    assert_eq!(world.count("PUT", "/managedClusters/"), 0);
}
