//! Whether a change of etcd's members leaves more than half of the voters alive. The one rule nothing overrides.

use jiff::Timestamp;

use super::{
    health::{self, MemberHealth},
    observed::{Observed, View},
};

/// What the voters would be after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    pub voters: usize,
    pub healthy: usize,
    pub learners: usize,
}

impl Projection {
    pub fn quorum(&self) -> usize {
        self.voters / 2 + 1
    }

    pub fn holds(&self) -> bool {
        self.voters > 0 && self.healthy >= self.quorum()
    }
}

impl std::fmt::Display for Projection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "{} of {} voters would be healthy, {} are needed",
            self.healthy,
            self.voters,
            self.quorum()
        )
    }
}

/// A change to look ahead at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step<'name> {
    /// This member leaves.
    pub remove: Option<&'name str>,
    /// A member joins. It is counted as failed, unless there is at most one other: a cluster of one cannot grow
    /// otherwise.
    pub add: bool,
    /// This member stops for a while and comes back.
    pub restart: Option<&'name str>,
    /// Members that belong to no server are counted as failed: their host may be about to go.
    pub distrust_unmatched: bool,
}

/// The voters after a step, by the actual list of members. `None` where it is not known.
pub fn project(observed: &Observed, now: Timestamp, step: Step<'_>) -> Option<Projection> {
    let view = observed.workload.view()?;
    let members = view.members.as_ref()?;
    let mut projection = Projection {
        voters: 0,
        healthy: 0,
        learners: 0,
    };
    if step.add {
        projection.voters += 1;
        projection.healthy += usize::from(members.len() <= 1);
    }
    for member in members {
        if member.name.is_empty() || member.learner {
            projection.learners += 1;
            continue;
        }
        if step.remove == Some(member.name.as_str()) {
            continue;
        }
        projection.voters += 1;
        if step.restart == Some(member.name.as_str()) {
            continue;
        }
        projection.healthy += usize::from(is_healthy(
            &member.name,
            observed,
            view,
            now,
            step.distrust_unmatched,
        ));
    }
    Some(projection)
}

fn is_healthy(
    member: &str,
    observed: &Observed,
    view: &View,
    now: Timestamp,
    distrust_unmatched: bool,
) -> bool {
    let server = observed
        .servers
        .iter()
        .find(|server| health::member_name(server, view) == Some(member));
    match server {
        Some(server) => health::member(server, observed, now).votes(),
        // A member without a machine speaks only through its node.
        None => {
            !distrust_unmatched
                && view.nodes.iter().any(|node| {
                    node.member.as_deref() == Some(member)
                        && node.ready
                        && !node.placeholder
                        && node.voter.as_ref().is_none_or(|voter| voter.status)
                })
        }
    }
}

/// Names of members that belong to no server. Unnamed ones are not among them.
pub fn unmatched<'view>(observed: &Observed, view: &'view View) -> Vec<&'view super::observed::Member> {
    view.members
        .iter()
        .flatten()
        .filter(|member| !member.name.is_empty())
        .filter(|member| {
            !observed
                .servers
                .iter()
                .any(|server| health::member_name(server, view) == Some(member.name.as_str()))
        })
        .collect()
}

/// Members that have not become voters yet.
pub fn learners(view: &View) -> usize {
    view.members
        .iter()
        .flatten()
        .filter(|member| member.learner || member.name.is_empty())
        .count()
}

/// Servers other than `besides` that vote and whose node is ready.
pub fn healthy_servers(observed: &Observed, now: Timestamp, besides: &str) -> usize {
    observed
        .servers
        .iter()
        .filter(|server| server.name != besides)
        .filter(|server| health::agent(server, observed) == health::Agent::Healthy)
        .filter(|server| {
            !observed.desired.embedded_etcd || health::member(server, observed, now) == MemberHealth::Voter
        })
        .count()
}
