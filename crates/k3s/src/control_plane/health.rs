//! How healthy each server is: what its Node says, whether its member is alive, and what k3s says of its membership.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    liveness,
    observed::{Observed, Server, View},
};

/// k3s writes an unchanged `EtcdIsVoter` again every five minutes, on a tick of fifteen seconds. Older than this, nobody
/// keeps it any more, and it says nothing.
pub const VOTER_HEARTBEAT_LIMIT: Duration = Duration::from_mins(6);

/// How long the last known state is kept while the workload cluster does not answer.
pub const UNREACHABLE_GRACE: Duration = Duration::from_mins(2);

/// The state of the k3s process on a server, as its node shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agent {
    Healthy,
    /// The machine has no node yet.
    Provisioning,
    /// The machine has a node reference, the cluster has no such node.
    NodeMissing(String),
    NotReady(String),
    Unknown,
}

/// The state of a server's etcd member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberHealth {
    Voter,
    /// It votes, and it has raised an alarm.
    Alarmed(String),
    Learner,
    Unhealthy(String),
    NotAMember,
    Unknown,
}

impl MemberHealth {
    /// Whether the member counts towards quorum.
    pub fn votes(&self) -> bool {
        matches!(self, Self::Voter | Self::Alarmed(_))
    }
}

pub fn agent(server: &Server, observed: &Observed) -> Agent {
    let Some(node) = &server.node else {
        return Agent::Provisioning;
    };
    let Some(view) = observed.workload.view() else {
        return Agent::Unknown;
    };
    match view.node(node) {
        None => Agent::NodeMissing(node.clone()),
        Some(node) if node.ready => Agent::Healthy,
        Some(node) => Agent::NotReady(node.not_ready_reason.clone()),
    }
}

/// The name of a server's member: what its node says, never what could be guessed from names.
pub fn member_name<'view>(server: &Server, view: &'view View) -> Option<&'view str> {
    view.node(server.node.as_deref()?)?.member.as_deref()
}

pub fn member(server: &Server, observed: &Observed, now: Timestamp) -> MemberHealth {
    let Some(view) = observed.workload.view() else {
        return MemberHealth::Unknown;
    };
    let Some(node) = server.node.as_deref().and_then(|node| view.node(node)) else {
        return MemberHealth::NotAMember;
    };
    let Some(name) = node.member.as_deref() else {
        return MemberHealth::NotAMember;
    };
    match &view.members {
        None => return MemberHealth::Unknown,
        Some(members) => match members.iter().find(|member| member.name == name) {
            None => return MemberHealth::NotAMember,
            Some(member) if member.learner => return MemberHealth::Learner,
            Some(_) => {}
        },
    }
    // Whether it may be relied on is for the projection of a change to say; here only what speaks against it counts.
    if let Some(why) = liveness::of_server(server, observed, now).evidence_against() {
        return MemberHealth::Unhealthy(why.to_owned());
    }
    match &node.voter {
        // Before k3s 1.30 nothing but the node itself speaks for the member.
        None => MemberHealth::Voter,
        Some(voter) if age(voter.heartbeat, now) > VOTER_HEARTBEAT_LIMIT => MemberHealth::Unhealthy(format!(
            "nobody has looked after the member since {}",
            voter.heartbeat
        )),
        Some(voter) if voter.status => MemberHealth::Voter,
        Some(voter) if voter.reason == "MemberIsLearner" => MemberHealth::Learner,
        Some(voter) if voter.reason == "NotAMember" => MemberHealth::NotAMember,
        Some(voter) if is_alarm(&voter.message) => MemberHealth::Alarmed(voter.message.clone()),
        Some(voter) => MemberHealth::Unhealthy(voter.message.clone()),
    }
}

/// k3s passes on what etcd's status lists; an alarm does not keep the member from voting.
fn is_alarm(message: &str) -> bool {
    message.contains("NOSPACE") || message.contains("CORRUPT")
}

pub fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO)
}
