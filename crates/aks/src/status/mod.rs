//! What the status says, from what was observed and how the steps went. Pure; written once, only if it differs.

pub mod control_plane;
pub mod pool;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use slipway_capi::condition::{
    self, Report, Status,
    legacy::{self, LegacyCondition, LegacyReport, Severity},
};

use crate::plan::{Part, Waiting};

/// How a step went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Done,
    /// Under way, with Azure's word for it.
    Creating(String),
    Updating(String),
    Deleting(String),
    Deleted,
    /// Refused, with Azure's error code and message; terminal if only a change of the objects helps.
    Failed {
        code: String,
        message: String,
        terminal: bool,
    },
    /// Something else must come first.
    Waiting {
        reason: &'static str,
        message: String,
    },
}

/// The old-form condition a part reports in, as dashboards know it.
pub fn condition_of(part: Part) -> &'static str {
    match part {
        Part::ResourceGroup => "ResourceGroupReady",
        Part::VirtualNetwork => "VNetReady",
        Part::Subnet => "SubnetsReady",
        Part::ManagedCluster => "ManagedClusterRunning",
        Part::PrivateEndpoint => "PrivateEndpointsReady",
        Part::FleetMember => "FleetReady",
        Part::Extension => "AKSExtensionsReady",
        Part::AgentPool => "AgentPoolsReady",
    }
}

/// Status, severity, reason and message of a step.
fn words(step: &Step) -> (bool, Severity, &str, &str) {
    match step {
        Step::Done => (true, Severity::None, "Succeeded", ""),
        Step::Creating(progress) => (false, Severity::Info, "Creating", progress),
        Step::Updating(progress) => (false, Severity::Info, "Updating", progress),
        Step::Deleting(progress) => (false, Severity::Info, "Deleting", progress),
        Step::Deleted => (false, Severity::Info, "Deleted", ""),
        Step::Failed {
            code,
            message,
            terminal,
        } => {
            let severity = if *terminal {
                Severity::Error
            } else {
                Severity::Warning
            };
            (
                false,
                severity,
                if code.is_empty() { "Failed" } else { code },
                message,
            )
        }
        Step::Waiting { reason, message } => (false, Severity::Info, reason, message),
    }
}

/// Sets one condition in both forms.
fn set_both(
    old: &mut Vec<LegacyCondition>,
    new: &mut Vec<Condition>,
    type_: &str,
    step: &Step,
    generation: Option<i64>,
    now: Timestamp,
) {
    let (good, severity, reason, message) = words(step);
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

/// Sums the parts up in `Ready`: the worst first, in the order in which they are made.
fn set_ready(
    old: &mut Vec<LegacyCondition>,
    new: &mut Vec<Condition>,
    parts: &[(&str, &Step)],
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let worst = parts
        .iter()
        .min_by_key(|(_, step)| rank(step))
        .map_or(&Step::Done, |(_, step)| *step);
    set_both(old, new, "Ready", worst, generation, now);
    *worst == Step::Done
}

/// How bad a step is; the least is the worst.
fn rank(step: &Step) -> u8 {
    match step {
        Step::Failed { terminal: true, .. } => 0,
        Step::Failed { .. } => 1,
        Step::Deleted => 3,
        Step::Done => 4,
        _ => 2,
    }
}

/// The worse of two steps of one part.
pub fn worse(left: Step, right: Step) -> Step {
    if rank(&right) < rank(&left) { right } else { left }
}

/// How waiting for something is told.
pub fn waiting(waiting: &Waiting) -> Step {
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
            "LastSystemPool",
            "AKS Cluster must have at least one system pool: this one goes when another is there, or with the Cluster"
                .to_owned(),
        ),
        Waiting::ForAzure { id } => ("WaitingForAzure", format!("Azure has not told yet about {id}")),
        Waiting::ForTheUser(error) => ("InvalidSpec", error.to_string()),
    };
    Step::Waiting { reason, message }
}
