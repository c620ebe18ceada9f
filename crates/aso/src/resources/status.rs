//! What the status says of inline resources: one line each, and how they stand together. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use slipway_azure::{
    credential::NAMESPACE_ACCOUNT,
    reconcile::{
        Error, StepStatus,
        planning::{failed, is_unanswered},
    },
    resource::Table,
};
use slipway_capi::{
    condition::{self, Report, Status},
    frame::{Attempt, Progress},
    names::condition::READY,
};
use slipway_runtime::Outcome;

use super::{
    Action, Held, Resource, Verdict,
    export::{NOT_WRITTEN, Outgoing, foreign},
    plan::Wraps,
};
use crate::{api::ResourceStatus, borrowing::CONFIG_MAP, engine};

/// The condition that sums up all resources of an object.
pub const RESOURCES_READY: &str = "ResourcesReady";
/// The condition of an object that signs in as the manager, on trust.
pub const IDENTITY_BORROWED: &str = "IdentityBorrowed";
/// Its reason.
pub const BORROWED: &str = "ManagersIdentity";
/// The condition of an object with a resource that is newer than the table.
pub const MAPPED_BY_RULE: &str = "MappedByRule";
/// Its reason.
pub const NEWER: &str = "NewerThanKnown";

/// How the resources of an object stand.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// In the order of the spec.
    pub lines: Vec<ResourceStatus>,
    /// The first that is worst, with whose it is; `None`: all is well.
    pub worst: Option<(String, StepStatus)>,
    /// The Secrets by which resources sign in as the manager, on trust.
    pub borrowing: Vec<String>,
    /// Resources of a kind or version that is newer than the table.
    pub by_rule: Vec<String>,
    /// How Azure Service Operator stands to them; `None`: it has nothing to do with them.
    pub operator: Option<engine::Word>,
}

impl Summary {
    pub fn is_done(&self) -> bool {
        self.worst.is_none()
    }

    /// Reason and message of what is worst.
    pub fn words(&self) -> (String, String) {
        match &self.worst {
            None => (READY.to_owned(), String::new()),
            Some((whose, step)) => {
                let message = step.message();
                let message = match (whose.as_str(), message) {
                    ("", _) => message.to_owned(),
                    (_, "") => whose.clone(),
                    _ => format!("{whose}: {message}"),
                };
                (step.reason().to_owned(), message)
            }
        }
    }

    /// Sets the condition that sums up all resources.
    pub fn report(&self, conditions: &mut Vec<Condition>, generation: Option<i64>, now: Timestamp) {
        let (reason, message) = self.words();
        let status = Status::from(self.is_done());
        let report = Report::new(RESOURCES_READY, status, &reason, message);
        condition::set(conditions, &report, generation, now);
        engine::report(self.operator.as_ref(), conditions, generation, now);
        let mut warn = |type_: &'static str, reason: &str, applies: bool, message: String| {
            conditions.retain(|one| one.type_ != type_ || applies);
            if applies {
                let report = Report::new(type_, Status::True, reason, message);
                condition::set(conditions, &report, generation, now);
            }
        };
        let borrows = !self.borrowing.is_empty();
        warn(IDENTITY_BORROWED, BORROWED, borrows, self.borrowing_words());
        warn(
            MAPPED_BY_RULE,
            NEWER,
            !self.by_rule.is_empty(),
            self.by_rule_words(),
        );
    }

    fn by_rule_words(&self) -> String {
        format!(
            "{} is newer than Azure Service Operator {}, whose types are known here: what they do not have is sent by the rules \
             that they follow",
            self.by_rule.join(", "),
            Table::get().modules().join(" and ")
        )
    }

    fn borrowing_words(&self) -> String {
        format!(
            "{} names an identity and proves nothing, and it signs in as the manager: whoever may write Secrets here can use every \
             identity that is federated with the manager. Create ServiceAccount {NAMESPACE_ACCOUNT} in this namespace, federate \
             the identity with it, and take the namespace out of ConfigMap {CONFIG_MAP}",
            self.borrowing.join(", ")
        )
    }
}

/// How one resource stands: as its step in this reconcile went, or as the verdict on it says.
fn step_of(
    held: &Held,
    resource: &Resource,
    steps: &BTreeMap<String, StepStatus>,
    now: Timestamp,
) -> StepStatus {
    let step = resource.id.as_ref().and_then(|id| steps.get(id.key()));
    if let Some(step) = step {
        return step.clone();
    }
    match held.verdict(resource, now) {
        Verdict::Rest => StepStatus::Done,
        Verdict::Wait(waiting) => waiting.status(),
        Verdict::Vanished => StepStatus::Waiting {
            reason: "Vanished".into(),
            message: "Azure no longer has it: it is made again".to_owned(),
        },
        Verdict::Ensure(comparison) => StepStatus::Waiting {
            reason: "Reconciling".into(),
            message: comparison.why,
        },
        Verdict::Operated(step) => step_of_operated(step),
    }
}

fn step_of_operated(step: engine::EngineStep) -> StepStatus {
    let waiting = |reason: &'static str, message: String| StepStatus::Waiting {
        reason: reason.into(),
        message,
    };
    match step {
        engine::EngineStep::Rest => StepStatus::Done,
        engine::EngineStep::Wait(waiting) => waiting.status(),
        engine::EngineStep::Note => waiting("Reconciling", "its engine is noted first".to_owned()),
        engine::EngineStep::Give { why, .. } => waiting("Reconciling", why),
        engine::EngineStep::Quiet(_) | engine::EngineStep::Remove { .. } => waiting(
            "SwitchingEngine",
            "Azure Service Operator lets go of it".to_owned(),
        ),
    }
}

/// How the resources stand after a reconcile. `None`: nothing was learnt that is worth saying.
pub fn sum_up<A: Wraps>(
    held: &Held,
    progress: &Progress<A, Error>,
    steps: &BTreeMap<String, StepStatus>,
    was_ready: bool,
    now: Timestamp,
) -> Option<Summary> {
    let mut worst: Option<(String, StepStatus)> = None;
    let mut worsen = |whose: String, step: &StepStatus| {
        let is_worse = worst
            .as_ref()
            .is_none_or(|(_, before)| step.rank() < before.rank());
        if *step != StepStatus::Done && is_worse {
            worst = Some((whose, step.clone()));
        }
    };
    for (action, attempt) in progress.actions() {
        let records = matches!(
            action.resource_action(),
            Some(Action::Record(_) | Action::StoreRecords)
        );
        let exports = matches!(
            action.resource_action(),
            Some(
                Action::Export(_) | Action::WriteKubeconfig(_) | Action::WriteFetched(_) | Action::WriteCa(_)
            )
        );
        match (failed(attempt), records) {
            // Nothing is made that could not be recorded.
            (Some(step @ StepStatus::Failed { terminal: true, .. }), true) => worsen(String::new(), &step),
            _ if records && matches!(attempt, Attempt::Failed(_)) => return None,
            (Some(step), false) if exports => worsen(action.to_string(), &step),
            _ => {}
        }
    }
    // One question that Azure did not answer does not make a working object unready.
    if was_ready && is_unanswered(progress) && !has_sent(progress) {
        return None;
    }
    let mut lines = Vec::new();
    if held.is_deleting() {
        lines = deleted(held, progress, steps, &mut worsen, now);
    } else {
        for resource in &held.resources {
            let step = step_of(held, resource, steps, now);
            worsen(resource.display(), &step);
            lines.push((resource.index, line(held, resource, &step, now)));
        }
        if let Some(problem) = &held.problem {
            let step = StepStatus::Failed {
                code: problem.code.clone(),
                message: problem.message.clone(),
                terminal: true,
            };
            worsen(String::new(), &step);
        }
        for (whose, message) in held.unexpressed() {
            let reason = NOT_WRITTEN.into();
            worsen(whose, &StepStatus::Waiting { reason, message });
        }
        for outgoing in held.outgoing(now) {
            if let Outgoing::Foreign { store, name } = outgoing {
                let step = StepStatus::Waiting {
                    reason: NOT_WRITTEN.into(),
                    message: foreign(store, &name),
                };
                worsen(String::new(), &step);
            }
        }
        for (entry, _) in progress.entries() {
            if let Some(wait) = entry.as_wait()
                && ["StillInUse", "WaitingForResources", "ResourceGroupInUse"].contains(&wait.reason.as_str())
            {
                let step = StepStatus::Waiting {
                    reason: wait.reason.clone().into(),
                    message: entry.why.clone(),
                };
                worsen(String::new(), &step);
            }
        }
        // What the spec no longer names is on its way out.
        for leftover in held.leftovers() {
            if let Some(step) = steps
                .get(leftover.id.key())
                .filter(|step| **step != StepStatus::Deleted)
            {
                worsen(format!("{} {}", leftover.name.kind, leftover.name.name), step);
            }
        }
    }
    lines.sort_by_key(|(index, _)| *index);
    Some(Summary {
        lines: lines.into_iter().map(|(_, line)| line).collect(),
        worst,
        by_rule: by_rule(held),
        operator: engine::judge(held),
        borrowing: held
            .borrowing
            .iter()
            .map(|name| format!("Secret {name}"))
            .collect(),
    })
}

/// The resources that are newer than the table, in the order of the spec.
fn by_rule(held: &Held) -> Vec<String> {
    let mut found: Vec<(usize, String)> = Vec::new();
    for resource in &held.resources {
        let inline = resource.inline.as_ref();
        if inline.is_some_and(|inline| !inline.object.mapping.exact) {
            let version = &resource.name.version;
            found.push((resource.index, format!("{} ({version})", resource.display())));
        }
    }
    found.sort();
    found.into_iter().map(|(_, name)| name).collect()
}

/// Whether a change was accepted in this reconcile, though it may not have got through.
fn has_sent<A: Wraps>(progress: &Progress<A, Error>) -> bool {
    progress.actions().any(|(action, attempt)| {
        matches!(action.resource_action(), Some(Action::Ensure(_)))
            && matches!(attempt, Attempt::Came(Outcome::InProgress(_)))
    })
}

/// What is left of an object that is deleted.
fn deleted<A: Wraps>(
    held: &Held,
    progress: &Progress<A, Error>,
    steps: &BTreeMap<String, StepStatus>,
    worsen: &mut impl FnMut(String, &StepStatus),
    now: Timestamp,
) -> Vec<(usize, ResourceStatus)> {
    for (entry, attempt) in progress.entries() {
        if let Some(wait) = entry.as_wait()
            && matches!(attempt, Attempt::Waiting)
        {
            worsen(
                String::new(),
                &slipway_azure::reconcile::planning::shown(wait, &entry.why),
            );
        }
    }
    let mut lines = Vec::new();
    for resource in &held.resources {
        let Some(id) = &resource.id else { continue };
        if held.records.get(id.key()).is_none() || held.state(id).is_absent() {
            continue;
        }
        let step = steps.get(id.key()).cloned().unwrap_or(StepStatus::Waiting {
            reason: "WaitingForDeletion".into(),
            message: "it goes when what stands in it or refers to it is gone".to_owned(),
        });
        worsen(resource.display(), &step);
        lines.push((resource.index, line(held, resource, &step, now)));
    }
    worsen(String::new(), &StepStatus::Deleted);
    lines
}

fn line(held: &Held, resource: &Resource, step: &StepStatus, now: Timestamp) -> ResourceStatus {
    let before = held.before.iter().find(|line| line.resource == resource.name);
    let state = step.reason().to_owned();
    let since = before
        .filter(|line| line.state.as_deref() == Some(state.as_str()))
        .and_then(|line| line.since.clone())
        .unwrap_or_else(|| format!("{now:.0}"));
    ResourceStatus {
        resource: resource.name.clone(),
        ready: *step == StepStatus::Done,
        id: resource.id.as_ref().map(|id| id.as_str().to_owned()),
        engine: resource
            .choice
            .is_operated()
            .then(|| resource.choice.engine.to_string()),
        message: Some(step.message().to_owned()).filter(|message| !message.is_empty()),
        state: Some(state),
        since: Some(since),
    }
}
