//! Stories of nodes that are given up: they cost money for nothing, they have drifted, and a budget keeps them.

use std::sync::Arc;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    fleet::{Fleet, holds},
    world::{ILL, KARPENTER, World, eventually, objects},
};

fn freely() -> Value {
    json!({"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]})
}

/// How many replicas a MachineDeployment has.
async fn replicas(fleet: &Fleet, name: &str) -> Result<i64> {
    let found = fleet.core("MachineDeployment").get(name).await?;
    Ok(found.data["spec"]["replicas"].as_i64().unwrap_or(0))
}

/// What the machines of MachineDeployments cost an hour, in cents.
async fn cents(fleet: &Fleet, priced: &[(&str, i64)]) -> Result<i64> {
    let mut cents = 0;
    for (name, price) in priced {
        cents += replicas(fleet, name).await? * price;
    }
    Ok(cents)
}

/// Waits until an event of this reason and with this text is on an object without a namespace.
async fn until_told(fleet: &Fleet, name: &str, reason: &str, text: &str) -> Result<()> {
    let events = objects(&fleet.client, Some("default"), "events.k8s.io/v1", "Event");
    eventually(&format!("{name} is told {reason}: {text}"), || async {
        let all = events.list(&ListParams::default()).await?.items;
        Ok(all.iter().any(|event| {
            let note = event.data["note"].as_str().unwrap_or_default();
            event.data["reason"] == reason && event.data["regarding"]["name"] == name && note.contains(text)
        }))
    })
    .await
}

/// The template of the NodePool changes.
async fn paint(fleet: &Fleet, colour: &str) -> Result<()> {
    let labels = json!({"fleet.test/colour": colour});
    fleet
        .merge_pool(json!({"spec": {"template": {"metadata": {"labels": labels}}}}))
        .await
}

fn is_painted(node: &Node, colour: &str) -> bool {
    node.labels()
        .get("fleet.test/colour")
        .is_some_and(|has| has == colour)
}

/// Three nodes are one too many when most pods have gone, and the one that is left moves to a machine that costs half.
pub async fn consolidation_saves_money(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "saving").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    fleet.apply(&fleet.disrupted_pool(json!({}), &freely())).await?;
    fleet.deploy("web", 5).await?;
    fleet.until_running("web", 5).await?;
    let began = cents(&fleet, &[("workers", 20)]).await?;
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
    let ended = cents(&fleet, &[("workers", 20), ("cheap", 10)]).await?;
    assert_eq!((began, ended), (60, 10));
    println!(
        "report: autoscaler: consolidation with real Cluster API takes 0.{began:02} $ an hour to 0.{ended:02} $, and no pod of two is lost"
    );
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
    paint(&fleet, "blue").await?;
    eventually("both claims have drifted", || async {
        let claims = fleet.claims().await?;
        Ok(claims.iter().all(|claim| holds(claim, "Drifted")))
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
        Ok(nodes.len() == 2 && nodes.iter().all(|node| is_painted(node, "blue")) && running == 4)
    })
    .await?;
    fleet.until_one_to_one(2).await?;
    let after = fleet.until_settled().await?;
    assert!(
        after.iter().all(|claim| !before.contains(claim)),
        "{before:?} {after:?}"
    );
    for claim in &before {
        until_told(&fleet, claim, "DisruptionTerminating", "Drifted").await?;
    }
    fleet.to_zero("web").await
}

/// A budget whose schedule is never over lets nothing drift, and says so; one that nobody can read says that; and one for another reason
/// is not in the way.
pub async fn budgets_have_schedules_and_reasons(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "budget").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    let always = json!({"nodes": "0", "schedule": "* * * * *", "duration": "1h"});
    let closed = json!({"consolidateAfter": "Never", "budgets": [always]});
    fleet.apply(&fleet.disrupted_pool(json!({}), &closed)).await?;
    fleet.deploy("web", 2).await?;
    fleet.until_running("web", 2).await?;
    let before = fleet.until_settled().await?;
    paint(&fleet, "green").await?;
    until_told(
        &fleet,
        &fleet.name,
        "DisruptionBlocked",
        "disruption reason Drifted",
    )
    .await?;
    assert_eq!(fleet.until_settled().await?, before);
    let pools = objects(&fleet.client, None, KARPENTER, "NodePool");
    let zone = json!({"metadata": {"annotations": {"slipway.dev/budget-time-zone": "Atlantis"}}});
    fleet.merge_pool(zone).await?;
    let told = |text: &'static str| {
        let pools = pools.clone();
        let name = fleet.name.clone();
        async move {
            let pool = pools.get(&name).await?;
            let conditions = pool.data["status"]["conditions"].as_array().cloned();
            let mut conditions = conditions.into_iter().flatten();
            let found = conditions
                .find(|one| one["type"] == "ValidationSucceeded")
                .unwrap_or_default();
            let message = found["message"].as_str().unwrap_or_default();
            anyhow::Ok(message.contains(text) && (found["status"] == "True") == text.is_empty())
        }
    };
    eventually("the time zone is told", || {
        told("names no time zone: \"Atlantis\"")
    })
    .await?;
    let zone = json!({"metadata": {"annotations": {"slipway.dev/budget-time-zone": "Asia/Kolkata"}}});
    fleet.merge_pool(zone).await?;
    let wrong = json!({"nodes": "0", "schedule": "0 25 * * *", "duration": "1h"});
    fleet
        .merge_pool(json!({"spec": {"disruption": {"budgets": [wrong]}}}))
        .await?;
    eventually("the schedule is told", || told("\"0 25 * * *\" is no schedule")).await?;
    assert_eq!(fleet.until_settled().await?, before);
    let empty = json!({"nodes": "0", "schedule": "* * * * *", "duration": "1h", "reasons": ["Empty"]});
    fleet
        .merge_pool(json!({"spec": {"disruption": {"budgets": [empty]}}}))
        .await?;
    eventually("the node is green", || async {
        let nodes = fleet.nodes().await?;
        let are_green = nodes.len() == 1 && nodes.iter().all(|node| is_painted(node, "green"));
        Ok(are_green && fleet.running("web").await? == 2 && told("").await?)
    })
    .await?;
    fleet.until_one_to_one(1).await?;
    fleet.to_zero("web").await
}

/// A node says that it is ill: another comes, then it goes.
pub async fn an_ill_node_is_replaced(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "ill").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    let kept = json!({"consolidateAfter": "Never", "budgets": [{"nodes": "1", "reasons": ["Unhealthy"]}]});
    fleet.apply(&fleet.disrupted_pool(json!({}), &kept)).await?;
    fleet.deploy("web", 2).await?;
    fleet.until_running("web", 2).await?;
    let before = fleet.until_settled().await?;
    let nodes: Api<Node> = Api::all(fleet.client.clone());
    let ill = fleet.nodes().await?.remove(0).name_any();
    let since = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = json!({"type": ILL, "status": "True", "reason": "Story", "lastTransitionTime": since,
        "lastHeartbeatTime": since});
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    nodes.patch_status(&ill, &PatchParams::default(), &patch).await?;
    eventually("another node stands in its place", || async {
        let nodes = fleet.nodes().await?;
        let is_another = nodes.len() == 1 && nodes[0].name_any() != ill;
        Ok(is_another && fleet.running("web").await? == 2)
    })
    .await?;
    fleet.until_one_to_one(1).await?;
    until_told(&fleet, &before[0], "DisruptionTerminating", "Unhealthy").await?;
    fleet.to_zero("web").await
}

/// A static NodePool holds as many nodes as it says, without a pod; they drift one for one, and it goes to none.
pub async fn a_static_pool_holds_its_replicas(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "static").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    let freely = json!({"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]});
    let mut manifests = fleet.disrupted_pool(json!({}), &freely);
    manifests[1]["spec"]["replicas"] = json!(2);
    manifests[1]["spec"]["limits"] = json!({"nodes": "4"});
    fleet.apply(&manifests).await?;
    fleet.until_one_to_one(2).await?;
    fleet.merge_pool(json!({"spec": {"replicas": 3}})).await?;
    fleet.until_one_to_one(3).await?;
    let before = fleet.until_settled().await?;
    paint(&fleet, "red").await?;
    eventually("all three are red", || async {
        let (nodes, claims) = (fleet.nodes().await?, fleet.claims().await?);
        anyhow::ensure!(
            claims.len() <= 4,
            "{} claims, and the limit is four",
            claims.len()
        );
        Ok(nodes.len() == 3 && claims.len() == 3 && nodes.iter().all(|node| is_painted(node, "red")))
    })
    .await?;
    fleet.until_one_to_one(3).await?;
    let after = fleet.until_settled().await?;
    assert!(
        after.iter().all(|claim| !before.contains(claim)),
        "{before:?} {after:?}"
    );
    fleet.merge_pool(json!({"spec": {"replicas": 0}})).await?;
    eventually("no node is left", || async {
        Ok(fleet.claims().await?.is_empty() && fleet.nodes().await?.is_empty())
    })
    .await?;
    assert_eq!(replicas(&fleet, "workers").await?, 0);
    Ok(())
}

/// A Deployment gets smaller: the real ReplicaSet controller takes its pods from the node that would go next, and that goes empty. The
/// other pods run on as they are.
pub async fn a_smaller_deployment_empties_a_node(world: &Arc<World>) -> Result<()> {
    const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    let fleet = Fleet::found(world, "cost").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    let one = json!({"consolidateAfter": "0s", "budgets": [{"nodes": "1"}]});
    fleet.apply(&fleet.disrupted_pool(json!({}), &one)).await?;
    fleet.deploy("web", 6).await?;
    fleet.until_running("web", 6).await?;
    fleet.until_one_to_one(3).await?;
    let pods: Api<Pod> = Api::namespaced(fleet.client.clone(), &fleet.name);
    let of_web = ListParams::default().labels("app=web");
    let is_first = |pod: &Pod| pod.annotations().get(COST).is_some_and(|cost| cost == "-1");
    eventually("the pods of one node are to go first", || async {
        let pods = pods.list(&of_web).await?.items;
        let nodes: std::collections::BTreeSet<_> = pods
            .iter()
            .filter(|pod| is_first(pod))
            .map(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()))
            .collect();
        Ok(nodes.len() == 1 && pods.iter().filter(|pod| is_first(pod)).count() == 2)
    })
    .await?;
    let all = pods.list(&of_web).await?.items;
    let mut others: Vec<Option<String>> = all
        .iter()
        .filter(|pod| !is_first(pod))
        .map(ResourceExt::uid)
        .collect();
    others.sort();
    fleet.scale("web", 4).await?;
    fleet.until_one_to_one(2).await?;
    fleet.until_running("web", 4).await?;
    let mut left: Vec<Option<String>> = pods.list(&of_web).await?.iter().map(ResourceExt::uid).collect();
    left.sort();
    assert_eq!(left, others, "nobody was evicted");
    fleet.to_zero("web").await
}
