//! Nothing is left behind of clusters that are gone.

use std::time::Duration;

use serde_json::{Value, json};
use slipway_kit::{
    clusterctl::take_away,
    held::{Held, until_nothing_beyond},
    objects::{find, merge},
};

use super::environment::Fleet;

const CLUSTERS: usize = 50;

#[tokio::test(start_paused = true)]
async fn fifty_clusters_that_are_moved_away_leave_nothing_behind() {
    let fleet = Fleet::start().await;
    fleet.create("stays").await;
    fleet.until_available(1).await;
    tokio::time::sleep(Duration::from_mins(3)).await;
    let before = Held::now(&fleet.context);

    for number in 0..CLUSTERS {
        fleet.create(&format!("moves-{number}")).await;
    }
    fleet.until_available(CLUSTERS + 1).await;
    tokio::time::sleep(Duration::from_mins(3)).await;
    let held = Held::now(&fleet.context);
    for what in ["k3s_connections", "k3s_leases", "k3s_secrets", "k3s_last_reads"] {
        let expected = i64::try_from(CLUSTERS + 1).expect("a count");
        assert_eq!(held.of(what), expected, "{what}: {held:#?}");
    }

    // As `clusterctl move` does: what is paused loses its finalizers and is deleted, and nobody plans a deletion.
    for number in 0..CLUSTERS {
        let objects = fleet.management.objects();
        let cluster = find(&objects, "Cluster", &format!("moves-{number}")).expect("a cluster");
        merge(&fleet.management, cluster, json!({"spec": {"paused": true}})).await;
    }
    tokio::time::sleep(Duration::from_mins(1)).await;
    let kinds = [
        "Cluster",
        "KThreesControlPlane",
        "Machine",
        "KThreesConfig",
        "HostMachine",
        "Secret",
    ];
    let moves = |object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        name.starts_with("moves-")
    };
    let moved = take_away(&fleet.management, &kinds, moves).await;
    // Five objects each, and at least the CAs, the token, the kubeconfig and the bootstrap data.
    assert!(moved.len() >= CLUSTERS * 10, "{}", moved.len());
    until_nothing_beyond(&before, &fleet.context, Duration::from_mins(10)).await;
    assert_eq!(fleet.with_quorum(), CLUSTERS + 1, "what they stand for lives on");
    assert_eq!(fleet.violations(), Vec::<String>::new());
}
