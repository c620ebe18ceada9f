//! What to do for one NodeClaim: pure. A claim that lives is assigned, followed to its Node, or given up; one that is deleted is
//! drained, and then waits until its Machine is gone and replicas have fallen.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use slipway_capi::frame::{Entry, Plan};
use slipway_packing::time::duration_seconds;

use super::{
    disruption::disruptable,
    drain::{self, Drain, PodRemoval},
    observe::{Assignment, Observed, labels_for_node, node_facts},
};
use crate::{
    api::{
        DriftPolicy,
        names::{annotation, condition, taint},
    },
    instances::Reference,
    lifecycle::{Facts, NodeChange, Progress, progress},
};

/// Cluster API says that it makes no Machine: nobody waits for one much longer.
const STUCK_FOR: Duration = Duration::from_secs(30);
/// Where changed machines are drifted, each claim is looked at this often, as Karpenter has it.
const DRIFT_AGAIN: Duration = Duration::from_mins(5);
/// On Nodes that are on their way out, for load balancers.
pub const EXCLUDED_FROM_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Why a claim is deleted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    Expired,
    NoCapacity,
    MachineFailed,
    LaunchTimeout,
    RegistrationTimeout,
    /// What it came from, or its Machine, is gone.
    Gone,
}

impl GiveUp {
    /// Karpenter's word, in its metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::NoCapacity | Self::MachineFailed => "insufficient_capacity",
            Self::LaunchTimeout => "launch_timeout",
            Self::RegistrationTimeout => "registration_timeout",
            Self::Gone => "garbage_collected",
        }
    }

    /// Whether it came to nothing, so that its object is passed over for a while.
    pub fn has_failed(self) -> bool {
        matches!(
            self,
            Self::MachineFailed | Self::LaunchTimeout | Self::RegistrationTimeout
        )
    }
}

/// One idempotent call.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Notes on the claim which object its Machine comes from, with the labels that its Node will have.
    Assign {
        object: Reference,
    },
    /// Notes on the claim which Machine stands for it.
    NameMachine {
        machine: String,
    },
    /// Gives the Node the claim's labels and taints.
    SyncNode {
        node: String,
        change: NodeChange,
    },
    /// Deletes the claim.
    GiveUp {
        reason: GiveUp,
    },
    /// Makes a Machine from an infrastructure machine template.
    MakeMachine {
        object: Reference,
    },
    /// Deletes the Machine of a claim on a template.
    DeleteMachine {
        machine: String,
    },
    /// Deletes what was made for a Machine that never came.
    DeleteParts,
    /// Notes on a deleted claim when its grace period ends.
    StampDeadline {
        at: Timestamp,
    },
    /// Keeps new pods off the Node.
    TaintNode {
        node: String,
    },
    Drain(PodRemoval),
    /// Takes the finalizer off the Node.
    ReleaseNode {
        node: String,
    },
    /// Notes on a deleted claim that its Machine may go.
    LetMachineGo,
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Assign { object } => write!(formatter, "assign to {object}"),
            Self::NameMachine { machine } => write!(formatter, "note Machine {machine}"),
            Self::SyncNode { node, change } => {
                let keys = change.labels.len();
                let (added, removed) = (change.add_taints.len(), change.remove_taints.len());
                write!(
                    formatter,
                    "give Node {node} {keys} labels and {added} taints, and take {removed} taints"
                )
            }
            Self::GiveUp { .. } => formatter.write_str("delete the claim"),
            Self::MakeMachine { object } => write!(formatter, "make a Machine from {object}"),
            Self::DeleteMachine { machine } => write!(formatter, "delete Machine {machine}"),
            Self::DeleteParts => formatter.write_str("delete what was made for a Machine that never came"),
            Self::StampDeadline { at } => write!(formatter, "note that the grace period ends at {at:.0}"),
            Self::TaintNode { node } => write!(formatter, "taint Node {node}"),
            Self::Drain(step) => step.fmt(formatter),
            Self::ReleaseNode { node } => write!(formatter, "take the finalizer off Node {node}"),
            Self::LetMachineGo => formatter.write_str("let the Machine go"),
        }
    }
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan<Action> {
    let mut plan = Plan::new();
    if let Some(rival) = observed.rival.as_ref().filter(|rival| rival.until > now) {
        plan.wait("AnotherAutoscaler", rival.to_string())
            .until(rival.until);
        return plan;
    }
    if observed.claim.metadata.deletion_timestamp.is_some() {
        leave(observed, now, &mut plan);
    } else {
        live(observed, now, &mut plan);
    }
    plan
}

/// Deletes the claim, for this reason.
fn give_up(reason: GiveUp, why: impl Into<String>, plan: &mut Plan<Action>) -> &mut Entry<Action> {
    plan.then(Action::GiveUp { reason }, why)
}

fn live(observed: &Observed, now: Timestamp, plan: &mut Plan<Action>) {
    if let Some(end) = expires(observed) {
        if end <= now {
            give_up(GiveUp::Expired, "it has expired", plan).announced("Expired");
            return;
        }
        let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
        plan.revisit(left, "it expires");
    }
    match &observed.assignment {
        Assignment::Chosen { shape, why } => {
            let object = shape.reference.clone();
            plan.then(Action::Assign { object }, why);
        }
        Assignment::NoChoice(why) => {
            give_up(GiveUp::NoCapacity, why, plan).warned("InsufficientCapacityError");
        }
        Assignment::Gone(object) => {
            give_up(GiveUp::Gone, format!("{object} is gone"), plan);
        }
        Assignment::NoClass(why) => {
            plan.wait("NodeClassNotFound", why);
            follow(observed, now, plan);
        }
        Assignment::To { .. } | Assignment::Unread => follow(observed, now, plan),
    }
}

/// Follows the claim's Machine to its Node.
fn follow(observed: &Observed, now: Timestamp, plan: &mut Plan<Action>) {
    let claim = &observed.claim;
    let progress = progress(&facts(observed, now), now);
    if let Some(machine) = observed
        .machine
        .as_ref()
        .filter(|machine| machine.status.phase == "Failed")
    {
        let why = format!("Machine {} has failed", machine.name_any());
        give_up(GiveUp::MachineFailed, why, plan).warned("InsufficientCapacityError");
        return;
    }
    if let Some(why) = &progress.give_up {
        let reason = if progress.launched.holds {
            GiveUp::RegistrationTimeout
        } else {
            GiveUp::LaunchTimeout
        };
        give_up(reason, why, plan).warned("LaunchFailed");
        return;
    }
    if observed.machine.is_none() && make_machine(observed, plan) {
        return;
    }
    if let Some(machine) = &observed.machine {
        let named = format!(
            "{}/{}",
            machine.namespace().unwrap_or_default(),
            machine.name_any()
        );
        if claim.annotations().get(annotation::MACHINE) != Some(&named) {
            plan.regardless(Action::NameMachine { machine: named }, "it stands for the claim");
        }
    }
    if let Some(node) = progress
        .node
        .clone()
        .filter(|_| progress.change != NodeChange::default())
    {
        let change = progress.change.clone();
        let why = if progress.initialized.holds {
            "its node is initialized"
        } else {
            "its node has joined"
        };
        plan.then(Action::SyncNode { node, change }, why);
    }
    wait_for(&progress, plan);
    let disruptable = disruptable(observed, progress.initialized.holds, now);
    if let Some(at) = disruptable.consolidatable_at {
        let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
        plan.revisit(left, "consolidateAfter passes");
    }
    let class = observed.class.as_ref();
    if class.is_some_and(|class| class.spec.drift_policy == Some(DriftPolicy::Autoscaler)) {
        plan.revisit(DRIFT_AGAIN, "its object's machines may have changed");
    }
}

/// Of a template one claim is one Machine: it is made once, and a claim that lost it goes. Whether that is all for now.
fn make_machine(observed: &Observed, plan: &mut Plan<Action>) -> bool {
    let Assignment::To {
        object, is_paused, ..
    } = &observed.assignment
    else {
        return false;
    };
    if object.kind.template().is_none() || *is_paused {
        return false;
    }
    if observed.claim.annotations().contains_key(annotation::MACHINE) {
        give_up(GiveUp::Gone, "its Machine is gone", plan);
        return true;
    }
    let object = object.clone();
    plan.then(
        Action::MakeMachine { object },
        "one claim on a template is one Machine",
    );
    false
}

/// What a claim on its way waits for; changes of what it waits for enqueue it.
fn wait_for(progress: &Progress, plan: &mut Plan<Action>) {
    let missing = [&progress.launched, &progress.registered, &progress.initialized]
        .into_iter()
        .find(|verdict| !verdict.holds);
    if let Some(verdict) = missing {
        let entry = plan.wait(verdict.reason, &verdict.message);
        if let Some(revisit) = progress.revisit {
            entry.until(revisit);
        }
    }
}

/// What the lifecycle reads.
pub fn facts(observed: &Observed, now: Timestamp) -> Facts {
    let claim = &observed.claim;
    let mut limits = observed.limits;
    let mut waits_for = String::new();
    if let Assignment::To {
        waits_for: why,
        stuck,
        ..
    } = &observed.assignment
    {
        waits_for.clone_from(why);
        if stuck.is_some() {
            limits.launch = limits.launch.map(|launch| launch.min(STUCK_FOR));
        }
    }
    if let Assignment::NoClass(why) | Assignment::NoChoice(why) = &observed.assignment {
        waits_for.clone_from(why);
    }
    Facts {
        created: since(observed, now),
        labels: labels_for_node(observed),
        taints: claim.spec.taints.clone(),
        startup_taints: claim.spec.startup_taints.clone(),
        foreign_taints: observed.foreign_taints.clone(),
        capacity: claim
            .status
            .as_ref()
            .map(|status| status.capacity.clone())
            .unwrap_or_default(),
        requests: claim
            .spec
            .resources
            .as_ref()
            .map(|resources| resources.requests.clone())
            .unwrap_or_default(),
        machine: observed.machine.as_ref().map(|machine| machine.name_any()),
        waits_for,
        nodes: observed.nodes.iter().map(|node| node_facts(node)).collect(),
        deadlines: limits,
    }
}

/// Since when the claim has waited for what it lacks. One that lost its Machine to a health check or a rollout begins again.
fn since(observed: &Observed, now: Timestamp) -> Timestamp {
    let moment = |time: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        time.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
    };
    let created = moment(observed.claim.metadata.creation_timestamp.as_ref());
    if let Some(machine) = &observed.machine {
        return created.max(moment(machine.metadata.creation_timestamp.as_ref()));
    }
    let conditions = observed.claim.status.iter().flat_map(|status| &status.conditions);
    let launched = conditions
        .into_iter()
        .find(|condition| condition.type_ == condition::LAUNCHED);
    match launched {
        Some(launched) if launched.status == "True" => now,
        Some(launched) => created.max(launched.last_transition_time.0),
        None => created,
    }
}

/// When the claim is too old. A frozen NodePool's claims stay.
fn expires(observed: &Observed) -> Option<Timestamp> {
    let claim = &observed.claim;
    let text = claim
        .spec
        .expire_after
        .as_deref()
        .filter(|text| *text != "Never")?;
    let lasts = SignedDuration::try_from_secs_f64(duration_seconds(text)?).ok()?;
    let created = claim.metadata.creation_timestamp.as_ref()?.0;
    created.checked_add(lasts).ok().filter(|_| !observed.is_frozen)
}

/// When a deleted claim's pods are gone at the latest: as stamped, or as it will be.
pub fn deadline(observed: &Observed) -> Option<Timestamp> {
    let claim = &observed.claim;
    let stamped = claim
        .annotations()
        .get(annotation::TERMINATION_TIMESTAMP)
        .and_then(|text| text.parse().ok());
    if stamped.is_some() {
        return stamped;
    }
    let text = claim.spec.termination_grace_period.as_deref()?;
    let lasts = SignedDuration::try_from_secs_f64(duration_seconds(text)?).ok()?;
    let deleted = claim.metadata.deletion_timestamp.as_ref()?.0;
    deleted.checked_add(lasts).ok()
}

/// How far the drain of a deleted claim's node is.
pub fn drained(observed: &Observed, now: Timestamp) -> Drain {
    drain::drain(&observed.pods, deadline(observed), now)
}

fn leave(observed: &Observed, now: Timestamp, plan: &mut Plan<Action>) {
    let claim = &observed.claim;
    let has = |key: &str| claim.annotations().contains_key(key);
    if has(annotation::DRAINED) {
        return let_go(observed, plan);
    }
    let deadline = deadline(observed);
    if let Some(at) = deadline.filter(|_| !has(annotation::TERMINATION_TIMESTAMP)) {
        plan.then(Action::StampDeadline { at }, "the claim was deleted");
    }
    if let [node] = &observed.nodes[..] {
        let is_tainted = node_facts(node)
            .taints
            .iter()
            .any(|one| one.key == taint::DISRUPTED);
        if !is_tainted {
            let node = node.name_any();
            plan.then(Action::TaintNode { node }, "the claim was deleted");
        }
        let drain = drained(observed, now);
        for (index, (step, why)) in drain.steps.iter().enumerate() {
            let action = Action::Drain(step.clone());
            if index == 0 {
                plan.then(action, why);
            } else {
                plan.beside(action, why);
            }
        }
        if !drain.is_done() {
            let entry = plan.wait("Draining", drain.message());
            if let Some(revisit) = drain.revisit {
                entry.until(revisit);
            }
            return;
        }
        let is_over = deadline.is_some_and(|deadline| deadline <= now);
        if !observed.volumes.is_empty() && !is_over {
            let message = format!("volumes {} are still attached", observed.volumes.join(", "));
            let entry = plan.wait("AwaitingVolumeDetachment", message);
            if let Some(deadline) = deadline {
                entry.until(deadline);
            }
            return;
        }
        if node_facts(node).has_finalizer {
            let node = node.name_any();
            plan.then(Action::ReleaseNode { node }, "it is drained");
        }
        plan.then(Action::LetMachineGo, "its node is drained");
    } else {
        plan.then(Action::LetMachineGo, "it has no node to drain");
    }
}

/// The Machine goes with the object's account; here it is only waited for. That of a template has no account but its claim.
fn let_go(observed: &Observed, plan: &mut Plan<Action>) {
    let claim = &observed.claim;
    let is_settled = claim.annotations().contains_key(annotation::SETTLED);
    let assigned = claim.annotations().get(annotation::SCALABLE_RESOURCE);
    let is_of_template = assigned
        .and_then(|text| Reference::parse(text))
        .is_some_and(|object| object.kind.template().is_some());
    match (&observed.machine, &observed.assignment) {
        _ if is_settled => plan.release_finalizer("its Machine is gone, and replicas have fallen"),
        (None, _) if assigned.is_none() => plan.release_finalizer("nothing was ever made for it"),
        (None, _) if is_of_template && !observed.parts.is_empty() => {
            plan.then(Action::DeleteParts, "the claim is deleted")
        }
        (None, _) if is_of_template => plan.release_finalizer("its Machine is gone"),
        (None, Assignment::Gone(object)) => {
            plan.release_finalizer(format!("{object} and its Machines are gone"))
        }
        (Some(machine), _) if is_of_template && !machine.is_deleting() => {
            let machine = machine.name_any();
            plan.then(
                Action::DeleteMachine { machine },
                "the claim is deleted and its node drained",
            )
        }
        (Some(machine), _) => plan.wait(
            condition::INSTANCE_TERMINATING,
            format!("Machine {} is on its way out", machine.name_any()),
        ),
        (None, _) => plan.wait(
            condition::INSTANCE_TERMINATING,
            "its account is not settled yet".to_owned(),
        ),
    };
}
