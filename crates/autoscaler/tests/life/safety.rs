//! When the autoscaler must not act: another autoscaler holds its lease, or a NodePool is frozen.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use serde_json::json;
use slipway_kit::{journey::Journey, sweep::World};

use super::cluster::{Life, NAMESPACE, count, until_running};

fn pods() -> impl Iterator<Item = String> {
    (0..2).map(|number| format!("web-{number}"))
}

/// Cluster Autoscaler's lease is held: nothing is made until it has ended.
fn beside_another<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let now = world.clock.now();
        life.create(&json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "cluster-autoscaler", "namespace": NAMESPACE},
            "spec": {"holderIdentity": "cluster-autoscaler-7f", "leaseDurationSeconds": 300,
                "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string()}}))
            .await;
        life.found(5, "5").await;
        life.pods(pods()).await;
        tokio::time::sleep(Duration::from_mins(4)).await;
        assert!(
            world.clock.now() >= now + Duration::from_mins(5)
                || world.server.look(|objects| count(objects, "NodeClaim") == 0),
            "nothing is made while the lease is held"
        );
        until_running(world, 2).await;
    }
    .boxed()
}

fn frozen<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found(5, "5").await;
        let freeze =
            |value| json!({"metadata": {"annotations": {"karpenter.cluster.x-k8s.io/frozen": value}}});
        life.merge("NodePool", "general", freeze(json!("true"))).await;
        // Watches of two kinds tell in no order: the pool's freeze is acknowledged when its status was written.
        tokio::time::sleep(Duration::from_mins(3)).await;
        life.pods(pods()).await;
        tokio::time::sleep(Duration::from_mins(4)).await;
        assert!(
            world.server.look(|objects| count(objects, "NodeClaim") == 0),
            "frozen"
        );
        life.merge("NodePool", "general", freeze(json!(null))).await;
        until_running(world, 2).await;
    }
    .boxed()
}

#[test]
fn nothing_is_made_beside_another_autoscaler() {
    Journey::<Life>::new("autoscaler: beside Cluster Autoscaler", beside_another).assert_clean();
}

#[test]
fn nothing_is_made_for_a_frozen_pool() {
    Journey::<Life>::new("autoscaler: a frozen NodePool", frozen).assert_clean();
}
