//! What the status says, from what was observed and how the steps went. Pure; written once, only if it differs.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
pub use slipway_azure::reconcile::planning::{LAST_SYSTEM_POOL, VANISHED};
use slipway_azure::reconcile::{
    ResourceKind, StepStatus,
    planning::{OWNED_BY_ANOTHER, RECREATE},
};
use slipway_capi::condition::{
    self, Report, Status,
    legacy::{self, LegacyCondition, LegacyReport, Severity},
};

use crate::planning::Waiting;

/// The v1beta1 condition a kind of resource reports in, as dashboards know it.
pub fn condition_of(kind: ResourceKind) -> &'static str {
    match kind {
        ResourceKind::ResourceGroup => "ResourceGroupReady",
        ResourceKind::VirtualNetwork => "VNetReady",
        ResourceKind::Subnet => "SubnetsReady",
        ResourceKind::ManagedCluster => "ManagedClusterRunning",
        ResourceKind::PrivateEndpoint => "PrivateEndpointsReady",
        ResourceKind::FleetMember => "FleetReady",
        ResourceKind::Extension => "AKSExtensionsReady",
        ResourceKind::AgentPool => "AgentPoolsReady",
    }
}

/// Status, severity, reason and message of a step.
pub(crate) fn words(step: &StepStatus) -> (bool, Severity, &str, &str) {
    let severity = match step {
        StepStatus::Done => Severity::None,
        StepStatus::Failed { terminal: true, .. } => Severity::Error,
        StepStatus::Failed { .. } => Severity::Warning,
        _ => Severity::Info,
    };
    (*step == StepStatus::Done, severity, step.reason(), step.message())
}

/// Since when something is under way: the condition said so first then.
fn since(conditions: &[Condition], type_: &str, reason: &str, now: Timestamp) -> String {
    let before = conditions
        .iter()
        .find(|one| one.type_ == type_ && one.reason == reason && one.status == "False")
        .and_then(|one| one.message.rsplit_once(" (since ")?.1.strip_suffix(')'));
    before.map_or_else(|| format!("{now:.0}"), str::to_owned)
}

/// Sets one condition in both forms.
pub(crate) fn set_both(
    old: &mut Vec<LegacyCondition>,
    new: &mut Vec<Condition>,
    type_: &str,
    step: &StepStatus,
    generation: Option<i64>,
    now: Timestamp,
) {
    let (_, _, reason, message) = words(step);
    let message = match step {
        StepStatus::Creating(_) | StepStatus::Updating(_) | StepStatus::Deleting(_) => {
            format!("{message} (since {})", since(new, type_, reason, now))
        }
        _ => message.to_owned(),
    };
    set_saying(old, new, (type_, step, &message), generation, now);
}

/// The same with a message of its own.
pub(crate) fn set_saying(
    old: &mut Vec<LegacyCondition>,
    new: &mut Vec<Condition>,
    (type_, step, message): (&str, &StepStatus, &str),
    generation: Option<i64>,
    now: Timestamp,
) {
    let (good, severity, reason, _) = words(step);
    let report = if good {
        LegacyReport::good(type_)
    } else {
        LegacyReport::bad(type_, severity, reason, message)
    };
    legacy::set(old, &report, now);
    condition::set(
        new,
        &Report::new(type_, Status::from(good), reason, message),
        generation,
        now,
    );
}

/// Sums the kinds up in `Ready`: the worst first, in the order in which they are made, with what its condition says.
pub(crate) fn set_ready(
    old: &mut Vec<LegacyCondition>,
    new: &mut Vec<Condition>,
    kinds: &[(&str, &StepStatus)],
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let (type_, worst) = worst(kinds).unwrap_or(("", &StepStatus::Done));
    let message = condition::find(new, type_).map(|one| one.message.clone());
    set_saying(
        old,
        new,
        ("Ready", worst, &message.unwrap_or_default()),
        generation,
        now,
    );
    *worst == StepStatus::Done
}

/// The worst step with its condition, the first of them in the order in which the resources are made.
pub(crate) fn worst<'a>(kinds: &[(&'a str, &'a StepStatus)]) -> Option<(&'a str, &'a StepStatus)> {
    kinds.iter().copied().min_by_key(|(_, step)| step.rank())
}

/// The worse of two steps of one kind.
pub fn worse(left: StepStatus, right: StepStatus) -> StepStatus {
    if right.rank() < left.rank() { right } else { left }
}

/// What is said of a resource that vanished and is made again.
pub fn vanished(id: &str) -> StepStatus {
    StepStatus::Waiting {
        reason: VANISHED.into(),
        message: format!("{id} is gone, and nothing here deleted it: it is made again"),
    }
}

/// How waiting for something is told.
pub fn waiting(waiting: &Waiting) -> StepStatus {
    let (reason, message) = match waiting {
        Waiting::ForSystemPool { until } => (
            "WaitingForSystemPool",
            format!(
                "no AzureManagedMachinePool of mode System belongs to the Cluster yet; without one the cluster is \
                 created with one node of its own after {until}"
            ),
        ),
        Waiting::ForMachinePool { pool } => (
            "WaitingForMachinePool",
            format!("no MachinePool owns the node pool {pool} yet"),
        ),
        Waiting::ForReferencedPool { pool } => (
            "WaitingForSystemPool",
            format!("defaultPoolTemplate.machinePoolRef names AzureManagedMachinePool {pool}, which is not there yet"),
        ),
        Waiting::ForControlPlane => (
            "WaitingForControlPlane",
            "the AzureManagedControlPlane is not initialized yet".to_owned(),
        ),
        Waiting::ForAnotherSystemPool => (
            LAST_SYSTEM_POOL,
            "AKS Cluster must have at least one system pool: this one goes when another is there, or with the Cluster"
                .to_owned(),
        ),
        Waiting::OwnedByAnother { id, foreign } => (
            OWNED_BY_ANOTHER,
            format!("nothing is written to {id}: {foreign}"),
        ),
        Waiting::Vanished { id } => (
            VANISHED,
            format!(
                "{id} is gone, and nothing here deleted it. It is not created again by itself, because it would be \
                 empty: annotate the AzureManagedControlPlane with {RECREATE}: \"true\" to create it, or delete the \
                 Cluster"
            ),
        ),
        Waiting::ForStart { id } => (
            "Stopped",
            format!("{id} is stopped, and AKS takes no changes: what differs is sent when it is started"),
        ),
        Waiting::ForTheUser(error) => ("InvalidSpec", error.to_string()),
    };
    StepStatus::Waiting {
        reason: reason.into(),
        message,
    }
}
