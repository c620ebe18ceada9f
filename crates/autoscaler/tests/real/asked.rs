//! `slipway autoscaler explain` and `simulate`, asked beside a manager that is at work.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use slipway_autoscaler::command;

use super::{
    fleet::Fleet,
    world::{World, eventually},
};

/// The answer to one command line, over the roles of the autoscaler and with Cluster API by a kubeconfig of its own.
async fn ask(world: &World, arguments: &[&str]) -> Result<String> {
    let kubeconfig = world.kubeconfig().display().to_string();
    let mut all = vec!["autoscaler"];
    all.extend(arguments);
    all.extend([
        "--kubeconfig",
        &kubeconfig,
        "--cluster-api-kubeconfig",
        &kubeconfig,
    ]);
    let matches = command::subcommand().command.try_get_matches_from(all)?;
    command::answer(&matches).await.map_err(|error| anyhow!(error))
}

/// A pod of so many cores, for nodes of this NodePool.
fn spec(pool: &str, cores: &str) -> Value {
    json!({"nodeSelector": {"karpenter.sh/nodepool": pool},
        "containers": [{"name": "main", "image": "web", "resources": {"requests": {"cpu": cores}}}]})
}

pub async fn explained_and_simulated(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "asked").await?;
    let pool = &fleet.name;
    fleet.apply(&[fleet.machine_deployment()]).await?;
    fleet.apply(&fleet.node_pool(json!({}))).await?;

    let manifest = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": pool},
        "spec": {"replicas": 3, "template": {"spec": spec(pool, "1500m")}}});
    let path = world.kubeconfig().with_file_name("pods.yaml");
    std::fs::write(&path, manifest.to_string())?;
    let file = path.display().to_string();
    let expected = format!("2 times, for 3 pods: a new node of NodePool {pool}: ");
    eventually("three pods would get two nodes", || async {
        let answer = ask(world, &["simulate", "-f", &file]).await?;
        let line = answer.lines().find(|line| line.starts_with(&expected));
        let object = format!("from MachineDeployment/{pool}/workers, at 0.2 per hour");
        Ok(line.is_some_and(|line| line.ends_with(&object)))
    })
    .await?;
    assert!(fleet.claims().await?.is_empty(), "nothing was made for them");

    fleet
        .apply(&[json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "huge"}, "spec": spec(pool, "64")})])
        .await?;
    let answer = ask(world, &["explain", "huge", "--namespace", pool]).await?;
    assert!(
        answer.contains(&format!("{pool}/huge gets no node:\n")),
        "{answer}"
    );
    assert!(answer.contains(&format!("NodePool {pool}")), "{answer}");
    let said: Vec<&str> = answer.matches("no instance type had enough resources").collect();
    assert_eq!(said.len(), 1, "each reason is said once: {answer}");

    fleet.deploy("web", 1).await?;
    fleet.until_running("web", 1).await?;
    let pods: Api<Pod> = Api::namespaced(fleet.client.clone(), pool);
    let found = pods.list(&ListParams::default().labels("app=web")).await?;
    let name = found.items.first().context("it has a pod")?.name_any();
    let answer = ask(world, &["explain", &format!("{pool}/{name}")]).await?;
    assert!(
        answer.starts_with(&format!("{pool}/{name} has a node: ")),
        "{answer}"
    );
    let nobody = ask(world, &["explain", &format!("{pool}/nobody")]).await;
    let error = nobody.expect_err("there is none").to_string();
    assert!(
        error.contains(&format!("there is no pod {pool}/nobody")),
        "{error}"
    );

    // Events have Karpenter's names.
    fleet.until_told("Pod", &name, "Nominated").await?;
    fleet.until_told("Pod", "huge", "FailedScheduling").await?;

    pods.delete("huge", &DeleteParams::default()).await?;
    fleet.to_zero("web").await
}
