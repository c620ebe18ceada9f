//! A manager that has lost its lease and has not noticed: it goes on planning, and what it plans reaches neither cluster.

use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use slipway_runtime::{
    Context, Metrics,
    controller::Registration,
    manager::{Manager, ManagerError, command},
};
use slipway_testbed::Cluster;
use tokio_util::sync::CancellationToken;

use super::{
    fleet::Fleet,
    world::{USER, World, eventually, objects},
};

/// The controllers of a real manager, which go on when it has ended: with its client, and with its word on whether it leads.
struct Escaped {
    /// Made of the manager's own when it begins to lead.
    context: Arc<OnceLock<Context>>,
    stop: CancellationToken,
}

impl Escaped {
    fn registration(&self, registration: Registration) -> Registration {
        let (own, stop, run) = (Arc::clone(&self.context), self.stop.clone(), registration.run);
        Registration {
            name: registration.name,
            run: Arc::new(move |of_manager: Context| {
                let context = own.get_or_init(|| {
                    let settings = (*of_manager.settings).clone();
                    let client = of_manager.client.clone();
                    let mut context = Context::new(client, settings, Metrics::new(), stop.clone());
                    context.leadership = of_manager.leadership.clone();
                    context
                });
                tokio::spawn(run(context.clone()));
                Box::pin(async move {
                    of_manager.shutdown.cancelled().await;
                    Ok(())
                })
            }),
        }
    }

    /// What was planned last.
    fn plan(&self, path: &str) -> String {
        let shown = self.context.get().and_then(|context| context.plans.show(path));
        shown.unwrap_or_default()
    }
}

/// Runs a manager over both clusters, whose lease is in this namespace.
fn manager(world: &World, namespace: &str, escaped: &Escaped) -> Result<Manager> {
    let kubeconfig = world.kubeconfig().with_file_name("manager.kubeconfig");
    let content = world.scaled().kubeconfig_as(USER, Some("system:masters"));
    std::fs::write(&kubeconfig, content)?;
    let mut provider = slipway_autoscaler::provider();
    let controllers = std::mem::take(&mut provider.packages[0].controllers);
    provider.packages[0].controllers = controllers
        .into_iter()
        .map(|one| escaped.registration(one))
        .collect();
    let providers = vec![provider];
    let flags = [
        "manager".to_owned(),
        "--providers=autoscaler".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--cluster-api-kubeconfig={}", world.kubeconfig().display()),
        "--leader-elect".to_owned(),
        format!("--leader-election-namespace={namespace}"),
        "--health-addr=0".to_owned(),
        "--diagnostics-address=0".to_owned(),
    ];
    let matches = command(&providers).try_get_matches_from(flags)?;
    Ok(Manager::from_matches(providers, &matches)?)
}

/// Everything that was written since a moment.
fn written(cluster: &Cluster, since: slipway_testbed::audit::Mark) -> Result<Vec<String>> {
    let its = |request: &slipway_testbed::audit::Request| request.username() == USER && request.is_write();
    let requests = cluster.audit().requests(Some(since), its)?;
    Ok(requests.iter().map(ToString::to_string).collect())
}

pub async fn without_the_lease(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "fenced").await?;
    world.stop();
    let escaped = Escaped {
        context: Arc::default(),
        stop: CancellationToken::new(),
    };
    let bound = manager(world, &fleet.name, &escaped)?.bind().await?;
    let running = tokio::spawn(bound.run(CancellationToken::new()));
    fleet.apply(&[fleet.machine_deployment()]).await?;
    let patient = json!({"deadlines": {"launch": "Never", "registration": "Never"}});
    fleet.apply(&fleet.node_pool(patient)).await?;
    fleet.deploy("early", 1).await?;
    fleet.until_running("early", 1).await?;
    fleet.until_one_to_one(1).await?;

    // Somebody else has it now; nobody holds it up, so that only the fence is in the way.
    let taken = json!({"spec": {"holderIdentity": "slipway_other", "leaseDurationSeconds": 1,
        "renewTime": "2026-01-01T00:00:00.000000Z"}});
    let leases = objects(
        &fleet.client,
        Some(&fleet.name),
        "coordination.k8s.io/v1",
        "Lease",
    );
    leases
        .patch(
            "karpenter-leader-election",
            &PatchParams::default(),
            &Patch::Merge(taken),
        )
        .await?;
    let ended = running.await?;
    anyhow::ensure!(
        matches!(ended, Err(ManagerError::LostLeadership)),
        "the manager ended with {ended:?}"
    );
    let (there, here) = (world.cluster.audit().mark()?, world.scaled().audit().mark()?);

    // In one cluster a claim is due, and in the other replicas.
    fleet.deploy("web", 3).await?;
    let workers = fleet.core("MachineDeployment");
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    workers.patch("workers", &PatchParams::default(), &none).await?;
    let account = format!("cluster.x-k8s.io/MachineDeployment/{}/workers", fleet.name);
    eventually("both are planned", || async {
        Ok(escaped
            .plan("karpenter.sh/Provisioner/provisioner")
            .contains("create a claim")
            && escaped.plan(&account).contains("scale from 0 to 1"))
    })
    .await?;
    assert_eq!(
        written(&world.cluster, there)?,
        [""; 0],
        "in the management cluster"
    );
    assert_eq!(
        written(world.scaled(), here)?,
        [""; 0],
        "in the cluster that is scaled"
    );
    assert_eq!(workers.get("workers").await?.data["spec"]["replicas"], 0);
    escaped.stop.cancel();

    // Whoever leads does both.
    let next = CancellationToken::new();
    world.run(None, world.settings(), &next);
    fleet.until_running("web", 3).await?;
    fleet.until_running("early", 1).await.context("the early pod")?;
    next.cancel();
    Ok(())
}
