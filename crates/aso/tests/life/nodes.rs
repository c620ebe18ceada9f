//! Provider ids and replicas from the nodes of a workload cluster that can be reached.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use slipway_apiserver_sim::Apiserver;
use slipway_azure::workload::nodes::Nodes;
use slipway_runtime::Clock;

use super::world::{World, apply, condition, manifests, quick};

fn node(name: &str, pool: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.azure.com/agentpool": pool}},
        "spec": {"providerID": format!("azure:///{name}")},
    }))
    .expect("a node")
}

#[tokio::test(start_paused = true)]
async fn nodes_are_told_as_they_come_and_go() {
    let workload = Apiserver::new(Clock::starting_at(jiff::Timestamp::UNIX_EPOCH));
    let reached = workload.clone();
    let nodes = Nodes::connecting_by(Arc::new(move |_, _| Ok(reached.client())));
    let api: Api<Node> = Api::all(workload.client());
    for (name, pool) in [("a", "work"), ("c", "system"), ("own", "self-managed")] {
        api.create(&PostParams::default(), &node(name, pool))
            .await
            .expect("created");
    }
    let world = World::with(quick(), nodes);
    apply(
        &world.server,
        &manifests(&[("system", "System", 1), ("work", "User", 2)]),
    )
    .await;
    world
        .until("waiting for a node", |world| {
            let pool = world.pool("work");
            condition(&pool, "Ready")["reason"] == "WaitingForNodes" && pool["status"]["replicas"] == 1
        })
        .await;
    api.create(&PostParams::default(), &node("b", "work"))
        .await
        .expect("created");
    world.until_ready(&["system", "work"]).await;
    let told = |world: &World, pool: &str| world.pool(pool)["spec"]["providerIDList"].clone();
    assert_eq!(told(&world, "work"), json!(["azure:///a", "azure:///b"]));
    assert_eq!(told(&world, "system"), json!(["azure:///c"]));
    assert_eq!(world.pool("work")["status"]["replicas"], 2);
    assert_eq!(
        world.count("GET", "/virtualMachineScaleSets"),
        0,
        "Azure is not asked"
    );
    world.assert_rests().await;
    api.delete("a", &DeleteParams::default()).await.expect("deleted");
    world
        .until("told", |world| {
            told(world, "work") == json!(["azure:///b"]) && world.pool("work")["status"]["replicas"] == 1
        })
        .await;
}
