//! The autoscaler with real Cluster API, kube-scheduler and kwok, under the roles that it declares. NodePools are the cluster's, so
//! all stories share one cluster, each with a NodePool of its own: first those that touch nobody else, side by side, then
//! those that everybody would notice.

mod alone;
mod asked;
mod disruption;
mod fence;
mod fleet;
mod sources;
mod together;
mod world;

use anyhow::{Context as _, Result};

use self::world::World;

#[tokio::test]
async fn stories_with_real_cluster_api() -> Result<()> {
    let world = World::start().await?;
    let side_by_side = tokio::join!(
        together::from_zero_and_to_zero(&world),
        together::one_without_a_provider_id(&world),
        together::a_rollout_and_a_health_check(&world),
        sources::machine_templates(&world),
        sources::a_machine_pool(&world),
        together::handed_over(&world),
        sources::a_cluster_class(&world),
        asked::explained_and_simulated(&world),
        sources::machine_sets(&world),
        disruption::consolidation_saves_money(&world),
        disruption::drift_replaces_within_budgets(&world),
    );
    side_by_side.0.context("from zero and to zero")?;
    side_by_side.1.context("one without a provider id")?;
    side_by_side.2.context("a rollout and a health check")?;
    side_by_side.3.context("machine templates")?;
    side_by_side.4.context("a machine pool")?;
    side_by_side.5.context("handed over")?;
    side_by_side.6.context("a ClusterClass")?;
    side_by_side.7.context("explained and simulated")?;
    side_by_side.8.context("machine sets")?;
    side_by_side.9.context("consolidation saves money")?;
    side_by_side.10.context("drift replaces within budgets")?;
    alone::cluster_api_is_away(&world)
        .await
        .context("Cluster API is away")?;
    alone::two_autoscalers(&world).await.context("two autoscalers")?;
    world.end()
}

/// The autoscaler runs in the cluster that it scales, and Cluster API in another.
#[tokio::test]
async fn stories_with_a_management_cluster_elsewhere() -> Result<()> {
    let world = World::apart().await?;
    let side_by_side = tokio::join!(
        together::from_zero_and_to_zero(&world),
        together::a_rollout_and_a_health_check(&world),
        sources::machine_templates(&world),
    );
    side_by_side.0.context("from zero and to zero")?;
    side_by_side.1.context("a rollout and a health check")?;
    side_by_side.2.context("machine templates")?;
    fence::without_the_lease(&world)
        .await
        .context("without the lease")?;
    world.end_apart()
}
