//! A resource group takes everything in it along: whatever else is in it keeps it, and so does who made it, with either engine.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::{
    operated::{ENGINE, POLICY, ask_for, operated, running},
    world::{World, apply, condition, group, manifests, remove},
};

const ONE_POOL: &[(&str, &str, i32)] = &[("system", "System", 1)];

/// Without an operator, and with one that writes.
async fn worlds() -> [World; 2] {
    [World::new(), running().await]
}

fn reason(world: &World) -> Value {
    condition(&world.infrastructure(), "Ready")["reason"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_taken_out_of_the_spec_stays_while_a_cluster_is_in_it() {
    for world in worlds().await {
        apply(&world.server, &manifests(ONE_POOL)).await;
        world.until_ready(&["system"]).await;
        world
            .replace_resources("AzureASOManagedCluster", "fleet", &[])
            .await;
        world
            .until("told", |world| reason(world) == "ResourceGroupInUse")
            .await;
        let message = condition(&world.infrastructure(), "Ready")["message"].to_string();
        assert!(
            message.to_lowercase().contains("/managedclusters/fleet"),
            "{message}"
        );
        tokio::time::sleep(Duration::from_mins(30)).await;
        assert_eq!(world.count("DELETE", ""), 0);
        // Put back, it is as it was.
        world
            .replace_resources("AzureASOManagedCluster", "fleet", &[group()])
            .await;
        world.until_ready(&["system"]).await;
        remove(&world.server, "Cluster", "fleet").await;
        world.until_gone().await;
        assert_eq!(world.in_azure(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_holds_a_cluster_of_others_stays_beside_an_operator_too() {
    let world = running().await;
    apply(&world.server, &manifests(ONE_POOL)).await;
    world.until_ready(&["system"]).await;
    let other = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/other";
    let body = json!({"location": "westus3", "identity": {"type": "SystemAssigned"}, "properties": {
        "dnsPrefix": "other", "agentPoolProfiles": [{"name": "one", "count": 1, "mode": "System",
            "vmSize": "Standard_D2s_v3", "type": "VirtualMachineScaleSets"}]}});
    world.ask(Method::PUT, other, Some(&body));
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    let left = world.in_azure();
    let is_left = |end: &str| left.iter().any(|id| id.ends_with(end));
    assert!(is_left("/managedclusters/other"), "{left:?}");
    assert!(!is_left("/managedclusters/fleet"), "{left:?}");
    assert_eq!(operated(&world), Vec::<String>::new());
}

/// What was there before an object named it is not deleted with it, though an operator has written to it.
#[tokio::test(start_paused = true)]
async fn a_group_that_was_there_before_stays_whoever_writes_it() {
    for engines in [&["auto"][..], &["native", "aso"], &["native", "aso", "native"]] {
        let world = running().await;
        world.ask(
            Method::PUT,
            "/resourceGroups/fleet",
            Some(&json!({"location": "westus3"})),
        );
        let mut all = manifests(ONE_POOL);
        for manifest in &mut all {
            let is_holder = manifest["kind"]
                .as_str()
                .is_some_and(|kind| kind.starts_with("AzureASO"));
            if is_holder {
                manifest["metadata"]["annotations"] = json!({(ENGINE): engines[0]});
            }
        }
        apply(&world.server, &all).await;
        world.until_ready(&["system"]).await;
        for engine in &engines[1..] {
            ask_for(&world, Some(*engine), &["system"]).await;
            let count = if *engine == "aso" { 3 } else { 0 };
            world
                .until("switched", |world| operated(world).len() == count)
                .await;
            world.until_ready(&["system"]).await;
            tokio::time::sleep(Duration::from_mins(20)).await;
        }
        if engines.last() != Some(&"native") {
            let group = world
                .object("ResourceGroup", "fleet")
                .expect("the operator's object");
            let policy = &group["metadata"]["annotations"][POLICY];
            assert_eq!(policy, "detach-on-delete", "{engines:?}");
        }
        remove(&world.server, "Cluster", "fleet").await;
        world.until_gone().await;
        let left = world.in_azure();
        assert_eq!(left.len(), 1, "{engines:?}: {left:?}");
    }
}
