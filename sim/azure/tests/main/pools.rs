//! Agent pools: life, scaling, refusals, and the machines behind them.

use serde_json::json;
use slipway_azure_sim::Settings;

use crate::fixture::{Fixture, SUBSCRIPTION, code, pool_body};

#[test]
fn a_pool_is_added_scaled_and_removed() {
    let mut azure = Fixture::with_group();
    let cluster = azure.cluster("one");
    let pool = format!("{cluster}/agentPools/p2");
    let missing = azure.get(&pool);
    assert_eq!(missing.status, 404);
    assert_eq!(missing.body_json()["subcode"], "GetAgentPool_NotFound");
    assert_eq!(azure.put(&pool, &pool_body(1)).status, 201);
    let refused = azure.put(&cluster, &crate::fixture::cluster_body());
    assert!(
        refused.body_json()["message"]
            .as_str()
            .is_some_and(|text| text.contains("Another agentpool operation (p2 - Creating)"))
    );
    azure.pass(300);
    let id = format!("{SUBSCRIPTION}{cluster}");
    assert_eq!(azure.azure.nodes(&id).len(), 3);
    let scaled = azure.put(&pool, &pool_body(4)).body_json();
    assert_eq!(scaled["properties"]["provisioningState"], "Scaling");
    azure.pass(300);
    let nodes = azure.azure.nodes(&id);
    assert_eq!(nodes.len(), 6);
    assert!(
        nodes
            .iter()
            .all(|node| node.provider_id.starts_with("azure:///subscriptions/")
                && node.provider_id.contains("/resourceGroups/mc_rg_one_westus3/"))
    );
    assert_eq!(
        azure.get(&cluster).body_json()["properties"]["agentPoolProfiles"][1]["count"],
        4
    );
    assert_eq!(azure.delete(&pool).status, 202);
    azure.pass(300);
    assert_eq!(azure.azure.nodes(&id).len(), 2);
    assert_eq!(azure.get(&pool).status, 404);
}

#[test]
fn the_last_system_pool_stays() {
    let mut azure = Fixture::with_group();
    let cluster = azure.cluster("one");
    let refused = azure.delete(&format!("{cluster}/agentPools/p1"));
    assert_eq!(
        (refused.status, code(&refused).as_str()),
        (400, "OperationNotAllowed")
    );
    assert_eq!(
        refused.body_json()["message"],
        "There has to be at least one system agent pool."
    );
    let demoted = azure.put(&format!("{cluster}/agentPools/p1"), &pool_body(2));
    assert_eq!(code(&demoted), "OperationNotAllowed");
}

#[test]
fn a_pool_without_its_cluster_is_refused_as_arm_does() {
    let mut azure = Fixture::with_group();
    let path = "/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/none/agentPools/p1";
    let refused = azure.put(path, &pool_body(1));
    assert_eq!(
        (refused.status, code(&refused).as_str()),
        (404, "ResourceNotFound")
    );
    assert_eq!(
        code(&azure.put(&path.replace("/rg/", "/nowhere/"), &pool_body(1))),
        "ResourceGroupNotFound"
    );
}

#[test]
fn bad_pools_get_a_reason() {
    let mut azure = Fixture::with_group();
    let cluster = azure.cluster("one");
    for (name, body, expected) in [
        ("Upper", pool_body(1), "InvalidParameter"),
        ("p2", pool_body(1001), "InvalidParameter"),
        (
            "p2",
            json!({"properties": {"count": 1, "enableAutoScaling": true}}),
            "InvalidParameter",
        ),
        (
            "p2",
            json!({"properties": {"count": 1, "orchestratorVersion": "1.34"}}),
            "NodePoolMcVersionIncompatible",
        ),
        (
            "p2",
            json!({"properties": {"count": 1, "orchestratorVersion": "1.2"}}),
            "K8sVersionNotSupported",
        ),
    ] {
        let refused = azure.put(&format!("{cluster}/agentPools/{name}"), &body);
        assert_eq!(
            (refused.status, code(&refused).as_str()),
            (400, expected),
            "{name} {body}"
        );
    }
}

#[test]
fn scale_sets_carry_the_pool_they_belong_to() {
    let mut azure = Fixture::with_group();
    azure.cluster("one");
    let sets = azure
        .get("/resourceGroups/MC_rg_one_westus3/providers/Microsoft.Compute/virtualMachineScaleSets")
        .body_json();
    let set = &sets["value"][0];
    assert_eq!(set["tags"]["aks-managed-poolName"], "p1");
    assert_eq!(set["sku"]["capacity"], 2);
    let name = set["name"].as_str().expect("a name");
    let machines = azure
        .get(&format!(
            "/resourceGroups/MC_rg_one_westus3/providers/Microsoft.Compute/virtualMachineScaleSets/{name}/virtualMachines"
        ))
        .body_json();
    assert_eq!(machines["value"].as_array().map(Vec::len), Some(2));
    let nodes = azure.azure.nodes(&format!(
        "{SUBSCRIPTION}/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/one"
    ));
    let id = machines["value"][0]["id"]
        .as_str()
        .expect("an id")
        .to_ascii_lowercase();
    assert_eq!(nodes[0].provider_id.to_ascii_lowercase(), format!("azure://{id}"));
}

#[test]
fn puts_to_one_pool_are_limited_to_one_a_minute_after_a_burst() {
    let mut azure = Fixture::with(Settings {
        require_token: false,
        speed: slipway_azure_sim::Speed::Instant,
        ..Settings::default()
    });
    azure.put("/resourceGroups/rg", &json!({"location": "westus3"}));
    let cluster = azure.cluster("one");
    let pool = format!("{cluster}/agentPools/p2");
    for _ in 0..20 {
        assert!(azure.put(&pool, &pool_body(1)).is_success());
    }
    let refused = azure.put(&pool, &pool_body(1));
    assert_eq!(refused.status, 429);
    let wait: i64 = refused
        .header_text("retry-after")
        .and_then(|text| text.parse().ok())
        .expect("seconds");
    assert!((1..=60).contains(&wait));
    assert!(
        refused.body_json()["message"]
            .as_str()
            .is_some_and(|text| text.contains("PutAgentPoolHandler.PUT request limit has been exceeded"))
    );
    azure.pass(wait - 1);
    assert_eq!(azure.put(&pool, &pool_body(1)).status, 429);
    azure.pass(1);
    assert!(azure.put(&pool, &pool_body(1)).is_success());
}
