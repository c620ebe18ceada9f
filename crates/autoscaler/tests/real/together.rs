//! Stories over a MachineDeployment that touch nobody else's.

use std::sync::Arc;

use anyhow::Result;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use slipway_testbed::{hosts::Failure, wait::until};

use super::{
    fleet::{Fleet, holds},
    world::{CORE, KARPENTER, World, eventually, objects},
};

/// Five pods of which two share a node get three nodes, and give them back.
pub async fn from_zero_and_to_zero(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "zero").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    fleet.apply(&fleet.node_pool(json!({}))).await?;
    fleet.deploy("web", 5).await?;
    fleet.until_running("web", 5).await?;
    fleet.until_one_to_one(3).await?;
    let pools = objects(&fleet.client, None, KARPENTER, "NodePool");
    let pool = until(&pools, &fleet.name, "count three nodes", |pool| {
        pool.data["status"]["nodes"] == 3
    })
    .await?;
    assert_eq!(pool.data["status"]["resources"]["cpu"], "12");
    let workers = fleet.core("MachineDeployment").get("workers").await?;
    assert_eq!(workers.data["spec"]["replicas"], 3);
    fleet.to_zero("web").await?;
    let workers = fleet.core("MachineDeployment").get("workers").await?;
    assert_eq!(workers.data["spec"]["replicas"], 0);
    Ok(())
}

/// The first machine gets no provider id; whoever comes after it gets a node all the same.
pub async fn one_without_a_provider_id(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "withheld").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    fleet.apply(&fleet.node_pool(json!({}))).await?;
    // The control plane's host is not to take the failure.
    let machines = fleet.core("Machine");
    until(
        &machines,
        &format!("{}-control", fleet.name),
        "be there",
        |machine| machine.data["status"]["nodeRef"]["name"].is_string(),
    )
    .await?;
    fleet
        .hosts
        .fail_next(Failure::Provision("as the test asked".to_owned()));
    fleet.deploy("first", 1).await?;
    eventually("the first claim is launched", || async {
        let claims = fleet.claims().await?;
        Ok(claims.len() == 1 && holds(&claims[0], "Launched"))
    })
    .await?;
    fleet.deploy("second", 2).await?;
    // Who of the three gets the places on the node that came is kube-scheduler's to say.
    eventually("two of three pods run", || async {
        Ok(fleet.running("first").await? + fleet.running("second").await? == 2)
    })
    .await?;
    let claims = fleet.claims().await?;
    let without: Vec<&str> = claims
        .iter()
        .filter(|claim| claim.data["status"]["providerID"].is_null())
        .filter_map(|claim| claim.annotations().get("cluster.x-k8s.io/machine"))
        .filter_map(|named| named.rsplit('/').next())
        .collect();
    let [stuck] = without[..] else {
        anyhow::bail!("one claim has no provider id: {without:?}");
    };
    fleet.hosts.recover(stuck);
    fleet.until_running("first", 1).await?;
    fleet.until_running("second", 2).await?;
    fleet.until_one_to_one(2).await
}

/// Cluster API replaces Machines, by a rollout and by a health check: claims stay, and follow.
pub async fn a_rollout_and_a_health_check(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "rollout").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    fleet.apply(&fleet.node_pool(json!({}))).await?;
    fleet.deploy("web", 3).await?;
    fleet.until_running("web", 3).await?;
    fleet.until_one_to_one(2).await?;
    let claims = |all: Vec<kube::api::DynamicObject>| -> Vec<String> {
        let mut names: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
        names.sort();
        names
    };
    let (before, machines) = (claims(fleet.claims().await?), claims(fleet.machines().await?));

    // Pods that were drained may have got a node of their own meanwhile: nothing takes it back yet.
    let deployments = fleet.core("MachineDeployment");
    let followed = async |what: &str| -> Result<()> {
        fleet.until_running("web", 3).await?;
        let now = fleet.until_settled().await?;
        let is_there = before.iter().all(|claim| now.contains(claim));
        assert!(is_there, "{before:?} follow {what}, and there are {now:?}");
        let replicas = deployments.get("workers").await?.data["spec"]["replicas"].as_u64();
        assert_eq!(replicas, u64::try_from(now.len()).ok(), "after {what}");
        Ok(())
    };
    let newer = Patch::Merge(
        json!({"spec": {"template": {"metadata": {"labels": {"pool": "workers", "round": "two"}}, "spec": {"version": "v1.36.4"}}}}),
    );
    deployments
        .patch("workers", &PatchParams::default(), &newer)
        .await?;
    eventually("every Machine is a new one", || async {
        let now = claims(fleet.machines().await?);
        Ok(now.len() >= 2 && now.iter().all(|name| !machines.contains(name)))
    })
    .await?;
    followed("Cluster API's rollout").await?;

    let check = json!({"apiVersion": CORE, "kind": "MachineHealthCheck", "metadata": {"name": "workers"}, "spec": {
        "clusterName": fleet.name, "selector": {"matchLabels": {"pool": "workers"}},
        "checks": {"unhealthyNodeConditions": [{"type": "Ready", "status": "Unknown", "timeoutSeconds": 1}]}}});
    fleet.apply(&[check]).await?;
    let sick = claims(fleet.machines().await?).remove(0);
    fleet.hosts.kill(&sick).await?;
    eventually("the sick Machine is replaced", || async {
        let now = claims(fleet.machines().await?);
        Ok(now.len() >= 2 && !now.contains(&sick))
    })
    .await?;
    followed("a health check's replacement").await
}

/// What karpenter-provider-cluster-api leaves: a Machine with its label, and a claim that names it and has a provider id.
pub async fn handed_over(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "handover").await?;
    let mut workers = fleet.machine_deployment();
    workers["metadata"]["labels"] = json!({"node.cluster.x-k8s.io/karpenter-member": ""});
    workers["spec"]["replicas"] = json!(1);
    // A cheaper object, which a claim without a Machine would be given.
    let mut cheaper = fleet.machine_deployment();
    cheaper["metadata"]["name"] = json!("cheaper");
    cheaper["metadata"]["annotations"]["capacity.cluster-autoscaler.kubernetes.io/price"] = json!("0.1");
    cheaper["spec"]["selector"]["matchLabels"] = json!({"pool": "cheaper"});
    cheaper["spec"]["template"]["metadata"]["labels"] = json!({"pool": "cheaper"});
    fleet.apply(&[workers, cheaper]).await?;
    eventually("the Machine is up", || async {
        let machines = fleet.machines().await?;
        Ok(machines.len() == 1 && machines[0].data["status"]["nodeRef"]["name"].is_string())
    })
    .await?;
    let machine = fleet.machines().await?.remove(0);
    let label = Patch::Merge(json!({"metadata": {"labels": {"node.cluster.x-k8s.io/karpenter-member": ""}}}));
    fleet
        .core("Machine")
        .patch(&machine.name_any(), &PatchParams::default(), &label)
        .await?;
    // Without its NodePool nothing else is made.
    fleet.apply(&fleet.node_pool(json!({}))[..1]).await?;
    let claims = objects(&fleet.client, None, KARPENTER, "NodeClaim");
    let claim = json!({"apiVersion": KARPENTER, "kind": "NodeClaim", "metadata": {"name": format!("{}-x7f2k", fleet.name),
        "labels": {"karpenter.sh/nodepool": fleet.name}, "finalizers": ["karpenter.sh/termination"],
        "annotations": {"cluster.x-k8s.io/machine": format!("{}/{}", fleet.name, machine.name_any()),
            "karpenter.sh/nodepool-hash": "1", "karpenter.sh/nodepool-hash-version": "v3"}},
        "spec": {"requirements": [], "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass",
            "name": fleet.name}}});
    let claim = claims
        .create(&PostParams::default(), &serde_json::from_value(claim)?)
        .await?;
    fleet.apply(&fleet.node_pool(json!({}))).await?;
    fleet.until_one_to_one(1).await?;
    let bound = fleet.machines().await?.remove(0);
    assert_eq!(
        (
            bound.name_any(),
            bound
                .labels()
                .get("karpenter.cluster.x-k8s.io/nodeclaim")
                .cloned()
        ),
        (machine.name_any(), claim.uid()),
        "the Machine stays the claim's"
    );
    until(
        &claims,
        &claim.name_any(),
        "be hashed again, and not drifted",
        |claim| {
            let version = claim.annotations().get("karpenter.sh/nodepool-hash-version");
            version.is_some_and(|version| version == "slipway-1")
        },
    )
    .await?;
    // And it goes as one of ours.
    fleet.deploy("web", 1).await?;
    fleet.until_running("web", 1).await?;
    fleet.to_zero("web").await?;
    let workers = fleet.core("MachineDeployment").get("workers").await?;
    assert_eq!(workers.data["spec"]["replicas"], 0);
    Ok(())
}
