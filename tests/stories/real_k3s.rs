//! The scenarios of K3s once more, on real k3s servers: processes in network namespaces with embedded etcd, which boot
//! by the userdata that was rendered for them. They run where the environment names a k3s for each minor version
//! (`SLIPWAY_K3S_1_36=/path/to/k3s`), one after the other; elsewhere they say that they are skipped.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use slipway_testbed::{
    hosts::{Backend, RealK3s, Releases, unavailable},
    wait::until_within,
};
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    k3s_fleet::{Fleet, Tier, condition, is_true},
    k3s_lifecycle::{a_deleted_server_is_replaced, deleting_leaves_nothing, workers_are_ready},
    k3s_manager,
};

/// A few servers keep a small machine busy.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Real servers.
struct Real {
    hosts: Arc<RealK3s>,
}

impl Tier for Real {
    fn backend(&self) -> Arc<dyn Backend> {
        self.hosts.clone()
    }

    /// Only a server could tell, and only if it was asked at the right time.
    fn quorum_losses(&self, _cluster: &str) -> Option<u64> {
        None
    }

    fn ghosts(&self, cluster: &str) -> Option<Vec<String>> {
        Some(self.hosts.ghosts(cluster))
    }

    fn failures(&self, cluster: &str) -> Vec<String> {
        let told = |(host, why): (String, String)| format!("{host}: {why}");
        self.hosts.failures(cluster).into_iter().map(told).collect()
    }

    fn hosts(&self, cluster: &str) -> Vec<String> {
        self.hosts.hosts(cluster)
    }

    /// Nothing can run on these nodes, so nothing is deployed to them; and a silent node is noticed sooner.
    fn config(&self) -> Option<Value> {
        Some(json!({"serverConfig": {
            "disableComponents": ["coredns", "local-storage", "metrics-server", "servicelb", "traefik"],
            "kubeControllerManagerArgs": ["node-monitor-grace-period=20s"],
        }}))
    }

    fn deadline(&self) -> Duration {
        Duration::from_mins(20)
    }
}

/// A fleet of real servers, and nobody else's until it is dropped.
struct RealFleet {
    fleet: Fleet,
    hosts: Arc<RealK3s>,
    versions: Vec<String>,
    _alone: MutexGuard<'static, ()>,
}

/// A fleet where the environment names enough minor versions that follow each other, and the machine allows it.
async fn real(name: &str, minors: usize) -> Result<Option<RealFleet>> {
    let releases = Releases::from_environment()?;
    let versions: Vec<String> = releases
        .upgrades()
        .iter()
        .map(|release| release.version.clone())
        .collect();
    if versions.len() < minors {
        println!(
            "report: skipped: {name} on real k3s needs {minors} minor versions of it in the environment \
             (SLIPWAY_K3S_1_36=…), and there are {}",
            versions.len()
        );
        return Ok(None);
    }
    if let Some(why) = unavailable() {
        println!(
            "report: skipped: {name} on real k3s needs namespaces that this machine does not allow: {why}"
        );
        return Ok(None);
    }
    let alone = ONE_AT_A_TIME.lock().await;
    let manager = k3s_manager::of_shared_cluster().await?;
    let launcher = manager.cluster.description().parts.join("bin/launch");
    let hosts = Arc::new(RealK3s::new(launcher, releases)?);
    let tier = Real {
        hosts: Arc::clone(&hosts),
    };
    let fleet = Fleet::start(Arc::clone(&manager.cluster), name, Arc::new(tier)).await?;
    Ok(Some(RealFleet {
        fleet,
        hosts,
        versions,
        _alone: alone,
    }))
}

/// Every server's node comes to carry what k3s' own controllers write: a promoted learner is called a voter one look of
/// etcd's leader after its promotion.
async fn nodes_become_voters(fleet: &Fleet) -> Result<()> {
    let nodes: Api<Node> = Api::all(fleet.workload().await?);
    for server in fleet.servers().await? {
        let name = server.data["status"]["nodeRef"]["name"]
            .as_str()
            .context("a node")?;
        let node = until_within(fleet.tier.deadline(), &nodes, name, "be a voter", |node| {
            let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.into_iter().flatten().any(|one| {
                one.type_ == "EtcdIsVoter"
                    && one.status == "True"
                    && one.reason.as_deref() == Some("MemberNotLearner")
            })
        })
        .await?;
        let member = node.annotations().get("etcd.k3s.cattle.io/node-name");
        ensure!(
            member.is_some_and(|member| member.starts_with(&format!("{name}-"))),
            "{member:?}"
        );
        let role = node.labels().get("node-role.kubernetes.io/etcd");
        ensure!(role.is_some_and(|role| role == "true"));
    }
    Ok(())
}

/// One server and a worker, from userdata that a real k3s reads: the first one starts a cluster with the authorities
/// and the token it was given, the worker joins once it is there (S-17), the kubeconfig its users get is trusted, and
/// deleting leaves nothing (S-60).
#[tokio::test]
async fn one_server_and_a_worker() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-one", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(1, 1, version).await?;
    fleet.until_settled(1, version).await?;
    nodes_become_voters(&fleet).await?;
    workers_are_ready(&fleet, 1).await?;
    deleting_leaves_nothing(&fleet).await
}

/// Three servers join one another as learners and are promoted; one dies and is replaced; one is deleted by hand, and
/// leaves etcd before its host goes (S-7).
#[tokio::test]
async fn three_servers_are_healed() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-three", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(3, 0, version).await?;
    fleet.until_settled(3, version).await?;
    nodes_become_voters(&fleet).await?;

    fleet.check_health().await?;
    let before: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
    let dead = before.first().context("a server")?.clone();
    fleet.kill(&dead).await?;
    fleet.until_gone(&dead).await?;
    fleet.until_settled(3, version).await?;
    let after: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
    ensure!(
        before
            .iter()
            .filter(|name| **name != dead)
            .all(|name| after.contains(name)),
        "{before:?} became {after:?}"
    );
    nodes_become_voters(&fleet).await?;

    a_deleted_server_is_replaced(&fleet, version).await?;
    deleting_leaves_nothing(&fleet).await
}

/// From one minor version to the next, a server at a time; then one of the servers loses its power for a while and
/// comes back with its disk.
#[tokio::test]
async fn three_servers_are_upgraded() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-upgrade", 2).await?
    else {
        return Ok(());
    };
    let (from, to) = (&versions[versions.len() - 2], &versions[versions.len() - 1]);
    fleet.create(3, 0, from).await?;
    fleet.until_settled(3, from).await?;
    let before: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
    fleet.patch_plane(json!({ "version": to })).await?;
    fleet.until_settled(3, to).await?;
    let after: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
    ensure!(before.is_disjoint(&after), "every server was replaced");
    ensure!(fleet.tier.ghosts(&fleet.key()).unwrap_or_default().is_empty());
    nodes_become_voters(&fleet).await?;
    deleting_leaves_nothing(&fleet).await
}

/// With two of three gone nothing is done; when one comes back the other is replaced (S-49).
#[tokio::test]
async fn two_of_three_are_left_alone_until_one_returns() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-quorum", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(3, 0, version).await?;
    fleet.until_settled(3, version).await?;
    let before = fleet.server_names().await?;
    let (lost, returning) = (&before[0], &before[1]);
    for machine in [lost, returning] {
        fleet.kill(machine).await?;
    }
    crate::k3s_healing::mark_unhealthy(&fleet, lost).await?;
    let machines = fleet.of(crate::k3s_fleet::CORE, "Machine");
    let refused = until_within(
        fleet.tier.deadline(),
        &machines,
        lost,
        "say why it is not remediated",
        |machine| {
            condition(machine, "OwnerRemediated")
                .is_some_and(|one| one["status"] == "False" && one["reason"] != "WaitingForRemediation")
        },
    )
    .await?;
    ensure!(!is_true(&refused, "OwnerRemediated"));
    ensure!(
        fleet.server_names().await? == before,
        "nothing was deleted or made"
    );
    fleet.revive(returning).await?;
    fleet.until_gone(lost).await?;
    fleet.until_settled(3, version).await?;
    ensure!(fleet.server_names().await?.contains(returning));
    deleting_leaves_nothing(&fleet).await
}
