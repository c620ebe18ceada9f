//! The plan for an object's inline resources: what is recorded, made, changed, given up and exported. Pure.

use std::{collections::BTreeMap, fmt, time::Duration};

use jiff::Timestamp;
use slipway_azure::{
    ResourceId,
    reconcile::planning::{OWNER_CHECK, SOON, VANISHED, later, sends},
    resource::Put,
};
use slipway_capi::frame::{Entry, Plan, Progress};

use super::{
    Held, Resource, Verdict,
    delete::delete_leftovers,
    export::{Ca, Kubeconfig, Values, plan_exports},
    fetched::Fetch,
    verdict::Waiting,
};
use crate::engine::{self, Application, EngineStep, Operated, Standing};

/// How often it is looked whether an operator still runs.
const LOOK_AT_OPERATOR: Duration = Duration::from_mins(5);

/// What is noted on the object before a resource is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    pub id: ResourceId,
    pub api_version: String,
    pub notes: BTreeMap<String, String>,
    /// It is ours to delete, whoever made it.
    pub owned: bool,
}

/// The desired state of one resource in Azure.
#[derive(Clone, Debug)]
pub struct Desired {
    pub kind: String,
    pub id: ResourceId,
    pub put: Put,
}

/// One idempotent call for inline resources.
#[derive(Clone, Debug)]
pub enum Action {
    /// Note on the object what is about to be asked for.
    Record(Vec<Recording>),
    /// It was there and is gone, and nothing here deleted it: report that before it is made again.
    AcceptVanished { kind: String, id: ResourceId },
    /// Compare with Azure once more and send what differs.
    Ensure(Box<Desired>),
    Delete {
        kind: String,
        id: ResourceId,
        api_version: String,
    },
    /// Take a resource off the record without touching it.
    LetGo { kind: String, id: ResourceId },
    /// Write values to a Secret or a ConfigMap.
    Export(Values),
    /// Fetch a kubeconfig and write it to a Secret.
    WriteKubeconfig(Kubeconfig),
    /// Ask Azure for credentials, and write what an expression makes of them to a Secret.
    WriteFetched(Box<Fetch>),
    /// Write the CA of an AKS cluster to a Secret.
    WriteCa(Ca),
    /// Note on the object what was applied.
    StoreRecords,
    /// Give Azure Service Operator its object for a resource.
    GiveToOperator {
        id: ResourceId,
        application: Box<Application>,
    },
    /// Tell Azure Service Operator to leave a resource alone.
    Quiet(Box<Operated>),
    /// Delete an object of Azure Service Operator, which deletes the resource unless it is quiet. `release`: there is no operator to let
    /// go of a quiet one.
    RemoveObject { operated: Box<Operated>, release: bool },
    /// Make the kubeconfig that Azure Service Operator writes one that Cluster API finds.
    ClaimKubeconfig { name: String },
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(recordings) => {
                let ids: Vec<&str> = recordings.iter().map(|one| one.id.as_str()).collect();
                write!(formatter, "record {}", ids.join(", "))
            }
            Self::AcceptVanished { kind, id } => write!(formatter, "report vanished {kind} {id}"),
            Self::Ensure(desired) => write!(formatter, "ensure {} {}", desired.kind, desired.id),
            Self::Delete { kind, id, .. } => write!(formatter, "delete {kind} {id}"),
            Self::LetGo { kind, id } => write!(formatter, "let go of {kind} {id}"),
            Self::Export(values) => values.fmt(formatter),
            Self::WriteKubeconfig(kubeconfig) => kubeconfig.fmt(formatter),
            Self::WriteFetched(fetch) => fetch.fmt(formatter),
            Self::WriteCa(ca) => ca.fmt(formatter),
            Self::StoreRecords => formatter.write_str("store what was applied"),
            Self::GiveToOperator { application, .. } => {
                write!(formatter, "apply {} {}", application.api.kind, application.name)
            }
            Self::Quiet(operated) => {
                write!(
                    formatter,
                    "tell Azure Service Operator to leave {} alone",
                    operated.display()
                )
            }
            Self::RemoveObject { operated, .. } => {
                write!(
                    formatter,
                    "delete the object {} of Azure Service Operator",
                    operated.display()
                )
            }
            Self::ClaimKubeconfig { name } => write!(formatter, "label Secret {name}"),
        }
    }
}

/// An action of a kind that may be one for its resources.
pub trait Wraps: From<Action> + fmt::Display {
    fn resource_action(&self) -> Option<&Action>;
}

/// Whether an entry changes something in Azure.
pub fn changes_azure<A: Wraps>(entry: &Entry<A>) -> bool {
    match entry.action().and_then(Wraps::resource_action) {
        Some(Action::Ensure(_)) => sends(entry),
        Some(Action::Delete { .. } | Action::AcceptVanished { .. } | Action::GiveToOperator { .. }) => true,
        Some(Action::RemoveObject { operated, .. }) => !operated.live.is_quiet(),
        _ => false,
    }
}

/// The plan for the resources of an object that stays. Resources of one object do not wait for each other here: one that
/// refers to another that is not there yet is planned when that one is.
pub fn plan<A: From<Action>>(held: &Held, plan: &mut Plan<A>, now: Timestamp) {
    let verdicts: Vec<(&Resource, Verdict)> = held
        .resources
        .iter()
        .map(|resource| (resource, held.verdict(resource, now)))
        .collect();
    let unrecorded = unrecorded(held, &verdicts);
    if !unrecorded.is_empty() {
        let why = "nothing is made that is not known to be ours";
        plan.then(Action::Record(unrecorded).into(), why);
    }
    let mut group = None;
    for (resource, verdict) in verdicts {
        match verdict {
            Verdict::Rest => {}
            Verdict::Wait(waiting) => wait(plan, resource, &waiting, now),
            Verdict::Vanished => {
                let Some(id) = resource.id.clone() else { continue };
                let kind = resource.name.kind.clone();
                let why = "Azure no longer has it, and nothing here deleted it: it is made again";
                let entry = act(plan, &mut group, Action::AcceptVanished { kind, id }, why);
                entry.warned(VANISHED);
            }
            Verdict::Operated(step) => plan_step(plan, &mut group, resource, step, now),
            Verdict::Ensure(comparison) => {
                let (Some(id), Some(put)) = (resource.id.clone(), resource.put.clone()) else {
                    continue;
                };
                let kind = resource.name.kind.clone();
                let desired = Box::new(Desired { kind, id, put });
                let why = comparison.why.clone();
                comparison.describe(act(plan, &mut group, Action::Ensure(desired), why));
            }
        }
    }
    if let Some(problem) = &held.problem {
        problem.block(plan).group = None;
    }
    engine::pass(held, plan, now);
    delete_leftovers(held, plan, now);
    plan_exports(held, plan, now);
    if held
        .resources
        .iter()
        .any(|one| one.choice.is_operated() || one.choice.held_up.is_some())
    {
        let after = if held.operator == Standing::Running {
            LOOK_AT_OPERATOR
        } else {
            OWNER_CHECK
        };
        plan.revisit(after, "that an operator no longer renews its lease is no event");
    }
}

/// What is done about an object of Azure Service Operator.
fn plan_step<A: From<Action>>(
    plan: &mut Plan<A>,
    group: &mut Option<u16>,
    resource: &Resource,
    step: EngineStep,
    now: Timestamp,
) {
    match step {
        EngineStep::Rest | EngineStep::Note => {}
        EngineStep::Wait(waiting) => wait(plan, resource, &waiting, now),
        EngineStep::Give {
            application,
            why,
            changes,
            event,
        } => {
            let Some(id) = resource.id.clone() else { return };
            let entry = act(plan, group, Action::GiveToOperator { id, application }, why);
            for (path, from, to) in changes {
                entry.changing(path, from, to);
            }
            entry.announced(event);
        }
        EngineStep::Quiet(operated) => {
            let why = resource.choice.why.clone();
            act(plan, group, Action::Quiet(operated), why).announced("SwitchingEngine");
        }
        EngineStep::Remove { operated, release } => {
            let why = "it is quiet, and the resource stays in Azure";
            act(plan, group, Action::RemoveObject { operated, release }, why);
        }
    }
}

/// An action beside the others for resources.
pub(super) fn act<'a, A: From<Action>>(
    plan: &'a mut Plan<A>,
    group: &mut Option<u16>,
    action: Action,
    why: impl Into<String>,
) -> &'a mut Entry<A> {
    let entry = plan.then(action.into(), why);
    match *group {
        Some(group) => entry.in_group(group),
        None => {
            *group = entry.group;
            entry
        }
    }
}

/// A wait that holds up nobody.
fn wait<A>(plan: &mut Plan<A>, resource: &Resource, waiting: &Waiting, now: Timestamp) {
    let message = format!("{}: {}", resource.display(), waiting.message);
    let reason = waiting.reason.clone();
    let entry = match waiting.class {
        Some(class) => plan.blocked(reason, message, class),
        None => plan.wait(reason, message),
    };
    if let Some(after) = waiting.again {
        entry.until(later(now, after));
    }
    entry.group = None;
}

/// What is not recorded yet of what is asked for, or recorded otherwise: nothing we make is ever unknown to us.
fn unrecorded(held: &Held, verdicts: &[(&Resource, Verdict)]) -> Vec<Recording> {
    let is_asked_for = |resource: &Resource, verdict: &Verdict| match verdict {
        Verdict::Ensure(_) | Verdict::Operated(EngineStep::Note) => true,
        // Policies and credentials change without a change in Azure; what was only ever read is not recorded.
        Verdict::Rest => {
            let id = resource.id.as_ref();
            resource.policy().writes() || id.is_some_and(|id| held.records.get(id.key()).is_some())
        }
        _ => false,
    };
    verdicts
        .iter()
        .filter(|(resource, verdict)| is_asked_for(resource, verdict))
        .filter_map(|(resource, _)| {
            let recording = Recording {
                id: resource.id.clone()?,
                api_version: resource.api_version().to_owned(),
                notes: resource.notes(),
                owned: resource.owned,
            };
            (!held.is_noted(resource)).then_some(recording)
        })
        .collect()
}

/// What follows from what the actions came to: what was applied is noted, and what waited is reconciled again.
pub fn follow_up<A: Wraps, E>(held: &Held, progress: &Progress<A, E>) -> Plan<A> {
    let mut plan = Plan::new();
    if held.records.patch().is_some() {
        let why = "a field that is removed later is found by it";
        plan.then(Action::StoreRecords.into(), why);
    }
    let has_changed = progress.actions().any(|(action, attempt)| {
        let in_azure = matches!(
            action.resource_action(),
            Some(Action::Ensure(_) | Action::Delete { .. } | Action::LetGo { .. })
        );
        in_azure && attempt.is_done()
    });
    if has_changed {
        plan.revisit(SOON, "what waited for it is next");
    }
    let has_asked = progress.actions().any(|(action, attempt)| {
        matches!(action.resource_action(), Some(Action::WriteFetched(_))) && attempt.is_done()
    });
    if has_asked {
        plan.revisit(held.key_read_age, "a key may be rotated by then");
    }
    plan
}
