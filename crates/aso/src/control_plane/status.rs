//! The status of an AzureASOManagedControlPlane. Nothing is ready or initialized before AKS has answered, and what was
//! initialized stays so. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use slipway_azure::reconcile::{
    Error, StepStatus,
    planning::{is_stopped, occupied},
};
use slipway_capi::{
    condition::{self, Report, Status},
    frame::Progress,
    names::{condition as names, reason},
};

use super::{
    observe::Observed,
    plan::{Action, OTHER_INFRASTRUCTURE, credentials_problem, other_infrastructure},
};
use crate::{
    api::{AzureASOManagedControlPlaneStatus, ControlPlaneInitialization, ReplicaVersion},
    resources::{NOT_WRITTEN, Outgoing, Summary, foreign, sum_up},
    status::{was_ready, with_v},
};

/// Whether the Secret that Cluster API reads is there.
pub const KUBECONFIG_READY: &str = "KubeconfigReady";

/// What the status says after a reconcile.
pub fn after(
    observed: &Observed,
    progress: &Progress<Action, Error>,
    steps: &BTreeMap<String, StepStatus>,
    now: Timestamp,
) -> AzureASOManagedControlPlaneStatus {
    let before = observed.plane.status.clone().unwrap_or_default();
    let was_ready = was_ready(before.ready, &before.conditions, &observed.plane.metadata);
    match sum_up(&observed.held, progress, steps, was_ready, now) {
        Some(summary) => status(observed, &summary, now),
        None => before,
    }
}

/// Why the kubeconfig is not there: reason and message. `None`: it is.
fn kubeconfig_problem(observed: &Observed, now: Timestamp) -> Option<(String, String)> {
    if let Some(problem) = credentials_problem(observed) {
        return Some((problem.reason().to_owned(), problem.to_string()));
    }
    let problem = observed
        .kubeconfigs(now)
        .into_iter()
        .find_map(|outgoing| match outgoing {
            Outgoing::Foreign { store, name } => Some(foreign(store, &name)),
            _ => None,
        });
    if let Some(message) = problem {
        return Some((NOT_WRITTEN.to_owned(), message));
    }
    let message = "AKS has not handed out a kubeconfig yet".to_owned();
    (!observed.has_kubeconfig()).then(|| (reason::NOT_READY.to_owned(), message))
}

pub fn status(observed: &Observed, summary: &Summary, now: Timestamp) -> AzureASOManagedControlPlaneStatus {
    let mut status = observed.plane.status.clone().unwrap_or_default();
    let generation = observed.plane.metadata.generation;
    let deleting = observed.held.is_deleting();
    let cluster = observed.cluster_state();
    let endpoint = observed.endpoint();
    if let Some(endpoint) = &endpoint {
        status.control_plane_endpoint = Some(endpoint.clone());
    }
    summary.report(&mut status.conditions, generation, now);
    let mut set = |type_: &str, good: bool, (told, message): (String, String)| {
        let report = Report::new(type_, Status::from(good), &told, message);
        condition::set(&mut status.conditions, &report, generation, now);
    };
    let kubeconfig = kubeconfig_problem(observed, now);
    if !deleting {
        let words = kubeconfig.clone();
        let words = words.unwrap_or_else(|| (reason::READY.to_owned(), String::new()));
        set(KUBECONFIG_READY, kubeconfig.is_none(), words);
    }
    let answers = endpoint.is_some() && kubeconfig.is_none();
    let available = answers && !deleting && !is_stopped(cluster);
    let worst = match &observed.other_infrastructure {
        Some(kind) if !deleting => Some((OTHER_INFRASTRUCTURE.to_owned(), other_infrastructure(kind))),
        _ if !summary.is_done() || deleting => Some(summary.words()),
        _ => kubeconfig,
    };
    let of_availability = match (&worst, available) {
        (Some((_, message)), true) => (reason::AVAILABLE.to_owned(), message.clone()),
        (None, true) => (reason::AVAILABLE.to_owned(), String::new()),
        (Some(worst), false) => worst.clone(),
        (None, false) => (
            reason::NOT_AVAILABLE.to_owned(),
            "AKS has not answered with an API server yet".to_owned(),
        ),
    };
    set(names::AVAILABLE, available, of_availability);
    let ready = answers && worst.is_none();
    let words = worst.unwrap_or_else(|| {
        if ready {
            (reason::READY.to_owned(), String::new())
        } else {
            (
                reason::NOT_READY.to_owned(),
                "AKS has not answered with an API server yet".to_owned(),
            )
        }
    });
    set(names::READY, ready, words);
    let was_initialized = status.initialized == Some(true);
    status.initialized = Some(was_initialized || answers);
    status.initialization = Some(ControlPlaneInitialization {
        control_plane_initialized: status.initialized.filter(|done| *done),
    });
    status.ready = Some(ready && !deleting);
    status.external_managed_control_plane = Some(true);
    // While AKS is at work the old version still runs, whatever it shows.
    let runs = cluster
        .property("currentKubernetesVersion")
        .filter(|_| status.version.is_none() || occupied(cluster, None).is_none());
    if let Some(running) = runs {
        let shown = with_v(running);
        status.versions = vec![ReplicaVersion {
            version: shown.clone(),
            replicas: None,
        }];
        status.version = Some(shown);
    }
    status.resources.clone_from(&summary.lines);
    status
}
