//! What becomes of resources when their object goes, by policy, protection and ownership.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::world::{
    World, apply, cluster, condition, group, managed_cluster, manifests, merge, network, pool_manifests,
    remove,
};

const POLICY: &str = "serviceoperator.azure.com/reconcile-policy";
const PROTECTION: &str = "slipway.dev/deletion-protection";

fn with(mut manifest: Value, annotation: &str, value: &str) -> Value {
    manifest["metadata"]["annotations"][annotation] = json!(value);
    manifest
}

#[tokio::test(start_paused = true)]
async fn what_is_detached_or_skipped_stays() {
    let world = World::new();
    world.ask(
        Method::PUT,
        "/resourceGroups/fleet",
        Some(&json!({"location": "westus3"})),
    );
    let skipped = with(group(), POLICY, "skip");
    let detached = with(network(), POLICY, "detach-on-delete");
    let mut all = cluster(&[skipped, detached], &[managed_cluster(&json!({}))]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world.until_ready(&["system"]).await;
    let group = world.ask(Method::GET, "/resourceGroups/fleet", None);
    assert!(
        group["tags"]["slipway.dev_owner"].is_null(),
        "never written: {group}"
    );
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    let left = world.in_azure();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(
        left.iter().any(|id| id.ends_with("/virtualnetworks/fleet")),
        "{left:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_protected_resource_keeps_its_object_and_what_it_stands_in() {
    let world = World::new();
    let protected = with(network(), PROTECTION, "true");
    let mut all = cluster(&[group(), protected], &[managed_cluster(&json!({}))]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world.until_ready(&["system"]).await;
    remove(&world.server, "Cluster", "fleet").await;
    world
        .until("held back", |world| {
            world
                .object("AzureASOManagedCluster", "fleet")
                .is_some_and(|object| condition(&object, "Ready")["reason"] == "DeletionProtected")
        })
        .await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    let left = world.in_azure();
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(
        world.count("DELETE", "/resourceGroups/fleet"),
        world.count("DELETE", "/managedClusters/")
    );
    world
        .replace_resources("AzureASOManagedCluster", "fleet", &[group(), network()])
        .await;
    world.until_gone().await;
    assert_eq!(world.in_azure(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_group_that_holds_a_cluster_of_others_stays() {
    let world = World::new();
    apply(&world.server, &manifests(&[("system", "System", 1)])).await;
    world.until_ready(&["system"]).await;
    let other = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/other";
    let body = json!({"location": "westus3", "identity": {"type": "SystemAssigned"}, "properties": {
        "dnsPrefix": "other", "agentPoolProfiles": [{"name": "one", "count": 1, "mode": "System",
            "vmSize": "Standard_D2s_v3", "type": "VirtualMachineScaleSets"}]}});
    world.ask(Method::PUT, other, Some(&body));
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    let left = world.in_azure();
    assert!(
        left.iter().any(|id| id.ends_with("/managedclusters/other")),
        "{left:?}"
    );
    assert!(
        !left.iter().any(|id| id.ends_with("/managedclusters/fleet")),
        "{left:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pool_goes_alone_and_the_last_system_pool_stays() {
    let world = World::new();
    apply(
        &world.server,
        &manifests(&[("system", "System", 1), ("work", "User", 1)]),
    )
    .await;
    world.until_ready(&["system", "work"]).await;
    remove(&world.server, "MachinePool", "work").await;
    world
        .until("gone", |world| world.object("MachinePool", "work").is_none())
        .await;
    assert!(!world.in_azure().iter().any(|id| id.ends_with("/agentpools/work")));
    assert_eq!(world.count("DELETE", "/agentPools/work"), 1);
    remove(&world.server, "MachinePool", "system").await;
    world
        .until("held back", |world| {
            condition(&world.pool("system"), "Ready")["reason"] == "LastSystemPool"
        })
        .await;
    assert_eq!(world.count("DELETE", "/agentPools/system"), 0);
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!(world.in_azure(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn without_a_credential_nothing_is_let_go_unless_the_user_says_so() {
    let world = World::new();
    apply(&world.server, &manifests(&[("system", "System", 1)])).await;
    world.until_ready(&["system"]).await;
    remove(&world.server, "Secret", "sign-in").await;
    remove(&world.server, "Cluster", "fleet").await;
    world
        .until("told", |world| {
            world
                .object("AzureASOManagedControlPlane", "fleet")
                .is_some_and(|plane| {
                    let ready = condition(&plane, "Ready");
                    let message = ready["message"].as_str().unwrap_or_default();
                    ready["reason"] == "SecretNotFound" && message.contains("slipway.dev/orphan")
                })
        })
        .await;
    let orphan = json!({"metadata": {"annotations": {"slipway.dev/orphan": "true"}}});
    for kind in ["AzureASOManagedControlPlane", "AzureASOManagedCluster"] {
        merge(&world.server, kind, "fleet", orphan.clone()).await;
    }
    world.until_gone().await;
    assert!(!world.in_azure().is_empty(), "nothing was deleted");
}
