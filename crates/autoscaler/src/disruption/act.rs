//! The writes of disruption: a candidate is marked and its Node tainted, its replacements are made, and at last it is deleted. A
//! crash between any two of them leaves either marks that no command tells of, which are taken away again, or replacements that
//! tell of the command.

use std::{collections::BTreeSet, sync::Arc};

use futures::{StreamExt, TryStreamExt, stream};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};
use slipway_packing::{
    disrupt::{Command, Reason},
    model,
};
use slipway_runtime::{Context, ObjectKey};

use super::{
    plan::{Start, confirm},
    running::{CommandStep, Order, is_tainted},
};
use crate::{
    Error,
    api::{
        NodeClaim,
        names::{annotation, label, taint},
    },
    cluster_api::Reader,
    memory::Memory,
    options::Options,
    provisioner::create,
    watched::{Watched, observe_to_disrupt},
};

/// Writes at the same time.
const AT_ONCE: usize = 10;

/// What is written with, and read from.
#[derive(Clone, Copy)]
pub(super) struct Actor<'a> {
    pub watched: &'a Watched,
    pub memory: &'a Memory,
    pub context: &'a Context,
}

/// A claim that goes, with its Node.
#[derive(Clone)]
struct Candidate {
    claim: Arc<NodeClaim>,
    node: Arc<Node>,
}

/// How beginning a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// Its replacements are on their way.
    Waits,
    /// Its candidates are deleted.
    Deleted,
    /// It no longer holds, and everything is as before.
    Dropped(String),
}

impl Actor<'_> {
    /// Begins a command. The candidates are kept free of new pods first, and looked at again after that.
    pub async fn begin(self, start: &Start, known: &model::Snapshot) -> Result<Begun, Error> {
        let command = &start.command;
        let candidates = match self.candidates(command) {
            Ok(candidates) => candidates,
            Err(why) => return Ok(Begun::Dropped(why)),
        };
        let begun = self.begin_with(start, &candidates, known).await;
        match &begun {
            Ok(Begun::Dropped(_)) => {
                for candidate in &candidates {
                    self.release(&candidate.claim, Some(&candidate.node)).await?;
                }
            }
            Ok(_) => self.memory.metrics.disrupted(command.method, command.decision),
            // What was written is taken back, or tells of the command, when it is looked at next.
            Err(_) => {}
        }
        begun
    }

    async fn begin_with(
        self,
        start: &Start,
        candidates: &[Candidate],
        known: &model::Snapshot,
    ) -> Result<Begun, Error> {
        let reason = start.command.reason.name();
        stream::iter(candidates.to_vec())
            .map(|candidate| async move { self.mark(&candidate, reason).await })
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        let newcomers: Vec<Option<String>> = stream::iter(candidates.to_vec())
            .map(|candidate| async move { self.newcomer(&candidate.node.name_any(), known).await })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        if let Some(pod) = newcomers.into_iter().flatten().next() {
            return Ok(Begun::Dropped(format!("Pod {pod} has come meanwhile")));
        }
        if let Some(why) = self.is_room_taken(&start.command, known).await? {
            return Ok(Begun::Dropped(why));
        }
        let claims: Vec<Arc<NodeClaim>> = candidates
            .iter()
            .map(|candidate| Arc::clone(&candidate.claim))
            .collect();
        if start.creations.is_empty() {
            self.delete(
                &claims,
                start.command.reason,
                start.command.termination_grace_seconds,
            )
            .await?;
            return Ok(Begun::Deleted);
        }
        // Limits hold for whoever else makes claims, and claims that the watch does not show yet count.
        let _alone = self.memory.making.lock().await;
        self.watched.read_claims_again(self.context).await?;
        let options = Options::of(&self.context.settings);
        let reader = Reader::new(self.context, self.memory);
        let observed = observe_to_disrupt(self.watched, &reader, self.memory, &options, self.context).await;
        let (now, command) = (self.context.clock.now(), start.command.clone());
        let confirmed = tokio::task::spawn_blocking(move || confirm(&observed, &command, now)).await;
        let Some(confirmed) = confirmed.ok().flatten() else {
            return Ok(Begun::Dropped("it no longer holds".to_owned()));
        };
        // Those that stay after all, because less can go now, are released when they are looked at next.
        let going: Vec<Arc<NodeClaim>> = candidates
            .iter()
            .filter(|candidate| confirmed.command.nodes.contains(&candidate.node.name_any()))
            .map(|candidate| Arc::clone(&candidate.claim))
            .collect();
        if confirmed.creations.is_empty() {
            let grace = confirmed.command.termination_grace_seconds;
            self.delete(&going, start.command.reason, grace).await?;
            return Ok(Begun::Deleted);
        }
        self.replace(confirmed, &going).await?;
        Ok(Begun::Waits)
    }

    /// Makes the replacements. Each tells of the whole command.
    async fn replace(self, start: Start, candidates: &[Arc<NodeClaim>]) -> Result<(), Error> {
        let order = Order {
            id: format!("{:016x}", self.context.random.next()),
            method: start.command.method,
            reason: start.command.reason,
            decision: start.command.decision,
            candidates: candidates.iter().map(|claim| claim.name_any()).collect(),
            replacements: start.creations.len(),
            grace_seconds: start.command.termination_grace_seconds,
        };
        let text = serde_json::to_string(&order).unwrap_or_default();
        let reason = order.reason.name();
        for claim in candidates {
            self.tell(
                claim,
                "DisruptionLaunching",
                &format!("Launching NodeClaim: {reason}"),
            );
        }
        for mut creation in start.creations {
            let is_relaxed = creation
                .claim
                .annotations()
                .contains_key(annotation::MIN_VALUES_RELAXED);
            creation
                .claim
                .annotations_mut()
                .insert(annotation::REPLACES.to_owned(), text.clone());
            let made = create(creation, self.context).await?;
            self.memory
                .metrics
                .replacement_created(&made, order.reason, is_relaxed);
            self.tell(
                &made,
                "DisruptionWaitingReadiness",
                "Waiting on readiness to continue disruption",
            );
            tracing::info!(
                nodeclaim = made.name_any(),
                replaces = order.candidates.join(", "),
                reason,
                "Created a replacement"
            );
        }
        Ok(())
    }

    /// Carries out one step of what is under way.
    pub async fn step(self, step: &CommandStep) -> Result<(), Error> {
        tracing::info!(%step, "Disruption goes on");
        match step {
            CommandStep::Delete(running) => {
                let order = &running.order;
                self.delete(&running.candidates, order.reason, order.grace_seconds)
                    .await
            }
            CommandStep::Settle(running) => self.settle(&running.replacements).await,
            CommandStep::RollBack(running, why) => {
                // The claims tell of the command until the candidates stay.
                for claim in &running.candidates {
                    self.tell(claim, "DisruptionFailed", why);
                    self.release(claim, self.node_of(claim).as_ref()).await?;
                }
                let order = &running.order;
                self.memory
                    .metrics
                    .disruption_failed(order.method, order.decision);
                self.settle(&running.replacements).await
            }
            CommandStep::Release { claim, node } => self.release(claim, node.as_ref()).await,
        }
    }

    /// The replacements are claims like others from here on.
    async fn settle(self, replacements: &[Arc<NodeClaim>]) -> Result<(), Error> {
        for claim in replacements {
            let metadata = json!({"annotations": {annotation::REPLACES: null}});
            self.patch_claim(claim, metadata).await?;
        }
        Ok(())
    }

    async fn delete(
        self,
        claims: &[Arc<NodeClaim>],
        reason: Reason,
        grace_seconds: Option<f64>,
    ) -> Result<(), Error> {
        stream::iter(claims.to_vec())
            .map(|claim| async move { self.delete_one(&claim, reason, grace_seconds).await })
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(())
    }

    async fn delete_one(
        self,
        claim: &NodeClaim,
        reason: Reason,
        grace_seconds: Option<f64>,
    ) -> Result<(), Error> {
        let grace = grace_seconds.and_then(|seconds| SignedDuration::try_from_secs_f64(seconds).ok());
        if let Some(end) = grace.and_then(|grace| self.context.clock.now().checked_add(grace).ok()) {
            let metadata = json!({"annotations": {annotation::TERMINATION_TIMESTAMP: end.to_string()}});
            self.patch_claim(claim, metadata).await?;
        }
        self.tell(
            claim,
            "DisruptionTerminating",
            &format!("Disrupting NodeClaim: {}", reason.name()),
        );
        if let Some(node) = self.node_of(claim) {
            let note = format!("Disrupting Node: {}", reason.name());
            self.context
                .events
                .normal(node.as_ref(), "DisruptionTerminating", "Disrupt", note);
        }
        let name = claim.name_any();
        let deleted = self.context.delete(claim).await;
        deleted.map_err(Error::api(format!("deleting NodeClaim {name}")))?;
        let policy = self.policy(claim);
        self.memory
            .metrics
            .claim_disrupted_gracefully(claim, reason, policy);
        Ok(())
    }

    /// Marks a claim and keeps new pods off its Node.
    async fn mark(self, candidate: &Candidate, reason: &str) -> Result<(), Error> {
        if !is_tainted(&candidate.node) {
            let mut taints = taints_of(&candidate.node);
            taints.push(json!({"key": taint::DISRUPTED, "effect": "NoSchedule"}));
            self.patch_node(&candidate.node, taints).await?;
        }
        let metadata = json!({"annotations": {annotation::DISRUPTED_FOR: reason}});
        self.patch_claim(&candidate.claim, metadata).await
    }

    /// Takes mark and taint away.
    async fn release(self, claim: &NodeClaim, node: Option<&Arc<Node>>) -> Result<(), Error> {
        // What was written a moment ago may not be in the caches yet.
        let node = match node {
            Some(node) => {
                let nodes: Api<Node> = Api::all(self.context.client.clone());
                let name = node.name_any();
                let found = nodes.get_opt(&name).await;
                found.map_err(Error::api(format!("reading Node {name}")))?
            }
            None => None,
        };
        if let Some(node) = node.filter(is_tainted) {
            let mut taints = taints_of(&node);
            taints.retain(|one| one["key"] != taint::DISRUPTED);
            self.patch_node(&node, taints).await?;
        }
        let metadata = json!({"annotations": {annotation::DISRUPTED_FOR: null}});
        self.patch_claim(claim, metadata).await
    }

    async fn patch_node(self, node: &Node, taints: Vec<Value>) -> Result<(), Error> {
        let patch =
            json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": {"taints": taints}});
        let doing = format!("writing to Node {}", node.name_any());
        self.context
            .patch(node, &patch)
            .await
            .map_err(Error::api(doing))?;
        Ok(())
    }

    /// The uid tells whether it is still this one; nobody else writes these annotations.
    async fn patch_claim(self, claim: &NodeClaim, mut metadata: Value) -> Result<(), Error> {
        metadata["uid"] = json!(claim.uid());
        let doing = format!("writing to NodeClaim {}", claim.name_any());
        match self.context.patch(claim, &json!({ "metadata": metadata })).await {
            // It went meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            written => written.map(|_| ()).map_err(Error::api(doing)),
        }
    }

    fn candidates(self, command: &Command) -> Result<Vec<Candidate>, String> {
        let claims = self.watched.claims.list();
        let of = |name: &String| {
            let node = self.watched.nodes.get(&ObjectKey::cluster_scoped(name));
            let is_its = |claim: &&Arc<NodeClaim>| {
                let status = claim.status.as_ref();
                status.is_some_and(|status| status.node_name.as_ref() == Some(name))
                    && claim.metadata.deletion_timestamp.is_none()
            };
            let claim = claims.iter().find(is_its);
            match (claim, node) {
                (Some(claim), Some(node)) => Ok(Candidate {
                    claim: Arc::clone(claim),
                    node,
                }),
                _ => Err(format!("Node {name} or its claim is gone")),
            }
        };
        command.nodes.iter().map(of).collect()
    }

    fn node_of(self, claim: &NodeClaim) -> Option<Arc<Node>> {
        let name = claim.status.as_ref()?.node_name.as_ref()?;
        self.watched.nodes.get(&ObjectKey::cluster_scoped(name))
    }

    /// Why the pods might find no room where the decision puts them: the Nodes that take them over may have filled meanwhile.
    async fn is_room_taken(
        self,
        command: &Command,
        known: &model::Snapshot,
    ) -> Result<Option<String>, Error> {
        let taking_over: BTreeSet<String> = command.existing.iter().map(|one| one.node.clone()).collect();
        let newcomers: Vec<Option<String>> = stream::iter(taking_over)
            .map(|node| async move {
                let pod = self.newcomer(&node, known).await?;
                Ok::<_, Error>(pod.map(|pod| format!("Pod {pod} has come to Node {node} meanwhile")))
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        Ok(newcomers.into_iter().flatten().next())
    }

    /// A pod on a Node that the decision did not know of, past the cache.
    async fn newcomer(self, name: &str, known: &model::Snapshot) -> Result<Option<String>, Error> {
        let on_it = ListParams::default().fields(&format!("spec.nodeName={name}"));
        let pods: Api<Pod> = Api::all(self.context.client.clone());
        let pods = pods.list(&on_it).await;
        let pods = pods.map_err(Error::api(format!("reading the pods of Node {name}")))?;
        let known: BTreeSet<&str> = known
            .bound_pods
            .iter()
            .filter(|pod| pod.spec.node_name == name)
            .map(|pod| pod.metadata.uid.as_str())
            .collect();
        let moves = |pod: &&Pod| {
            let read = serde_json::to_value(pod).and_then(serde_json::from_value::<model::Pod>);
            read.is_ok_and(|pod| {
                pod.is_reschedulable()
                    && !pod.is_owned_by_daemon_set()
                    && !known.contains(pod.metadata.uid.as_str())
            })
        };
        let newcomer = pods.items.iter().find(moves);
        Ok(newcomer.map(|pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())))
    }

    fn tell(self, claim: &NodeClaim, reason: &str, note: &str) {
        self.context
            .events
            .normal(claim, reason, "Disrupt", note.to_owned());
    }

    /// The consolidation policy of a claim's NodePool.
    fn policy(self, claim: &NodeClaim) -> String {
        let pool = claim.labels().get(label::NODE_POOL);
        let pool = pool.and_then(|pool| self.watched.pools.get(&ObjectKey::cluster_scoped(pool)));
        let policy = pool.and_then(|pool| pool.spec.disruption.consolidation_policy.clone());
        policy.unwrap_or_default()
    }
}

fn taints_of(node: &Node) -> Vec<Value> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.map(|taint| json!(taint)).collect()
}
