//! Stories that everybody in the cluster would notice.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use slipway_runtime::Settings;
use tokio_util::sync::CancellationToken;

use super::{
    fleet::{Fleet, holds},
    world::{World, eventually, objects},
};

/// How long Cluster API is away: what would be ten minutes, configured down.
const AWAY: Duration = Duration::from_secs(8);

/// Without Cluster API nobody makes Machines: replicas stay what claims need, and when it is back all is well.
pub async fn cluster_api_is_away(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "away").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    fleet
        .apply(&fleet.node_pool(json!({"deadlines": {"launch": "Never", "registration": "Never"}})))
        .await?;
    fleet.deploy("early", 1).await?;
    fleet.until_running("early", 1).await?;
    let core = world.cluster.process("cluster-api").context("core's process")?;
    core.kill();
    fleet.deploy("web", 3).await?;
    let workers = fleet.core("MachineDeployment");
    eventually("replicas are raised", || async {
        Ok(workers.get("workers").await?.data["spec"]["replicas"] == 2 && fleet.claims().await?.len() == 2)
    })
    .await?;
    // Nothing to watch for: that nothing happens is the point.
    tokio::time::sleep(AWAY).await;
    assert_eq!(workers.get("workers").await?.data["spec"]["replicas"], 2);
    assert_eq!(fleet.claims().await?.len(), 2, "no more claims than pods need");
    world.cluster.restart("cluster-api").await?;
    fleet.until_running("web", 3).await?;
    fleet.until_one_to_one(2).await?;
    assert_eq!(workers.get("workers").await?.data["spec"]["replicas"], 2);
    Ok(())
}

/// Cluster Autoscaler runs by mistake: nothing is done until its lease has ended. And a second Slipway, in another namespace, leaves
/// everything to the one that was there before.
pub async fn two_autoscalers(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "two").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    fleet.apply(&fleet.node_pool(json!({}))).await?;
    let lease = |name: &str, holder: &str, seconds: i64, acquired: i64| {
        let now = jiff::Timestamp::now();
        let moment = |ago: i64| {
            let then = now - jiff::SignedDuration::from_secs(ago);
            then.strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string()
        };
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": seconds, "acquireTime": moment(acquired), "renewTime": moment(0)}})
    };
    fleet
        .apply(&[lease("cluster-autoscaler", "cluster-autoscaler-7f", 3600, 0)])
        .await?;
    // The watch has it before kube-scheduler has given up on pods that come now.
    fleet.deploy("web", 3).await?;
    let pods = objects(&fleet.client, Some(&fleet.name), "v1", "Pod");
    eventually("kube-scheduler gives up", || async {
        let all = pods.list(&kube::api::ListParams::default()).await?.items;
        Ok(all.len() == 3 && all.iter().all(|pod| !holds(pod, "PodScheduled")))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(
        fleet.claims().await?.len(),
        0,
        "Cluster Autoscaler scales the cluster"
    );

    // A second one begins, whose lease is younger than the first one's, before the other autoscaler stops.
    let second = CancellationToken::new();
    world.run(Some("slipway_second"), Settings::default(), &second);
    fleet
        .apply(&[lease("karpenter-leader-election", "slipway_first", 3600, 600)])
        .await?;
    let other = world.cluster.namespace("two-second").await?;
    super::world::apply(
        &fleet.client,
        &other,
        &[lease("karpenter-leader-election", "slipway_second", 3600, 60)],
    )
    .await?;
    let released = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
    let leases = objects(
        &fleet.client,
        Some(&fleet.name),
        "coordination.k8s.io/v1",
        "Lease",
    );
    leases
        .patch("cluster-autoscaler", &PatchParams::default(), &released)
        .await?;
    fleet.until_running("web", 3).await?;
    fleet.until_one_to_one(2).await?;
    assert_eq!(fleet.claims().await?.len(), 2, "made once");
    second.cancel();
    Ok(())
}
