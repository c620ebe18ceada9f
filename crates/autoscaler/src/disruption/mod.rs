//! Disruption: Nodes that are empty, drifted, unhealthy or dearer than they need be are given up, and replaced first where their
//! pods need it. One task, which runs where the manager leads. It never waits in the middle of anything: what is decided and has to
//! hold for a while is kept until then, and what waits for replacements is read from the claims each time.

mod act;
pub mod plan;
mod running;

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use slipway_runtime::{Context, ObjectKey, controller::Registration, plans::PlanKey};
use tokio::time::{Instant, sleep_until};

pub use self::running::{CommandStep, INITIALIZED_WITHIN, Next, Order, Running, is_tainted, running, steps};
use self::{
    act::{Actor, Begun},
    plan::{Plan, Proposal},
};
use crate::{
    Error,
    api::{
        NodeClaim,
        names::{GROUP, condition},
    },
    cluster_api::Reader,
    memory::Memory,
    options::Options,
    watched::{Changed, Watched, observe_to_disrupt},
};

/// Changes come many at once: they are looked at together.
const GATHER: Duration = Duration::from_millis(250);
/// How often the cluster is planned for at most, as Karpenter has it.
const POLL: Duration = Duration::from_secs(10);
/// How often it is planned for although nothing changed: prices and the time of day do.
const AT_LEAST: Duration = Duration::from_mins(5);
/// With nothing to disrupt, only a change wakes it.
const IDLE: Duration = Duration::from_hours(1);
/// What failed is tried again after this.
const RETRY: Duration = Duration::from_secs(1);

pub fn registration(memory: &Arc<Memory>) -> Registration {
    let memory = Arc::clone(memory);
    Registration {
        name: "disruption",
        run: Arc::new(move |context: Context| {
            let memory = Arc::clone(&memory);
            async move {
                run(&memory, &context).await;
                Ok(())
            }
            .boxed()
        }),
    }
}

async fn run(memory: &Memory, context: &Context) {
    let watched = Watched::start(context, memory);
    let stopped = context.shutdown.clone();
    tokio::select! {
        () = stopped.cancelled() => return,
        () = watched.synced() => {}
    }
    let changed = Changed::listen(&watched);
    let notify = changed.notify();
    let mut disruption = Disruption {
        watched,
        changed,
        memory,
        context,
        proposals: Vec::new(),
        planned: None,
        plan_at: Instant::now(),
        again_at: Instant::now(),
    };
    loop {
        let next = disruption.round().await;
        tokio::select! {
            () = stopped.cancelled() => return,
            () = sleep_until(next) => {}
            () = notify.notified() => {
                let soon = Instant::now() + GATHER;
                tokio::select! {
                    () = stopped.cancelled() => return,
                    () = sleep_until(soon.min(next)) => {}
                }
            }
        }
    }
}

struct Disruption<'a> {
    watched: Watched,
    changed: Changed,
    memory: &'a Memory,
    context: &'a Context,
    /// Decided, and to be decided once more. Lost with the process, and decided again.
    proposals: Vec<Proposal>,
    /// Which version of the cluster was planned for last.
    planned: Option<(u64, u64)>,
    /// Not planned for before this, if something changes.
    plan_at: Instant,
    /// Planned for at this moment, if nothing does.
    again_at: Instant,
}

impl Disruption<'_> {
    fn actor(&self) -> Actor<'_> {
        Actor {
            watched: &self.watched,
            memory: self.memory,
            context: self.context,
        }
    }

    /// Goes on with what is under way, and plans if it is time; says when to come back if nothing changes.
    async fn round(&mut self) -> Instant {
        let options = Options::of(&self.context.settings);
        let gone_on = match self.go_on(&options).await {
            Ok(again) => again,
            Err(error) => {
                tracing::error!(%error, "A disruption did not go on, and will");
                return Instant::now() + RETRY;
            }
        };
        let is_worth_it = self.is_worth_planning();
        let is_new = self.changed.is_new();
        let is_time = Instant::now() >= if is_new { self.plan_at } else { self.again_at };
        let is_due = self
            .proposals
            .iter()
            .any(|proposal| proposal.due <= self.context.clock.now());
        if is_worth_it
            && (is_time || is_due)
            && let Err(error) = self.plan(&options).await
        {
            tracing::error!(%error, "A disruption did not begin, and will be decided again");
            self.look_again_soon();
        }
        let now = self.context.clock.now();
        let from_now = |moment: Timestamp| {
            let left = Duration::try_from(moment.duration_since(now)).unwrap_or_default();
            Instant::now() + left
        };
        let due = self.proposals.iter().map(|proposal| from_now(proposal.due)).min();
        let is_new = self.changed.is_new();
        let planned = is_worth_it.then_some(if is_new { self.plan_at } else { self.again_at });
        let next = [gone_on.map(from_now), due, planned];
        next.into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| Instant::now() + IDLE)
    }

    fn look_again_soon(&mut self) {
        self.planned = None;
        self.plan_at = Instant::now() + RETRY;
        self.again_at = self.plan_at;
    }

    /// Whether anything could go at all. Most of the time nothing can.
    fn is_worth_planning(&self) -> bool {
        if !self.proposals.is_empty() {
            return true;
        }
        let could_go = |claim: &Arc<NodeClaim>| {
            let conditions = claim.status.iter().flat_map(|status| &status.conditions);
            claim.metadata.deletion_timestamp.is_none()
                && conditions.into_iter().any(|one| {
                    one.status == "True"
                        && (one.type_ == condition::CONSOLIDATABLE || one.type_ == condition::DRIFTED)
                })
        };
        self.watched.claims.list().iter().any(could_go) || self.is_somebody_ill()
    }

    /// Whether a Node has a condition that it could be repaired for, tolerated for the moment or not.
    fn is_somebody_ill(&self) -> bool {
        let policies = self.memory.repair_policies(&Options::of(&self.context.settings));
        let nodes = self.watched.nodes.list();
        let mut conditions = nodes
            .iter()
            .filter_map(|node| node.status.as_ref())
            .flat_map(|status| status.conditions.iter().flatten());
        !policies.is_empty()
            && conditions.any(|one| {
                let mut policies = policies.iter();
                policies.any(|own| own.condition_type == one.type_ && own.condition_status == one.status)
            })
    }

    /// Commands under way, and marks that none tells of.
    async fn go_on(&self, options: &Options) -> Result<Option<Timestamp>, Error> {
        let now = self.context.clock.now();
        let rival = Reader::new(self.context, self.memory).rival(now);
        if let Some(rival) = rival {
            return Ok(Some(rival.until));
        }
        if options.is_dry_run {
            return Ok(None);
        }
        let node = |name: &str| self.watched.nodes.get(&ObjectKey::cluster_scoped(name));
        let (mut next, mut again) = steps(&self.watched.claims.list(), node, now);
        if next.iter().any(CommandStep::needs_confirmation) {
            let claims: Api<NodeClaim> = Api::all(self.context.client.clone());
            let claims = claims.list(&ListParams::default()).await;
            let claims = claims.map_err(Error::api("reading the NodeClaims"))?;
            let claims: Vec<Arc<NodeClaim>> = claims.items.into_iter().map(Arc::new).collect();
            (next, again) = steps(&claims, node, now);
        }
        for step in &next {
            self.actor().step(step).await?;
        }
        Ok(again)
    }

    async fn plan(&mut self, options: &Options) -> Result<(), Error> {
        let (context, memory) = (self.context, self.memory);
        let now = context.clock.now();
        self.changed.seen();
        let is_due = self.proposals.iter().any(|proposal| proposal.due <= now);
        let is_known = self.planned == Some(self.watched.changes());
        if is_known && !is_due && Instant::now() < self.again_at {
            self.plan_at = Instant::now() + POLL;
            return Ok(());
        }
        let reader = Reader::new(context, memory);
        let observed = observe_to_disrupt(&self.watched, &reader, memory, options, context).await;
        let changes = observed.changes;
        let proposals = std::mem::take(&mut self.proposals);
        let (plan, observed) = plan::decide(observed, proposals, options.gates, now).await;
        memory.metrics.disruption_planned(&plan);
        self.keep(&plan, now);
        self.tell_blocked(&plan);
        self.proposals.clone_from(&plan.proposals);
        self.planned = Some(changes);
        self.plan_at = Instant::now() + POLL;
        // Budgets open, and conditions are no longer tolerated, without anything changing.
        self.again_at = if plan.is_constrained || self.is_somebody_ill() {
            self.plan_at
        } else {
            Instant::now() + AT_LEAST
        };
        if options.is_dry_run {
            tracing::info!(%plan, "Dry run: nothing is written");
            return Ok(());
        }
        let mut has_begun = false;
        for start in &plan.start {
            let begun = self.actor().begin(start, &observed.snapshot).await?;
            let nodes = start.command.nodes.join(", ");
            let reason = start.command.reason.name();
            has_begun |= !matches!(begun, Begun::Dropped(_));
            match begun {
                Begun::Dropped(why) => {
                    memory.metrics.validation_failed(start.command.method);
                    tracing::info!(nodes, reason, why, "A disruption was dropped");
                }
                Begun::Deleted => tracing::info!(nodes, reason, "Disrupted"),
                Begun::Waits => tracing::info!(nodes, reason, "Replacements are on their way"),
            }
        }
        if has_begun {
            // More may be found in the cluster that this makes.
            self.look_again_soon();
        }
        Ok(())
    }

    fn keep(&self, plan: &Plan, now: Timestamp) {
        let text = plan.to_string();
        tracing::debug!(plan = %text, "Planned");
        let key = PlanKey {
            group: GROUP.to_owned(),
            kind: "Disruption".to_owned(),
            object: ObjectKey::cluster_scoped("disruption"),
        };
        self.context.plans.keep(key, now, &text);
    }

    /// Why Nodes stay, once for each text.
    fn tell_blocked(&self, plan: &Plan) {
        for (name, why) in &plan.blocked {
            let node: Option<Arc<Node>> = self.watched.nodes.get(&ObjectKey::cluster_scoped(name));
            let Some(node) = node else { continue };
            let uid = node.metadata.uid.clone().unwrap_or_default();
            if self.memory.is_news(&uid, why) {
                self.memory.note_reported(&uid, why);
                let note = format!("Cannot disrupt Node: {why}");
                self.context
                    .events
                    .normal(node.as_ref(), "DisruptionBlocked", "Disrupt", note);
            }
        }
    }
}
