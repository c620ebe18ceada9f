//! Which server comes next: to be removed, to be remediated, and where a new one is put.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::{
    health::{self, Agent, MemberHealth},
    observed::{Observed, Server},
};

/// The server to take away: outdated ones the user marked, marked ones, outdated ones, any; in each group the unhealthy
/// first, then by who made them, then from the fullest failure domain, then the oldest.
pub fn to_remove(observed: &Observed, now: Timestamp) -> Option<&Server> {
    // Where several are too many, one of them was made so that those another provider made can go.
    let one_more = several_too_many(observed) && observed.servers.iter().any(|server| !server.stays_out);
    let joins = |server: &Server| !server.health_check.failed && !is_whole(server, observed, now);
    choose(observed, now, |server| {
        !(one_more && server.stays_out && joins(server))
    })
}

fn several_too_many(observed: &Observed) -> bool {
    let staying = observed.servers.iter().filter(|server| !server.is_deleting());
    staying.count() > observed.desired.replicas + 1
}

/// The server to update in place: the same order, among those that are outdated.
pub fn to_update(observed: &Observed, now: Timestamp) -> Option<&Server> {
    choose(observed, now, Server::is_outdated)
}

fn choose(observed: &Observed, now: Timestamp, may: impl Fn(&Server) -> bool) -> Option<&Server> {
    let candidates: Vec<&Server> = observed
        .servers
        .iter()
        .filter(|server| !server.is_deleting() && may(server))
        .collect();
    // The last one too many is rather one of ours: it goes without another in its place.
    let groups: [&dyn Fn(&Server) -> bool; 4] = [
        &|server| server.delete_requested && server.is_outdated(),
        &|server| server.delete_requested,
        &|server| server.is_outdated(),
        &|_| true,
    ];
    groups.iter().find_map(|belongs| {
        candidates
            .iter()
            .copied()
            .filter(|server| belongs(server))
            .min_by_key(|server| {
                (
                    is_whole(server, observed, now),
                    server.stays_out == several_too_many(observed),
                    Reverse(domain_size(&candidates, server)),
                    server.created_at,
                    server.name.clone(),
                )
            })
    })
}

/// Whether nothing is wrong with a server, as far as it is known.
fn is_whole(server: &Server, observed: &Observed, now: Timestamp) -> bool {
    health::agent(server, observed) == Agent::Healthy
        && (!observed.desired.embedded_etcd || health::member(server, observed, now) == MemberHealth::Voter)
}

fn domain_size(candidates: &[&Server], server: &Server) -> usize {
    candidates
        .iter()
        .filter(|other| other.failure_domain == server.failure_domain)
        .count()
}

/// The failure domain with the fewest up-to-date servers, then with the fewest servers, then the first by name.
pub fn failure_domain(observed: &Observed) -> Option<String> {
    let count = |domain: &str, only_up_to_date: bool| {
        observed
            .servers
            .iter()
            .filter(|server| !server.is_deleting() && server.failure_domain.as_deref() == Some(domain))
            .filter(|server| !only_up_to_date || !server.is_outdated())
            .count()
    };
    observed
        .cluster
        .failure_domains
        .iter()
        .min_by_key(|domain| (count(domain, true), count(domain, false), (*domain).clone()))
        .cloned()
}

/// The server to replace first: the one a person asked for, then the one that never got a node, then by how broken its
/// member and its node are, then the oldest.
pub fn to_remediate(observed: &Observed, now: Timestamp) -> Option<&Server> {
    observed
        .servers
        .iter()
        .filter(|server| server.health_check.ours_to_remediate && !server.is_deleting())
        .min_by_key(|server| {
            let member = match health::member(server, observed, now) {
                _ if !observed.desired.embedded_etcd => 2,
                MemberHealth::Unhealthy(_) | MemberHealth::NotAMember => 0,
                MemberHealth::Unknown | MemberHealth::Learner => 1,
                MemberHealth::Alarmed(_) | MemberHealth::Voter => 2,
            };
            let agent = match health::agent(server, observed) {
                Agent::NotReady(_) | Agent::NodeMissing(_) => 0,
                Agent::Unknown | Agent::Provisioning => 1,
                Agent::Healthy => 2,
            };
            (
                !server.remediate_requested,
                server.node.is_some(),
                member,
                agent,
                server.created_at,
                server.name.clone(),
            )
        })
}
