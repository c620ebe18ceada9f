//! The status of an AzureASOManagedMachinePool: ready when its resources are as asked for and its nodes are there. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use slipway_azure::{
    reconcile::{Error, StepStatus, planning::LAST_SYSTEM_POOL},
    workload::machines::{NODES_FORBIDDEN, count},
};
use slipway_capi::{
    condition::{self, Report, Status},
    frame::Progress,
    names::{condition as names, reason},
};

use super::{observe::Observed, plan::Action};
use crate::{
    api::{AzureASOManagedMachinePoolStatus, InfrastructureInitialization},
    resources::{Summary, sum_up},
    status::was_ready,
};

/// What the status says after a reconcile.
pub fn after(
    observed: &Observed,
    progress: &Progress<Action, Error>,
    steps: &BTreeMap<String, StepStatus>,
    now: Timestamp,
) -> AzureASOManagedMachinePoolStatus {
    let before = observed.pool.status.clone().unwrap_or_default();
    let was_ready = was_ready(before.ready, &before.conditions, &observed.pool.metadata);
    match sum_up(&observed.held, progress, steps, was_ready, now) {
        Some(summary) => status(observed, &summary, now),
        None => before,
    }
}

/// The nodes that are known: as they are shown now, or as they were written before.
fn nodes(observed: &Observed) -> &[String] {
    let shown = observed.provider_ids.as_ref();
    shown.unwrap_or(&observed.pool.spec.provider_id_list)
}

/// How many nodes there are: as the workload cluster shows them, or as AKS counts them.
fn replicas(observed: &Observed) -> Option<i32> {
    let known = i32::try_from(nodes(observed).len()).ok();
    let is_shown = observed.provider_ids.is_some();
    known
        .filter(|count| is_shown || *count > 0)
        .or_else(|| count(observed.state()))
}

/// Reason and message while nodes are missing.
fn waiting(there: Option<i32>, asked: Option<i32>) -> (String, String) {
    match (there, asked) {
        (Some(there), Some(asked)) if there != asked => (
            "WaitingForNodes".to_owned(),
            format!("{there} of {asked} nodes are in the cluster"),
        ),
        _ => (reason::READY.to_owned(), String::new()),
    }
}

pub fn status(observed: &Observed, summary: &Summary, now: Timestamp) -> AzureASOManagedMachinePoolStatus {
    let mut status = observed.pool.status.clone().unwrap_or_default();
    let generation = observed.pool.metadata.generation;
    let deleting = observed.held.is_deleting();
    summary.report(&mut status.conditions, generation, now);
    let there = replicas(observed);
    let (told, message) = if summary.is_done() && !deleting {
        // What passes by itself does not make a pool unready.
        let problem = observed.nodes_problem.as_ref();
        match problem.filter(|problem| problem.code == NODES_FORBIDDEN) {
            Some(problem) => (problem.code.clone(), problem.message.clone()),
            None => waiting(there, count(observed.state())),
        }
    } else {
        summary.words()
    };
    let ready = told == reason::READY && !deleting && told != LAST_SYSTEM_POOL;
    let report = Report::new(names::READY, Status::from(ready), &told, message);
    condition::set(&mut status.conditions, &report, generation, now);
    let before = status
        .initialization
        .as_ref()
        .and_then(|before| before.provisioned);
    // Cluster API looks at no node of a pool before that, so a pool whose machines are not all to be had shows those it has.
    let shows_nodes = !deleting && observed.state().body().is_some() && !nodes(observed).is_empty();
    status.initialization = Some(InfrastructureInitialization {
        provisioned: (before == Some(true) || ready || shows_nodes).then_some(true),
    });
    status.ready = Some(ready);
    if let Some(there) = there {
        status.replicas = Some(there);
    }
    status.resources.clone_from(&summary.lines);
    status
}
