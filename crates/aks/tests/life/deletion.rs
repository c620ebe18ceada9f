//! Deletion: at every stage of creation, in order, and never of what is not ours.

use std::time::Duration;

use http::Method;
use serde_json::json;

use super::world::{World, apply, condition, manifests, pool_manifests, remove};

const POOLS: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 1)];

#[tokio::test(start_paused = true)]
async fn a_cluster_can_be_deleted_at_every_stage_of_its_creation() {
    let spec = json!({"extensions": [{"name": "flux", "extensionType": "microsoft.flux"}]});
    let mut stages = 0;
    let every = match std::env::var_os("SLIPWAY_TEST_FULL") {
        Some(_) => 1,
        None => 7,
    };
    for stage in (0..36).step_by(every) {
        let world = World::new();
        apply(&world.server, &manifests(&spec, POOLS)).await;
        // A Cluster that nobody holds yet is simply gone, and takes nothing along.
        while world.object("Cluster", "fleet").expect("a cluster")["metadata"]["finalizers"].is_null() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Half a second at a time at first, where most happens.
        tokio::time::sleep(Duration::from_millis(500 * (stage + stage * stage / 12))).await;
        remove(&world.server, "Cluster", "fleet").await;
        world.until_gone().await;
        assert_eq!(world.in_azure(), Vec::<String>::new(), "deleted at stage {stage}");
        let identity = world
            .object("AzureClusterIdentity", "fleet")
            .expect("an identity");
        assert!(
            identity["metadata"]["finalizers"]
                .as_array()
                .is_none_or(Vec::is_empty)
        );
        stages += 1;
    }
    println!("report: aks deletion: {stages} moments of a creation, nothing left in Azure");
}

#[tokio::test(start_paused = true)]
async fn what_is_brought_and_what_is_others_stays() {
    let world = World::new();
    let network = "/resourceGroups/shared/providers/Microsoft.Network/virtualNetworks/spine";
    world.ask(
        Method::PUT,
        "/resourceGroups/shared",
        Some(&json!({"location": "westus3"})),
    );
    world.ask(
        Method::PUT,
        "/resourceGroups/fleet",
        Some(&json!({"location": "westus3", "tags": {"whose": "theirs"}})),
    );
    world.ask(
        Method::PUT,
        network,
        Some(
            &json!({"location": "westus3", "properties": {"addressSpace": {"addressPrefixes": ["10.0.0.0/8"]},
            "subnets": [{"name": "nodes", "properties": {"addressPrefix": "10.240.0.0/16"}}]}}),
        ),
    );
    tokio::time::sleep(Duration::from_mins(1)).await;
    let before = world.in_azure();
    let spec = json!({"virtualNetwork": {"name": "spine", "resourceGroup": "shared", "cidrBlock": "10.0.0.0/8",
        "subnet": {"name": "nodes", "cidrBlock": "10.240.0.0/16"}}});
    apply(&world.server, &manifests(&spec, POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    assert_eq!(
        world.count("PUT", "/virtualNetworks/spine"),
        1,
        "it is used as it is"
    );
    world.assert_rests().await;
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!(world.in_azure(), before);
}

#[tokio::test(start_paused = true)]
async fn a_resource_group_that_holds_another_cluster_stays() {
    let world = World::new();
    apply(&world.server, &manifests(&json!({}), POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    let other = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/other";
    world.ask(
        Method::PUT,
        other,
        Some(&json!({"location": "westus3", "identity": {"type": "SystemAssigned"}, "properties": {"dnsPrefix": "other",
            "agentPoolProfiles": [{"name": "p", "count": 1, "vmSize": "Standard_DS2_v2", "mode": "System"}]}})),
    );
    tokio::time::sleep(Duration::from_mins(5)).await;
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    let left = world.in_azure();
    assert!(
        left.iter().any(|id| id.ends_with("/managedclusters/other")),
        "{left:?}"
    );
    assert!(
        !left.iter().any(|id| id.contains("/managedclusters/fleet")),
        "{left:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pool_goes_and_the_last_system_pool_waits_for_another() {
    let world = World::new();
    apply(&world.server, &manifests(&json!({}), POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    remove(&world.server, "MachinePool", "work").await;
    world
        .until("gone", |world| {
            world.object("AzureManagedMachinePool", "work").is_none()
        })
        .await;
    assert!(!world.in_azure().iter().any(|id| id.ends_with("/agentpools/work")));
    // Admission refuses to delete the last system pool; with another in place it goes.
    remove(&world.server, "AzureManagedMachinePool", "system").await;
    assert!(
        world.object("AzureManagedMachinePool", "system").expect("a pool")["metadata"]["deletionTimestamp"]
            .is_null()
    );
    for manifest in pool_manifests("next", "System", 1, &json!({})) {
        super::world::create(&world.server, &manifest).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    remove(&world.server, "MachinePool", "system").await;
    world
        .until("gone", |world| {
            world.object("AzureManagedMachinePool", "system").is_none()
        })
        .await;
    let left = world.in_azure();
    assert!(left.iter().any(|id| id.ends_with("/agentpools/next")), "{left:?}");
    assert!(
        !left.iter().any(|id| id.ends_with("/agentpools/system")),
        "{left:?}"
    );
    assert!(condition(&world.plane(), "Ready")["status"] == "True");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_never_signed_in_can_be_deleted() {
    let world = World::new();
    let mut all = manifests(&json!({}), POOLS);
    all.retain(|manifest| manifest["kind"] != "AzureClusterIdentity");
    apply(&world.server, &all).await;
    world
        .until("told", |world| {
            condition(&world.plane(), "ResourceGroupReady")["reason"] == "IdentityNotFound"
        })
        .await;
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_whose_identity_is_gone_says_what_remains_and_is_let_go_when_told_to() {
    let world = World::new();
    apply(&world.server, &manifests(&json!({}), POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    let torn = json!({"metadata": {"finalizers": null}});
    remove(&world.server, "AzureClusterIdentity", "fleet").await;
    super::world::merge(&world.server, "AzureClusterIdentity", "fleet", torn).await;
    let before = world.in_azure();
    remove(&world.server, "Cluster", "fleet").await;
    let message = |world: &World| {
        world
            .object("AzureManagedControlPlane", "fleet")
            .and_then(|plane| {
                let message = condition(&plane, "ResourceGroupReady")["message"]
                    .as_str()?
                    .to_owned();
                message.contains("remain").then_some(message)
            })
    };
    world.until("told", |world| message(world).is_some()).await;
    let text = message(&world).unwrap_or_default();
    assert!(
        text.contains("/managedclusters/fleet") && text.contains("slipway.dev/orphan"),
        "{text}"
    );
    assert_eq!(world.in_azure(), before);
    let let_go = json!({"metadata": {"annotations": {"slipway.dev/orphan": "true"}}});
    super::world::merge(&world.server, "AzureManagedControlPlane", "fleet", let_go).await;
    world.until_gone().await;
    assert_eq!(
        world.in_azure(),
        before,
        "nothing is deleted that nobody could sign in for"
    );
}
