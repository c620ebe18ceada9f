//! Where k3s is unkind, the simulator's model has to be: each unkindness is told of the model, everywhere, and of real k3s servers where
//! `real_k3s` runs; both have to be the same.

use std::{
    collections::BTreeMap,
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use slipway_k3s_sim::model::{
    self, ADDRESS_ANNOTATION, ETCD_ROLE, LEASE, MEMBER_ANNOTATION, Model, NODE_GRACE, REMOVE_ANNOTATION, TICK,
};
use slipway_testbed::{hosts::Booting, wait::until_within};

use crate::{
    k3s_fleet::{CORE, Fleet, NAME, condition},
    k3s_lifecycle::deleting_leaves_nothing,
    real_k3s::{RealFleet, nodes_become_voters, real},
    real_k3s_quorum::{SAMPLE, asked, delete_node, member_names, node, patch_node},
    support::is_ready,
};

const ROLE: &str = "node-role.kubernetes.io/control-plane";
const VERSION: &str = "v1.36.3+k3s1";
/// Two looks of etcd's leader: what k3s does by itself it has done by then.
const LOOKED_TWICE: Duration = Duration::from_secs(35);

/// What was seen, by what was looked at.
type Told = BTreeMap<&'static str, &'static str>;

/// What k3s does, as its source says and as its servers did it.
const UNKIND: [(&str, &str); 15] = [
    ("the removal of the only voter", "is taken back"),
    ("the name of its member on a new node", "comes late"),
    ("the member of a second server", "begins as a learner"),
    ("a learner that nobody looks after", "is promoted"),
    ("the role of etcd that somebody takes off", "comes back"),
    (
        "the role of the control plane that somebody takes off",
        "stays off",
    ),
    ("the name of its member that somebody takes off", "comes back"),
    ("the lease of a server that lives", "is renewed"),
    ("the lease of a server that is down", "is not renewed"),
    ("the node of a server that is down", "is not ready"),
    (
        "EtcdIsVoter of a server that is down",
        "stays True, MemberNotLearner",
    ),
    (
        "the removal of a living voter beside one that is down",
        "is refused, and asked for on",
    ),
    ("a join beside a voter that is down", "is refused"),
    (
        "a deleted node that does not name its member",
        "is kept, with its member",
    ),
    ("the same node with its member's name", "is gone, with its member"),
];

fn either(so: bool, yes: &'static str, no: &'static str) -> &'static str {
    if so { yes } else { no }
}

/// The model with three servers, the first of which leads.
fn three_servers(told: &mut Told) -> Model {
    let mut model = Model::new(Timestamp::UNIX_EPOCH);
    model.initialize("a", VERSION);
    model.advance(TICK);
    model.annotate("a", REMOVE_ANNOTATION, Some("true"));
    let stays = model.nodes["a"].annotations.contains_key(REMOVE_ANNOTATION) || model.voters() == 0;
    told.insert(
        "the removal of the only voter",
        either(!stays, "is taken back", "stays"),
    );
    for host in ["b", "c"] {
        assert!(model.join(host, VERSION));
        let named = model.nodes[host].annotations.contains_key(MEMBER_ANNOTATION);
        let learner = model
            .members
            .iter()
            .any(|member| member.host == host && member.learner);
        model.advance(TICK * 2);
        let named_then = model.nodes[host].annotations.contains_key(MEMBER_ANNOTATION);
        told.insert(
            "the name of its member on a new node",
            either(!named && named_then, "comes late", "is there at once"),
        );
        told.insert(
            "the member of a second server",
            either(learner, "begins as a learner", "begins as a voter"),
        );
    }
    told.insert(
        "a learner that nobody looks after",
        either(model.voters() == 3, "is promoted", "stays one"),
    );
    model
}

fn of_the_model() -> Told {
    let mut told = Told::new();
    let mut model = three_servers(&mut told);
    for role in [ROLE, ETCD_ROLE] {
        model.remove_label("b", role);
    }
    for name in [MEMBER_ANNOTATION, ADDRESS_ANNOTATION] {
        model.annotate("b", name, None);
    }
    model.advance(LOOKED_TWICE);
    let node = &model.nodes["b"];
    let back = |there: bool| either(there, "comes back", "stays off");
    told.insert(
        "the role of etcd that somebody takes off",
        back(node.labels.contains_key(ETCD_ROLE)),
    );
    told.insert(
        "the role of the control plane that somebody takes off",
        back(node.labels.contains_key(ROLE)),
    );
    told.insert(
        "the name of its member that somebody takes off",
        back(node.annotations.contains_key(MEMBER_ANNOTATION)),
    );

    let leases = |model: &Model| (model.nodes["a"].lease, model.nodes["c"].lease);
    model.kill("c");
    let before = leases(&model);
    model.advance(NODE_GRACE + TICK * 2);
    let renewed = |so: bool| either(so, "is renewed", "is not renewed");
    let after = leases(&model);
    told.insert("the lease of a server that lives", renewed(after.0 != before.0));
    told.insert("the lease of a server that is down", renewed(after.1 != before.1));
    told.insert(
        "the node of a server that is down",
        either(model.nodes["c"].ready, "is ready", "is not ready"),
    );
    let voter = model.nodes["c"].voter.as_ref();
    let voter = voter.is_some_and(|voter| voter.status && voter.reason == "MemberNotLearner");
    told.insert(
        "EtcdIsVoter of a server that is down",
        is_voter(voter && model.voters() == 3),
    );

    model.annotate("b", REMOVE_ANNOTATION, Some("true"));
    model.advance(LOOKED_TWICE);
    let asked = model.nodes["b"].annotations.contains_key(REMOVE_ANNOTATION);
    told.insert(
        "the removal of a living voter beside one that is down",
        removal(model.voters(), asked),
    );
    model.annotate("b", REMOVE_ANNOTATION, None);
    let joined = model.join("d", VERSION);
    told.insert(
        "a join beside a voter that is down",
        either(joined, "is let in", "is refused"),
    );

    let name = model.nodes["c"].annotations[MEMBER_ANNOTATION].clone();
    model.annotate("c", MEMBER_ANNOTATION, None);
    model.delete_node("c");
    model.advance(LOOKED_TWICE);
    told.insert(
        "a deleted node that does not name its member",
        deletion(model.nodes.contains_key("c"), model.voters()),
    );
    model.annotate("c", MEMBER_ANNOTATION, Some(&name));
    model.advance(LOOKED_TWICE);
    told.insert(
        "the same node with its member's name",
        deletion(model.nodes.contains_key("c"), model.voters()),
    );
    told
}

fn is_voter(so: bool) -> &'static str {
    either(so, "stays True, MemberNotLearner", "changes")
}

fn removal(voters: usize, asked: bool) -> &'static str {
    match (voters, asked) {
        (3, true) => "is refused, and asked for on",
        (3, false) => "is refused, and taken back",
        _ => "is done",
    }
}

fn deletion(node: bool, members: usize) -> &'static str {
    match (node, members) {
        (true, 3) => "is kept, with its member",
        (false, 2) => "is gone, with its member",
        (false, _) => "is gone, without its member",
        (true, _) => "is kept, without its member",
    }
}

#[test]
fn the_model_is_as_unkind_as_was_seen() {
    assert_eq!(of_the_model(), Told::from(UNKIND));
    assert_eq!(model::CATCH_UP, Duration::from_secs(1));
}

/// The same of real servers.
#[tokio::test]
async fn k3s_is_as_unkind_as_the_model() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-unkind", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(1, 0, version).await?;
    fleet.until_settled(1, version).await?;
    let told = Box::pin(Real::of(&fleet).await?.look(version)).await?;
    let modelled = of_the_model();
    let different: Vec<String> = modelled
        .iter()
        .filter(|(what, said)| told.get(*what) != Some(*said))
        .map(|(what, said)| format!("{what}: k3s {:?}, the model {said:?}", told.get(what)))
        .collect();
    println!(
        "report: real k3s: {} of {} unkindnesses are the model's",
        modelled.len() - different.len(),
        modelled.len()
    );
    ensure!(different.is_empty(), "{}", different.join("\n"));
    deleting_leaves_nothing(&fleet).await
}

/// What k3s would do by itself it does within two looks of etcd's leader. That something does not happen can only be waited for.
async fn let_k3s_look() {
    tokio::time::sleep(LOOKED_TWICE).await;
}

/// Looks at a fleet of real servers.
struct Real<'fleet> {
    fleet: &'fleet Fleet,
    nodes: Api<Node>,
    told: Told,
}

impl<'fleet> Real<'fleet> {
    async fn of(fleet: &'fleet Fleet) -> Result<Self> {
        let workload = fleet.workload().await?;
        Ok(Self {
            fleet,
            nodes: Api::all(workload),
            told: Told::new(),
        })
    }

    async fn look(mut self, version: &str) -> Result<Told> {
        let first = self.fleet.server_names().await?;
        self.the_only_voter(&first[0]).await?;
        Box::pin(self.a_second_server(&first)).await?;
        self.fleet.until_settled(3, version).await?;
        nodes_become_voters(self.fleet).await?;
        // From here on nobody but k3s and this test does anything.
        let clusters = self.fleet.of(CORE, "Cluster");
        let pause = Patch::Merge(json!({"spec": {"paused": true}}));
        clusters.patch(NAME, &PatchParams::default(), &pause).await?;
        self.fleet
            .until_plane("be paused", |plane| {
                condition(plane, "Paused").is_some_and(|one| one["status"] == "True")
            })
            .await?;
        let servers = self.fleet.server_names().await?;
        let (living, down) = (&servers[1], &servers[2]);
        self.what_is_taken_off(living).await?;
        self.one_is_down(living, down).await?;
        self.a_change_beside_it(living, version).await?;
        self.its_node_is_deleted(down).await?;
        let unpause = Patch::Merge(json!({"spec": {"paused": false}}));
        clusters.patch(NAME, &PatchParams::default(), &unpause).await?;
        Ok(self.told)
    }

    async fn node(&self, name: &str) -> Result<Node> {
        node(self.fleet, name).await?.context("its node")
    }

    async fn until_node(&self, node: &str, what: &str, so: impl Fn(&Node) -> bool) -> Result<Node> {
        Ok(until_within(self.fleet.tier.deadline(), &self.nodes, node, what, so).await?)
    }

    async fn the_only_voter(&mut self, server: &str) -> Result<()> {
        patch_node(
            self.fleet,
            server,
            &json!({"annotations": {REMOVE_ANNOTATION: "true"}}),
        )
        .await?;
        let asked = |node: &Node| node.annotations().contains_key(REMOVE_ANNOTATION);
        self.until_node(server, "be asked no more", |node| !asked(node))
            .await?;
        let kept = member_names(self.fleet).await?.len() == 1;
        self.told.insert(
            "the removal of the only voter",
            either(kept, "is taken back", "is done"),
        );
        Ok(())
    }

    async fn a_second_server(&mut self, first: &[String]) -> Result<()> {
        let grow = self.fleet.patch_plane(json!({"replicas": 3}));
        let changes = watcher(self.nodes.clone(), watcher::Config::default())
            .default_backoff()
            .applied_objects();
        let appears = async {
            let mut changes = pin!(changes);
            while let Some(node) = changes.try_next().await? {
                if !first.contains(&node.name_any()) {
                    return Ok(node);
                }
            }
            anyhow::bail!("the watch ended")
        };
        let joins = async {
            let mut seen = None;
            loop {
                let members = self.fleet.members().await.unwrap_or_default();
                let learner = members.iter().any(|member| member.learner);
                match seen {
                    None if learner => seen = Some(Instant::now()),
                    None if members.len() > 1 => return None,
                    Some(since) if !learner && members.len() > 1 => return Some(since.elapsed()),
                    _ => {}
                }
                tokio::time::sleep(SAMPLE / 5).await;
            }
        };
        let deadline = self.fleet.tier.deadline();
        let both = Box::pin(async {
            grow.await?;
            let (node, promoted) = futures::join!(appears, joins);
            Ok::<_, anyhow::Error>((node?, promoted))
        });
        let (node, promoted) = tokio::time::timeout(deadline, both).await??;
        let named = |node: &Node| node.annotations().contains_key(MEMBER_ANNOTATION);
        self.told.insert(
            "the name of its member on a new node",
            either(!named(&node), "comes late", "is there at once"),
        );
        self.until_node(&node.name_any(), "name its member", named)
            .await?;
        self.told.insert(
            "the member of a second server",
            either(promoted.is_some(), "begins as a learner", "begins as a voter"),
        );
        self.told
            .insert("a learner that nobody looks after", "is promoted");
        println!(
            "report: real k3s: a learner is promoted {:.1} s after it was seen, the model's with the next tick, 1 to 16 s after it joined",
            promoted.unwrap_or_default().as_secs_f64()
        );
        Ok(())
    }

    async fn what_is_taken_off(&mut self, living: &str) -> Result<()> {
        let labels = json!({ROLE: null, ETCD_ROLE: null});
        let annotations = json!({MEMBER_ANNOTATION: null, ADDRESS_ANNOTATION: null});
        patch_node(
            self.fleet,
            living,
            &json!({"labels": labels, "annotations": annotations}),
        )
        .await?;
        let_k3s_look().await;
        let node = self.node(living).await?;
        let back = |there: bool| either(there, "comes back", "stays off");
        self.told.insert(
            "the role of etcd that somebody takes off",
            back(node.labels().contains_key(ETCD_ROLE)),
        );
        self.told.insert(
            "the role of the control plane that somebody takes off",
            back(node.labels().contains_key(ROLE)),
        );
        self.told.insert(
            "the name of its member that somebody takes off",
            back(node.annotations().contains_key(MEMBER_ANNOTATION)),
        );
        Ok(())
    }

    async fn renewed_at(&self, node: &str) -> Result<Value> {
        let lease = asked(|| async {
            let leases: Api<Lease> = Api::namespaced(self.fleet.workload().await?, "kube-node-lease");
            Ok(leases.get(node).await?)
        })
        .await?;
        Ok(json!(lease.spec.and_then(|spec| spec.renew_time)))
    }

    async fn one_is_down(&mut self, living: &str, down: &str) -> Result<()> {
        self.fleet.kill(down).await?;
        let before = (self.renewed_at(living).await?, self.renewed_at(down).await?);
        self.until_node(down, "not be ready", |node| !is_ready(node))
            .await?;
        self.told
            .insert("the node of a server that is down", "is not ready");
        let_k3s_look().await;
        let after = (self.renewed_at(living).await?, self.renewed_at(down).await?);
        let renewed = |so: bool| either(so, "is renewed", "is not renewed");
        self.told
            .insert("the lease of a server that lives", renewed(after.0 != before.0));
        self.told
            .insert("the lease of a server that is down", renewed(after.1 != before.1));
        ensure!(LOOKED_TWICE > LEASE * 2);
        let node = self.node(down).await?;
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let voter = conditions.into_iter().flatten().any(|one| {
            one.type_ == "EtcdIsVoter"
                && one.status == "True"
                && one.reason.as_deref() == Some("MemberNotLearner")
        });
        let listed = asked(|| self.fleet.members())
            .await?
            .iter()
            .filter(|one| !one.learner)
            .count();
        self.told.insert(
            "EtcdIsVoter of a server that is down",
            is_voter(voter && listed == 3),
        );
        Ok(())
    }

    async fn a_change_beside_it(&mut self, living: &str, version: &str) -> Result<()> {
        patch_node(
            self.fleet,
            living,
            &json!({"annotations": {REMOVE_ANNOTATION: "true"}}),
        )
        .await?;
        let_k3s_look().await;
        let asked = self
            .nodes
            .get(living)
            .await?
            .annotations()
            .contains_key(REMOVE_ANNOTATION);
        self.told.insert(
            "the removal of a living voter beside one that is down",
            removal(member_names(self.fleet).await?.len(), asked),
        );
        patch_node(
            self.fleet,
            living,
            &json!({"annotations": {REMOVE_ANNOTATION: null}}),
        )
        .await?;

        let fleet = self.fleet;
        let joined = fleet.host_of(living).await?;
        let joins = Booting {
            cluster: fleet.key(),
            name: "late".to_owned(),
            provider_id: format!("testhost://{}/late", fleet.namespace),
            address: "10.251.0.2".to_owned(),
            version: version.to_owned(),
            is_control_plane: true,
            bootstrap_kind: "KThreesConfig".to_owned(),
            bootstrap_data: fleet.hosts.bootstrap_data(&joined).context("userdata")?,
            ..Booting::default()
        };
        fleet.tier.backend().boot(&joins).await?;
        // As long as a join took before, and longer: k3s tries every second.
        let started = Instant::now();
        let mut let_in = false;
        while started.elapsed() < Duration::from_mins(1) && !let_in {
            let_in = member_names(fleet).await?.len() > 3;
            tokio::time::sleep(SAMPLE).await;
        }
        self.told.insert(
            "a join beside a voter that is down",
            either(let_in, "is let in", "is refused"),
        );
        fleet.tier.backend().destroy(&fleet.key(), "late").await?;
        Ok(())
    }

    async fn its_node_is_deleted(&mut self, down: &str) -> Result<()> {
        let named = self.node(down).await?;
        let name = named
            .annotations()
            .get(MEMBER_ANNOTATION)
            .context("a name")?
            .clone();
        patch_node(
            self.fleet,
            down,
            &json!({"annotations": {MEMBER_ANNOTATION: null}}),
        )
        .await?;
        delete_node(self.fleet, down).await?;
        let_k3s_look().await;
        let kept = node(self.fleet, down).await?.is_some();
        self.told.insert(
            "a deleted node that does not name its member",
            deletion(kept, member_names(self.fleet).await?.len()),
        );
        if kept {
            patch_node(
                self.fleet,
                down,
                &json!({"annotations": {MEMBER_ANNOTATION: name}}),
            )
            .await?;
            let_k3s_look().await;
        }
        let kept = node(self.fleet, down).await?.is_some();
        self.told.insert(
            "the same node with its member's name",
            deletion(kept, member_names(self.fleet).await?.len()),
        );
        Ok(())
    }
}
