//! Stories of nodes that are given up: they cost money for nothing, they have drifted, and a budget keeps them.

use std::sync::Arc;

use anyhow::Result;
use kube::{ResourceExt, api::ListParams};
use serde_json::{Value, json};

use super::{
    fleet::Fleet,
    world::{World, eventually, objects},
};

fn freely() -> Value {
    json!({"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]})
}

/// How many replicas a MachineDeployment has.
async fn replicas(fleet: &Fleet, name: &str) -> Result<i64> {
    let found = fleet.core("MachineDeployment").get(name).await?;
    Ok(found.data["spec"]["replicas"].as_i64().unwrap_or(0))
}

/// Three nodes are one too many when most pods have gone, and the one that is left moves to a machine that costs half.
pub async fn consolidation_saves_money(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "saving").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    fleet.apply(&fleet.disrupted_pool(json!({}), &freely())).await?;
    fleet.deploy("web", 5).await?;
    fleet.until_running("web", 5).await?;
    fleet.scale("web", 2).await?;
    fleet.until_one_to_one(1).await?;
    fleet.until_running("web", 2).await?;
    assert_eq!(replicas(&fleet, "workers").await?, 1);
    fleet
        .apply(&[fleet.machine_deployment_at("cheap", "0.1")])
        .await?;
    eventually("the cheaper machine stands alone", || async {
        let moved = replicas(&fleet, "workers").await? == 0 && replicas(&fleet, "cheap").await? == 1;
        Ok(moved && fleet.claims().await?.len() == 1 && fleet.running("web").await? == 2)
    })
    .await?;
    fleet.until_one_to_one(1).await?;
    fleet.scale("web", 0).await?;
    eventually("the empty node is gone", || async {
        Ok(fleet.claims().await?.is_empty() && fleet.nodes().await?.is_empty())
    })
    .await?;
    assert_eq!(replicas(&fleet, "cheap").await?, 0);
    Ok(())
}

/// A changed template replaces both nodes, as soon as the NodePool's budget lets one go, and pods are never fewer than their own
/// budget says.
pub async fn drift_replaces_within_budgets(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "drift").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    let none = json!({"consolidateAfter": "Never", "budgets": [{"nodes": "0"}]});
    fleet.apply(&fleet.disrupted_pool(json!({}), &none)).await?;
    let guard = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "web"}}}});
    fleet.apply(&[guard]).await?;
    fleet.deploy("web", 4).await?;
    fleet.until_running("web", 4).await?;
    let before = fleet.until_settled().await?;
    let labels = json!({"spec": {"template": {"metadata": {"labels": {"fleet.test/colour": "blue"}}}}});
    fleet.merge_pool(labels).await?;
    eventually("both claims have drifted", || async {
        let claims = fleet.claims().await?;
        Ok(claims.iter().all(|claim| super::fleet::holds(claim, "Drifted")))
    })
    .await?;
    let one = json!({"spec": {"disruption": {"budgets": [{"nodes": "1"}]}}});
    // What was planned while the budget was none is planned again when it is looked at.
    assert_eq!(
        fleet.until_settled().await?,
        before,
        "a budget of none lets nothing go"
    );
    fleet.merge_pool(one).await?;
    eventually("both nodes are blue", || async {
        let running = fleet.running("web").await?;
        anyhow::ensure!(running >= 3, "{running} pods run, and three are to be available");
        let leaving = fleet.claims().await?;
        let leaving = leaving
            .iter()
            .filter(|claim| claim.metadata.deletion_timestamp.is_some());
        anyhow::ensure!(leaving.count() <= 1, "the budget lets one node go at a time");
        let nodes = fleet.nodes().await?;
        let is_blue = |node: &k8s_openapi::api::core::v1::Node| {
            node.labels()
                .get("fleet.test/colour")
                .is_some_and(|colour| colour == "blue")
        };
        Ok(nodes.len() == 2 && nodes.iter().all(is_blue) && running == 4)
    })
    .await?;
    fleet.until_one_to_one(2).await?;
    let after = fleet.until_settled().await?;
    assert!(
        after.iter().all(|claim| !before.contains(claim)),
        "{before:?} {after:?}"
    );
    let events = objects(&fleet.client, Some("default"), "events.k8s.io/v1", "Event");
    let told = |reason: &'static str| {
        let events = events.clone();
        let before = before.clone();
        async move {
            let all = events.list(&ListParams::default()).await?.items;
            anyhow::Ok(all.iter().any(|event| {
                let about = event.data["regarding"]["name"].as_str().unwrap_or_default();
                event.data["reason"] == reason && before.iter().any(|claim| claim == about)
            }))
        }
    };
    eventually("the claims say what they went for", || {
        told("DisruptionTerminating")
    })
    .await?;
    fleet.to_zero("web").await
}
