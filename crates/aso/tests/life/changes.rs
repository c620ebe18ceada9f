//! Changes of a cluster that stands: resources that come and go, what others change, what cannot be made.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use slipway_azure_sim::Fault;

use super::world::{
    World, apply, cluster, condition, group, is_settled, managed_cluster, manifests, merge, network,
    pool_manifests, resource,
};

const CLUSTER: &str = "AzureASOManagedCluster";

fn line(object: &Value, kind: &str) -> Value {
    let lines = object["status"]["resources"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let found = lines.into_iter().find(|line| line["resource"]["kind"] == kind);
    found.unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn resources_come_in_any_order_and_go_when_they_are_taken_out() {
    let world = World::new();
    let subnet = resource(
        "network.azure.com/v1api20201101",
        "VirtualNetworksSubnet",
        "nodes",
        &json!({"owner": {"name": "fleet"}, "addressPrefix": "10.1.0.0/16"}),
    );
    let infrastructure = [subnet, network(), group()];
    let mut all = cluster(&infrastructure, &[managed_cluster(&json!({}))]);
    let reference = json!({"vnetSubnetReference": {
        "group": "network.azure.com", "kind": "VirtualNetworksSubnet", "name": "nodes"}});
    all.extend(pool_manifests("system", "System", 1, &reference));
    apply(&world.server, &all).await;
    world.until_ready(&["system"]).await;
    let there = world.in_azure();
    assert!(
        there
            .iter()
            .any(|id| id.ends_with("/virtualnetworks/fleet/subnets/nodes"))
    );
    let pool = world.document("/agentPools/system");
    let used = pool["properties"]["vnetSubnetID"].as_str().expect("a subnet");
    assert!(used.ends_with("/virtualNetworks/fleet/subnets/nodes"));
    world.assert_rests().await;

    // Another network beside it, and away again.
    let mut second = network();
    second["metadata"]["name"] = json!("second");
    let more = [infrastructure.to_vec(), vec![second]].concat();
    world.replace_resources(CLUSTER, "fleet", &more).await;
    world
        .until("made", |world| {
            is_settled(&world.infrastructure())
                && world
                    .in_azure()
                    .iter()
                    .any(|id| id.ends_with("/virtualnetworks/second"))
        })
        .await;
    world.replace_resources(CLUSTER, "fleet", &infrastructure).await;
    world
        .until("gone", |world| {
            is_settled(&world.infrastructure())
                && !world
                    .in_azure()
                    .iter()
                    .any(|id| id.ends_with("/virtualnetworks/second"))
        })
        .await;
    assert_eq!(world.count("DELETE", "/virtualNetworks/second"), 1);
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn one_resource_that_cannot_be_made_keeps_no_other_from_being_made() {
    let world = World::new();
    let mut wrong = network();
    wrong["spec"]["adressSpace"] = json!({});
    let nobodys = resource(
        "network.azure.com/v1api20240301",
        "VirtualNetwork",
        "lost",
        &json!({"owner": {"name": "nobody"}, "location": "westus3"}),
    );
    apply(
        &world.server,
        &cluster(&[wrong, nobodys, group()], &[managed_cluster(&json!({}))]),
    )
    .await;
    world
        .until("made", |world| {
            line(&world.infrastructure(), "ResourceGroup")["ready"] == true
        })
        .await;
    let infrastructure = world.infrastructure();
    let ready = condition(&infrastructure, "Ready");
    assert_eq!(ready["reason"], "InvalidResource");
    let message = ready["message"].as_str().expect("a message");
    assert!(message.contains("spec.adressSpace is not known"), "{message}");
    let lines = infrastructure["status"]["resources"].as_array().expect("lines");
    let states: Vec<&str> = lines.iter().filter_map(|line| line["state"].as_str()).collect();
    assert!(
        states.contains(&"WaitingForOwner") && states.contains(&"InvalidResource"),
        "{states:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_value_that_cluster_api_decides_otherwise_is_told_and_not_sent() {
    let world = World::new();
    let mut all = manifests(&[("system", "System", 1)]);
    all[3]["spec"]["resources"][0]["spec"]["kubernetesVersion"] = json!("1.30.0");
    apply(&world.server, &all).await;
    world
        .until("told", |world| {
            condition(&world.plane(), "Ready")["reason"] == "IncompatibleValue"
        })
        .await;
    let plane = world.plane();
    let message = condition(&plane, "Ready")["message"].as_str().expect("a message");
    assert!(
        message.contains("spec.resources[0].spec.kubernetesVersion is \"1.30.0\""),
        "{message}"
    );
    assert_eq!(world.count("PUT", "/managedClusters/"), 0);
    world
        .replace_resources(
            "AzureASOManagedControlPlane",
            "fleet",
            &[managed_cluster(&json!({}))],
        )
        .await;
    world.until_ready(&["system"]).await;
}

#[tokio::test(start_paused = true)]
async fn what_others_change_is_put_back() {
    let world = World::new();
    let tagged = managed_cluster(&json!({"tags": {"team": "a"}}));
    let mut all = cluster(&[group()], &[tagged]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world.until_ready(&["system"]).await;
    world.assert_rests().await;
    let path = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet";
    let mut body = world.ask(Method::GET, path, None);
    body["tags"]["team"] = json!("b");
    world.ask(Method::PUT, path, Some(&body));
    let team = |world: &World| {
        let body = world.ask(Method::GET, path, None);
        body["tags"]["team"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(team(&world), "b");
    world.until("put back", |world| team(world) == "a").await;
    world.until_ready(&["system"]).await;
    // A tag that is taken out of the manifest is taken away, and ours stays.
    world
        .replace_resources(
            "AzureASOManagedControlPlane",
            "fleet",
            &[managed_cluster(&json!({}))],
        )
        .await;
    world.until("taken away", |world| team(world).is_empty()).await;
    let body = world.ask(Method::GET, path, None);
    assert!(body["tags"]["slipway.dev_owner"].is_string(), "{body}");
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_aks_scales_is_followed() {
    let world = World::new();
    let mut all = manifests(&[("system", "System", 1)]);
    let scaled = json!({"enableAutoScaling": true, "minCount": 1, "maxCount": 5});
    all.extend(pool_manifests("work", "User", 2, &scaled));
    apply(&world.server, &all).await;
    world.until_ready(&["system", "work"]).await;
    let machine_pool = |world: &World| world.object("MachinePool", "work").expect("a MachinePool");
    let manager = |world: &World| {
        machine_pool(world)["metadata"]["annotations"]["cluster.x-k8s.io/replicas-managed-by"].clone()
    };
    world.until("said", |world| manager(world) == "aks").await;
    let path =
        "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet/agentPools/work";
    let mut body = world.ask(Method::GET, path, None);
    body["properties"]["count"] = json!(4);
    world.ask(Method::PUT, path, Some(&body));
    world
        .until("followed", |world| machine_pool(world)["spec"]["replicas"] == 4)
        .await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(world.count("PUT", "/agentPools/work"), 1, "only AKS scaled");
    let plain = pool_manifests("work", "User", 2, &json!({}));
    let resources = plain[1]["spec"]["resources"]
        .as_array()
        .expect("resources")
        .clone();
    world
        .replace_resources("AzureASOManagedMachinePool", "work", &resources)
        .await;
    world.until("no longer", |world| manager(world).is_null()).await;
    world.until_ready(&["system", "work"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_vanished_is_made_again_only_when_that_is_asked_for() {
    let world = World::new();
    apply(&world.server, &manifests(&[("system", "System", 1)])).await;
    world.until_ready(&["system"]).await;
    let path = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet";
    world.ask(Method::DELETE, path, None);
    world
        .until("told", |world| {
            condition(&world.plane(), "Ready")["reason"] == "Vanished"
        })
        .await;
    assert_eq!(world.count("PUT", "/managedClusters/fleet"), 1);
    let recreate = json!({"metadata": {"annotations": {"slipway.dev/recreate": "true"}}});
    merge(&world.server, "AzureASOManagedControlPlane", "fleet", recreate).await;
    world.until_ready(&["system"]).await;
    assert_eq!(world.count("PUT", "/managedClusters/fleet"), 2);
}

/// AKS accepts a pool's new count and gets no machines for it: it is asked again at longer and longer intervals, and the
/// condition says what Azure said.
#[tokio::test(start_paused = true)]
async fn a_pool_without_capacity_does_not_ask_for_ever() {
    let world = World::new();
    apply(
        &world.server,
        &manifests(&[("system", "System", 1), ("work", "User", 1)]),
    )
    .await;
    world.until_ready(&["system", "work"]).await;
    world.simulator.azure().add_fault(Fault {
        method: "PUT".into(),
        path: "/agentPools/work".into(),
        times: 0,
        operation_error: Some(json!({"code": "AllocationFailed",
            "message": "Allocation failed. We do not have sufficient capacity for the requested VM size in this region."})),
        ..Fault::default()
    });
    let before = world.count("PUT", "/agentPools/work");
    merge(
        &world.server,
        "MachinePool",
        "work",
        json!({"spec": {"replicas": 9}}),
    )
    .await;
    world
        .until("told", |world| {
            let pool = world.pool("work");
            condition(&pool, "Ready")["message"]
                .as_str()
                .is_some_and(|message| message.contains("sufficient capacity"))
        })
        .await;
    tokio::time::sleep(Duration::from_hours(6)).await;
    let asked = world.count("PUT", "/agentPools/work") - before;
    println!("report: aso: a pool without capacity asked {asked} times in six hours");
    // No more often than every five minutes, once it has waited that long.
    assert!((2..=72).contains(&asked), "{asked} in six hours");
    world.simulator.azure().clear_faults();
    world
        .until("scaled", |world| world.pool("work")["status"]["replicas"] == 9)
        .await;
}
