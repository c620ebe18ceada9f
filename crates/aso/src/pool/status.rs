//! The status of an AzureASOManagedMachinePool: ready when its resources are as asked for and its nodes are there. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use slipway_azure::{
    reconcile::{Error, StepStatus, planning::LAST_SYSTEM_POOL},
    workload::machines::count,
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

/// How many nodes there are: as the workload cluster shows them, or as AKS counts them.
fn replicas(observed: &Observed) -> Option<i32> {
    let shown = observed.provider_ids.as_ref();
    shown
        .and_then(|ids| i32::try_from(ids.len()).ok())
        .or_else(|| {
            let written = &observed.pool.spec.provider_id_list;
            i32::try_from(written.len()).ok().filter(|count| *count > 0)
        })
        .or_else(|| count(observed.state()))
}

pub fn status(observed: &Observed, summary: &Summary, now: Timestamp) -> AzureASOManagedMachinePoolStatus {
    let mut status = observed.pool.status.clone().unwrap_or_default();
    let generation = observed.pool.metadata.generation;
    let deleting = observed.held.is_deleting();
    summary.report(&mut status.conditions, generation, now);
    let there = replicas(observed);
    let (told, message) = if summary.is_done() && !deleting {
        match (there, count(observed.state())) {
            (Some(there), Some(asked)) if there != asked => (
                "WaitingForNodes".to_owned(),
                format!("{there} of {asked} nodes are in the cluster"),
            ),
            _ => (reason::READY.to_owned(), String::new()),
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
    status.initialization = Some(InfrastructureInitialization {
        provisioned: (before == Some(true) || ready).then_some(true),
    });
    status.ready = Some(ready);
    if let Some(there) = there {
        status.replicas = Some(there);
    }
    status.resources.clone_from(&summary.lines);
    status
}
