//! The status of an AzureASOManagedCluster. What was provisioned stays so. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use slipway_azure::reconcile::{Error, StepStatus};
use slipway_capi::{
    condition::{self, Report, Status},
    frame::Progress,
    names::{condition as names, reason},
};

use super::{
    observe::Observed,
    plan::{Action, NO_ENDPOINT, OTHER_CONTROL_PLANE, other_control_plane},
};
use crate::{
    api::{AzureASOManagedClusterStatus, InfrastructureInitialization},
    resources::{Summary, sum_up},
    status::was_ready,
};

/// What the status says after a reconcile.
pub fn after(
    observed: &Observed,
    progress: &Progress<Action, Error>,
    steps: &BTreeMap<String, StepStatus>,
    now: Timestamp,
) -> AzureASOManagedClusterStatus {
    let before = observed.object.status.clone().unwrap_or_default();
    let metadata = &observed.object.metadata;
    let was_ready = was_ready(before.ready, &before.conditions, metadata);
    match sum_up(&observed.held, progress, steps, was_ready, now) {
        Some(summary) => status(observed, &summary, now),
        None => before,
    }
}

pub fn status(observed: &Observed, summary: &Summary, now: Timestamp) -> AzureASOManagedClusterStatus {
    let mut status = observed.object.status.clone().unwrap_or_default();
    let generation = observed.object.metadata.generation;
    let deleting = observed.held.is_deleting();
    summary.report(&mut status.conditions, generation, now);
    let done = summary.is_done() && !deleting;
    let (told, message) = match &observed.other_control_plane {
        Some(kind) if !deleting => (OTHER_CONTROL_PLANE.to_owned(), other_control_plane(kind)),
        _ if !done => summary.words(),
        _ if observed.endpoint.is_none() => (reason::NOT_READY.to_owned(), NO_ENDPOINT.to_owned()),
        _ => (reason::READY.to_owned(), String::new()),
    };
    let ready = told == reason::READY && !deleting;
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
    status.resources.clone_from(&summary.lines);
    status
}
