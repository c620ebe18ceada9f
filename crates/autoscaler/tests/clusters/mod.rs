//! Many clusters from one management cluster, each an apiserver simulator of its own: every one is scaled by its own NodePools,
//! none waits for another, and nothing stays of one that goes.

mod fleet;

use std::time::Duration;

use serde_json::json;
use slipway_kit::{
    held::{Held, until_nothing_beyond},
    objects::{delete, find, merge, of_kind},
    scaled::is_of,
};

use self::fleet::{Fleet, condition};

/// Longer than anything that is waited for, by the paused clock.
const SOON: Duration = Duration::from_mins(5);

#[tokio::test(start_paused = true)]
async fn each_cluster_is_scaled_by_its_own_node_pools() {
    let fleet = Fleet::start(&["north", "south", "other"]);
    fleet.found("north").await;
    fleet.found("south").await;
    fleet
        .found_in_management("other", "https://other.example", false)
        .await;
    for name in ["north", "south", "other"] {
        fleet.pods(name, "web", 2).await;
    }
    fleet.until_running("north", 2).await;
    fleet.until_running("south", 2).await;
    assert_eq!(fleet.replicas("north"), 1);
    assert_eq!(fleet.replicas("south"), 1);
    let cluster = |name: &str| fleet.management.look(|all| find(all, "Cluster", name).cloned());
    let said = |name: &str| condition(&cluster(name).expect("a Cluster"));
    assert_eq!(said("north"), ("True".to_owned(), "Running".to_owned()));
    assert_eq!(said("other"), (String::new(), String::new()), "nobody chose it");
    assert_eq!(fleet.replicas("other"), 0);
    fleet.pods("south", "more", 3).await;
    fleet.until_running("south", 5).await;
    assert_eq!((fleet.replicas("north"), fleet.replicas("south")), (1, 3));
    // A NodeClass of one cluster has no machines of another, whatever it names.
    let server = fleet.server("south");
    let mine = server.look(|all| find(all, "ClusterAPINodeClass", "general").cloned());
    let names = json!({"spec": {"clusterName": "north"}});
    merge(&server, &mine.expect("a NodeClass"), names).await;
    fleet
        .until("it is refused", || {
            server.look(|all| {
                let class = find(all, "ClusterAPINodeClass", "general").expect("a NodeClass");
                let ready = of_status(class, "Ready");
                ready.is_some_and(|ready| {
                    let message = ready["message"].as_str().unwrap_or_default();
                    ready["status"] == "False" && message.contains("names Cluster north")
                })
            })
        })
        .await;
    fleet.pods("south", "last", 2).await;
    tokio::time::sleep(SOON).await;
    assert_eq!((fleet.replicas("north"), fleet.replicas("south")), (1, 3));
    let text = fleet.context.metrics.encode();
    for line in [
        r#"karpenter_nodepools_usage{cluster="fleet/north",resource_type="nodes",nodepool="general"} 1"#,
        r#"karpenter_nodepools_usage{cluster="fleet/south",resource_type="nodes",nodepool="general"} 3"#,
        "slipway_workload_clusters 2",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    let plans = fleet.context.plans.list("fleet/north");
    assert!(
        plans.contains("fleet/north/karpenter.sh/Provisioner/provisioner\n"),
        "{plans}"
    );
}

fn of_status<'a>(object: &'a serde_json::Value, kind: &str) -> Option<&'a serde_json::Value> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|one| one["type"] == kind)
}

#[tokio::test(start_paused = true)]
async fn a_dead_apiserver_slows_no_other_and_is_found_again() {
    let names: Vec<String> = (0..12).map(|number| format!("edge-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let fleet = Fleet::start(&names);
    // More than the controller of Clusters has workers: whoever waited for one would show.
    let (dead, alive) = names.split_at(11);
    for name in dead {
        fleet.kill(name, true);
        fleet.choose(name).await;
    }
    let cluster = |name: &str| fleet.management.look(|all| find(all, "Cluster", name).cloned());
    let reason = |name: &str| condition(&cluster(name).expect("a Cluster")).1;
    fleet
        .until("all are told dead", || {
            dead.iter().all(|name| reason(name) == "ApiServerUnreachable")
        })
        .await;
    let began = tokio::time::Instant::now();
    fleet.found(alive[0]).await;
    fleet.pods(alive[0], "web", 2).await;
    fleet.until_running(alive[0], 2).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(60), "it took {took:?}");
    // One dies while it is scaled: its claims stay as they are, and it goes on where it was.
    fleet.kill(alive[0], true);
    fleet
        .until("it is told dead", || reason(alive[0]) == "ApiServerUnreachable")
        .await;
    fleet.kill(dead[0], false);
    fleet.found_in(dead[0]).await;
    fleet.pods(dead[0], "web", 2).await;
    fleet.until_running(dead[0], 2).await;
    assert_eq!(reason(dead[0]), "Running");
    assert_eq!(fleet.replicas(alive[0]), 1);
    fleet.kill(alive[0], false);
    fleet.pods(alive[0], "more", 2).await;
    fleet.until_running(alive[0], 4).await;
    assert_eq!(reason(alive[0]), "Running");
}

#[tokio::test(start_paused = true)]
async fn nothing_stays_of_a_cluster_that_goes() {
    let fleet = Fleet::start(&["north", "south", "east"]);
    tokio::time::sleep(SOON).await;
    let before = Held::now(&fleet.context);
    for name in ["north", "south", "east"] {
        fleet.found(name).await;
        fleet.pods(name, "web", 2).await;
        fleet.until_running(name, 2).await;
    }
    let during = Held::now(&fleet.context);
    assert!(during.of("slipway_workload_clusters") == 3 && during.of("tasks") > before.of("tasks") + 30);
    // One is deleted, one is chosen no more, and the kubeconfig of one is gone.
    let found = |kind: &str, name: &str| {
        fleet
            .management
            .look(|all| find(all, kind, name).cloned())
            .expect("it is there")
    };
    let not_chosen = json!({"metadata": {"labels": {"slipway.dev/autoscaled": null}}});
    merge(&fleet.management, &found("Cluster", "south"), not_chosen).await;
    delete(&fleet.management, &found("Secret", "east-kubeconfig")).await;
    for kind in ["Machine", "MachineDeployment", "Secret", "Cluster"] {
        let all = fleet.management.look(<[serde_json::Value]>::to_vec);
        for object in of_kind(&all, kind).filter(|object| is_of(object, "north")) {
            merge(
                &fleet.management,
                object,
                json!({"metadata": {"finalizers": null}}),
            )
            .await;
            delete(&fleet.management, object).await;
        }
    }
    fleet
        .until("they say so", || {
            condition(&found("Cluster", "south")).0.is_empty()
                && condition(&found("Cluster", "east")).1 == "KubeconfigNotFound"
        })
        .await;
    // The management cluster's own objects are more than before.
    let before = Held(
        before
            .0
            .into_iter()
            .map(|(name, count)| {
                let is_here = name.contains("kind=\"Cluster\"") || name.contains("PartialObjectMetadata");
                (name, if is_here { count + 3 } else { count })
            })
            .collect(),
    );
    until_nothing_beyond(&before, &fleet.context, SOON).await;
    // And it comes back.
    let chosen = json!({"metadata": {"labels": {"slipway.dev/autoscaled": ""}}});
    merge(&fleet.management, &found("Cluster", "south"), chosen).await;
    fleet.pods("south", "more", 2).await;
    fleet.until_running("south", 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_cluster_is_left_alone_and_missing_kinds_are_asked_for() {
    let fleet = Fleet::start_without_installing(&["north"]);
    fleet.choose("north").await;
    let cluster = || {
        fleet
            .management
            .look(|all| find(all, "Cluster", "north").cloned())
    };
    let reason = || condition(&cluster().expect("a Cluster")).1;
    fleet
        .until("kinds are missed", || reason() == "DefinitionsMissing")
        .await;
    assert_eq!(
        fleet
            .server("north")
            .look(|all| of_kind(all, "CustomResourceDefinition").count()),
        0
    );
    fleet.install("north").await;
    fleet.until("it runs", || reason() == "Running").await;
    fleet.found_in("north").await;
    fleet.pods("north", "web", 2).await;
    fleet.until_running("north", 2).await;
    let paused = |is_paused: bool| json!({"spec": {"paused": is_paused}});
    merge(&fleet.management, &cluster().expect("a Cluster"), paused(true)).await;
    fleet.until("it rests", || reason() == "Paused").await;
    fleet.pods("north", "more", 2).await;
    tokio::time::sleep(SOON).await;
    assert_eq!(fleet.replicas("north"), 1);
    merge(&fleet.management, &cluster().expect("a Cluster"), paused(false)).await;
    fleet.until_running("north", 4).await;
}
