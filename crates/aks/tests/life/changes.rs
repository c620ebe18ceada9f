//! Azure refuses, fails, drifts; users mend what they wrote.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use slipway_azure_sim::Fault;

use super::world::{World, apply, condition, holds, manifests, merge, pool_manifests, remove};

const POOL: &[(&str, &str, i32)] = &[("system", "System", 1)];
const AKS: &str = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet";

#[tokio::test(start_paused = true)]
async fn a_bad_spec_is_told_and_mended() {
    let world = World::new();
    // AKS has no such version: only the user can help.
    apply(&world.server, &manifests(&json!({"version": "v1.99.0"}), POOL)).await;
    world
        .until("refused", |world| {
            condition(&world.plane(), "ManagedClusterRunning")["severity"] == "Error"
        })
        .await;
    let plane = world.plane();
    let told = condition(&plane, "Ready");
    assert!(
        told["message"].as_str().expect("a message").contains("1.99.0"),
        "{told}"
    );
    assert_ne!(plane["status"]["initialized"], true);
    tokio::time::sleep(Duration::from_mins(30)).await;
    let asked = world.count("PUT", AKS);
    assert!(asked <= 5, "{asked} times the same refusal");
    remove(&world.server, "AzureManagedControlPlane", "other").await;
    merge(
        &world.server,
        "AzureManagedControlPlane",
        "fleet",
        json!({"metadata": {"annotations": {"note": "1"}}}),
    )
    .await;

    // A version cannot be lowered by admission, so the user starts over with another control plane object.
    let mended = World::new();
    apply(&mended.server, &manifests(&json!({}), &[])).await;
    mended.simulator.azure().add_fault(Fault {
        method: "PUT".into(),
        path: "/managedClusters/fleet".into(),
        times: 0,
        status: Some(400),
        code: "InvalidParameter".into(),
        message: "The value of parameter agentPoolProfile.count is invalid.".into(),
        ..Fault::default()
    });
    for manifest in pool_manifests("system", "System", 1, &json!({})) {
        super::world::create(&mended.server, &manifest).await;
    }
    mended
        .until("refused", |world| {
            condition(&world.plane(), "ManagedClusterRunning")["reason"] == "InvalidParameter"
        })
        .await;
    mended.simulator.azure().clear_faults();
    merge(
        &mended.server,
        "AzureManagedControlPlane",
        "fleet",
        json!({"spec": {"additionalTags": {"team": "blue"}}}),
    )
    .await;
    mended.until_ready(&["system"]).await;
    mended.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_failed_is_taken_up_with_mended_pools() {
    let world = World::new();
    world.simulator.azure().add_fault(Fault {
        method: "PUT".into(),
        path: "/managedClusters/fleet".into(),
        operation_error: Some(
            json!({"code": "SkuNotAvailable", "message": "The size is not available in westus3."}),
        ),
        ..Fault::default()
    });
    apply(&world.server, &manifests(&json!({}), &[("system", "System", 3)])).await;
    world
        .until("failed", |world| {
            condition(&world.plane(), "ManagedClusterRunning")["reason"] == "SkuNotAvailable"
        })
        .await;
    assert_ne!(world.plane()["status"]["initialized"], true);
    merge(
        &world.server,
        "MachinePool",
        "system",
        json!({"spec": {"replicas": 1}}),
    )
    .await;
    world.until_ready(&["system"]).await;
    let bodies: Vec<_> = world
        .simulator
        .azure()
        .requests()
        .filter(|request| request.method == "PUT" && request.path.ends_with("/managedClusters/fleet"))
        .map(|request| request.body_json()["properties"]["agentPoolProfiles"][0]["count"].clone())
        .collect();
    assert_eq!(bodies.first(), Some(&json!(3)));
    assert_eq!(bodies.last(), Some(&json!(1)));
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_changes_in_azure_is_put_right_and_what_another_adds_stays() {
    let world = World::new();
    apply(
        &world.server,
        &manifests(
            &json!({"additionalTags": {"team": "blue", "cost": "7"}}),
            &[("system", "System", 1), ("work", "User", 2)],
        ),
    )
    .await;
    world.until_ready(&["system", "work"]).await;
    world.simulator.azure().set_pool_count(
        &format!(
            "/subscriptions/{}{AKS}/agentPools/work",
            super::world::SUBSCRIPTION
        ),
        5,
    );
    let mut body = world.ask(Method::GET, AKS, None);
    body["tags"]["team"] = json!("red");
    body["tags"]["theirs"] = json!("1");
    world.ask(Method::PUT, AKS, Some(&body));
    tokio::time::sleep(Duration::from_mins(40)).await;
    world.until_ready(&["system", "work"]).await;
    let now = world.ask(Method::GET, AKS, None);
    assert_eq!(now["tags"]["team"], "blue");
    assert_eq!(now["tags"]["theirs"], "1", "nobody else's tag is lost");
    let pools = now["properties"]["agentPoolProfiles"]
        .as_array()
        .expect("pools")
        .clone();
    assert!(
        pools
            .iter()
            .any(|pool| pool["name"] == "work" && pool["count"] == 2),
        "{pools:?}"
    );
    // A tag that is no longer desired goes.
    merge(
        &world.server,
        "AzureManagedControlPlane",
        "fleet",
        json!({"spec": {"additionalTags": {"cost": null}}}),
    )
    .await;
    world.until_ready(&["system", "work"]).await;
    let now = world.ask(Method::GET, AKS, None);
    assert_eq!(now["tags"].get("cost"), None);
    assert_eq!(now["tags"]["theirs"], "1");
    // A pool that another deleted is made again.
    world.ask(Method::DELETE, &format!("{AKS}/agentPools/work"), None);
    tokio::time::sleep(Duration::from_mins(40)).await;
    world.until_ready(&["system", "work"]).await;
    assert!(world.in_azure().iter().any(|id| id.ends_with("/agentpools/work")));
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn a_look_that_is_put_off_does_not_make_a_working_cluster_unready() {
    let world = World::new();
    apply(&world.server, &manifests(&json!({}), POOL)).await;
    world.until_ready(&["system"]).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    world.simulator.azure().add_fault(Fault {
        method: "GET".into(),
        path: "/managedClusters".into(),
        times: 0,
        status: Some(429),
        code: "TooManyRequests".into(),
        message: "The request limit has been exceeded, please retry again in 30 seconds".into(),
        retry_after: Some(30),
        ..Fault::default()
    });
    let (asked, version) = (world.count("GET", "/managedClusters"), world.server.version());
    tokio::time::sleep(Duration::from_mins(40)).await;
    assert!(world.count("GET", "/managedClusters") > asked, "it was asked");
    assert!(holds(&world.plane(), "Ready"), "{}", world.plane()["status"]);
    assert_eq!(world.plane()["status"]["ready"], true);
    assert_eq!(world.server.version(), version, "nothing untrue is written");
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_fresher_reads_is_looked_at_as_often() {
    let world = World::new();
    apply(
        &world.server,
        &manifests(&json!({"additionalTags": {"team": "blue"}}), POOL),
    )
    .await;
    world.until_ready(&["system"]).await;
    let often = json!({"metadata": {"annotations": {"slipway.dev/azure-max-read-age": "20s"}}});
    merge(&world.server, "AzureManagedControlPlane", "fleet", often).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let mut body = world.ask(Method::GET, AKS, None);
    body["tags"]["team"] = json!("red");
    world.ask(Method::PUT, AKS, Some(&body));
    // Long before anything else would have it looked at.
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(world.ask(Method::GET, AKS, None)["tags"]["team"], "blue");
}

#[tokio::test(start_paused = true)]
async fn an_identity_that_may_not_be_used_or_is_missing_is_told() {
    let world = World::new();
    let mut all = manifests(&json!({}), POOL);
    all[0]["spec"]["allowedNamespaces"] = json!({"list": ["elsewhere"]});
    apply(&world.server, &all).await;
    world
        .until("refused", |world| {
            condition(&world.plane(), "Ready")["reason"] == "NamespaceNotAllowedByIdentity"
        })
        .await;
    assert_eq!(world.in_azure(), Vec::<String>::new());
    merge(
        &world.server,
        "AzureClusterIdentity",
        "fleet",
        json!({"spec": {"allowedNamespaces": {"list": ["default"]}}}),
    )
    .await;
    world.until_ready(&["system"]).await;
}

#[tokio::test(start_paused = true)]
async fn aks_scales_a_pool_and_its_machine_pool_follows() {
    let world = World::new();
    let mut all = manifests(&json!({}), POOL);
    all.extend(pool_manifests(
        "work",
        "User",
        1,
        &json!({"scaling": {"minSize": 1, "maxSize": 9}}),
    ));
    apply(&world.server, &all).await;
    world.until_ready(&["system", "work"]).await;
    let follows = |world: &World, count: i64| {
        let pool = world.object("MachinePool", "work").expect("a MachinePool");
        pool["spec"]["replicas"] == count
            && pool["metadata"]["annotations"]["cluster.x-k8s.io/replicas-managed-by"] == "true"
    };
    world.until("followed", |world| follows(world, 1)).await;
    let pool = format!(
        "/subscriptions/{}{AKS}/agentPools/work",
        super::world::SUBSCRIPTION
    );
    world.simulator.azure().set_pool_count(&pool, 6);
    world.until("followed to six", |world| follows(world, 6)).await;
    assert_eq!(world.count("PUT", "/agentPools/work"), 0, "AKS is not fought");
    world.until_ready(&["system", "work"]).await;
    world.assert_rests().await;
    merge(
        &world.server,
        "AzureManagedMachinePool",
        "work",
        json!({"spec": {"scaling": null}}),
    )
    .await;
    world
        .until("no longer followed", |world| {
            let pool = world.object("MachinePool", "work").expect("a MachinePool");
            pool["metadata"]["annotations"]["cluster.x-k8s.io/replicas-managed-by"].is_null()
        })
        .await;
    world.until_ready(&["system", "work"]).await;
    let shown = world.object("AzureManagedMachinePool", "work").expect("a pool");
    assert!(holds(&shown, "Ready"));
    world.assert_rests().await;
}

fn pool(world: &World, name: &str) -> Value {
    world.object("AzureManagedMachinePool", name).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_refused_for_its_token_shows() {
    let world = World::new();
    let pools: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 1)];
    apply(&world.server, &manifests(&json!({}), pools)).await;
    world.until_ready(&["system", "work"]).await;
    world.simulator.azure().add_fault(Fault {
        method: "PUT".into(),
        path: "/agentPools/work".into(),
        times: 0,
        status: Some(401),
        code: "InvalidAuthenticationToken".into(),
        message: "The access token is invalid.".into(),
        ..Fault::default()
    });
    let before = world.count("PUT", "/agentPools/work");
    merge(
        &world.server,
        "MachinePool",
        "work",
        json!({"spec": {"replicas": 2}}),
    )
    .await;
    world
        .until("shown", |world| {
            let pool = pool(world, "work");
            condition(&pool, "AgentPoolsReady")["reason"] == "InvalidAuthenticationToken"
                && condition(&pool, "Ready")["status"] == "False"
        })
        .await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    let asked = world.count("PUT", "/agentPools/work") - before;
    assert!((2..=6).contains(&asked), "{asked} writes in ten minutes");
    world.simulator.azure().clear_faults();
    tokio::time::sleep(Duration::from_mins(20)).await;
    world.until_ready(&["system", "work"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_waits_for_its_turn_says_until_when() {
    let world = World::new();
    apply(&world.server, &manifests(&json!({}), POOL)).await;
    world.until_ready(&["system"]).await;
    world.simulator.azure().add_fault(Fault {
        method: "PUT".into(),
        path: "/agentPools/first".into(),
        times: 1,
        status: Some(429),
        code: "TooManyRequests".into(),
        message: "no".into(),
        retry_after: Some(300),
        ..Fault::default()
    });
    for name in ["first", "second"] {
        for manifest in pool_manifests(name, "User", 1, &json!({})) {
            super::world::create(&world.server, &manifest).await;
        }
    }
    world
        .until("both wait", |world| {
            ["first", "second"]
                .iter()
                .all(|name| condition(&pool(world, name), "AgentPoolsReady")["reason"] == "Throttled")
        })
        .await;
    for name in ["first", "second"] {
        let told = condition(&pool(&world, name), "AgentPoolsReady")["message"].clone();
        let text = told.as_str().expect("a message");
        let until = text.split("sent by ").nth(1).expect("a time");
        assert!(until.parse::<jiff::Timestamp>().is_ok(), "{text}");
    }
    world.until_ready(&["system", "first", "second"]).await;
}
