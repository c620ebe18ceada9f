//! A story of NodeOverlays: devices that nobody else knows of are planned with, and a price moves a node.

use std::sync::Arc;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    fleet::Fleet,
    world::{World, eventually, objects},
};

const ALPHA: &str = "karpenter.sh/v1alpha1";
const DONGLE: &str = "example.com/dongle";

/// An overlay over machines of one name in this story's NodePool.
fn overlay(fleet: &Fleet, name: &str, instance_type: &str, mut spec: Value) -> Value {
    spec["requirements"] = json!([
        {"key": "karpenter.sh/nodepool", "operator": "In", "values": [fleet.name]},
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [instance_type]}]);
    json!({"apiVersion": ALPHA, "kind": "NodeOverlay", "metadata": {"name": format!("{}-{name}", fleet.name)}, "spec": spec})
}

/// A MachineDeployment of this name, whose machines are an instance type of that name.
fn named(fleet: &Fleet, name: &str, price: &str) -> Value {
    let mut deployment = fleet.machine_deployment_at(name, price);
    deployment["metadata"]["annotations"]["capacity.cluster-autoscaler.kubernetes.io/labels"] =
        json!(format!("node.kubernetes.io/instance-type={name}"));
    deployment
}

/// Why an overlay is applied, or is not.
async fn reason(fleet: &Fleet, name: &str) -> Result<String> {
    let overlays = objects(&fleet.client, None, ALPHA, "NodeOverlay");
    let found = overlays.get(&format!("{}-{name}", fleet.name)).await?;
    let conditions = found.data["status"]["conditions"].as_array();
    let valid = conditions
        .into_iter()
        .flatten()
        .find(|one| one["type"] == "ValidationSucceeded");
    Ok(valid
        .and_then(|one| one["reason"].as_str())
        .unwrap_or_default()
        .to_owned())
}

/// A pod that needs a device waits for ever, until an overlay says which machines have it; it gets one of these, although they are
/// dearer. Once it is gone, a price that is laid over them makes the others the dear ones.
pub async fn overlays_say_what_machines_have_and_cost(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "overlaid").await?;
    fleet
        .apply(&[named(&fleet, "plain", "0.2"), named(&fleet, "rich", "0.4")])
        .await?;
    let freely = json!({"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]});
    fleet.apply(&fleet.disrupted_pool(json!({}), &freely)).await?;
    let amounts = json!({"cpu": "1", DONGLE: "1"});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "needy"}, "spec": {
        "nodeSelector": {"karpenter.sh/nodepool": fleet.name}, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "web", "resources": {"requests": amounts, "limits": {DONGLE: "1"}}}]}});
    fleet.apply(&[pod]).await?;
    fleet.until_told("Pod", "needy", "FailedScheduling").await?;
    assert!(fleet.claims().await?.is_empty(), "no machine has a dongle yet");
    fleet
        .apply(&[overlay(
            &fleet,
            "dongles",
            "rich",
            json!({"capacity": {DONGLE: "2"}}),
        )])
        .await?;
    // As the device's plugin does it on a real machine.
    let nodes: Api<Node> = Api::all(fleet.client.clone());
    eventually("a rich node stands", || async {
        Ok(fleet.nodes().await?.len() == 1)
    })
    .await?;
    let node = fleet.nodes().await?.remove(0).name_any();
    let devices = json!({"status": {"capacity": {DONGLE: "2"}, "allocatable": {DONGLE: "2"}}});
    nodes
        .patch_status(&node, &PatchParams::default(), &Patch::Merge(devices))
        .await?;
    let pods: Api<Pod> = Api::namespaced(fleet.client.clone(), &fleet.name);
    eventually("the pod runs", || async {
        let found = pods.get("needy").await?;
        Ok(found.status.and_then(|status| status.phase).as_deref() == Some("Running"))
    })
    .await?;
    fleet.until_one_to_one(1).await?;
    let claim = fleet.claims().await?.remove(0);
    assert_eq!(
        claim.annotations()["karpenter.sh/capacity-overlay-applied"],
        "true"
    );
    assert_eq!(claim.labels()["node.kubernetes.io/instance-type"], "rich");
    assert_eq!(claim.data["status"]["capacity"][DONGLE], "2");
    pods.delete("needy", &kube::api::DeleteParams::default()).await?;
    eventually("its node has gone", || async {
        Ok(fleet.claims().await?.is_empty())
    })
    .await?;

    fleet.deploy("web", 2).await?;
    fleet.until_running("web", 2).await?;
    let stands_on = |expected: &'static str| {
        let fleet = &fleet;
        async move {
            let claims = fleet.claims().await?;
            let is_alone = claims.len() == 1 && fleet.running("web").await? == 2;
            let kind = claims
                .first()
                .map(|claim| claim.labels()["node.kubernetes.io/instance-type"].clone());
            anyhow::Ok(is_alone && kind.as_deref() == Some(expected))
        }
    };
    eventually("plain machines are cheaper", || stands_on("plain")).await?;
    fleet
        .apply(&[
            overlay(
                &fleet,
                "discount",
                "rich",
                json!({"priceAdjustment": "-90%", "weight": 2}),
            ),
            overlay(&fleet, "already", "rich", json!({"price": "0.5", "weight": 2})),
        ])
        .await?;
    eventually("rich machines are cheaper now", || stands_on("rich")).await?;
    assert_eq!(reason(&fleet, "discount").await?, "ValidationSucceeded");
    eventually("the other says that it is in conflict", || async {
        Ok(reason(&fleet, "already").await? == "Conflict")
    })
    .await?;
    fleet.to_zero("web").await
}
