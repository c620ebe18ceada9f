//! Provider ids from the nodes of a workload cluster that can be reached.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use slipway_azure::workload::nodes::Nodes;
use slipway_kit::workload::Workload;

use super::world::{World, apply, manifests, merge, quick};

#[tokio::test(start_paused = true)]
async fn nodes_that_can_be_watched_are_told_as_they_come_and_go() {
    let workload = Workload::default();
    for (name, pool) in [("b", "work"), ("a", "work"), ("c", "system")] {
        workload.join(name, pool).await;
    }
    let world = World::with(quick(), Nodes::connecting_by(workload.connector()));
    apply(
        &world.server,
        &manifests(&json!({}), &[("system", "System", 1), ("work", "User", 2)]),
    )
    .await;
    world.until_ready(&["system", "work"]).await;
    let told = |world: &World, pool: &str| {
        world.object("AzureManagedMachinePool", pool).expect("a pool")["spec"]["providerIDList"].clone()
    };
    world
        .until("told", |world| {
            told(world, "work") == json!(["azure:///a", "azure:///b"])
        })
        .await;
    world
        .until("told", |world| told(world, "system") == json!(["azure:///c"]))
        .await;
    assert_eq!(
        world.count("GET", "/virtualMachineScaleSets"),
        0,
        "Azure is not asked"
    );
    world.assert_rests().await;
    workload.leave("a").await;
    workload.join("d", "work").await;
    world
        .until("told", |world| {
            told(world, "work") == json!(["azure:///b", "azure:///d"])
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_joining_nodes_need_is_there() {
    let workload = Workload::default();
    let world = World::with(quick(), Nodes::connecting_by(workload.connector()));
    apply(&world.server, &manifests(&json!({}), &[("system", "System", 1)])).await;
    world.until_ready(&["system"]).await;
    let text = |name: &str, key: &str| {
        let secret = world.object("Secret", name).expect(name);
        let bytes: k8s_openapi::ByteString = serde_json::from_value(secret["data"][key].clone()).expect(key);
        String::from_utf8(bytes.0).expect("text")
    };
    let kubeconfig: serde_json::Value =
        serde_saphyr::from_str(&text("fleet-kubeconfig", "value")).expect("a kubeconfig");
    let authority = &kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"];
    let known: k8s_openapi::ByteString = serde_json::from_value(authority.clone()).expect("an authority");
    assert_eq!(text("fleet-ca", "tls.crt").as_bytes(), known.0);
    assert!(
        !text("fleet-ca", "tls.key").is_empty(),
        "kubeadm's provider asks for one"
    );
    let secret = world.object("Secret", "fleet-ca").expect("a Secret");
    assert_eq!(secret["type"], "cluster.x-k8s.io/secret");
    assert_eq!(
        secret["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"],
        "fleet"
    );
    let published = || {
        let found =
            workload.server.objects().into_iter().find(|object| {
                object["kind"] == "ConfigMap" && object["metadata"]["name"] == "cluster-info"
            })?;
        let found: ConfigMap = serde_json::from_value(found).ok()?;
        found.data?.remove("kubeconfig")
    };
    world.until("published", |_| published().is_some()).await;
    let read: serde_json::Value = serde_saphyr::from_str(&published().expect("text")).expect("a kubeconfig");
    assert_eq!(
        read["clusters"][0]["cluster"]["certificate-authority-data"],
        *authority
    );
    assert_eq!(
        read["clusters"][0]["cluster"]["server"],
        kubeconfig["clusters"][0]["cluster"]["server"]
    );
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_refuses_cluster_info_is_told_of_once_and_stays_ready() {
    let (connector, forbidden) = Workload::default().forbidding(&Method::POST, "/configmaps");
    let world = World::with(quick(), Nodes::connecting_by(connector));
    let pools = [("system", "System", 1), ("work", "User", 1)];
    apply(&world.server, &manifests(&json!({}), &pools)).await;
    world.until_ready(&["system", "work"]).await;
    let warnings = |world: &World| {
        let all = world.context().events.recorded();
        let about = |note: &str| note.contains("kube-public/cluster-info");
        all.iter()
            .filter(|event| event.warning && about(&event.note))
            .count()
    };
    world.until("warned", |world| warnings(world) == 1).await;
    tokio::time::sleep(Duration::from_hours(3)).await;
    assert_eq!((warnings(&world), forbidden.asked()), (1, 1));
    world.until_ready(&["system", "work"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_somebody_emptied_is_filled_again() {
    let world = World::new();
    apply(&world.server, &manifests(&json!({}), &[("system", "System", 2)])).await;
    world.until_ready(&["system"]).await;
    let told = |world: &World| {
        let pool = world.object("AzureManagedMachinePool", "system").expect("a pool");
        pool["spec"]["providerIDList"].as_array().map_or(0, Vec::len)
    };
    world.until("told", |world| told(world) == 2).await;
    let empty = json!({"spec": {"providerIDList": []}});
    merge(&world.server, "AzureManagedMachinePool", "system", empty).await;
    world.until("told again", |world| told(world) == 2).await;
    world.assert_rests().await;
}
