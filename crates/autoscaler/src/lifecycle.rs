//! How far a claim has come, from its Machine and Node: launched, registered, initialized, or given up. Pure; the conditions,
//! what the Node still has to be given, and when to come back are one value.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use slipway_packing::{
    labels::{INITIALIZED, REGISTERED},
    model::{ResourceList, Taint},
    taints::is_same,
    time::duration_seconds,
};

use crate::{
    api::{
        Deadlines,
        names::{label::ACCELERATOR, taint::UNREGISTERED},
    },
    startup::StartupTaints,
};

/// What is known of a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    pub created: Timestamp,
    /// Labels that the Node gets from the claim.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub startup_taints: Vec<Taint>,
    /// Those that others add while a node starts.
    pub foreign_taints: StartupTaints,
    pub requests: ResourceList,
    /// What its machine was said to have.
    pub capacity: ResourceList,
    /// The Machine that stands for it, by name.
    pub machine: Option<String>,
    /// Why there is none yet.
    pub waits_for: String,
    /// The Nodes that say they are its Machine: one, if all is well.
    pub nodes: Vec<NodeFacts>,
    pub deadlines: Limits,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub is_ready: bool,
    pub capacity: ResourceList,
    pub allocatable: ResourceList,
    pub has_finalizer: bool,
}

/// How long a claim may take; none is for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub launch: Option<Duration>,
    pub registration: Option<Duration>,
}

impl Default for Limits {
    /// Karpenter's own, which cannot be changed there.
    fn default() -> Self {
        Limits {
            launch: Some(Duration::from_mins(5)),
            registration: Some(Duration::from_mins(15)),
        }
    }
}

impl Limits {
    /// The NodeClass's deadlines; an object's own word on how long its nodes take (in seconds) counts before the one for
    /// registration.
    pub fn of(class: Option<&Deadlines>, max_node_provision_time: Option<f64>) -> Self {
        let usual = Limits::default();
        let read = |text: Option<&String>, otherwise: Option<Duration>| match text.map(String::as_str) {
            None => otherwise,
            Some("Never") => None,
            Some(text) => duration_seconds(text)
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .or(otherwise),
        };
        let registration = read(
            class.and_then(|class| class.registration.as_ref()),
            usual.registration,
        );
        Limits {
            launch: read(class.and_then(|class| class.launch.as_ref()), usual.launch),
            registration: max_node_provision_time
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .or(registration),
        }
    }
}

/// A condition: its status, reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub holds: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Verdict {
    fn yes(reason: &'static str) -> Self {
        Verdict {
            holds: true,
            reason,
            message: String::new(),
        }
    }

    fn no(reason: &'static str, message: impl Into<String>) -> Self {
        Verdict {
            holds: false,
            reason,
            message: message.into(),
        }
    }
}

/// What a Node is to be given, where it differs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeChange {
    pub labels: BTreeMap<String, String>,
    pub add_taints: Vec<Taint>,
    pub remove_taints: Vec<Taint>,
    /// Karpenter's, by which a Node that is deleted is drained first.
    pub add_finalizer: bool,
}

impl NodeChange {
    pub fn is_empty(&self) -> bool {
        *self == NodeChange::default()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    pub launched: Verdict,
    pub registered: Verdict,
    pub initialized: Verdict,
    pub node: Option<String>,
    pub change: NodeChange,
    /// Why the claim is given up and deleted.
    pub give_up: Option<String>,
    /// When a deadline passes for which nothing else would requeue.
    pub revisit: Option<Timestamp>,
}

/// How far the claim has come.
///
/// A Node need not have the taint `karpenter.sh/unregistered`: one that has it loses it, and one without is as good, because pods
/// that were bound to it meanwhile run there all the same.
pub fn progress(facts: &Facts, now: Timestamp) -> Progress {
    let launched = match &facts.machine {
        Some(_) => Verdict::yes("Launched"),
        None => Verdict::no("WaitingForMachine", facts.waits_for.clone()),
    };
    let node = match (&facts.nodes[..], launched.holds) {
        ([node], true) => Some(node),
        _ => None,
    };
    let registered = match (&facts.nodes[..], launched.holds) {
        (_, false) => Verdict::no("NotLaunched", "there is no Machine yet"),
        ([], true) => Verdict::no("NodeNotFound", "its Node has not joined yet"),
        ([_], true) => Verdict::yes("Registered"),
        (several, true) => {
            let names: Vec<&str> = several.iter().map(|node| node.name.as_str()).collect();
            Verdict::no(
                "MultipleNodesFound",
                format!("Nodes {} have the same provider id", names.join(" and ")),
            )
        }
    };
    let initialized = node.map_or_else(
        || Verdict::no("NotRegistered", "there is no Node yet"),
        |node| initialized(facts, node),
    );
    let change = node
        .map(|node| change(facts, node, initialized.holds))
        .unwrap_or_default();
    let (give_up, revisit) = deadline(facts, launched.holds, registered.holds, now);
    Progress {
        node: node.map(|node| node.name.clone()),
        launched,
        registered,
        initialized,
        change,
        give_up,
        revisit,
    }
}

fn initialized(facts: &Facts, node: &NodeFacts) -> Verdict {
    if !node.is_ready {
        return Verdict::no("NodeNotReady", format!("Node {} is not ready", node.name));
    }
    let starting = node
        .taints
        .iter()
        .find(|taint| facts.startup_taints.iter().any(|startup| is_same(startup, taint)));
    if let Some(taint) = starting {
        return Verdict::no(
            "StartupTaintsExist",
            format!("the startup taint {}:{} is still there", taint.key, taint.effect),
        );
    }
    // The one for unregistered nodes is ours to take away.
    let ephemeral = node
        .taints
        .iter()
        .find(|taint| facts.foreign_taints.covers(taint) && taint.key != UNREGISTERED);
    if let Some(taint) = ephemeral {
        return Verdict::no(
            "KnownEphemeralTaintsExist",
            format!("the taint {}:{} is still there", taint.key, taint.effect),
        );
    }
    // By this label Cluster Autoscaler knows that a node has devices: it is not ready before they are there, whoever asks for them.
    let has_devices = facts.labels.contains_key(ACCELERATOR) || node.labels.contains_key(ACCELERATOR);
    let devices = facts
        .capacity
        .iter()
        .filter(|(name, _)| has_devices && name.contains('/'));
    let missing =
        facts.requests.iter().chain(devices).find(|(name, asked)| {
            !asked.is_zero() && node.allocatable.get(name).is_none_or(|has| has.is_zero())
        });
    if let Some((name, _)) = missing {
        return Verdict::no(
            "ResourceNotRegistered",
            format!("Node {} has no {name} yet", node.name),
        );
    }
    Verdict::yes("Initialized")
}

/// What a Node has less of than nine tenths of what its machine was said to have, and how much.
pub fn inconsistency(expected: &ResourceList, node: &NodeFacts) -> Option<String> {
    expected.iter().find_map(|(name, expected)| {
        let found = node.capacity.get(name).copied().unwrap_or_default();
        let is_less = found.as_f64() < expected.as_f64() * 0.9;
        is_less.then(|| {
            format!(
                "Node {} has {found} of {name}, and {expected} were expected",
                node.name
            )
        })
    })
}

fn change(facts: &Facts, node: &NodeFacts, is_initialized: bool) -> NodeChange {
    let mut labels = facts.labels.clone();
    labels.insert(REGISTERED.to_owned(), "true".to_owned());
    if is_initialized {
        labels.insert(INITIALIZED.to_owned(), "true".to_owned());
    }
    labels.retain(|key, value| node.labels.get(key) != Some(value));
    // Taints are given once: who removes one later has a reason.
    let is_new = !node.labels.contains_key(REGISTERED);
    let lacks = |taint: &&Taint| is_new && !node.taints.iter().any(|known| is_same(known, taint));
    NodeChange {
        labels,
        add_taints: facts
            .taints
            .iter()
            .chain(&facts.startup_taints)
            .filter(lacks)
            .cloned()
            .collect(),
        remove_taints: node
            .taints
            .iter()
            .filter(|taint| taint.key == UNREGISTERED)
            .cloned()
            .collect(),
        // Once, like taints: who takes it away has a reason.
        add_finalizer: is_new && !node.has_finalizer,
    }
}

fn deadline(
    facts: &Facts,
    is_launched: bool,
    is_registered: bool,
    now: Timestamp,
) -> (Option<String>, Option<Timestamp>) {
    let (limit, missing) = match (is_launched, is_registered) {
        (false, _) => (facts.deadlines.launch, "no Machine stood for it"),
        (true, false) => (facts.deadlines.registration, "its Node did not join"),
        (true, true) => return (None, None),
    };
    let Some(limit) = limit else {
        return (None, None);
    };
    let end = SignedDuration::try_from(limit)
        .ok()
        .and_then(|limit| facts.created.checked_add(limit).ok())
        .unwrap_or(Timestamp::MAX);
    if now >= end {
        (Some(format!("{missing} within {limit:?}")), None)
    } else {
        (None, Some(end))
    }
}
