//! A story of ProvisioningRequests: a job's nodes stand before its pods come, all of them or none, and a check keeps what it found.

use std::sync::Arc;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};

use super::{
    fleet::{Fleet, holds},
    world::{World, eventually, objects},
};

const STABLE: &str = "autoscaling.x-k8s.io/v1";
const ATOMIC: &str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";
const CHECK: &str = "check-capacity.autoscaling.x-k8s.io";

fn request(version: &str, name: &str, class: &str, count: u32, parameters: &Value) -> Value {
    json!({"apiVersion": version, "kind": "ProvisioningRequest", "metadata": {"name": name}, "spec": {
        "provisioningClassName": class, "parameters": parameters,
        "podSets": [{"count": count, "podTemplateRef": {"name": "worker"}}]}})
}

/// Pods of which two share a node, on nodes of this story's NodePool.
fn spec(fleet: &Fleet) -> Value {
    json!({"nodeSelector": {"karpenter.sh/nodepool": fleet.name}, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "web", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}]})
}

async fn until(fleet: &Fleet, name: &str, condition: &str) -> Result<()> {
    let requests = objects(&fleet.client, Some(&fleet.name), STABLE, "ProvisioningRequest");
    eventually(&format!("{name} is {condition}"), || async {
        Ok(holds(&requests.get(name).await?, condition))
    })
    .await
}

async fn running(fleet: &Fleet) -> Result<usize> {
    let pods: Api<Pod> = Api::namespaced(fleet.client.clone(), &fleet.name);
    let runs = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running")
    };
    Ok(pods
        .list(&ListParams::default())
        .await?
        .iter()
        .filter(runs)
        .count())
}

/// Five nodes at most: a job of eleven pods gets none of them, one of four gets two before its pods come, and while these have not
/// come, a check finds nothing for itself.
pub async fn a_job_gets_all_of_its_nodes_or_none(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "jobs").await?;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    let freely = json!({"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]});
    fleet.apply(&fleet.disrupted_pool(json!({}), &freely)).await?;
    let soon = json!({"ValidUntilSeconds": "5"});
    fleet
        .apply(&[request(STABLE, "large", ATOMIC, 11, &soon)])
        .await?;
    let requests = objects(&fleet.client, Some(&fleet.name), STABLE, "ProvisioningRequest");
    let says = |kind: &'static str, message: &'static str| {
        let requests = requests.clone();
        async move {
            let found = requests.get("large").await?;
            let conditions = found.data["status"]["conditions"].as_array();
            anyhow::Ok(conditions.into_iter().flatten().any(|one| {
                let told = one["message"].as_str().unwrap_or_default();
                one["type"] == kind && one["status"] == "False" && told.contains(message)
            }))
        }
    };
    eventually("it says what is missing", || {
        says("Accepted", "there is no PodTemplate worker")
    })
    .await?;
    let template = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "worker"},
        "template": {"metadata": {"labels": {"app": "job"}}, "spec": spec(&fleet)}});
    fleet.apply(&[template]).await?;
    until(&fleet, "large", "Failed").await?;
    assert!(
        fleet.claims().await?.is_empty(),
        "five nodes would be some of six"
    );

    // As clients of the first version write it.
    let beta = "autoscaling.x-k8s.io/v1beta1";
    fleet
        .apply(&[request(beta, "job", ATOMIC, 4, &json!({}))])
        .await?;
    until(&fleet, "job", "Provisioned").await?;
    fleet.until_one_to_one(2).await?;
    let once = json!({"noRetry": "true"});
    fleet.apply(&[request(STABLE, "greedy", CHECK, 1, &once)]).await?;
    until(&fleet, "greedy", "Failed").await?;
    let consumers = (0..4).map(|number| {
        let annotations = json!({"autoscaling.x-k8s.io/consume-provisioning-request": "job"});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("job-{number}"), "annotations": annotations},
            "spec": spec(&fleet)})
    });
    fleet.apply(&consumers.collect::<Vec<_>>()).await?;
    eventually("its pods run", || async { Ok(running(&fleet).await? == 4) }).await?;
    fleet.until_one_to_one(2).await?;
    // They have done their work: there is room for a pod, which is kept although nobody needs the node.
    let pods: Api<Pod> = Api::namespaced(fleet.client.clone(), &fleet.name);
    requests.delete("job", &DeleteParams::default()).await?;
    for number in 0..4 {
        pods.delete(&format!("job-{number}"), &DeleteParams::default())
            .await?;
    }
    fleet
        .apply(&[request(STABLE, "modest", CHECK, 1, &json!({}))])
        .await?;
    eventually("it is answered", || async {
        let found = requests.get("modest").await?;
        let conditions = found.data["status"]["conditions"].as_array();
        Ok(conditions
            .into_iter()
            .flatten()
            .any(|one| one["type"] == "Provisioned"))
    })
    .await?;
    if holds(&requests.get("modest").await?, "Provisioned") {
        fleet.until_one_to_one(1).await?;
    }
    requests.delete("modest", &DeleteParams::default()).await?;
    eventually("no node is left", || async {
        Ok(fleet.claims().await?.is_empty() && fleet.nodes().await?.is_empty())
    })
    .await
}
