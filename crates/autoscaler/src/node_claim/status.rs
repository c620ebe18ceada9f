//! The status of a NodeClaim: pure. Karpenter's conditions, and what the machine has.

use jiff::Timestamp;
use slipway_capi::condition::{self, Report, Status};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::{
    disruption::{Disruptable, disruptable},
    observe::{Observed, node_facts},
    plan::{deadline, drained, facts},
};
use crate::{
    api::{
        NodeClaimStatus,
        names::{annotation, condition as names},
    },
    lifecycle::{Verdict, inconsistency, progress},
};

pub fn status(observed: &Observed, now: Timestamp) -> NodeClaimStatus {
    let claim = &observed.claim;
    let mut status = claim.status.clone().unwrap_or_default();
    let generation = claim.metadata.generation;
    let progress = progress(&facts(observed, now), now);
    if let Some(shape) = observed.shape() {
        status.capacity = shape.capacity.clone();
        status.allocatable = shape.allocatable();
    }
    status.node_name.clone_from(&progress.node);
    status.provider_id = observed
        .machine
        .as_ref()
        .map(|machine| machine.spec.provider_id.clone())
        .filter(|id| !id.is_empty());
    let expected = status.capacity.clone();
    let mut set = |report: Report| {
        condition::set(&mut status.conditions, &report, generation, now);
    };
    let steps = [
        (names::LAUNCHED, &progress.launched),
        (names::REGISTERED, &progress.registered),
        (names::INITIALIZED, &progress.initialized),
    ];
    for (name, verdict) in steps {
        set(report(name, verdict));
    }
    let missing = steps.iter().find(|(_, verdict)| !verdict.holds);
    set(match missing {
        None => Report::new(names::READY, Status::True, names::READY, ""),
        Some((name, verdict)) => Report::new(
            names::READY,
            Status::Unknown,
            "ReconcilingDependents",
            format!("{name}: {}", verdict.message),
        ),
    });
    if let ([node], true) = (&observed.nodes[..], progress.initialized.holds) {
        let found = inconsistency(&expected, &node_facts(node));
        set(match found {
            None => Report::new(
                names::CONSISTENT_STATE_FOUND,
                Status::True,
                names::CONSISTENT_STATE_FOUND,
                "",
            ),
            Some(what) => Report::new(
                names::CONSISTENT_STATE_FOUND,
                Status::False,
                "ConsistencyCheckFailed",
                what,
            ),
        });
    }
    let disruptable = disruptable(observed, progress.initialized.holds, now);
    if claim.metadata.deletion_timestamp.is_none() {
        for (name, report) in disruption(observed, &disruptable) {
            match report {
                Some(report) => {
                    condition::set(&mut status.conditions, &report, generation, now);
                }
                None => status.conditions.retain(|one| one.type_ != name),
            }
        }
        status.last_pod_event_time = disruptable.last_pod_event.map(Time);
    }
    let mut set = |report: Report| {
        condition::set(&mut status.conditions, &report, generation, now);
    };
    if claim.metadata.deletion_timestamp.is_some() {
        for report in leaving(observed, now) {
            set(report);
        }
    }
    status
}

/// What disruption goes by, as Karpenter writes it: a condition that does not hold is not there.
fn disruption(observed: &Observed, found: &Disruptable) -> [(&'static str, Option<Report>); 3] {
    let yes = |name: &'static str, reason: &str, message: String| {
        Some(Report::new(name, Status::True, reason, message))
    };
    let consolidatable = found
        .is_consolidatable
        .then(|| yes(names::CONSOLIDATABLE, names::CONSOLIDATABLE, String::new()));
    let drifted = found
        .drifted
        .as_ref()
        .map(|(reason, message)| yes(names::DRIFTED, reason, message.clone()));
    let reason = observed.claim.annotations().get(annotation::DISRUPTED_FOR);
    let disrupted = reason.map(|reason| yes(names::DISRUPTION_REASON, reason, reason.clone()));
    [
        (names::CONSOLIDATABLE, consolidatable.flatten()),
        (names::DRIFTED, drifted.flatten()),
        (names::DISRUPTION_REASON, disrupted.flatten()),
    ]
}

/// What is not so yet is not known, as Karpenter writes it.
fn report(name: &str, verdict: &Verdict) -> Report {
    let status = if verdict.holds {
        Status::True
    } else {
        Status::Unknown
    };
    Report::new(name, status, verdict.reason, verdict.message.clone())
}

fn leaving(observed: &Observed, now: Timestamp) -> Vec<Report> {
    let claim = &observed.claim;
    let is_drained = claim
        .metadata
        .annotations
        .iter()
        .any(|all| all.contains_key(annotation::DRAINED));
    if is_drained {
        return vec![
            Report::new(names::DRAINED, Status::True, names::DRAINED, ""),
            Report::new(names::VOLUMES_DETACHED, Status::True, names::VOLUMES_DETACHED, ""),
            Report::new(
                names::INSTANCE_TERMINATING,
                Status::True,
                names::INSTANCE_TERMINATING,
                "",
            ),
        ];
    }
    let drain = drained(observed, now);
    if !drain.is_done() {
        let until =
            deadline(observed).map_or_else(String::new, |end| format!(", until {end:.0} at the latest"));
        let message = format!("{}{until}", drain.message());
        return vec![Report::new(names::DRAINED, Status::Unknown, "Draining", message)];
    }
    let mut reports = vec![Report::new(names::DRAINED, Status::True, names::DRAINED, "")];
    if !observed.volumes.is_empty() {
        let message = format!("volumes {} are still attached", observed.volumes.join(", "));
        reports.push(Report::new(
            names::VOLUMES_DETACHED,
            Status::Unknown,
            "AwaitingVolumeDetachment",
            message,
        ));
    }
    reports
}
