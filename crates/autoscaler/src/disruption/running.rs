//! Commands that wait for their replacements, as the claims themselves tell them: nothing has to be remembered, so a manager that
//! starts over goes on where the last one stopped. Pure.
//!
//! Each replacement carries the whole command. It is carried out when as many replacements as it names are initialized; when one
//! of them is gone, or takes too long, its candidates stay.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use slipway_packing::disrupt::{Decision, Method, Reason};

use crate::api::{
    NodeClaim,
    names::{annotation, condition, taint},
};

/// How long a replacement may take from its registration until it is initialized. Before that its own deadlines count.
pub const INITIALIZED_WITHIN: Duration = Duration::from_mins(10);

/// What a replacement was made for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    /// Of the command: all its replacements have the same.
    pub id: String,
    pub method: Method,
    pub reason: Reason,
    pub decision: Decision,
    /// Names of the claims that go.
    pub candidates: Vec<String>,
    /// How many replacements there have to be.
    pub replacements: usize,
    /// How many seconds pods get once their claim is deleted, if that is not left to the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<f64>,
}

impl Order {
    pub fn of(claim: &NodeClaim) -> Option<Self> {
        let text = claim.annotations().get(annotation::REPLACES)?;
        serde_json::from_str(text).ok()
    }
}

/// A command under way.
#[derive(Clone, Debug)]
pub struct Running {
    pub order: Order,
    /// Those that stand.
    pub replacements: Vec<Arc<NodeClaim>>,
    /// Those that still have to go.
    pub candidates: Vec<Arc<NodeClaim>>,
}

fn stands(claim: &NodeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none()
}

/// The commands that these claims tell of.
pub fn running(claims: &[Arc<NodeClaim>]) -> Vec<Running> {
    let mut by_id: BTreeMap<String, Running> = BTreeMap::new();
    for claim in claims.iter().filter(|claim| stands(claim)) {
        let Some(order) = Order::of(claim) else { continue };
        let running = by_id.entry(order.id.clone()).or_insert_with(|| Running {
            order,
            replacements: Vec::new(),
            candidates: Vec::new(),
        });
        running.replacements.push(Arc::clone(claim));
    }
    if by_id.is_empty() {
        return Vec::new();
    }
    let by_name: BTreeMap<String, &Arc<NodeClaim>> = claims
        .iter()
        .filter(|claim| stands(claim))
        .map(|claim| (claim.name_any(), claim))
        .collect();
    for running in by_id.values_mut() {
        let standing = running
            .order
            .candidates
            .iter()
            .filter_map(|name| by_name.get(name));
        running.candidates = standing.map(|claim| Arc::clone(claim)).collect();
    }
    by_id.into_values().collect()
}

/// What is next for a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// All replacements are there: the candidates go.
    Delete,
    /// The candidates are gone: its replacements are claims like others.
    Settle,
    /// It comes to nothing: the candidates stay.
    RollBack(String),
    /// For replacements, until this moment at the latest.
    Wait(Option<Timestamp>),
}

fn since(claim: &NodeClaim, kind: &str) -> Option<Timestamp> {
    let conditions = claim.status.iter().flat_map(|status| &status.conditions);
    let mut held = conditions.filter(|one| one.type_ == kind && one.status == "True");
    held.next().map(|one| one.last_transition_time.0)
}

impl Running {
    pub fn next(&self, now: Timestamp) -> Next {
        if self.candidates.is_empty() {
            return Next::Settle;
        }
        if self.replacements.len() < self.order.replacements {
            return Next::RollBack(format!(
                "{} of {} replacements are there",
                self.replacements.len(),
                self.order.replacements
            ));
        }
        let late = |claim: &Arc<NodeClaim>| {
            let registered = since(claim, condition::REGISTERED)?;
            let within = SignedDuration::try_from(INITIALIZED_WITHIN).unwrap_or_default();
            registered.checked_add(within).ok()
        };
        let mut waits: Option<Option<Timestamp>> = None;
        for claim in &self.replacements {
            if since(claim, condition::INITIALIZED).is_some() {
                continue;
            }
            let end = late(claim);
            if end.is_some_and(|end| end <= now) {
                return Next::RollBack(format!(
                    "the replacement {} was not initialized within {} min of its registration",
                    claim.name_any(),
                    INITIALIZED_WITHIN.as_secs() / 60
                ));
            }
            let earliest = waits.flatten().into_iter().chain(end).min();
            waits = Some(earliest);
        }
        waits.map_or(Next::Delete, Next::Wait)
    }
}

/// One step of what is under way.
#[derive(Clone, Debug)]
pub enum CommandStep {
    Delete(Running),
    Settle(Running),
    RollBack(Running, String),
    /// A claim says that it is disrupted, or its Node is tainted so, and no command tells of it.
    Release {
        claim: Arc<NodeClaim>,
        node: Option<Arc<Node>>,
    },
}

impl CommandStep {
    /// Whether it rests on something that is not there, which the watch may only not show yet.
    pub fn needs_confirmation(&self) -> bool {
        !matches!(self, CommandStep::Delete(_))
    }
}

fn names(claims: &[Arc<NodeClaim>]) -> String {
    let names: Vec<String> = claims.iter().map(|claim| claim.name_any()).collect();
    names.join(", ")
}

impl fmt::Display for CommandStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandStep::Delete(running) => write!(
                formatter,
                "delete {}: {} is initialized",
                names(&running.candidates),
                names(&running.replacements)
            ),
            CommandStep::Settle(running) => write!(
                formatter,
                "settle {}: {} are gone",
                names(&running.replacements),
                running.order.candidates.join(", ")
            ),
            CommandStep::RollBack(running, why) => {
                write!(formatter, "let {} stay: {why}", names(&running.candidates))
            }
            CommandStep::Release { claim, .. } => {
                write!(
                    formatter,
                    "let {} stay: no command takes it away",
                    claim.name_any()
                )
            }
        }
    }
}

/// Whether a Node carries the taint of disrupted nodes.
pub fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|one| one.key == taint::DISRUPTED)
}

/// What to do now, and when to look again if nothing happens.
pub fn steps(
    claims: &[Arc<NodeClaim>],
    node: impl Fn(&str) -> Option<Arc<Node>>,
    now: Timestamp,
) -> (Vec<CommandStep>, Option<Timestamp>) {
    let (mut steps, mut again) = (Vec::new(), None::<Timestamp>);
    let running = running(claims);
    let spoken_for: BTreeSet<&String> = running.iter().flat_map(|one| &one.order.candidates).collect();
    for claim in claims.iter().filter(|claim| stands(claim)) {
        if spoken_for.contains(&claim.name_any()) {
            continue;
        }
        let is_marked = claim.annotations().contains_key(annotation::DISRUPTED_FOR);
        let status = claim.status.as_ref();
        let node = status.and_then(|status| node(status.node_name.as_ref()?));
        let node = node.filter(|node| node.metadata.deletion_timestamp.is_none() && is_tainted(node));
        if is_marked || node.is_some() {
            steps.push(CommandStep::Release {
                claim: Arc::clone(claim),
                node,
            });
        }
    }
    for running in running {
        match running.next(now) {
            Next::Delete => steps.push(CommandStep::Delete(running)),
            Next::Settle => steps.push(CommandStep::Settle(running)),
            Next::RollBack(why) => steps.push(CommandStep::RollBack(running, why)),
            Next::Wait(until) => again = again.into_iter().chain(until).min(),
        }
    }
    (steps, again)
}
