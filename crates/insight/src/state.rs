//! What one object says of itself, in one word and one reason.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Actor, Catalogue, Condition, Id, Part, Reason, Severity, Status, catalogue::Reading,
    condition::conditions, path,
};

/// From best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    Ready,
    /// Under way.
    Progressing,
    /// For something that comes by itself.
    Waiting,
    /// Nothing goes on before somebody acts.
    Stuck,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Progressing => "progressing",
            Self::Waiting => "waiting",
            Self::Stuck => "stuck",
        }
    }
}

/// A controller looks at a new object within seconds.
const FIRST_LOOK_SECONDS: i64 = 60;
/// Reasons that the model itself gives.
pub(crate) const NOT_RECONCILED: &str = "NotReconciled";
pub(crate) const NOT_OBSERVED: &str = "NotObserved";
pub(crate) const NOT_FOUND: &str = "NotFound";
pub(crate) const NOT_READABLE: &str = "NotReadable";
const DELETING: &str = "Deleting";
const PAUSED: &str = "Paused";
/// How reasons end that mean that something failed.
const BAD: &[&str] = &[
    "Failed",
    "Error",
    "NotFound",
    "Forbidden",
    "Denied",
    "Refused",
    "Unhealthy",
];

/// What those mean, for explanations and the reference.
pub const OWN_REASONS: &[Reason] = &[
    Reason::stuck(
        NOT_RECONCILED,
        "no controller has written a status yet",
        Actor::Operator,
        "check that the provider of this kind is installed and its manager runs",
    )
    .command("kubectl get deployments --all-namespaces --selector=clusterctl.cluster.x-k8s.io"),
    Reason::stuck(
        NOT_OBSERVED,
        "the controller has not looked at the newest spec yet",
        Actor::Operator,
        "check that the manager of this kind runs",
    )
    .command("kubectl get deployments --all-namespaces --selector=clusterctl.cluster.x-k8s.io"),
    Reason::stuck(
        NOT_FOUND,
        "it is referred to and does not exist",
        Actor::Author,
        "create it, or correct the reference",
    )
    .command("kubectl -n {namespace} get {resource}"),
    Reason::stuck(
        NOT_READABLE,
        "you may not read it, so its state is not known",
        Actor::Operator,
        "ask for the right to get and list it",
    )
    .command("kubectl -n {namespace} auth can-i get {resource}"),
    Reason::working(DELETING, "it is being deleted, and goes when everything of it has gone").elsewhere(&[]),
    Reason::stuck(
        PAUSED,
        "it is paused, and nothing is done for it",
        Actor::Author,
        "set `spec.paused` of the Cluster to false, or remove the annotation `cluster.x-k8s.io/paused` of the object",
    )
    .command("kubectl -n {namespace} get {resource} {name} -o yaml"),
];

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Judgement {
    pub state: State,
    /// The condition that says so; empty where none does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Nothing is done for it.
    pub paused: bool,
    pub deleting: bool,
    /// It takes longer than it usually does.
    pub overdue: bool,
}

impl Judgement {
    pub(crate) fn ready() -> Self {
        Self {
            state: State::Ready,
            condition: String::new(),
            reason: String::new(),
            message: String::new(),
            since: None,
            paused: false,
            deleting: false,
            overdue: false,
        }
    }

    pub(crate) fn own(state: State, reason: &str, message: String) -> Self {
        Self {
            state,
            reason: reason.to_owned(),
            message,
            ..Self::ready()
        }
    }

    fn of(state: State, condition: &Condition) -> Self {
        Self {
            state,
            condition: condition.name.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: condition.since,
            ..Self::ready()
        }
    }
}

/// What an object says of itself.
pub fn judge(object: &Value, catalogue: &Catalogue, now: Timestamp) -> Judgement {
    let id = Id::of(object);
    let kind = catalogue.kind(&id);
    let deleted = path::time(object, "/metadata/deletionTimestamp");
    if kind.part == Part::Template && deleted.is_none() {
        return Judgement::ready();
    }
    let all = conditions(object);
    let paused_by = all
        .iter()
        .find(|one| one.name == PAUSED && one.status == Status::True);
    let is_paused = paused_by.is_some()
        || object["spec"]["paused"] == true
        || object["metadata"]["annotations"]["cluster.x-k8s.io/paused"].is_string();
    let mut judgement = judge_conditions(&id, &kind, &all, catalogue)
        .or_else(|| without_conditions(object, &id, kind.part, &all, catalogue, now))
        .unwrap_or_else(Judgement::ready);
    if judgement.state == State::Ready
        && let Some((generation, seen)) = unseen(object, &all)
    {
        let message = format!("generation {generation} is stored, and generation {seen} was looked at last");
        judgement = Judgement::own(State::Progressing, NOT_OBSERVED, message);
    }
    if let Some(at) = deleted
        && judgement.state != State::Stuck
    {
        judgement = deleting(object, &all, at);
    }
    if is_paused && judgement.state != State::Ready {
        let said = paused_by.map(|one| one.message.clone()).unwrap_or_default();
        judgement = Judgement {
            condition: PAUSED.to_owned(),
            since: paused_by.and_then(|one| one.since),
            ..Judgement::own(State::Stuck, PAUSED, said)
        };
    }
    judgement.paused = is_paused;
    judgement.deleting = deleted.is_some();
    let usually = catalogue
        .reason(&id.kind, &judgement.reason, &judgement.message)
        .map_or(0, |reason| i64::from(reason.usually));
    judgement.overdue = usually > 0
        && judgement.state != State::Ready
        && judgement
            .since
            .is_some_and(|since| seconds(since, now) > 2 * usually);
    judgement
}

pub(crate) fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    to.as_second() - from.as_second()
}

/// The worst of its conditions, if any says that something is not as it should be.
fn judge_conditions(
    id: &Id,
    kind: &crate::Kind,
    all: &[Condition],
    catalogue: &Catalogue,
) -> Option<Judgement> {
    let read: Vec<(Reading, &Condition)> = all
        .iter()
        .map(|one| (Catalogue::reading(kind, one), one))
        .collect();
    let summaries = || {
        read.iter()
            .filter(|(reading, _)| *reading == Reading::Summary)
            .map(|(_, one)| *one)
    };
    let sums_up = summaries().next().is_some();
    let is_well = sums_up && summaries().all(|one| one.status == Status::True);
    let said_by_summary = summaries().find(|one| one.status != Status::True);
    let mut worst: Option<((State, bool, bool), Judgement)> = None;
    for (reading, condition) in &read {
        let state = match reading {
            Reading::News if condition.name == PAUSED || condition.name == DELETING => continue,
            Reading::News if condition.status == Status::True => match weigh(id, condition, catalogue) {
                // While it is well, news is progress at most.
                state if is_well => state.min(State::Progressing),
                state => state,
            },
            Reading::Alarm if condition.status == Status::True => {
                weigh(id, condition, catalogue).max(State::Waiting)
            }
            Reading::Summary if condition.status != Status::True => weigh(id, condition, catalogue),
            Reading::Good if condition.status != Status::True && !is_well => weigh(id, condition, catalogue),
            _ => continue,
        };
        // Some reasons are well although the condition is not True: nothing was asked for.
        if state == State::Ready {
            continue;
        }
        let repeats = said_by_summary.is_some_and(|summary| summary.reason == condition.reason);
        let rank = (
            state,
            repeats && *reading != Reading::Summary,
            *reading != Reading::Summary,
        );
        if worst.as_ref().is_none_or(|(best, _)| rank > *best) {
            worst = Some((rank, Judgement::of(state, condition)));
        }
    }
    worst.map(|(_, judgement)| judgement)
}

/// How bad a reason is: as it is registered, else by its severity, else by its name.
fn weigh(id: &Id, condition: &Condition, catalogue: &Catalogue) -> State {
    let reason = condition.reason.as_str();
    if let Some(known) = catalogue.reason(&id.kind, reason, &condition.message) {
        return known.state;
    }
    let is_bad = reason.starts_with("Invalid") || BAD.iter().any(|end| reason.ends_with(end));
    match condition.severity {
        Some(Severity::Error) => State::Stuck,
        None if is_bad => State::Stuck,
        None if reason.ends_with("ing") && !reason.starts_with("Waiting") => State::Progressing,
        _ => State::Waiting,
    }
}

/// An object that nobody has spoken of yet, or a kind without conditions.
fn without_conditions(
    object: &Value,
    id: &Id,
    part: Part,
    all: &[Condition],
    catalogue: &Catalogue,
    now: Timestamp,
) -> Option<Judgement> {
    if !all.is_empty() {
        return None;
    }
    let not_yet = ["/status/ready", "/status/initialization/provisioned"]
        .iter()
        .find(|pointer| {
            path::all(object, pointer)
                .first()
                .is_some_and(|value| **value == Value::Bool(false))
        });
    if let Some(pointer) = not_yet {
        let field = pointer.trim_start_matches('/').replace('/', ".");
        return Some(Judgement::own(
            State::Waiting,
            "NotReady",
            format!("{field} is false"),
        ));
    }
    let speaks = part.is_structure() || part == Part::Machine || catalogue.has_conditions(&id.kind);
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    let status = object["status"].as_object();
    let said = status.is_some_and(|status| !status.values().all(is_empty));
    if !speaks || said {
        return None;
    }
    let created = path::time(object, "/metadata/creationTimestamp");
    let is_new = created.is_none_or(|created| seconds(created, now) < FIRST_LOOK_SECONDS);
    let state = if is_new { State::Waiting } else { State::Stuck };
    let message = "no controller has written a status".to_owned();
    Some(Judgement {
        since: created,
        ..Judgement::own(state, NOT_RECONCILED, message)
    })
}

/// The stored generation and the one that was looked at, if that is older.
fn unseen(object: &Value, all: &[Condition]) -> Option<(i64, i64)> {
    let generation = path::number(object, "/metadata/generation")?;
    let said = all.iter().filter_map(|one| one.generation).max();
    let seen = path::number(object, "/status/observedGeneration")
        .max(said)
        .filter(|seen| *seen > 0)?;
    (seen < generation).then_some((generation, seen))
}

fn deleting(object: &Value, all: &[Condition], at: Timestamp) -> Judgement {
    let said = all
        .iter()
        .find(|one| one.name == DELETING && one.status == Status::True);
    let finalizers: Vec<&str> = path::all(object, "/metadata/finalizers/*")
        .into_iter()
        .filter_map(Value::as_str)
        .collect();
    let message = match said {
        Some(one) if !one.message.is_empty() => one.message.clone(),
        _ if finalizers.is_empty() => String::new(),
        _ => format!("it is kept by {}", finalizers.join(", ")),
    };
    let reason = said.map_or(DELETING, |one| one.reason.as_str());
    Judgement {
        condition: said.map(|one| one.name.clone()).unwrap_or_default(),
        since: Some(at),
        ..Judgement::own(State::Progressing, reason, message)
    }
}
