//! The status of a control plane. Nothing is ready or initialized before AKS has answered, and what was initialized
//! stays so.

use std::collections::BTreeMap;

use jiff::Timestamp;
use slipway_azure::{
    reconcile::{Error, ResourceKind, StepStatus},
    workload::kubeconfig::KubeconfigKind,
};
use slipway_capi::{
    condition::{self, Report, Status},
    frame::{Attempt, Progress},
};

use super::plan::{self, Action, Observed};
use crate::{
    api::{
        AzureManagedControlPlaneStatus, ControlPlaneInitialization, OidcIssuerStatus, ReplicaVersion,
        V1Beta2Conditions,
    },
    planning::{failed, is_stopped, is_unanswered, occupied, shown, was_ready},
    status::{condition_of, set_both, set_ready, words, worse, worst},
    version::{self, with_v},
};

/// How the steps of a reconcile went.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// By kind; a kind with several resources has its worst.
    pub steps: BTreeMap<ResourceKind, StepStatus>,
    /// Whether the kubeconfig Secrets are written.
    pub kubeconfig_written: bool,
}

const KINDS: [ResourceKind; 7] = [
    ResourceKind::ResourceGroup,
    ResourceKind::VirtualNetwork,
    ResourceKind::Subnet,
    ResourceKind::ManagedCluster,
    ResourceKind::PrivateEndpoint,
    ResourceKind::FleetMember,
    ResourceKind::Extension,
];

/// The id of the resource that an action is about, in lower case.
fn resource(action: &Action) -> Option<String> {
    let id = match action {
        Action::Ensure(desired) => &desired.id,
        Action::Delete { id, .. } | Action::AcceptVanished { id, .. } | Action::LeaveGroup { id } => id,
        _ => return None,
    };
    Some(id.to_lowercase())
}

/// What the entries of the plan came to. `learnt`: how the steps in Azure went, by id. `None`: nothing was learnt.
pub fn steps(
    observed: &Observed,
    progress: &Progress<Action, Error>,
    learnt: &BTreeMap<String, StepStatus>,
    now: Timestamp,
) -> Option<Steps> {
    let mut steps: BTreeMap<ResourceKind, StepStatus> = BTreeMap::new();
    let mut held = Vec::new();
    for (entry, attempt) in progress.entries() {
        let comes_first = matches!(
            entry.action(),
            Some(Action::HoldIdentity(_) | Action::Detach | Action::Record(_))
        );
        let is_record = matches!(entry.action(), Some(Action::Record(_) | Action::StoreRecords));
        if is_record && let Some(step @ StepStatus::Failed { terminal: true, .. }) = failed(attempt) {
            steps.insert(ResourceKind::ManagedCluster, step);
            if comes_first {
                // Nothing is made that could not be recorded.
                let kubeconfig_written = observed.endpoint().is_some() && observed.administrator.is_some();
                return Some(Steps {
                    steps,
                    kubeconfig_written,
                });
            }
            continue;
        }
        if comes_first && !attempt.is_done() {
            return None;
        }
        let Some(kind) = KINDS
            .into_iter()
            .find(|kind| Some(condition_of(*kind)) == entry.condition)
        else {
            continue;
        };
        let step = match (entry.as_wait(), attempt) {
            (_, Attempt::Held) => {
                held.push(kind);
                continue;
            }
            (Some(wait), _) => Some(shown(wait, &entry.why)),
            (None, _) => failed(attempt).or_else(|| learnt.get(&resource(entry.action()?)?).cloned()),
        };
        if let Some(step) = step {
            let before = steps.remove(&kind);
            steps.insert(kind, before.map_or(step.clone(), |before| worse(before, step)));
        }
    }
    if observed.plane.metadata.deletion_timestamp.is_none() && observed.problem.is_none() {
        for kind in plan::kept(observed, now) {
            if !held.contains(&kind) {
                steps.entry(kind).or_insert(StepStatus::Done);
            }
        }
    }
    let is_administrators = |action: &Action| {
        matches!(
            action,
            Action::WriteKubeconfig {
                kind: KubeconfigKind::Administrator,
                ..
            }
        )
    };
    let has_failed = progress
        .actions()
        .any(|(action, attempt)| is_administrators(action) && !attempt.is_done());
    Some(Steps {
        steps,
        kubeconfig_written: observed.endpoint().is_some() && observed.administrator.is_some() && !has_failed,
    })
}

/// What the status says after a reconcile. One question that Azure did not answer does not make a working cluster unready;
/// a change that does not get through is shown.
pub fn after(
    observed: &Observed,
    progress: &Progress<Action, Error>,
    learnt: &BTreeMap<String, StepStatus>,
    now: Timestamp,
) -> AzureManagedControlPlaneStatus {
    let before = observed.plane.status.clone().unwrap_or_default();
    let was_ready = was_ready(before.ready, before.observed_generation, &observed.plane);
    match steps(observed, progress, learnt, now) {
        Some(steps) if !(was_ready && is_unanswered(progress)) => status(observed, &steps, now),
        _ => before,
    }
}

/// Reason and message of `Available`: the first thing that is wrong, also where the API server answers all the same, since
/// this is what `clusterctl describe` shows.
fn availability(available: bool, deleting: bool, steps: &[(&str, &StepStatus)]) -> (String, String) {
    let first = worst(steps).filter(|(_, step)| **step != StepStatus::Done);
    let told = |message: &str| match first {
        Some((condition, step)) => {
            let (_, _, reason, text) = words(step);
            let text = if text.is_empty() { reason } else { text };
            format!("{condition}: {text}")
        }
        None => message.to_owned(),
    };
    let reason = match first {
        _ if available => "Available",
        _ if deleting => "Deleting",
        Some((_, step)) => words(step).2,
        None => "NotAvailable",
    };
    let message = if available {
        told("")
    } else {
        told("AKS has not answered with an API server yet")
    };
    (reason.to_owned(), message)
}

pub fn status(observed: &Observed, progress: &Steps, now: Timestamp) -> AzureManagedControlPlaneStatus {
    let mut status = observed.plane.status.clone().unwrap_or_default();
    let generation = observed.plane.metadata.generation;
    let deleting = observed.plane.metadata.deletion_timestamp.is_some();
    let cluster = observed.cluster_state();
    let mut v1beta2 = status.v1beta2.take().unwrap_or_default().conditions;
    for (kind, step) in &progress.steps {
        set_both(
            &mut status.conditions,
            &mut v1beta2,
            condition_of(*kind),
            step,
            generation,
            now,
        );
    }
    // The last of a kind may have gone in a reconcile whose status was never stored: then no step speaks of it any more.
    for kind in plan::OPTIONAL {
        let type_ = condition_of(kind);
        let is_told = status.conditions.iter().any(|told| told.type_ == type_);
        if is_told && !deleting && !progress.steps.contains_key(&kind) && !plan::has(observed, kind) {
            set_both(
                &mut status.conditions,
                &mut v1beta2,
                type_,
                &StepStatus::Done,
                generation,
                now,
            );
        }
    }
    let kinds: Vec<(&str, &StepStatus)> = progress
        .steps
        .iter()
        .map(|(kind, step)| (condition_of(*kind), step))
        .collect();
    let all_done = set_ready(&mut status.conditions, &mut v1beta2, &kinds, generation, now);
    let answers = cluster
        .property("fqdn")
        .or_else(|| cluster.property("privateFQDN"))
        .is_some()
        && observed.plane.spec.control_plane_endpoint.is_some()
        && progress.kubeconfig_written;
    let was_initialized = status.initialized == Some(true);
    status.initialized = Some(was_initialized || answers);
    status.initialization = Some(ControlPlaneInitialization {
        control_plane_initialized: status.initialized.filter(|done| *done),
    });
    status.ready = Some(answers && all_done && !deleting);
    status.external_managed_control_plane = Some(true);
    let available = answers && !deleting && !is_stopped(cluster);
    let (reason, message) = availability(available, deleting, &kinds);
    condition::set(
        &mut v1beta2,
        &Report::new("Available", Status::from(available), &reason, &message),
        generation,
        now,
    );
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
        let raised = version::compare(running, &observed.plane.spec.class.version).is_gt();
        status.auto_upgrade_version = raised.then(|| running.to_owned());
    }
    let issuer = cluster
        .body()
        .and_then(|body| body.pointer("/properties/oidcIssuerProfile/issuerURL"))
        .and_then(serde_json::Value::as_str);
    if let Some(url) = issuer {
        status.oidc_issuer_profile = Some(OidcIssuerStatus {
            issuer_url: Some(url.to_owned()),
        });
    }
    status.observed_generation = generation;
    status.v1beta2 = Some(V1Beta2Conditions { conditions: v1beta2 });
    status
}
