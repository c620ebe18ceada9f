//! The conditions of a control plane, one function each, in both forms. Pure.

use jiff::Timestamp;
use slipway_capi::{
    condition::{
        Report, Status,
        legacy::{LegacyReport, Severity},
    },
    names,
};

use super::{
    super::{
        health,
        observed::{Observed, Server, Workload},
        plan::{Action, Plan},
    },
    agent_problem, member_problem, unhealthy,
};
use crate::api::{
    KThreesControlPlaneStatus,
    conditions::{self, reason},
};

/// One condition in both forms.
pub(super) struct Reported {
    pub v1beta2: Report,
    pub v1beta1: Option<LegacyReport>,
}

fn good(type_: &str, reason: &str) -> Reported {
    Reported {
        v1beta2: Report::new(type_, Status::True, reason, ""),
        v1beta1: Some(LegacyReport::good(type_)),
    }
}

fn bad(type_: &str, severity: Severity, reason: &str, message: &str) -> Reported {
    Reported {
        v1beta2: Report::new(type_, Status::False, reason, message),
        v1beta1: Some(LegacyReport::bad(type_, severity, reason, message)),
    }
}

fn unknown(type_: &str, reason: &str, message: &str) -> Reported {
    Reported {
        v1beta2: Report::new(type_, Status::Unknown, reason, message),
        v1beta1: Some(LegacyReport::unknown(type_, reason, message)),
    }
}

/// Of one form only.
fn v1beta2(type_: &str, status: bool, yes: &str, no: &str, message: &str) -> Reported {
    let (status, reason) = if status {
        (Status::True, yes)
    } else {
        (Status::False, no)
    };
    Reported {
        v1beta2: Report::new(type_, status, reason, message),
        v1beta1: None,
    }
}

pub(super) fn all(
    observed: &Observed,
    plan: &Plan,
    failures: &[String],
    status: &KThreesControlPlaneStatus,
    healthy: usize,
    now: Timestamp,
) -> Vec<Reported> {
    let waits = plan.waits().map(|(_, why)| why);
    let reasons: Vec<&str> = failures.iter().map(String::as_str).chain(waits).collect();
    let waiting = reasons.join("; ");
    let mut reported = secrets(observed);
    reported.push(available(observed, status, healthy, now));
    reported.extend(healthy_parts(observed, now));
    reported.extend(rollout(observed, &waiting));
    reported.push(resized(observed, failures, &waiting));
    reported.extend([scaling_up(observed, &waiting), scaling_down(observed, &waiting)]);
    reported.push(machines_ready(observed, &waiting));
    reported.push(machines_owned(observed, plan, &waiting));
    reported.push(remediating(observed, &waiting));
    reported.push(v1beta2(
        names::condition::DELETING,
        observed.deleting,
        names::reason::DELETING,
        names::reason::NOT_DELETING,
        if observed.deleting { &waiting } else { "" },
    ));
    reported
}

fn secrets(observed: &Observed) -> Vec<Reported> {
    let missing = observed.missing_secrets.join(", ");
    let certificates = if missing.is_empty() {
        good(conditions::CERTIFICATES_AVAILABLE, "Available")
    } else {
        bad(
            conditions::CERTIFICATES_AVAILABLE,
            Severity::Error,
            reason::CERTIFICATES_CORRUPTED,
            &format!("missing, and not made again because running servers would not accept it: {missing}"),
        )
    };
    let token = if missing.contains("-token") {
        bad(
            conditions::TOKEN_AVAILABLE,
            Severity::Error,
            reason::TOKEN_GENERATION_FAILED,
            &format!("missing: {missing}"),
        )
    } else {
        good(conditions::TOKEN_AVAILABLE, "Available")
    };
    vec![certificates, token]
}

fn available(
    observed: &Observed,
    status: &KThreesControlPlaneStatus,
    healthy: usize,
    now: Timestamp,
) -> Reported {
    match &observed.workload {
        _ if !status.initialized => bad(
            conditions::AVAILABLE,
            Severity::Info,
            reason::WAITING_FOR_KTHREES_SERVER,
            "the first server has not answered yet",
        ),
        Workload::Reachable(_) if healthy > 0 => good(conditions::AVAILABLE, "Available"),
        Workload::Reachable(_) => bad(
            conditions::AVAILABLE,
            Severity::Error,
            "NotAvailable",
            &format!("no server is healthy: {}", unhealthy(observed, now)),
        ),
        Workload::Unreachable { since } if health::age(*since, now) > health::UNREACHABLE_GRACE => bad(
            conditions::AVAILABLE,
            Severity::Error,
            names::reason::CONNECTION_DOWN,
            &format!("the apiserver has not answered since {since}"),
        ),
        Workload::Unreachable { .. } | Workload::Unknown if status.ready => {
            good(conditions::AVAILABLE, "Available")
        }
        Workload::Unreachable { .. } | Workload::Unknown => unknown(
            conditions::AVAILABLE,
            names::reason::CONNECTION_DOWN,
            "the workload cluster cannot be asked",
        ),
    }
}

fn rollout(observed: &Observed, waiting: &str) -> [Reported; 3] {
    let servers = &observed.servers;
    let outdated: Vec<String> = servers
        .iter()
        .filter(|server| server.is_outdated())
        .map(|server| {
            let why: Vec<String> = server.outdated.iter().map(ToString::to_string).collect();
            format!("{}: {}", server.name, why.join("; "))
        })
        .collect();
    let spec = if outdated.is_empty() {
        good(conditions::MACHINES_SPEC_UP_TO_DATE, "UpToDate")
    } else {
        bad(
            conditions::MACHINES_SPEC_UP_TO_DATE,
            Severity::Warning,
            reason::ROLLING_UPDATE_IN_PROGRESS,
            &format!(
                "Rolling {} replicas with outdated spec ({} replicas up to date)",
                outdated.len(),
                servers.len() - outdated.len()
            ),
        )
    };
    let differences = outdated.join("; ");
    let rolling_out = v1beta2(
        names::condition::ROLLING_OUT,
        !outdated.is_empty(),
        names::reason::ROLLING_OUT,
        names::reason::NOT_ROLLING_OUT,
        &if outdated.is_empty() {
            String::new()
        } else {
            format!("{differences}{}", waiting_suffix(waiting))
        },
    );
    let up_to_date = v1beta2(
        names::condition::MACHINES_UP_TO_DATE,
        outdated.is_empty(),
        names::reason::UP_TO_DATE,
        names::reason::NOT_UP_TO_DATE,
        &differences,
    );
    [spec, rolling_out, up_to_date]
}

fn resized(observed: &Observed, failures: &[String], waiting: &str) -> Reported {
    let (have, want) = (observed.servers.len(), observed.desired.replicas);
    let resize = |reason: &str, word: &str| {
        bad(
            conditions::RESIZED,
            Severity::Warning,
            reason,
            &format!(
                "Scaling {word} control plane to {want} replicas (actual {have}){}",
                failures.first().map(|why| format!(": {why}")).unwrap_or_default()
            ),
        )
    };
    if observed.deleting {
        bad(conditions::RESIZED, Severity::Info, reason::DELETING, waiting)
    } else if have < want {
        resize(reason::SCALING_UP, "up")
    } else if have > want {
        resize(reason::SCALING_DOWN, "down")
    } else {
        good(conditions::RESIZED, "Resized")
    }
}

fn scaling_up(observed: &Observed, waiting: &str) -> Reported {
    let is_active = !observed.deleting && observed.servers.len() < observed.desired.replicas;
    v1beta2(
        names::condition::SCALING_UP,
        is_active,
        names::reason::SCALING_UP,
        names::reason::NOT_SCALING_UP,
        &scaling(observed, is_active, waiting),
    )
}

fn scaling_down(observed: &Observed, waiting: &str) -> Reported {
    let is_active = !observed.deleting && observed.servers.len() > observed.desired.replicas;
    v1beta2(
        names::condition::SCALING_DOWN,
        is_active,
        names::reason::SCALING_DOWN,
        names::reason::NOT_SCALING_DOWN,
        &scaling(observed, is_active, waiting),
    )
}

fn scaling(observed: &Observed, is_active: bool, waiting: &str) -> String {
    if !is_active {
        return String::new();
    }
    let (have, want) = (observed.servers.len(), observed.desired.replicas);
    format!("from {have} to {want} replicas{}", waiting_suffix(waiting))
}

fn machines_ready(observed: &Observed, waiting: &str) -> Reported {
    let servers = &observed.servers;
    let not_ready: Vec<&str> = servers
        .iter()
        .filter(|server| !server.ready)
        .map(|server| server.name.as_str())
        .collect();
    if not_ready.is_empty() {
        return good(conditions::MACHINES_READY, "Ready");
    }
    // A server that is being deleted may keep its host for long: it is said what for.
    let is_deleting = servers.iter().any(Server::is_deleting);
    let message = format!(
        "machines that are not ready: {}{}",
        not_ready.join(", "),
        waiting_suffix(if is_deleting { waiting } else { "" })
    );
    bad(
        conditions::MACHINES_READY,
        Severity::Warning,
        "NotReady",
        &message,
    )
}

fn machines_owned(observed: &Observed, plan: &Plan, waiting: &str) -> Reported {
    let adopts = plan
        .actions()
        .any(|action| matches!(action, Action::Adopt { .. }));
    let refused = !observed.foreign.is_empty() || (!observed.adoptable.is_empty() && !adopts);
    v1beta2(
        conditions::MACHINES_OWNED,
        !refused,
        "Owned",
        if observed.foreign.is_empty() {
            "AdoptionRefused"
        } else {
            "MixedOwnership"
        },
        if refused { waiting } else { "" },
    )
}

fn remediating(observed: &Observed, waiting: &str) -> Reported {
    let remediating: Vec<&str> = observed
        .servers
        .iter()
        .filter(|server| server.health_check.ours_to_remediate)
        .map(|server| server.name.as_str())
        .collect();
    v1beta2(
        names::condition::REMEDIATING,
        !remediating.is_empty(),
        names::reason::REMEDIATING,
        names::reason::NOT_REMEDIATING,
        &if remediating.is_empty() {
            String::new()
        } else {
            format!("{}{}", remediating.join(", "), waiting_suffix(waiting))
        },
    )
}

fn waiting_suffix(waiting: &str) -> String {
    if waiting.is_empty() {
        String::new()
    } else {
        format!(" ({waiting})")
    }
}

fn healthy_parts(observed: &Observed, now: Timestamp) -> Vec<Reported> {
    let mut reported = Vec::new();
    let (agents, members): (Vec<_>, Vec<_>) = observed
        .servers
        .iter()
        .map(|server| {
            let named = |why: Option<String>| why.map(|why| format!("{}: {why}", server.name));
            (
                named(agent_problem(&health::agent(server, observed))),
                named(member_problem(&health::member(server, observed, now))),
            )
        })
        .unzip();
    let in_grace = match &observed.workload {
        Workload::Unreachable { since } => health::age(*since, now) <= health::UNREACHABLE_GRACE,
        Workload::Unknown => true,
        Workload::Reachable(_) => false,
    };
    let answers = observed.workload.view().is_some();
    let mut report = |type_: &str, problems: Vec<Option<String>>, unhealthy: &str, unknown_reason: &str| {
        let problems: Vec<String> = problems.into_iter().flatten().collect();
        // While the cluster does not answer, what was said last stands for a while.
        if in_grace {
            return;
        }
        reported.push(if !answers {
            unknown(type_, unknown_reason, "the workload cluster does not answer")
        } else if problems.is_empty() {
            good(type_, "Healthy")
        } else {
            bad(type_, Severity::Error, unhealthy, &problems.join("; "))
        });
    };
    report(
        conditions::COMPONENTS_HEALTHY,
        agents,
        reason::COMPONENTS_UNHEALTHY,
        reason::COMPONENTS_UNKNOWN,
    );
    if observed.desired.embedded_etcd {
        report(
            conditions::ETCD_CLUSTER_HEALTHY,
            members,
            reason::ETCD_CLUSTER_UNHEALTHY,
            reason::ETCD_CLUSTER_UNKNOWN,
        );
    }
    reported
}
