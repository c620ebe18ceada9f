//! Orphaned members: in etcd, and nobody's. One is removed only if for a whole grace period no node of whatever label, no
//! Machine and no host could have been its, by the membership read then; it is announced before. Pure.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;

use super::{
    health::age,
    liveness::{self, Liveness, Probe},
    observed::{Member, Node, Observed, Server},
    plan::Action,
    quorum::{self, MemberChange},
};

/// How long a member is seen to be nobody's before it is removed.
pub const ORPHAN_GRACE: Duration = Duration::from_mins(2);
/// A member that was not looked at for longer than this starts its grace again.
pub const LOOKED_AT: Duration = Duration::from_mins(1);

/// Whether somebody may be the owner of a member: a machine, a node, or a host that has not shown its node yet.
pub fn is_claimed(member: &Member, servers: &[Server], nodes: &[Node], now: Timestamp) -> bool {
    servers.iter().any(|server| may_be_servers(member, server, nodes))
        || nodes.iter().any(|node| may_be_nodes(member, node, servers, now))
}

/// Whether a member may belong to a server.
pub fn may_be_servers(member: &Member, server: &Server, nodes: &[Node]) -> bool {
    if !member.address.is_empty() && server.addresses.contains(&member.address) {
        return true;
    }
    let node = server
        .node
        .as_ref()
        .and_then(|name| nodes.iter().find(|node| node.name == *name));
    match node {
        // Its host may have joined before anything tells which member is its.
        None => true,
        Some(node) => may_be_of(member, node),
    }
}

fn may_be_of(member: &Member, node: &Node) -> bool {
    let at = !member.address.is_empty() && node.address.as_deref() == Some(member.address.as_str());
    match &node.member {
        Some(name) => *name == member.name || at,
        // k3s writes the annotation after the node has registered.
        None => at || (node.address.is_none() && node.removed_member.is_none()),
    }
}

fn may_be_nodes(member: &Member, node: &Node, servers: &[Server], now: Timestamp) -> bool {
    if node.placeholder || !node.is_server || !may_be_of(member, node) {
        return false;
    }
    // A node that a machine left behind is nobody's once its host is known to be dead; one that joined by hand is somebody's.
    let left_behind = node
        .machine
        .as_ref()
        .is_some_and(|machine| servers.iter().all(|server| server.name != *machine));
    let dead = matches!(liveness::of_node(node, &Probe::NotTried, now), Liveness::Dead(_));
    !(left_behind && dead)
}

#[derive(Clone)]
struct Entry {
    since: Timestamp,
    looked_at: Timestamp,
    announced: bool,
}

/// Since when each member has been nobody's.
#[derive(Clone, Default)]
pub struct Ledger(HashMap<String, Entry>);

impl Ledger {
    /// Notes it on each member. One that was not looked at for a while starts over.
    pub fn note(
        &mut self,
        members: Vec<Member>,
        servers: &[Server],
        nodes: &[Node],
        now: Timestamp,
    ) -> Vec<Member> {
        let mut before = std::mem::take(&mut self.0);
        members
            .into_iter()
            .map(|mut member| {
                if member.name.is_empty() || is_claimed(&member, servers, nodes, now) {
                    return member;
                }
                let entry = before
                    .remove(&member.name)
                    .filter(|entry| age(entry.looked_at, now) <= LOOKED_AT);
                let entry = Entry {
                    since: entry.as_ref().map_or(now, |entry| entry.since),
                    announced: entry.is_some_and(|entry| entry.announced),
                    looked_at: now,
                };
                member.orphaned_since = Some(entry.since);
                member.announced = entry.announced;
                self.0.insert(member.name.clone(), entry);
                member
            })
            .collect()
    }

    /// The removal of a member was announced.
    pub fn announce(&mut self, member: &str) {
        if let Some(entry) = self.0.get_mut(member) {
            entry.announced = true;
        }
    }
}

/// What is done about the first orphaned member, or why it waits.
pub fn decide(observed: &Observed, now: Timestamp) -> Option<Result<(Action, String), String>> {
    if !observed.desired.embedded_etcd || !observed.initialized {
        return None;
    }
    let view = observed.workload.view()?;
    let member = view
        .members
        .iter()
        .flatten()
        .filter(|member| !member.name.is_empty())
        .filter(|member| !is_claimed(member, &observed.servers, &view.nodes, now))
        .min_by_key(|member| member.name.clone())?;
    let name = &member.name;
    let Some(since) = member.orphaned_since else {
        return Some(Err(format!(
            "etcd member {name} belongs to no machine and no node"
        )));
    };
    if !member.announced {
        let action = Action::AnnounceOrphan {
            member: name.clone(),
            address: member.address.clone(),
        };
        let why = format!(
            "no machine, no node and no host can be its owner; it is removed in {} s unless its server gets a node or a machine",
            ORPHAN_GRACE.as_secs()
        );
        return Some(Ok((action, why)));
    }
    if age(since, now) < ORPHAN_GRACE {
        return Some(Err(format!(
            "etcd member {name} at {} has belonged to no machine and no node since {since}, and is removed {} s after that",
            member.address,
            ORPHAN_GRACE.as_secs()
        )));
    }
    let why = format!("it has belonged to no machine and no node since {since}");
    Some(remove(member, None, observed, now).map(|action| (action, why)))
}

/// Has a member removed: through its node, or through a placeholder where it has none. `owner` is the machine it leaves.
pub fn remove(
    member: &Member,
    owner: Option<&str>,
    observed: &Observed,
    now: Timestamp,
) -> Result<Action, String> {
    let name = &member.name;
    if !member.learner {
        let projection = quorum::project(observed, now, MemberChange::Remove(name));
        match projection {
            Some(projection) if projection.holds() => {}
            Some(projection) => {
                return Err(format!("etcd member {name} cannot be removed: {projection}"));
            }
            None => return Err("the members of etcd are not known".into()),
        }
    }
    let view = observed.workload.view();
    let nodes = view.map(|view| view.nodes.as_slice());
    let machine = owner.map(ToOwned::to_owned);
    // A node whose last member was removed takes no further request before k3s has cleared its marks.
    let through = nodes.unwrap_or_default().iter().find(|node| {
        node.member.as_deref() == Some(name.as_str()) && node.has_etcd_role && node.removed_member.is_none()
    });
    match through {
        Some(node) if node.removal_requested => {
            Err(format!("waiting for k3s to remove the etcd member {name}"))
        }
        Some(node) => Ok(Action::RemoveMember {
            node: node.name.clone(),
            member: name.clone(),
            machine,
        }),
        None => Ok(Action::RemoveOrphan {
            member: name.clone(),
            machine,
            address: member.address.clone(),
        }),
    }
}
