//! A cluster's whole life: made, scaled, upgraded, paused, moved, deleted; and rest in between.

use std::time::Duration;

use serde_json::{Value, json};

use super::world::{
    CLIENT_SECRET, World, apply, condition, find, holds, manifests, merge, pool_manifests, remove,
};

const TWO_POOLS: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 2)];

fn ids(world: &World, pool: &str) -> Vec<String> {
    let pool = world.object("AzureManagedMachinePool", pool).expect("a pool");
    serde_json::from_value(pool["spec"]["providerIDList"].clone()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_cluster_lives() {
    let world = World::new();
    apply(&world.server, &manifests(&json!({}), TWO_POOLS)).await;
    // Nothing is said to be there before AKS has answered.
    let mut told = Vec::new();
    while !holds(
        &world
            .object("AzureManagedControlPlane", "fleet")
            .expect("a control plane"),
        "Ready",
    ) {
        let plane = world.plane();
        let running = condition(&plane, "ManagedClusterRunning")["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        told.push(running);
        if plane["spec"]["controlPlaneEndpoint"].is_null() {
            assert_ne!(plane["status"]["initialized"], true);
            assert_ne!(plane["status"]["ready"], true);
            assert_eq!(find(&world.server.objects(), "Secret", "fleet-kubeconfig"), None);
            let infrastructure = world
                .object("AzureManagedCluster", "fleet")
                .expect("infrastructure");
            assert_ne!(infrastructure["status"]["ready"], true);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(told.len() < 5000, "{told:?}");
    }
    told.dedup();
    assert!(
        told.iter().any(|text| !text.is_empty()),
        "AKS's own words: {told:?}"
    );
    world.until_ready(&["system", "work"]).await;
    let plane = world.plane();
    assert_eq!(plane["status"]["version"], "v1.33.3");
    assert_eq!(plane["status"]["initialization"]["controlPlaneInitialized"], true);
    let host = plane["spec"]["controlPlaneEndpoint"]["host"]
        .as_str()
        .expect("a host");
    assert!(host.ends_with(".azmk8s.io"), "{host}");
    world
        .until("infrastructure ready", |world| {
            let infrastructure = world
                .object("AzureManagedCluster", "fleet")
                .expect("infrastructure");
            infrastructure["status"]["initialization"]["provisioned"] == true
                && infrastructure["spec"]["controlPlaneEndpoint"]["host"] == host
                && infrastructure["metadata"]["finalizers"].is_null()
        })
        .await;
    let secret = world.object("Secret", "fleet-kubeconfig").expect("a kubeconfig");
    assert_eq!(secret["type"], "cluster.x-k8s.io/secret");
    assert_eq!(
        secret["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"],
        "fleet"
    );
    assert_eq!(
        secret["metadata"]["ownerReferences"][0]["kind"],
        "AzureManagedControlPlane"
    );
    assert_eq!(
        world.count("PUT", "/managedClusters/fleet"),
        1,
        "pools are made with their cluster"
    );
    world.until("nodes", |world| ids(world, "work").len() == 2).await;
    assert!(ids(&world, "work")[0].starts_with("azure:///subscriptions/"));
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
            let pool = world.object("AzureManagedMachinePool", "work").expect("a pool");
            pool["status"]["replicas"] == 4 && holds(&pool, "Ready") && ids(world, "work").len() == 4
        })
        .await;
    assert_eq!(world.count("PUT", "/agentPools/work"), 1);
    merge(
        &world.server,
        "MachinePool",
        "system",
        json!({"spec": {"replicas": 0}}),
    )
    .await;
    world.assert_rests().await;
    let system = world.object("AzureManagedMachinePool", "system").expect("a pool");
    assert_eq!(
        system["status"]["replicas"], 1,
        "the last node of a system pool stays"
    );
    merge(
        &world.server,
        "MachinePool",
        "system",
        json!({"spec": {"replicas": 1}}),
    )
    .await;

    merge(
        &world.server,
        "AzureManagedControlPlane",
        "fleet",
        json!({"spec": {"version": "v1.34.1"}}),
    )
    .await;
    world
        .until("upgraded", |world| {
            let plane = world.plane();
            plane["status"]["version"] == "v1.34.1" && holds(&plane, "Ready")
        })
        .await;
    let version = json!({"spec": {"template": {"spec": {"version": "v1.34.1"}}}});
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
    world.until_ready(&["system", "work"]).await;
    world.assert_rests().await;

    for object in world.server.objects() {
        if object["metadata"]["name"] != "fleet-secret" {
            assert!(!object.to_string().contains(CLIENT_SECRET), "{object}");
        }
    }
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!(world.in_azure(), Vec::<String>::new());
    let identity = world
        .object("AzureClusterIdentity", "fleet")
        .expect("the identity stays");
    assert!(
        identity["metadata"]["finalizers"]
            .as_array()
            .is_none_or(Vec::is_empty),
        "{identity}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_with_what_azure_is_doing() {
    let mut world = World::new();
    apply(&world.server, &manifests(&json!({}), TWO_POOLS)).await;
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
async fn nothing_is_touched_while_paused_or_moved() {
    let mut world = World::new();
    apply(&world.server, &manifests(&json!({}), TWO_POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    merge(
        &world.server,
        "Cluster",
        "fleet",
        json!({"spec": {"paused": true}}),
    )
    .await;
    world
        .until("paused", |world| {
            let is_paused = |object: Value| {
                let conditions = object["status"]["v1beta2"]["conditions"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                conditions
                    .iter()
                    .any(|one| one["type"] == "Paused" && one["status"] == "True")
                    && object["metadata"]["annotations"]["clusterctl.cluster.x-k8s.io/block-move"].is_null()
            };
            is_paused(world.plane())
                && ["system", "work"].iter().all(|pool| {
                    world
                        .object("AzureManagedMachinePool", pool)
                        .is_some_and(&is_paused)
                })
        })
        .await;
    let version = world.server.version();
    let writes = world.count("PUT", "");
    merge(
        &world.server,
        "MachinePool",
        "work",
        json!({"spec": {"replicas": 5}}),
    )
    .await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(world.count("PUT", ""), writes);
    assert_eq!(world.server.version(), version + 1, "only the user wrote");

    // The move: the same objects elsewhere without status, then gone here.
    let mut moved: Vec<Value> = world
        .server
        .objects()
        .into_iter()
        .filter(|object| object["kind"] != "Namespace")
        .collect();
    moved.sort_by_key(|object| object["kind"] != "Cluster");
    world.kill().await;
    let before = world.in_azure();
    let mut there = World::with(super::world::quick(), super::world::unreachable());
    there.kill().await;
    there.simulator = std::sync::Arc::clone(&world.simulator);
    for mut object in moved {
        object.as_object_mut().expect("an object").remove("status");
        for field in [
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "managedFields",
            "ownerReferences",
        ] {
            object["metadata"]
                .as_object_mut()
                .expect("metadata")
                .remove(field);
        }
        if object["kind"] == "Secret" {
            // Without its owner it is somebody else's, and left alone.
            continue;
        }
        super::world::create(&there.server, &object).await;
    }
    let secret = json!({"metadata": {"name": "fleet-secret", "namespace": "default"},
        "data": {"clientSecret": k8s_openapi::ByteString(CLIENT_SECRET.as_bytes().to_vec())}});
    let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(secret).expect("a secret");
    kube::Api::namespaced(there.server.client(), "default")
        .create(&kube::api::PostParams::default(), &secret)
        .await
        .expect("created");
    there.clock = world.clock;
    there.start();
    merge(
        &there.server,
        "MachinePool",
        "work",
        json!({"spec": {"replicas": 2}}),
    )
    .await;
    merge(
        &there.server,
        "Cluster",
        "fleet",
        json!({"spec": {"paused": null}}),
    )
    .await;
    there.until_ready(&["system", "work"]).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(there.in_azure(), before);
    assert_eq!(there.count("PUT", ""), writes, "Azure is not touched by a move");
    there.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_pool_comes_from_the_template_or_after_a_while_from_nobody() {
    let world = World::new();
    let mut all = manifests(&json!({}), &[]);
    all[2]["spec"] = json!({"defaultPoolTemplate": {"replicas": 2, "spec": {
        "mode": "System", "sku": "Standard_D4s_v3", "name": "first"}}});
    apply(&world.server, &all).await;
    world.until_ready(&[]).await;
    assert!(
        world
            .in_azure()
            .iter()
            .any(|id| id.ends_with("/agentpools/first"))
    );

    let world = World::new();
    apply(&world.server, &manifests(&json!({}), &[])).await;
    world
        .until("waiting for a pool", |world| {
            condition(&world.plane(), "ManagedClusterRunning")["reason"] == "WaitingForSystemPool"
        })
        .await;
    assert_eq!(world.count("PUT", "/managedClusters/"), 0);
    world.until_ready(&[]).await;
    assert!(
        world
            .in_azure()
            .iter()
            .any(|id| id.ends_with("/agentpools/default"))
    );
    // A pool object of that name adopts it.
    for manifest in pool_manifests("default", "System", 1, &json!({})) {
        super::world::create(&world.server, &manifest).await;
    }
    world.until_ready(&["default"]).await;
    let pools = world
        .in_azure()
        .iter()
        .filter(|id| id.contains("/agentpools/"))
        .count();
    assert_eq!(pools, 1, "adopted, not made twice");
    assert_eq!(world.count("PUT", "/agentPools/default"), 0);
}
