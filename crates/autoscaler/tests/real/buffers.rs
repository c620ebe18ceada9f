//! A story of CapacityBuffers: pods that come find room that is there already, and it is made again behind them.

use std::sync::Arc;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    fleet::{Fleet, holds},
    world::{World, eventually, objects},
};

const BETA: &str = "autoscaling.x-k8s.io/v1beta1";

/// The reason of a condition of the story's buffer, and for how many pods it is.
async fn says(fleet: &Fleet, condition: &str) -> Result<(String, Value)> {
    let buffers = objects(&fleet.client, Some(&fleet.name), BETA, "CapacityBuffer");
    let found = buffers.get("spare").await?;
    let conditions = found.data["status"]["conditions"].as_array();
    let found_condition = conditions
        .into_iter()
        .flatten()
        .find(|one| one["type"] == condition);
    let reason = found_condition.and_then(|one| one["reason"].as_str());
    Ok((
        reason.unwrap_or_default().to_owned(),
        found.data["status"]["replicas"].clone(),
    ))
}

async fn until_room(fleet: &Fleet, pods: i64, nodes: usize) -> Result<()> {
    eventually(
        &format!("there is room for {pods} pods on {nodes} nodes"),
        || async {
            let (reason, replicas) = says(fleet, "Provisioning").await?;
            let is_there = reason == "FitsExistingCapacity" && replicas == json!(pods);
            Ok(is_there && fleet.claims().await?.len() == nodes)
        },
    )
    .await?;
    fleet.until_one_to_one(nodes).await
}

fn names(nodes: Vec<Node>) -> Vec<String> {
    nodes.iter().map(ResourceExt::name_any).collect()
}

/// Half as many pods again as a Deployment has: a pod that comes runs on a node that stood before it came.
pub async fn a_buffer_is_taken_and_made_again(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "buffered").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    let freely = json!({"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]});
    fleet.apply(&fleet.disrupted_pool(json!({}), &freely)).await?;
    let buffer = |workload: &str| {
        json!({"apiVersion": BETA, "kind": "CapacityBuffer", "metadata": {"name": "spare"}, "spec": {
            "scalableRef": {"apiGroup": "apps", "kind": "Deployment", "name": workload}, "percentage": 50}})
    };
    fleet.apply(&[buffer("web")]).await?;
    eventually("it says that its workload is not there", || async {
        Ok(says(&fleet, "ReadyForProvisioning").await?.0 == "ScalableRefNotFound")
    })
    .await?;
    fleet.deploy("web", 2).await?;
    fleet.until_running("web", 2).await?;
    until_room(&fleet, 1, 2).await?;
    let before = names(fleet.nodes().await?);
    fleet.scale("web", 3).await?;
    fleet.until_running("web", 3).await?;
    let pods: Api<Pod> = Api::namespaced(fleet.client.clone(), &fleet.name);
    let pods = pods.list(&ListParams::default()).await?.items;
    let nodes = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
    for node in nodes {
        assert!(
            before.contains(&node),
            "a pod runs on {node}, and {before:?} stood"
        );
    }
    // Two for three pods, of which one has room beside the third.
    until_room(&fleet, 2, 3).await?;
    let buffers = objects(&fleet.client, Some(&fleet.name), BETA, "CapacityBuffer");
    let less = Patch::Merge(json!({"spec": {"percentage": 1}}));
    buffers.patch("spare", &PatchParams::default(), &less).await?;
    until_room(&fleet, 1, 2).await?;
    assert!(holds(&buffers.get("spare").await?, "ReadyForProvisioning"));
    fleet.scale("web", 0).await?;
    eventually("half of none is none, and no node is left", || async {
        let (reason, _) = says(&fleet, "Provisioning").await?;
        Ok(reason == "BufferEmpty" && fleet.claims().await?.is_empty() && fleet.nodes().await?.is_empty())
    })
    .await?;
    buffers.delete("spare", &DeleteParams::default()).await?;
    Ok(())
}
