//! The status of a control plane: pure, from what is known and what is planned. Written once, only if it differs.

mod reports;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use slipway_capi::{
    condition::{
        self,
        legacy::{self, LegacyReport},
    },
    names,
};

use super::{
    health::{self, Agent, MemberHealth},
    observed::{Observed, Server, Workload},
    plan::Plan,
    quorum,
};
use crate::{
    api::{
        KThreesControlPlaneStatus,
        conditions::{self, V1Beta2Status},
    },
    control_plane::api::{ControlPlaneInitialization, LastRemediation, StatusVersion},
    version::Version,
};

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
    let reported = reports::all(observed, plan, failures, &status, healthy, now);
    let mut stored = status
        .v1beta2
        .take()
        .and_then(|v1beta2| v1beta2.conditions)
        .unwrap_or_default();
    let mut v1beta1 = conditions::to_legacy(status.conditions.as_deref().unwrap_or_default());
    for reported in &reported {
        condition::set(&mut stored, &reported.v1beta2, generation, now);
        if let Some(legacy) = &reported.v1beta1 {
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
