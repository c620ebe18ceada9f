//! `slipway diff`: what would change is told as it is planned, and asking changes nothing anywhere.

use std::time::Duration;

use serde_json::json;
use slipway_aso::{
    command::objects::{INLINE_PLANE, Objects},
    diff::{
        self,
        report::{Report, Verdict},
    },
};
use slipway_kit::asker::asker;
use slipway_runtime::ObjectKey;

use super::world::{World, apply, managed_cluster, manifests, merge};

/// What `slipway diff cluster/fleet` says. Nothing is written while it is asked.
async fn differences(world: &World) -> Report {
    let objects = Objects::discover(&world.server.client()).await.expect("kinds");
    let cluster = ObjectKey::namespaced("default", "fleet");
    let targets = diff::targets(&objects, &cluster).await.expect("objects");
    let (version, writes) = (world.server.version(), world.writes());
    let report = diff::diff(&asker(world.context()), targets).await;
    assert_eq!(world.server.version(), version, "asking writes nothing");
    assert_eq!(world.writes(), writes, "nor in Azure");
    report
}

#[tokio::test(start_paused = true)]
async fn what_is_skipped_or_paused_shows_what_would_change_and_asking_changes_nothing() {
    let world = World::new();
    apply(&world.server, &manifests(&[("system", "System", 1)])).await;
    world.until_ready(&["system"]).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let report = differences(&world).await;
    assert_eq!(report.verdict(), Verdict::Same, "{report}");
    assert_eq!(report.to_string().matches("no difference").count(), 3, "{report}");

    let mut skipped = managed_cluster(&json!({"autoUpgradeProfile": {"upgradeChannel": "stable"}}));
    skipped["metadata"]["annotations"]["serviceoperator.azure.com/reconcile-policy"] = json!("skip");
    world
        .replace_resources("AzureASOManagedControlPlane", "fleet", &[skipped])
        .await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let report = differences(&world).await;
    assert_eq!(report.verdict(), Verdict::Differs, "{report}");
    let text = report.to_string();
    let changed = "properties.autoUpgradeProfile.upgradeChannel: \"node-image\" -> \"stable\"";
    let added = "properties.autoUpgradeProfile";
    assert!(text.contains(changed) || text.contains(added), "{text}");

    let pause = json!({"spec": {"paused": true}});
    merge(&world.server, "Cluster", "fleet", pause).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let paused = differences(&world).await;
    assert_eq!(paused.verdict(), Verdict::Differs);
    assert!(
        paused.to_string().contains("paused: Cluster spec.paused"),
        "{paused}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_told_is_not_taken_for_no_difference() {
    let mut world = World::new();
    apply(&world.server, &manifests(&[("system", "System", 1)])).await;
    world.until_ready(&["system"]).await;
    let plane = |name: &str| vec![(INLINE_PLANE, ObjectKey::namespaced("default", name))];
    let report = diff::diff(&asker(world.context()), plane("nobodys")).await;
    assert_eq!(report.verdict(), Verdict::Unknown, "{report}");
    assert!(report.to_string().contains("there is no"), "{report}");
    // No process leads.
    let context = world.context().clone();
    world.kill().await;
    let report = diff::diff(&asker(&context), plane("fleet")).await;
    assert_eq!(report.verdict(), Verdict::Unknown);
    assert!(report.to_string().contains("another replica leads"), "{report}");
}
