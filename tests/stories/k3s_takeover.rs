//! A running installation of cluster-api-k3s hands its clusters over: it makes one, is stopped, and Slipway goes on with
//! it. No machine is replaced and no secret is changed; from then on servers join, are upgraded and go by our doing.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};
use slipway_testbed::{
    Cluster, ManagementCluster, Upstream,
    upstream::{self, RunningUpstream},
    wait::until,
};

use crate::{
    k3s_fleet::{CORE, Fleet, Simulated},
    k3s_lifecycle::{deleting_leaves_nothing, workers_are_ready},
    k3s_manager::{K3sManager, USER},
};

/// The last minor whose servers have the role label that upstream looks for.
const VERSION: &str = "v1.33.4+k3s1";
const NEXT: &str = "v1.34.3+k3s1";
const WORKERS: usize = 2;

/// S-58: the real providers made the cluster.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "outside CI: builds cluster-api-k3s; docs/guides/takeover-k3s.md has the command"]
async fn a_running_installation_hands_its_clusters_over() -> Result<()> {
    let builder = ManagementCluster::builder()
        .name("k3s-takeover")
        .cluster_api()
        .scheduler(false);
    let management = Arc::new(builder.audit_everything_of(USER).start().await?);
    let theirs = start_theirs(&management).await?;
    // What their webhooks would fill in is written out, because they do not run here.
    let cloud = json!({"serverConfig": {"disableCloudController": true, "cloudProviderName": "external"}});
    let tier = Simulated::with_config(cloud);
    let fleet = Fleet::start(Arc::clone(&management), "k3s-takeover", tier).await?;
    made_by_them(&fleet).await?;
    for upstream in theirs {
        upstream.stop();
    }
    let before = Standing::of(&fleet).await?;
    ensure!(before.machines.len() == 1 + WORKERS, "{:?}", before.machines);

    let mark = management.audit().mark()?;
    let manager = K3sManager::start(Arc::clone(&management)).await?;
    fleet.until_settled(1, VERSION).await?;
    workers_are_ready(&fleet, WORKERS).await?;
    manager
        .until_idle(&[("kthreescontrolplane", 1), ("kthreesconfig", 1 + WORKERS)])
        .await?;
    let after = Standing::of(&fleet).await?;
    ensure!(after == before, "{before:?}\nbecame\n{after:?}");
    let writes = management.audit().writes_at_rest(USER, mark)?;
    println!(
        "report: k3s takeover: {} machines, {} secrets and {} hosts as before, after {} writes",
        after.machines.len(),
        after.secrets.len(),
        after.hosts.len(),
        writes.len()
    );

    fleet.patch_plane(json!({"replicas": 3})).await?;
    fleet.until_settled(3, VERSION).await?;
    let servers = fleet.server_names().await?;
    ensure!(
        before.machines.contains_key(&servers[0]),
        "the first server is still theirs: {servers:?}"
    );
    fleet.patch_plane(json!({ "version": NEXT })).await?;
    fleet.until_settled(3, NEXT).await?;
    workers_are_ready(&fleet, WORKERS).await?;
    ensure!(fleet.tier.quorum_losses(&fleet.key()) == Some(0));
    deleting_leaves_nothing(&fleet).await?;
    drop((manager, fleet));
    if let Some(management) = Arc::into_inner(management) {
        management.stop();
    }
    Ok(())
}

async fn start_theirs(management: &Cluster) -> Result<Vec<RunningUpstream>> {
    let mut running = Vec::new();
    for upstream in [Upstream::K3sBootstrap, Upstream::K3sControlPlane] {
        let built = upstream::built(upstream, management.parts()).await?;
        running.push(management.start_upstream(&built, None, &[]).await?);
    }
    Ok(running)
}

/// A server and two workers. upstream asks etcd through a pod that the simulator does not have, so it gets no second
/// server.
async fn made_by_them(fleet: &Fleet) -> Result<()> {
    fleet.create(1, WORKERS, VERSION).await?;
    fleet
        .until_plane("be ready by their doing", |plane| {
            plane.data["status"]["ready"] == true && plane.data["status"]["readyReplicas"] == 1
        })
        .await?;
    until(
        &fleet.of(CORE, "MachineDeployment"),
        "workers",
        "be ready by their doing",
        |workers| workers.data["status"]["readyReplicas"] == WORKERS,
    )
    .await?;
    Ok(())
}

/// What a takeover must leave as it was.
#[derive(Debug, PartialEq)]
struct Standing {
    /// The machines' uids by name.
    machines: BTreeMap<String, Option<String>>,
    /// What is in the secrets, as a digest that says nothing.
    secrets: BTreeMap<String, u64>,
    hosts: Vec<String>,
}

impl Standing {
    async fn of(fleet: &Fleet) -> Result<Self> {
        let machines = fleet.of(CORE, "Machine").list(&ListParams::default()).await?;
        let secrets: Api<Secret> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
        let digest = |secret: &Secret| {
            use std::hash::{DefaultHasher, Hash, Hasher};
            let mut hasher = DefaultHasher::new();
            let data: Value = json!(secret.data);
            data.to_string().hash(&mut hasher);
            hasher.finish()
        };
        Ok(Self {
            machines: machines
                .iter()
                .map(|machine| (machine.name_any(), machine.uid()))
                .collect(),
            secrets: secrets
                .list(&ListParams::default())
                .await?
                .iter()
                .map(|secret| (secret.name_any(), digest(secret)))
                .collect(),
            hosts: fleet.tier.hosts(&fleet.key()),
        })
    }
}
