//! Replacing unhealthy servers: how often, how soon, and only where quorum stays.

use jiff::{SignedDuration, Timestamp};

use super::{
    hook,
    observed::{Observed, RemediationRecord, Server},
    preflight,
    quorum::{self, MemberChange},
    select,
};

/// What remediation wants now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Nothing,
    /// Delete this machine, and keep the record until its replacement exists.
    Replace {
        machine: String,
        record: RemediationRecord,
    },
    /// Not now; the reason goes onto the machine.
    Deferred {
        machine: String,
        reason: String,
    },
    /// Not by us; the reason goes onto the machine.
    Impossible {
        machine: String,
        reason: String,
    },
}

pub fn decide(observed: &Observed, now: Timestamp) -> Decision {
    let Some(server) = select::to_remediate(observed, now) else {
        return Decision::Nothing;
    };
    let machine = server.name.clone();
    let deferred = |reason: String| Decision::Deferred {
        machine: machine.clone(),
        reason,
    };
    let impossible = |reason: String| Decision::Impossible {
        machine: machine.clone(),
        reason,
    };
    // A replacement that cannot join because of this machine's dead member waits for this machine to go first.
    if is_in_progress(observed) && preflight::check(observed, now, preflight::Operation::Add).is_ok() {
        return deferred("another machine is being replaced".into());
    }
    if let Some(version) = preflight::awaited_topology_version(observed) {
        return deferred(format!(
            "waiting for the version {version} to be propagated from Cluster.spec.topology"
        ));
    }
    let record = match next_record(server, observed, now) {
        Ok(record) => record,
        Err(reason) => return deferred(reason),
    };
    if !observed.initialized {
        return Decision::Replace { machine, record };
    }
    if observed.servers.len() <= 1 && observed.desired.embedded_etcd {
        return impossible("the only server cannot be replaced: it holds the only copy of the state".into());
    }
    if let Some(other) = observed.servers.iter().find(|other| {
        other.name != server.name
            && other.node.is_none()
            && !other.is_deleting()
            && !other.health_check.failed
    }) {
        return deferred(format!("machine {} is still being provisioned", other.name));
    }
    // A deletion that is under way ends first, unless it cannot end before this machine's dead member is gone.
    if let Some(other) = observed.servers.iter().find(|other| other.is_deleting())
        && !matches!(hook::decide(observed, now), hook::Progress::Stuck(_))
    {
        return deferred(format!("machine {} is still being deleted", other.name));
    }
    if observed.desired.embedded_etcd
        && let Err(reason) = keeps_quorum(server, observed, now)
    {
        return match reason {
            Refusal::Unknown(reason) => deferred(reason),
            Refusal::Quorum(reason) => impossible(reason),
        };
    }
    Decision::Replace { machine, record }
}

enum Refusal {
    Unknown(String),
    Quorum(String),
}

fn keeps_quorum(server: &Server, observed: &Observed, now: Timestamp) -> Result<(), Refusal> {
    if observed.workload.view().is_none_or(|view| view.members.is_none()) {
        return Err(Refusal::Unknown("the members of etcd are not known".into()));
    }
    // One without a member takes none along; the hook keeps its host until it is sure that none comes.
    let Some(member) = hook::member_of(server, observed) else {
        return Ok(());
    };
    let change = MemberChange::Remove(&member.name);
    let Some(projection) = quorum::project(observed, now, change) else {
        return Err(Refusal::Unknown("the members of etcd are not known".into()));
    };
    if !projection.holds() {
        return Err(Refusal::Quorum(format!(
            "replacing it could cost etcd its quorum: {projection}"
        )));
    }
    // It may have come back since its health check failed.
    if let Some(why) = quorum::another_is_lost(observed, now, server, member) {
        return Err(Refusal::Unknown(why));
    }
    if quorum::voting_servers(observed, now, &server.name) == 0 {
        return Err(Refusal::Quorum("no other server is healthy".into()));
    }
    // A learner of another machine must become a voter, or be evicted, first; the machine's own goes with it.
    if server.node.is_some() && projection.learners > 0 {
        return Err(Refusal::Unknown(format!(
            "{} etcd member(s) have not become voters yet",
            projection.learners
        )));
    }
    Ok(())
}

/// Whether the machine that was deleted last has no replacement yet.
fn is_in_progress(observed: &Observed) -> bool {
    observed.remediation_in_progress.is_some() && !is_stale(observed)
}

/// Whether the record of a remediation outlived it: a machine was created since, or none is missing any more.
pub fn is_stale(observed: &Observed) -> bool {
    observed.remediation_in_progress.as_ref().is_some_and(|record| {
        let gone = observed
            .servers
            .iter()
            .all(|server| server.name != record.machine);
        let replaced = observed
            .servers
            .iter()
            .any(|server| server.created_at > record.timestamp && server.name != record.machine);
        replaced || (gone && observed.servers.len() >= observed.desired.replicas)
    })
}

/// The record of replacing this machine now, or why it is too early or too often.
fn next_record(server: &Server, observed: &Observed, now: Timestamp) -> Result<RemediationRecord, String> {
    let limits = &observed.desired.remediation;
    let mut record = RemediationRecord {
        machine: server.name.clone(),
        timestamp: now,
        retry_count: 0,
    };
    let Some(last) = &server.remediation_for else {
        return Ok(record);
    };
    let after = |period: std::time::Duration| {
        SignedDuration::try_from(period)
            .ok()
            .and_then(|period| last.timestamp.checked_add(period).ok())
            .unwrap_or(Timestamp::MAX)
    };
    if after(limits.min_healthy_period) <= now {
        return Ok(record);
    }
    if after(limits.retry_period) > now {
        return Err(format!(
            "its predecessor was replaced less than {} s ago (retryPeriod)",
            limits.retry_period.as_secs()
        ));
    }
    if let Some(max_retry) = limits.max_retry
        && last.retry_count >= max_retry
    {
        return Err(format!("it was replaced {max_retry} times already (maxRetry)"));
    }
    record.retry_count = last.retry_count + 1;
    Ok(record)
}
