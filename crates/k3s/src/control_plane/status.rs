//! The status of a control plane: pure, from what is known and what is planned. Written once, only if it differs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use slipway_capi::{
    condition::{
        self, Report, Status,
        legacy::{self, LegacyReport, Severity},
    },
    names,
};

use super::{
    health::{self, Agent, MemberHealth},
    observed::{Observed, Server, Workload},
    plan::{Action, Plan},
    quorum,
};
use crate::{
    api::{
        KThreesControlPlaneStatus,
        conditions::{self, V1Beta2Status, reason},
        control_plane::{ControlPlaneInitialization, LastRemediation, StatusVersion},
    },
    version::Version,
};

/// One condition in both forms.
struct Told {
    v1beta2: Report,
    v1beta1: Option<LegacyReport>,
}

fn good(type_: &str, reason: &str) -> Told {
    Told {
        v1beta2: Report::new(type_, Status::True, reason, ""),
        v1beta1: Some(LegacyReport::good(type_)),
    }
}

fn bad(type_: &str, severity: Severity, reason: &str, message: &str) -> Told {
    Told {
        v1beta2: Report::new(type_, Status::False, reason, message),
        v1beta1: Some(LegacyReport::bad(type_, severity, reason, message)),
    }
}

fn unknown(type_: &str, reason: &str, message: &str) -> Told {
    Told {
        v1beta2: Report::new(type_, Status::Unknown, reason, message),
        v1beta1: Some(LegacyReport::unknown(type_, reason, message)),
    }
}

/// Of one form only.
fn v1beta2(type_: &str, status: bool, yes: &str, no: &str, message: &str) -> Told {
    let (status, reason) = if status {
        (Status::True, yes)
    } else {
        (Status::False, no)
    };
    Told {
        v1beta2: Report::new(type_, status, reason, message),
        v1beta1: None,
    }
}

/// Whether the control plane is initialised: it was before, or a server answers now.
pub fn answers(observed: &Observed) -> bool {
    let answers = observed
        .workload
        .view()
        .is_some_and(|view| view.nodes.iter().any(|node| node.ready && !node.placeholder));
    let lone_remediation = observed.servers.len() == 1 && observed.servers.iter().any(Server::is_deleting);
    observed.initialized || (answers && !lone_remediation)
}

pub fn status(
    observed: &Observed,
    plan: &Plan,
    failures: &[String],
    previous: &KThreesControlPlaneStatus,
    cluster_name: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> KThreesControlPlaneStatus {
    let mut status = previous.clone();
    let servers = &observed.servers;
    let count = |count: usize| Some(i32::try_from(count).unwrap_or(i32::MAX));
    status.selector = Some(format!(
        "{}={cluster_name},{}",
        names::label::CLUSTER_NAME,
        names::label::CONTROL_PLANE
    ));
    status.observed_generation = generation;
    status.replicas = count(servers.len());
    let up_to_date = servers.iter().filter(|server| !server.is_outdated()).count();
    status.updated_replicas = count(up_to_date);
    status.up_to_date_replicas = count(up_to_date);
    let ready = servers.iter().filter(|server| server.ready).count();
    status.ready_replicas = count(ready);
    status.available_replicas = count(servers.iter().filter(|server| server.available).count());
    status.unavailable_replicas = count(observed.desired.replicas.max(servers.len()).saturating_sub(ready));
    versions(observed, &mut status);

    status.initialized |= answers(observed);
    status.initialization = Some(ControlPlaneInitialization {
        control_plane_initialized: Some(status.initialized),
    });
    let healthy = quorum::healthy_servers(observed, now, "");
    match &observed.workload {
        Workload::Reachable(_) => status.ready = healthy > 0,
        Workload::Unreachable { since } if health::age(*since, now) > health::UNREACHABLE_GRACE => {
            status.ready = false;
        }
        // The last state is kept for a while.
        Workload::Unreachable { .. } | Workload::Unknown => status.ready = status.ready && status.initialized,
    }
    if let Some(record) = observed
        .remediation_in_progress
        .iter()
        .chain(
            servers
                .iter()
                .filter_map(|server| server.remediation_for.as_ref()),
        )
        .max_by_key(|record| record.timestamp)
    {
        status.last_remediation = Some(LastRemediation {
            machine: record.machine.clone(),
            timestamp: Time(record.timestamp),
            retry_count: record.retry_count,
        });
    }
    let told = conditions_of(observed, plan, failures, &status, healthy, now);
    let mut stored = status
        .v1beta2
        .take()
        .and_then(|v1beta2| v1beta2.conditions)
        .unwrap_or_default();
    let mut v1beta1 = conditions::to_legacy(status.conditions.as_deref().unwrap_or_default());
    for Told {
        v1beta2,
        v1beta1: legacy,
    } in &told
    {
        condition::set(&mut stored, v1beta2, generation, now);
        if let Some(legacy) = legacy {
            legacy::set(&mut v1beta1, legacy, now);
        }
    }
    let summary = summarize(&v1beta1);
    legacy::set(&mut v1beta1, &summary, now);
    status.v1beta2 = Some(V1Beta2Status {
        conditions: Some(stored),
    });
    status.conditions = Some(conditions::from_legacy(&v1beta1));
    status
}

/// The v1beta1 Ready: the worst of the six it always summed up.
fn summarize(v1beta1: &[legacy::LegacyCondition]) -> LegacyReport {
    let summed = [
        conditions::MACHINES_SPEC_UP_TO_DATE,
        conditions::RESIZED,
        conditions::MACHINES_READY,
        conditions::AVAILABLE,
        conditions::CERTIFICATES_AVAILABLE,
        conditions::TOKEN_AVAILABLE,
    ];
    let worst = v1beta1
        .iter()
        .filter(|condition| summed.contains(&condition.type_.as_str()) && condition.status != "True")
        .min_by_key(|condition| (condition.status != "False", condition.severity));
    match worst {
        None => LegacyReport::good(conditions::READY),
        Some(found) if found.status == "False" => LegacyReport::bad(
            conditions::READY,
            found.severity,
            &found.reason,
            found.message.clone(),
        ),
        Some(found) => LegacyReport::unknown(conditions::READY, &found.reason, found.message.clone()),
    }
}

fn versions(observed: &Observed, status: &mut KThreesControlPlaneStatus) {
    let Some(view) = observed.workload.view() else {
        return;
    };
    let mut counted: BTreeMap<Version, i32> = BTreeMap::new();
    let mut lowest_healthy: Option<Version> = None;
    for server in &observed.servers {
        let version: Option<Version> = server
            .node
            .as_deref()
            .and_then(|node| view.node(node))
            .and_then(|node| node.kubelet_version.as_deref())
            .and_then(|version| version.parse().ok());
        let Some(version) = version else { continue };
        if health::agent(server, observed) == Agent::Healthy {
            lowest_healthy =
                Some(lowest_healthy.map_or(version.clone(), |lowest| lowest.min(version.clone())));
        }
        *counted.entry(version).or_default() += 1;
    }
    if let Some(lowest) = lowest_healthy {
        status.version = Some(lowest.to_string());
    }
    status.versions = Some(
        counted
            .into_iter()
            .map(|(version, replicas)| StatusVersion {
                version: version.to_string(),
                replicas: Some(replicas),
            })
            .collect(),
    );
}

fn conditions_of(
    observed: &Observed,
    plan: &Plan,
    failures: &[String],
    status: &KThreesControlPlaneStatus,
    healthy: usize,
    now: Timestamp,
) -> Vec<Told> {
    let waits = plan.waits().map(|(_, why)| why);
    let reasons: Vec<&str> = failures.iter().map(String::as_str).chain(waits).collect();
    let waiting = reasons.join("; ");
    let servers = &observed.servers;
    let mut told = Vec::new();

    let missing = observed.missing_secrets.join(", ");
    told.push(if observed.missing_secrets.is_empty() {
        good(conditions::CERTIFICATES_AVAILABLE, "Available")
    } else {
        bad(
            conditions::CERTIFICATES_AVAILABLE,
            Severity::Error,
            reason::CERTIFICATES_CORRUPTED,
            &format!("missing, and not made again because running servers would not accept it: {missing}"),
        )
    });
    told.push(if missing.contains("-token") {
        bad(
            conditions::TOKEN_AVAILABLE,
            Severity::Error,
            reason::TOKEN_GENERATION_FAILED,
            &format!("missing: {missing}"),
        )
    } else {
        good(conditions::TOKEN_AVAILABLE, "Available")
    });

    told.push(match &observed.workload {
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
    });
    told.extend(health_conditions(observed, now));

    let outdated: Vec<String> = servers
        .iter()
        .filter(|server| server.is_outdated())
        .map(|server| {
            let why: Vec<String> = server.outdated.iter().map(ToString::to_string).collect();
            format!("{}: {}", server.name, why.join("; "))
        })
        .collect();
    told.push(if outdated.is_empty() {
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
    });
    told.push(v1beta2(
        names::condition::ROLLING_OUT,
        !outdated.is_empty(),
        names::reason::ROLLING_OUT,
        names::reason::NOT_ROLLING_OUT,
        &if outdated.is_empty() {
            String::new()
        } else {
            format!("{}{}", outdated.join("; "), waiting_suffix(&waiting))
        },
    ));
    told.push(v1beta2(
        names::condition::MACHINES_UP_TO_DATE,
        outdated.is_empty(),
        names::reason::UP_TO_DATE,
        names::reason::NOT_UP_TO_DATE,
        &outdated.join("; "),
    ));

    let (have, want) = (servers.len(), observed.desired.replicas);
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
    told.push(if observed.deleting {
        bad(conditions::RESIZED, Severity::Info, reason::DELETING, &waiting)
    } else if have < want {
        resize(reason::SCALING_UP, "up")
    } else if have > want {
        resize(reason::SCALING_DOWN, "down")
    } else {
        good(conditions::RESIZED, "Resized")
    });
    let scaling = |up: bool| {
        let (type_, yes, no) = if up {
            (
                names::condition::SCALING_UP,
                names::reason::SCALING_UP,
                names::reason::NOT_SCALING_UP,
            )
        } else {
            (
                names::condition::SCALING_DOWN,
                names::reason::SCALING_DOWN,
                names::reason::NOT_SCALING_DOWN,
            )
        };
        let active = !observed.deleting && if up { have < want } else { have > want };
        let message = if active {
            format!("from {have} to {want} replicas{}", waiting_suffix(&waiting))
        } else {
            String::new()
        };
        v1beta2(type_, active, yes, no, &message)
    };
    told.push(scaling(true));
    told.push(scaling(false));

    let not_ready: Vec<&str> = servers
        .iter()
        .filter(|server| !server.ready)
        .map(|server| server.name.as_str())
        .collect();
    told.push(if servers.is_empty() || not_ready.is_empty() {
        good(conditions::MACHINES_READY, "Ready")
    } else {
        bad(
            conditions::MACHINES_READY,
            Severity::Warning,
            "NotReady",
            &format!(
                "machines that are not ready: {}{}",
                not_ready.join(", "),
                // A server that is being deleted may keep its host for long: it is said what for.
                waiting_suffix(if servers.iter().any(Server::is_deleting) {
                    &waiting
                } else {
                    ""
                })
            ),
        )
    });
    let refused = !observed.foreign.is_empty()
        || (!observed.adoptable.is_empty()
            && !plan
                .actions()
                .any(|action| matches!(action, Action::Adopt { .. })));
    told.push(v1beta2(
        conditions::MACHINES_OWNED,
        !refused,
        "Owned",
        if observed.foreign.is_empty() {
            "AdoptionRefused"
        } else {
            "MixedOwnership"
        },
        if refused { &waiting } else { "" },
    ));
    let remediating: Vec<&str> = servers
        .iter()
        .filter(|server| server.health_check.ours_to_remediate)
        .map(|server| server.name.as_str())
        .collect();
    told.push(v1beta2(
        names::condition::REMEDIATING,
        !remediating.is_empty(),
        names::reason::REMEDIATING,
        names::reason::NOT_REMEDIATING,
        &if remediating.is_empty() {
            String::new()
        } else {
            format!("{}{}", remediating.join(", "), waiting_suffix(&waiting))
        },
    ));
    told.push(v1beta2(
        names::condition::DELETING,
        observed.deleting,
        names::reason::DELETING,
        names::reason::NOT_DELETING,
        if observed.deleting { &waiting } else { "" },
    ));
    told
}

fn waiting_suffix(waiting: &str) -> String {
    if waiting.is_empty() {
        String::new()
    } else {
        format!(" ({waiting})")
    }
}

/// What is wrong with each server, by name.
fn unhealthy(observed: &Observed, now: Timestamp) -> String {
    let mut found = Vec::new();
    for server in &observed.servers {
        if let Some(why) = agent_problem(&health::agent(server, observed)) {
            found.push(format!("{}: {why}", server.name));
        } else if observed.desired.embedded_etcd
            && let Some(why) = member_problem(&health::member(server, observed, now))
        {
            found.push(format!("{}: {why}", server.name));
        }
    }
    found.join("; ")
}

/// Why a server's k3s is not healthy.
pub fn agent_problem(agent: &Agent) -> Option<String> {
    match agent {
        Agent::Healthy => None,
        Agent::Provisioning => Some("has no node yet".into()),
        Agent::NodeMissing(node) => Some(format!("node {node} does not exist")),
        Agent::NotReady(why) => Some(format!("node is not ready: {why}")),
        Agent::Unknown => Some("is not known".into()),
    }
}

/// Why a server's member is not healthy.
pub fn member_problem(member: &MemberHealth) -> Option<String> {
    match member {
        MemberHealth::Voter => None,
        MemberHealth::Alarmed(alarm) => Some(format!("etcd has raised an alarm: {alarm}")),
        MemberHealth::Learner => Some("etcd member is still a learner".into()),
        MemberHealth::Unhealthy(why) => Some(format!("etcd member is unhealthy: {why}")),
        MemberHealth::NotAMember => Some("is not a member of etcd".into()),
        MemberHealth::Unknown => Some("etcd member is not known".into()),
    }
}

fn health_conditions(observed: &Observed, now: Timestamp) -> Vec<Told> {
    let mut told = Vec::new();
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
    let mut tell = |type_: &str, problems: Vec<Option<String>>, unhealthy: &str, unknown_reason: &str| {
        let problems: Vec<String> = problems.into_iter().flatten().collect();
        // While the cluster does not answer, what was said last stands for a while.
        if in_grace {
            return;
        }
        told.push(if !answers {
            unknown(type_, unknown_reason, "the workload cluster does not answer")
        } else if problems.is_empty() {
            good(type_, "Healthy")
        } else {
            bad(type_, Severity::Error, unhealthy, &problems.join("; "))
        });
    };
    tell(
        conditions::COMPONENTS_HEALTHY,
        agents,
        reason::COMPONENTS_UNHEALTHY,
        reason::COMPONENTS_UNKNOWN,
    );
    if observed.desired.embedded_etcd {
        tell(
            conditions::ETCD_CLUSTER_HEALTHY,
            members,
            reason::ETCD_CLUSTER_UNHEALTHY,
            reason::ETCD_CLUSTER_UNKNOWN,
        );
    }
    told
}
