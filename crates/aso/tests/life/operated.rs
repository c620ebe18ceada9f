//! Resources that Azure Service Operator writes: given to it, changed, taken out, switched to the native engine and back, moved,
//! deleted; and what is said when it is not there.

use std::{sync::Arc, time::Duration};

use http::Method;
use serde_json::{Value, json};
use slipway_kit::objects::{self, delete, name};

use super::{
    operator::{self, FakeOperator},
    world::{
        World, apply, condition, is_settled, kinds_with_operator, manifests, merge, network, pool_manifests,
        remove,
    },
};

const TWO_POOLS: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 2)];
const KINDS: [&str; 3] = [
    "AzureASOManagedCluster",
    "AzureASOManagedControlPlane",
    "AzureASOManagedMachinePool",
];
const ENGINE: &str = "slipway.dev/azure-engine";
const POLICY: &str = "serviceoperator.azure.com/reconcile-policy";

/// A world with an operator that runs once it is let.
fn world() -> World {
    let world = World::of_kinds(kinds_with_operator());
    let azure = Arc::clone(&world.simulator);
    let ask: operator::Ask = Arc::new(move |request| azure.handle(request));
    tokio::spawn(FakeOperator::new(world.server.clone(), ask).run());
    world
}

async fn running() -> World {
    let world = world();
    operator::install(&world.server).await;
    operator::run(&world.server, world.clock, true).await;
    world
}

/// The operator's objects, by kind and name.
fn operated(world: &World) -> Vec<String> {
    let mut found: Vec<String> = world
        .server
        .objects()
        .iter()
        .filter(|object| {
            let version = object["apiVersion"].as_str().unwrap_or_default();
            version.contains(".azure.com/")
        })
        .map(|object| format!("{} {}", object["kind"].as_str().unwrap_or_default(), name(object)))
        .collect();
    found.sort();
    found
}

fn object(world: &World, kind: &str, name: &str) -> Value {
    world
        .object(kind, name)
        .unwrap_or_else(|| panic!("{kind} {name} of the operator"))
}

/// Every resource of everybody is written by this engine.
fn engines(world: &World) -> Vec<String> {
    let mut found = Vec::new();
    for object in world.server.objects() {
        if !KINDS.contains(&object["kind"].as_str().unwrap_or_default()) {
            continue;
        }
        for line in object["status"]["resources"].as_array().into_iter().flatten() {
            let engine = line["engine"].as_str().unwrap_or("native");
            found.push(format!(
                "{} {engine}",
                line["resource"]["kind"].as_str().unwrap_or_default()
            ));
        }
    }
    found.sort();
    found.dedup();
    found
}

async fn ask_for(world: &World, engine: Option<&str>) {
    let patch = json!({"metadata": {"annotations": {(ENGINE): engine}}});
    merge(&world.server, "AzureASOManagedCluster", "fleet", patch.clone()).await;
    merge(
        &world.server,
        "AzureASOManagedControlPlane",
        "fleet",
        patch.clone(),
    )
    .await;
    for pool in ["system", "work"] {
        merge(&world.server, "AzureASOManagedMachinePool", pool, patch.clone()).await;
    }
}

fn all_on(world: &World, engine: &str) -> bool {
    let all = engines(world);
    !all.is_empty() && all.iter().all(|line| line.ends_with(engine))
}

#[tokio::test(start_paused = true)]
async fn a_running_operator_is_given_what_is_new() {
    let world = running().await;
    apply(&world.server, &manifests(TWO_POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    assert_eq!(
        operated(&world),
        [
            "ManagedCluster fleet",
            "ManagedClustersAgentPool fleet-system",
            "ManagedClustersAgentPool fleet-work",
            "ResourceGroup fleet"
        ]
    );
    assert!(all_on(&world, "aso"), "{:?}", engines(&world));
    let ready = condition(&world.plane(), "AzureServiceOperatorReady").clone();
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("True"), &json!("Running"))
    );
    let cluster = object(&world, "ManagedCluster", "fleet");
    let owner = &cluster["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["controller"]),
        (&json!("AzureASOManagedControlPlane"), &json!(true))
    );
    assert_eq!(
        cluster["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"],
        "fleet"
    );
    assert_eq!(cluster["spec"]["owner"], json!({"name": "fleet"}));
    assert!(cluster["spec"]["tags"]["slipway.dev_owner"].is_string());
    let managers: Vec<&Value> = cluster["metadata"]["managedFields"]
        .as_array()
        .expect("managers")
        .iter()
        .collect();
    assert!(
        managers
            .iter()
            .any(|one| one["manager"] == "capz-manager" && one["operation"] == "Apply")
    );
    // It is reached by the kubeconfig that the operator wrote, which Cluster API finds.
    let secret = world.object("Secret", "fleet-kubeconfig").expect("a kubeconfig");
    assert_eq!(
        secret["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"],
        "fleet"
    );
    assert_eq!(
        world.count("PUT", "/managedClusters/fleet"),
        2 + 2,
        "its pools, and the cluster once more without them in its own body"
    );
    world.assert_rests().await;

    // Scaled, and a network that comes and goes.
    merge(
        &world.server,
        "MachinePool",
        "work",
        json!({"spec": {"replicas": 4}}),
    )
    .await;
    world
        .until("scaled", |world| world.pool("work")["status"]["replicas"] == 4)
        .await;
    assert_eq!(
        object(&world, "ManagedClustersAgentPool", "fleet-work")["spec"]["count"],
        4
    );
    let more = [super::world::group(), network()];
    world
        .replace_resources("AzureASOManagedCluster", "fleet", &more)
        .await;
    world
        .until("a network", |world| {
            world
                .in_azure()
                .iter()
                .any(|id| id.ends_with("/virtualnetworks/fleet"))
                && is_settled(&world.infrastructure())
        })
        .await;
    world
        .replace_resources("AzureASOManagedCluster", "fleet", &more[..1])
        .await;
    world
        .until("no network", |world| {
            !world
                .in_azure()
                .iter()
                .any(|id| id.ends_with("/virtualnetworks/fleet"))
                && world.object("VirtualNetwork", "fleet").is_none()
                && is_settled(&world.infrastructure())
        })
        .await;
    world.assert_rests().await;

    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!(operated(&world), Vec::<String>::new());
    assert_eq!(world.in_azure(), Vec::<String>::new());
    assert_eq!(
        world.count("DELETE", "/agentPools/"),
        0,
        "pools go with their cluster"
    );
}

#[tokio::test(start_paused = true)]
async fn a_switch_recreates_nothing_and_goes_both_ways() {
    let world = running().await;
    apply(&world.server, &manifests(TWO_POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    ask_for(&world, Some("native")).await;
    world
        .until("native", |world| {
            all_on(world, "native") && operated(world).is_empty()
        })
        .await;
    world.until_ready(&["system", "work"]).await;
    assert_eq!(world.count("DELETE", ""), 0);
    world.assert_rests().await;
    // It is ours to change.
    merge(
        &world.server,
        "MachinePool",
        "work",
        json!({"spec": {"replicas": 3}}),
    )
    .await;
    world
        .until("scaled", |world| world.pool("work")["status"]["replicas"] == 3)
        .await;
    // Without the word it stays where it is.
    ask_for(&world, None).await;
    world.until_ready(&["system", "work"]).await;
    assert!(operated(&world).is_empty());
    let ready = condition(&world.plane(), "AzureServiceOperatorReady").clone();
    assert_eq!(ready["reason"], "NotUsed", "{ready}");

    ask_for(&world, Some("aso")).await;
    world
        .until("back", |world| {
            all_on(world, "aso")
                && operated(world).len() == 4
                && object(world, "ManagedCluster", "fleet")["metadata"]["annotations"][POLICY].is_null()
        })
        .await;
    world.until_ready(&["system", "work"]).await;
    world.assert_rests().await;
    assert_eq!(world.count("DELETE", ""), 0, "nothing was deleted on the way");
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!((world.in_azure(), operated(&world)), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_comes_later_gets_nothing_by_itself() {
    let world = world();
    apply(&world.server, &manifests(TWO_POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    assert!(condition(&world.plane(), "AzureServiceOperatorReady").is_null());
    operator::install(&world.server).await;
    operator::run(&world.server, world.clock, true).await;
    world
        .until("noticed", |world| {
            condition(&world.plane(), "AzureServiceOperatorReady")["reason"] == "NotUsed"
        })
        .await;
    assert!(operated(&world).is_empty() && all_on(&world, "native"));
    // What is new goes to it, with what it stands in by its id.
    for manifest in pool_manifests("more", "User", 1, &json!({})) {
        objects::create(&world.server, &manifest).await;
    }
    world
        .until("more", |world| {
            world
                .object("AzureASOManagedMachinePool", "more")
                .is_some_and(|pool| is_settled(&pool))
        })
        .await;
    let pool = object(&world, "ManagedClustersAgentPool", "fleet-more");
    let owner = pool["spec"]["owner"]["armId"].as_str().expect("an id");
    assert!(owner.ends_with("/managedClusters/fleet"), "{owner}");
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!((world.in_azure(), operated(&world)), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_stops_or_goes_is_told_and_nothing_flips() {
    let world = running().await;
    apply(&world.server, &manifests(TWO_POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    operator::run(&world.server, world.clock, false).await;
    let reason = |world: &World| condition(&world.plane(), "AzureServiceOperatorReady")["reason"].clone();
    world
        .until("stopped", |world| reason(world) == "NotRunning")
        .await;
    let message = condition(&world.plane(), "AzureServiceOperatorReady")["message"].to_string();
    assert!(
        message.contains("ManagedCluster fleet") && message.contains("Start it"),
        "{message}"
    );
    let writes = world.count("PUT", "");
    merge(
        &world.server,
        "MachinePool",
        "work",
        json!({"spec": {"replicas": 5}}),
    )
    .await;
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert_eq!(world.count("PUT", ""), writes, "nobody else writes");
    assert!(all_on(&world, "aso"));
    // What is new is ours: nobody runs who would take it.
    for manifest in pool_manifests("more", "User", 1, &json!({})) {
        objects::create(&world.server, &manifest).await;
    }
    world
        .until("more", |world| {
            world
                .object("AzureASOManagedMachinePool", "more")
                .is_some_and(|pool| is_settled(&pool))
        })
        .await;
    assert!(world.object("ManagedClustersAgentPool", "fleet-more").is_none());
    // The way out: its objects are let go of without it, and the change is made here.
    ask_for(&world, Some("native")).await;
    world
        .until("native", |world| {
            all_on(world, "native")
                && operated(world).is_empty()
                && world.pool("work")["status"]["replicas"] == 5
        })
        .await;
    assert_eq!(world.count("DELETE", ""), 0);
    // Its kinds go: nothing of ours is with it any more.
    operator::uninstall(&world.server).await;
    ask_for(&world, Some("aso")).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    let ready = condition(&world.plane(), "AzureServiceOperatorReady").clone();
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("NotInstalled")),
        "{ready}"
    );
    assert!(all_on(&world, "native"), "a switch waits for who is to go on");
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!(world.in_azure(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_of_an_operator_that_is_not_there_waits_and_says_so() {
    let world = world();
    let mut all = manifests(&[("system", "System", 1)]);
    for manifest in &mut all {
        if KINDS.contains(&manifest["kind"].as_str().unwrap_or_default()) {
            manifest["metadata"]["annotations"] = json!({(ENGINE): "aso"});
        }
    }
    apply(&world.server, &all).await;
    world
        .until("told", |world| {
            condition(&world.infrastructure(), "Ready")["reason"] == "AzureServiceOperatorUnavailable"
        })
        .await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(world.count("PUT", ""), 0);
    let wrong = json!({"metadata": {"annotations": {(ENGINE): "azure"}}});
    merge(&world.server, "AzureASOManagedCluster", "fleet", wrong).await;
    world
        .until("told of the word", |world| {
            condition(&world.infrastructure(), "Ready")["reason"] == "InvalidEngine"
        })
        .await;
    let right = json!({"metadata": {"annotations": {(ENGINE): "native"}}});
    for (kind, name) in [(KINDS[0], "fleet"), (KINDS[1], "fleet"), (KINDS[2], "system")] {
        merge(&world.server, kind, name, right.clone()).await;
    }
    world.until_ready(&["system"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_cluster_leaves_no_operator_at_work_and_goes_on() {
    let world = running().await;
    apply(&world.server, &manifests(TWO_POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    merge(
        &world.server,
        "Cluster",
        "fleet",
        json!({"spec": {"paused": true}}),
    )
    .await;
    let quiet = |world: &World| {
        operated(world).iter().all(|one| {
            let (kind, name) = one.split_once(' ').expect("a kind and a name");
            object(world, kind, name)["metadata"]["annotations"][POLICY] == "skip"
        })
    };
    world
        .until("paused", |world| {
            let plane = world.plane();
            condition(&plane, "Paused")["status"] == "True"
                && plane["metadata"]["annotations"]["clusterctl.cluster.x-k8s.io/block-move"].is_null()
        })
        .await;
    world.until("quiet", quiet).await;
    let (version, writes) = (world.server.version(), world.count("PUT", ""));
    tokio::time::sleep(Duration::from_mins(90)).await;
    assert_eq!(
        (world.server.version(), world.count("PUT", "")),
        (version, writes)
    );
    merge(
        &world.server,
        "Cluster",
        "fleet",
        json!({"spec": {"paused": false}}),
    )
    .await;
    world
        .until("resumed", |world| {
            operated(world).iter().all(|one| {
                let (kind, name) = one.split_once(' ').expect("a kind and a name");
                object(world, kind, name)["metadata"]["annotations"][POLICY].is_null()
            })
        })
        .await;
    world.until_ready(&["system", "work"]).await;
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_claim_is_told_whose_the_first_is() {
    let world = running().await;
    apply(&world.server, &manifests(&[("system", "System", 1)])).await;
    world.until_ready(&["system"]).await;
    // The same group in another object of the namespace, given to the operator or not.
    for engine in ["aso", "native"] {
        let second = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "AzureASOManagedCluster",
            "metadata": {"name": "second", "namespace": "default", "annotations": {(ENGINE): engine}},
            "spec": {"resources": [super::world::group()]},
        });
        let cluster = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "second", "namespace": "default"},
            "spec": {"infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io",
                    "kind": "AzureASOManagedCluster", "name": "second"},
                "controlPlaneRef": {"apiGroup": "infrastructure.cluster.x-k8s.io",
                    "kind": "AzureASOManagedControlPlane", "name": "second"}}});
        apply(&world.server, &[second.clone(), cluster.clone()]).await;
        let told = |world: &World| {
            let second = world.object("AzureASOManagedCluster", "second")?;
            let ready = condition(&second, "Ready").clone();
            let reasons = ["OwnedByAnother", "ManagedByAzureServiceOperator"];
            reasons
                .contains(&ready["reason"].as_str().unwrap_or_default())
                .then(|| ready["message"].to_string())
        };
        world.until("told", |world| told(world).is_some()).await;
        let message = told(&world).expect("a message");
        assert!(
            message.contains("AzureASOManagedCluster default/fleet"),
            "{engine}: {message}"
        );
        remove(&world.server, "Cluster", "second").await;
        world
            .until("gone", |world| {
                world.object("AzureASOManagedCluster", "second").is_none()
            })
            .await;
        delete(&world.server, &cluster).await;
    }
    assert_eq!(world.count("DELETE", ""), 0);
    world.until_ready(&["system"]).await;
    // What carries another's mark is not given to the operator either.
    let theirs = json!({"location": "westus3", "tags": {"slipway.dev_owner": "another-management-cluster"}});
    world.ask(Method::PUT, "/resourceGroups/other", Some(&theirs));
    let mut other = super::world::group();
    other["metadata"]["name"] = json!("other");
    let all = [super::world::group(), other];
    world
        .replace_resources("AzureASOManagedCluster", "fleet", &all)
        .await;
    world
        .until("told of the mark", |world| {
            condition(&world.infrastructure(), "Ready")["reason"] == "OwnedByAnother"
        })
        .await;
    assert!(world.object("ResourceGroup", "other").is_none());
}
