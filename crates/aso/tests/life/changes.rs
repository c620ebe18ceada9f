//! Changes of a cluster that stands: resources that come and go, what others change, what cannot be made.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use slipway_azure_sim::Fault;

use super::world::{
    World, apply, cluster, condition, create, group, is_settled, managed_cluster, manifests, merge, network,
    pool_manifests, remove, resource,
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
    let told = world.context().events.recorded();
    let is_told = |note: &str| note.contains("tags.team: \"b\" -> \"a\"");
    assert!(
        told.iter().any(|event| is_told(&event.note)),
        "what was changed is told"
    );
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
    let status = &world.plane()["status"];
    assert_eq!(status["initialized"], true, "what was initialized stays so");
    assert_eq!(status["initialization"]["controlPlaneInitialized"], true);
    assert_eq!(status["ready"], false);
    let recreate = json!({"metadata": {"annotations": {"slipway.dev/recreate": "true"}}});
    merge(&world.server, "AzureASOManagedControlPlane", "fleet", recreate).await;
    world.until_ready(&["system"]).await;
    assert_eq!(world.count("PUT", "/managedClusters/fleet"), 2);
}

/// AKS accepts a pool's new count and gets no machines for it.
fn out_of_capacity(world: &World) {
    world.simulator.azure().add_fault(Fault {
        method: "PUT".into(),
        path: "/agentPools/work".into(),
        times: 0,
        operation_error: Some(json!({"code": "AllocationFailed",
            "message": "Allocation failed. We do not have sufficient capacity for the requested VM size in this region."})),
        ..Fault::default()
    });
}

async fn until_told_of_capacity(world: &World) {
    world
        .until("told", |world| {
            let pool = world.pool("work");
            let ready = condition(&pool, "Ready");
            let message = ready["message"].as_str().unwrap_or_default();
            ready["status"] == "False" && message.contains("sufficient capacity")
        })
        .await;
}

/// It is asked again at longer and longer intervals, the condition says what Azure said, and the pool is not said to be ready.
/// Capacity that comes is taken; a user who gives up ends it.
#[tokio::test(start_paused = true)]
async fn a_pool_without_capacity_does_not_ask_for_ever() {
    let world = World::new();
    apply(
        &world.server,
        &manifests(&[("system", "System", 1), ("work", "User", 1)]),
    )
    .await;
    world.until_ready(&["system", "work"]).await;
    let replicas = |count: i32| merge_replicas(&world, count);
    out_of_capacity(&world);
    let before = world.count("PUT", "/agentPools/work");
    replicas(9).await;
    until_told_of_capacity(&world).await;
    tokio::time::sleep(Duration::from_hours(6)).await;
    let asked = world.count("PUT", "/agentPools/work") - before;
    println!("report: aso: a pool without capacity asked {asked} times in six hours");
    // No more often than every quarter of an hour, once it has waited that long.
    assert!((2..=6 * 4 + 6).contains(&asked), "{asked} in six hours");
    assert_eq!(condition(&world.pool("work"), "Ready")["status"], "False");

    world.simulator.azure().clear_faults();
    let freed = world.clock.now();
    world
        .until("scaled", |world| world.pool("work")["status"]["replicas"] == 9)
        .await;
    let after = world.clock.now().duration_since(freed).as_mins();
    assert!(after <= 16, "{after} minutes after there was capacity again");
    world.until_ready(&["work"]).await;

    out_of_capacity(&world);
    replicas(12).await;
    until_told_of_capacity(&world).await;
    world.simulator.azure().clear_faults();
    replicas(9).await;
    world.until_ready(&["work"]).await;
    world.assert_rests().await;
    assert_eq!(world.pool("work")["status"]["replicas"], 9);
}

async fn merge_replicas(world: &World, count: i32) {
    let patch = json!({"spec": {"replicas": count}});
    merge(&world.server, "MachinePool", "work", patch).await;
}

/// A subnet that stands in a network whose name a ConfigMap holds.
fn named_by_config() -> Vec<Value> {
    let mut named = network();
    named["spec"]["azureNameFromConfig"] = json!({"name": "names", "key": "network"});
    let subnet = resource(
        "network.azure.com/v1api20201101",
        "VirtualNetworksSubnet",
        "nodes",
        &json!({"owner": {"name": "fleet"}, "addressPrefix": "10.1.0.0/16"}),
    );
    vec![subnet, named, group()]
}

#[tokio::test(start_paused = true)]
async fn a_config_map_names_a_resource_in_azure() {
    let world = World::new();
    let mut all = cluster(&named_by_config(), &[managed_cluster(&json!({}))]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    let reason = |world: &World| condition(&world.infrastructure(), "ResourcesReady")["reason"].clone();
    world
        .until("told", |world| reason(world) == "ConfigMapNotFound")
        .await;
    assert_eq!(world.count("PUT", "/virtualNetworks/"), 0);
    let names = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "names", "namespace": "default"}, "data": {"network": "spine"}});
    create(&world.server, &names).await;
    world.until_ready(&["system"]).await;
    let networks = |world: &World| -> Vec<String> {
        let there = world.in_azure().into_iter();
        there
            .filter_map(|id| Some(id.split_once("/virtualnetworks/")?.1.to_owned()))
            .collect()
    };
    assert_eq!(networks(&world), ["spine", "spine/subnets/nodes"]);
    world.assert_rests().await;
    // Without the ConfigMap it is not known which one it is, and nothing is deleted.
    remove(&world.server, "ConfigMap", "names").await;
    world
        .until("told", |world| reason(world) == "ConfigMapNotFound")
        .await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(networks(&world), ["spine", "spine/subnets/nodes"]);
    create(&world.server, &names).await;
    world.until_ready(&["system"]).await;
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!(world.in_azure(), Vec::<String>::new());
}

/// A name in Azure is for life: a slip of the pen in the spec or in a ConfigMap must not delete a network or a cluster.
#[tokio::test(start_paused = true)]
async fn a_name_that_changes_deletes_nothing() {
    let world = World::new();
    let names = |network: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "names", "namespace": "default"}, "data": {"network": network}})
    };
    create(&world.server, &names("spine")).await;
    let mut all = cluster(&named_by_config(), &[managed_cluster(&json!({}))]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world.until_ready(&["system"]).await;
    let before = world.in_azure();
    let writes = |world: &World| {
        let azure = world.simulator.azure();
        azure.requests().filter(|request| request.method != "GET").count()
    };

    remove(&world.server, "ConfigMap", "names").await;
    create(&world.server, &names("spline")).await;
    let network = |world: &World| condition(&world.infrastructure(), "ResourcesReady").clone();
    world
        .until("told", |world| network(world)["reason"] == "AzureNameChanged")
        .await;
    let message = network(&world)["message"].to_string().to_lowercase();
    assert!(message.contains("/virtualnetworks/spine,"), "{message}");
    let written = writes(&world);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!((world.in_azure(), writes(&world)), (before.clone(), written));
    remove(&world.server, "ConfigMap", "names").await;
    create(&world.server, &names("spine")).await;
    world.until_ready(&["system"]).await;

    let plane = |named: Value| json!({"spec": {"resources": [managed_cluster(&named)]}});
    let kind = "AzureASOManagedControlPlane";
    merge(&world.server, kind, "fleet", plane(json!({"azureName": "fleat"}))).await;
    world
        .until("told", |world| {
            condition(&world.plane(), "ResourcesReady")["reason"] == "AzureNameChanged"
        })
        .await;
    let written = writes(&world);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!((world.in_azure(), writes(&world)), (before.clone(), written));
    merge(&world.server, kind, "fleet", plane(json!({}))).await;
    world.until_ready(&["system"]).await;
    assert_eq!(world.in_azure(), before);
}

#[tokio::test(start_paused = true)]
async fn what_is_newer_than_the_table_is_sent_by_rule_with_a_warning() {
    let world = World::new();
    let mut newer = network();
    newer["apiVersion"] = json!("network.azure.com/v1api20290301");
    newer["spec"]["futureSetting"] = json!({"planReference": {
        "group": "resources.azure.com", "kind": "ResourceGroup", "name": "fleet"}});
    apply(&world.server, &cluster(&[newer, group()], &[])[..3]).await;
    world
        .until("made", |world| {
            line(&world.infrastructure(), "VirtualNetwork")["ready"] == true
        })
        .await;
    let infrastructure = world.infrastructure();
    let warning = condition(&infrastructure, "MappedByRule");
    assert_eq!(
        (&warning["status"], &warning["reason"]),
        (&json!("True"), &json!("NewerThanKnown"))
    );
    let message = warning["message"].as_str().expect("words");
    assert!(
        message.contains("VirtualNetwork") && message.contains("v2.20"),
        "{message}"
    );
    let asked = world.simulator.azure().requests().any(|request| {
        request.method == "PUT"
            && request.path.contains("/virtualNetworks/")
            && request.query.contains("api-version=2029-03-01")
    });
    assert!(asked, "by the version of the manifest");
    let network_there = world.document("/virtualNetworks/fleet");
    let plan = network_there["properties"]["futureSetting"]["planId"].as_str();
    assert!(
        plan.is_some_and(|id| id.ends_with("/resourceGroups/fleet")),
        "{network_there}"
    );
    world.assert_rests().await;
    world
        .replace_resources(CLUSTER, "fleet", &[network(), group()])
        .await;
    world
        .until("known again", |world| {
            let object = world.infrastructure();
            line(&object, "VirtualNetwork")["ready"] == true
                && condition(&object, "MappedByRule")["status"].is_null()
        })
        .await;
}

/// Networks of several clusters in one object, each in the version it is written in.
#[tokio::test(start_paused = true)]
async fn networks_in_several_versions_stand_side_by_side() {
    const VERSIONS: [&str; 2] = ["2020-11-01", "2024-03-01"];
    let world = World::new();
    let mut beside = vec![group()];
    let written = VERSIONS.iter().cycle().take(4).enumerate();
    for (number, version) in written.clone() {
        let mut one = network();
        one["apiVersion"] = json!(format!("network.azure.com/v1api{}", version.replace('-', "")));
        one["metadata"]["name"] = json!(format!("network-{number}"));
        one["spec"]["addressSpace"]["addressPrefixes"] = json!([format!("10.{number}.0.0/16")]);
        beside.push(one);
    }
    let mut all = cluster(&beside, &[managed_cluster(&json!({}))]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world.until_ready(&["system"]).await;
    for (number, version) in written {
        let azure = world.simulator.azure();
        let sent: Vec<&str> = azure
            .requests()
            .filter(|one| one.method == "PUT" && one.path.ends_with(&format!("/network-{number}")))
            .map(|one| one.query.as_str())
            .collect();
        assert_eq!(sent, [format!("api-version={version}")]);
    }
    world.assert_rests().await;
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!(world.in_azure(), Vec::<String>::new());
}
