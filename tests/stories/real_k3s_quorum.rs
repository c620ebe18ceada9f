//! Quorum is never lost by our doing, on real k3s servers: a learner's Machine is deleted, labels vanish, one server dies while
//! another is deleted and the manager is killed, and one is cut off before a rollout. They run where `real_k3s` does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_k3s::api::PRE_TERMINATE_HOOK;
use slipway_testbed::{hosts::HostPhase, wait::until_within};
use tokio::task::JoinHandle;

use crate::{
    k3s_fleet::{CORE, Fleet, Member, condition},
    k3s_lifecycle::deleting_leaves_nothing,
    k3s_manager,
    real_k3s::{RealFleet, nodes_become_voters, real},
};

/// How long a member is nobody's before it is removed, and half as long again.
pub const LONGER_THAN_THE_GRACE: Duration = Duration::from_mins(3);
/// etcd tells nobody when its members change, nor k3s what it is asked to do: both are asked this often.
pub const SAMPLE: Duration = Duration::from_millis(500);
const REMOVE: &str = "etcd.k3s.cattle.io/remove";

/// What was ever seen of a cluster, by asking it again and again.
#[derive(Default)]
struct Samples {
    samples: usize,
    /// The fewest and the most voters.
    voters: Option<(usize, usize)>,
    /// Nodes that k3s was asked to remove, with those whose members were listed then.
    removals: BTreeMap<String, BTreeSet<String>>,
}

pub struct Sampler {
    seen: Arc<Mutex<Samples>>,
    task: JoinHandle<()>,
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn locked(seen: &Mutex<Samples>) -> MutexGuard<'_, Samples> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of the node that a member's name begins with.
fn node_of(member: &str) -> String {
    member
        .rsplit_once('-')
        .map_or(member, |(node, _)| node)
        .to_owned()
}

impl Sampler {
    pub fn of(fleet: &Arc<Fleet>) -> Self {
        let seen: Arc<Mutex<Samples>> = Arc::default();
        let (fleet, noted) = (Arc::clone(fleet), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            loop {
                // Nodes first: whoever is asked to leave is judged by those that are there after it was asked.
                if let (Ok(nodes), Ok(members)) = (fleet.nodes().await, fleet.members().await) {
                    locked(&noted).note(&nodes, &members);
                }
                tokio::time::sleep(SAMPLE).await;
            }
        });
        Self { seen, task }
    }

    /// Nobody was asked to leave, and etcd had so many voters all the time.
    pub fn saw_no_removal(&self, voters: (usize, usize)) -> Result<()> {
        let seen = locked(&self.seen);
        ensure!(seen.removals.is_empty(), "{:?}", seen.removals);
        ensure!(
            seen.samples > 10 && seen.voters == Some(voters),
            "{} samples, {:?}",
            seen.samples,
            seen.voters
        );
        Ok(())
    }
}

impl Samples {
    fn note(&mut self, nodes: &[Node], members: &[Member]) {
        self.samples += 1;
        let voters = members.iter().filter(|member| !member.learner).count();
        let (fewest, most) = self.voters.unwrap_or((voters, voters));
        self.voters = Some((fewest.min(voters), most.max(voters)));
        let listed: BTreeSet<String> = members.iter().map(|member| node_of(&member.name)).collect();
        for node in nodes
            .iter()
            .filter(|node| node.annotations().contains_key(REMOVE))
        {
            self.removals
                .entry(node.name_any())
                .or_insert_with(|| listed.clone());
        }
    }
}

pub async fn delete_machine(fleet: &Fleet, machine: &str) -> Result<()> {
    fleet
        .of(CORE, "Machine")
        .delete(machine, &DeleteParams::default())
        .await?;
    Ok(())
}

/// A connection ends with the server it led to: it is asked again, and another answers.
pub async fn asked<T, A: Future<Output = Result<T>>>(ask: impl Fn() -> A) -> Result<T> {
    for _ in 0..20 {
        if let Ok(answer) = ask().await {
            return Ok(answer);
        }
        tokio::time::sleep(SAMPLE).await;
    }
    ask().await
}

/// The names of etcd's members.
pub async fn member_names(fleet: &Fleet) -> Result<BTreeSet<String>> {
    let members = asked(|| fleet.members()).await?;
    Ok(members.into_iter().map(|member| member.name).collect())
}

/// A node of the cluster itself.
pub async fn node(fleet: &Fleet, name: &str) -> Result<Option<Node>> {
    let nodes = asked(|| fleet.nodes()).await?;
    Ok(nodes.into_iter().find(|node| node.name_any() == name))
}

/// Somebody changes a node's metadata.
pub async fn patch_node(fleet: &Fleet, name: &str, metadata: &Value) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": metadata}));
    asked(|| async {
        let nodes: Api<Node> = Api::all(fleet.workload().await?);
        nodes.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    })
    .await
}

/// Somebody deletes a node.
pub async fn delete_node(fleet: &Fleet, name: &str) -> Result<()> {
    asked(|| async {
        let nodes: Api<Node> = Api::all(fleet.workload().await?);
        nodes.delete(name, &DeleteParams::default()).await?;
        Ok(())
    })
    .await
}

/// No host went on which etcd counted.
pub fn nobody_is_left_behind(fleet: &Fleet) -> Result<()> {
    let left = fleet.tier.left_behind(&fleet.key()).unwrap_or_default();
    ensure!(left.is_empty(), "etcd counted on {left:?} when they went");
    Ok(())
}

/// Waits until a deleted Machine's host is let go, and looks then whether etcd has a member of it.
pub async fn until_let_go(fleet: &Fleet, machine: &str) -> Result<()> {
    let machines = fleet.of(CORE, "Machine");
    let kept = |machine: &kube::api::DynamicObject| machine.annotations().contains_key(PRE_TERMINATE_HOOK);
    let what = "be let go";
    until_within(fleet.tier.deadline(), &machines, machine, what, |machine| {
        !kept(machine)
    })
    .await?;
    let members = asked(|| fleet.members()).await?;
    let left = members.iter().find(|member| node_of(&member.name) == machine);
    ensure!(left.is_none(), "{machine} was let go as {left:?} of {members:?}");
    Ok(())
}

/// What the control plane says of etcd, or of why it waits.
async fn told(fleet: &Fleet) -> Result<String> {
    let plane = fleet.planes().get(crate::k3s_fleet::NAME).await?;
    Ok(plane.data["status"].to_string())
}

/// What our drop-in writes when k3s says that it is up.
const WAS_VOTER: &str = "/var/lib/rancher/k3s/server/was-voter";

/// A (S-1, S-7): a Machine is deleted while its member is a learner, which k3s promotes by itself seconds later, and its host takes
/// half a minute to go.
#[tokio::test]
async fn a_learner_that_is_deleted_takes_no_quorum_along() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts,
        _alone,
    }) = real("real-k3s-learner", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(1, 0, version).await?;
    fleet.until_settled(1, version).await?;
    fleet.hosts.delay(HostPhase::Delete, Duration::from_secs(30));
    let first = fleet.server_names().await?;
    fleet.patch_plane(json!({"replicas": 3})).await?;
    let key = fleet.key();
    let was_up = |host: &String| hosts.read(&key, host, WAS_VOTER).is_ok();
    let learner = async {
        loop {
            // Read before its member is seen: what is a learner later was none that votes then.
            let were_up: Vec<String> = hosts.hosts(&key).into_iter().filter(was_up).collect();
            if let Ok(members) = fleet.members().await
                && let Some(learner) = members.iter().find(|member| member.learner)
            {
                return (learner.name.clone(), were_up);
            }
            tokio::time::sleep(SAMPLE / 5).await;
        }
    };
    let (learner, were_up) = tokio::time::timeout(fleet.tier.deadline(), learner).await?;
    ensure!(
        were_up == first,
        "k3s says that it is up before its member votes: {were_up:?}"
    );
    let servers = fleet.server_names().await?;
    let second = servers
        .iter()
        .find(|name| !first.contains(name))
        .context("a second server")?;
    ensure!(
        learner.is_empty() || learner.starts_with(second.as_str()),
        "{learner} of {servers:?}"
    );
    delete_machine(&fleet, second).await?;
    until_let_go(&fleet, second).await?;
    fleet.until_gone(second).await?;
    nobody_is_left_behind(&fleet)?;
    fleet.until_settled(3, version).await?;
    ensure!(
        hosts.hosts(&key).iter().all(was_up),
        "a server that votes has a file that says so"
    );
    nobody_is_left_behind(&fleet)?;
    ensure!(
        fleet.server_names().await?.contains(&first[0]),
        "the first server stays"
    );
    deleting_leaves_nothing(&fleet).await
}

/// B (S-1, S-5): the roles are taken off a healthy server's node. Its member stays, for longer than an orphaned member would.
#[tokio::test]
async fn a_server_without_its_labels_keeps_its_member() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-labels", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(3, 0, version).await?;
    fleet.until_settled(3, version).await?;
    nodes_become_voters(&fleet).await?;
    let fleet = Arc::new(fleet);
    let before = member_names(&fleet).await?;
    let servers = fleet.server_names().await?;
    let labels = json!({
        "node-role.kubernetes.io/control-plane": null,
        "node-role.kubernetes.io/etcd": null,
    });
    patch_node(&fleet, &servers[1], &json!({"labels": labels})).await?;
    let sampler = Sampler::of(&fleet);
    // That something does not happen can only be waited for.
    let started = Instant::now();
    while started.elapsed() < LONGER_THAN_THE_GRACE {
        let now = member_names(&fleet).await?;
        ensure!(now == before, "{before:?} became {now:?}");
        tokio::time::sleep(SAMPLE).await;
    }
    sampler.saw_no_removal((3, 3))?;
    drop(sampler);
    ensure!(fleet.server_names().await? == servers);
    let node = node(&fleet, &servers[1]).await?.context("its node")?;
    ensure!(
        !node
            .labels()
            .contains_key("node-role.kubernetes.io/control-plane"),
        "nobody put the role back, so the test says something"
    );
    deleting_leaves_nothing(&fleet).await
}

/// C (S-1, S-2, S-14): one of three loses its power, another's Machine is deleted and the manager is killed, all at once. The healthy one
/// is asked to leave only after the dead one has left; etcd never has fewer than two voters, and all are replaced.
#[tokio::test]
async fn a_deleted_server_waits_for_the_replacement_of_a_dead_one() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-at-once", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(3, 0, version).await?;
    fleet.until_settled(3, version).await?;
    nodes_become_voters(&fleet).await?;
    let fleet = Arc::new(fleet);
    let servers = fleet.server_names().await?;
    let (dead, deleted) = (&servers[0], &servers[1]);
    let sampler = Sampler::of(&fleet);
    let manager = k3s_manager::of_shared_cluster().await?;
    fleet.kill(dead).await?;
    delete_machine(&fleet, deleted).await?;
    manager.kill();
    manager.restart().await?;

    // It says what it waits for, and names the dead one.
    let waits = fleet
        .until_plane("say that another server is lost", |plane| {
            let status = plane.data["status"].to_string();
            status.contains(dead.as_str()) && status.contains("another is lost and comes first")
        })
        .await;
    if waits.is_err() {
        anyhow::bail!("the wait does not name {dead}: {}", told(&fleet).await?);
    }
    fleet.check_health().await?;
    fleet.until_gone(dead).await?;
    fleet.until_gone(deleted).await?;
    fleet.until_settled(3, version).await?;
    nobody_is_left_behind(&fleet)?;
    {
        let seen = locked(&sampler.seen);
        ensure!(
            seen.voters.is_some_and(|(fewest, _)| fewest >= 2),
            "{:?}",
            seen.voters
        );
        // Whoever was asked to leave while the dead one was still counted on was the dead one.
        for (node, listed) in &seen.removals {
            ensure!(
                node == dead || !listed.contains(dead),
                "{node} was asked to leave while {listed:?} were members"
            );
        }
    }
    drop(sampler);
    deleting_leaves_nothing(&fleet).await
}

/// D (S-1, S-44): one of three is cut off, and a rollout is asked for in the same moment, while its lease is still fresh: nothing else can
/// be asked here. No server is made and none is taken, the conditions name the one that is cut off, and the rollout goes on when
/// it is back.
#[tokio::test]
async fn a_rollout_waits_for_a_server_that_is_cut_off() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts,
        _alone,
    }) = real("real-k3s-cut", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(3, 0, version).await?;
    fleet.until_settled(3, version).await?;
    nodes_become_voters(&fleet).await?;
    let before = fleet.server_names().await?;
    let cut = &before[1];
    let host = fleet.host_of(cut).await?;
    hosts.connect(&fleet.key(), &host, false)?;
    let started = Instant::now();
    let waits = format!("etcd member of machine {cut} is not alive");
    let labels = json!({"kthreesConfigSpec": {"agentConfig": {"nodeLabels": ["example.com/rolled=yes"]}}});
    fleet.patch_plane(labels).await?;
    fleet
        .until_plane("say whom the rollout waits for", |plane| {
            condition(plane, "RollingOut").is_some_and(|one| {
                let why = one["message"].as_str().unwrap_or_default();
                let asked = why.split("waiting to hear from").nth(1);
                asked.is_some_and(|nodes| nodes.contains(cut)) || why.contains(&waits)
            })
        })
        .await?;
    let waits_after = started.elapsed();
    until_within(
        fleet.tier.deadline(),
        &fleet.planes(),
        crate::k3s_fleet::NAME,
        "name the server that is cut off",
        |plane| {
            condition(plane, "EtcdClusterHealthyCondition").is_some_and(|one| {
                one["status"] == "False" && one["message"].as_str().is_some_and(|why| why.contains(cut))
            })
        },
    )
    .await?;
    println!(
        "report: real k3s: a rollout names the server that is cut off after {:.1} s, the condition of etcd after {:.1} s",
        waits_after.as_secs_f64(),
        started.elapsed().as_secs_f64()
    );
    ensure!(
        fleet.server_names().await? == before,
        "nothing was made or taken until then"
    );
    fleet
        .until_plane("say that the rollout waits", |plane| {
            condition(plane, "RollingOut")
                .is_some_and(|one| one["message"].as_str().is_some_and(|why| why.contains(&waits)))
        })
        .await?;
    // Until it is back nothing is made and nothing is taken. That something does not happen can only be waited for.
    let asked = Instant::now();
    while asked.elapsed() < Duration::from_mins(1) {
        let servers = fleet.server_names().await?;
        ensure!(servers == before, "{before:?} became {servers:?}");
        ensure!(fleet.members().await?.len() == 3);
        tokio::time::sleep(SAMPLE).await;
    }
    hosts.connect(&fleet.key(), &host, true)?;
    let all: BTreeSet<&String> = before.iter().collect();
    fleet
        .until_servers("be replaced", |servers| {
            servers.len() == 3
                && servers
                    .iter()
                    .all(|one| one.metadata.name.as_ref().is_some_and(|name| !all.contains(name)))
        })
        .await?;
    fleet.until_settled(3, version).await?;
    nobody_is_left_behind(&fleet)?;
    deleting_leaves_nothing(&fleet).await
}
