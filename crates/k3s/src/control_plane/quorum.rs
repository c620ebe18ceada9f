//! What a change leaves of etcd's quorum: the one projection that every change is judged by. What is not known to be alive
//! counts as failed; learners, members of nobody and hosts that may still join count as voters to come.

use jiff::Timestamp;

use super::{
    health::{self, MemberHealth},
    liveness::{self, Liveness, Probe},
    observed::{InPlace, Member, Node, Observed, Server, View},
};

/// A change to look ahead at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange<'name> {
    /// A server joins. It is counted as failed, unless it is the second: one server cannot grow otherwise.
    Add,
    /// This member leaves.
    Remove(&'name str),
    /// This member stops for a while and comes back.
    Restart(&'name str),
    /// The host of this machine goes, and what it has or may still bring to etcd with it.
    HostGoes(&'name str),
}

/// What the voters would be after a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projection {
    /// Those to come included.
    pub voters: usize,
    pub alive: usize,
    /// Members that do not vote yet.
    pub learners: usize,
    /// Who does not count, and why.
    pub failed: Vec<String>,
}

impl Projection {
    pub fn quorum(&self) -> usize {
        self.voters / 2 + 1
    }

    pub fn holds(&self) -> bool {
        self.voters > 0 && self.alive >= self.quorum()
    }

    fn count(&mut self, who: &str, liveness: &Liveness) {
        self.voters += 1;
        match liveness.problem() {
            None => self.alive += 1,
            Some(why) => self.failed.push(format!("{who}: {why}")),
        }
    }
}

impl std::fmt::Display for Projection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "{} of {} voters would be alive, {} are needed",
            self.alive,
            self.voters,
            self.quorum()
        )?;
        if !self.failed.is_empty() {
            write!(formatter, " ({})", self.failed.join("; "))?;
        }
        Ok(())
    }
}

/// The voters after a change, by the actual list of members. `None` where it is not known.
pub fn project(observed: &Observed, now: Timestamp, change: MemberChange<'_>) -> Option<Projection> {
    let view = observed.workload.view()?;
    let members = view.members.as_ref()?;
    let mut projection = Projection::default();
    if change == MemberChange::Add {
        projection.voters += 1;
        projection.alive += usize::from(members.len() <= 1);
    }
    for member in members {
        projection.learners += usize::from(member.learner || member.name.is_empty());
        let name = member.name.as_str();
        if change == MemberChange::Remove(name) && !name.is_empty() {
            continue;
        }
        let owner = server_of(member, observed, view);
        let liveness = match change {
            MemberChange::Restart(restarted) if restarted == name => {
                Liveness::Unknown("it is restarted".into())
            }
            MemberChange::HostGoes(machine) if owner.is_some_and(|server| server.name == machine) => {
                Liveness::Unknown("its host goes".into())
            }
            _ => liveness_of(member, observed, view, now),
        };
        projection.count(&told(member), &liveness);
    }
    for server in &observed.servers {
        let goes = match change {
            MemberChange::HostGoes(machine) => server.name == machine,
            _ => false,
        };
        if (goes || server.is_going()) && members_of(server, observed, view).is_empty() {
            let why = Liveness::Unknown("it may still join, and its host goes".into());
            projection.count(&format!("machine {}", server.name), &why);
        }
    }
    Some(projection)
}

/// How a member is called in messages.
pub fn told(member: &Member) -> String {
    if member.name.is_empty() {
        format!("unnamed member at {}", member.address)
    } else {
        format!("member {}", member.name)
    }
}

/// The server a member belongs to: what the server's node says, else where the server is.
pub fn server_of<'observed>(
    member: &Member,
    observed: &'observed Observed,
    view: &View,
) -> Option<&'observed Server> {
    let by_name = observed
        .servers
        .iter()
        .find(|server| !member.name.is_empty() && health::member_name(server, view) == Some(&member.name));
    by_name.or_else(|| observed.servers.iter().find(|server| is_at(member, server, view)))
}

fn is_at(member: &Member, server: &Server, view: &View) -> bool {
    let node = server.node.as_deref().and_then(|node| view.node(node));
    !member.address.is_empty()
        && (server.addresses.contains(&member.address)
            || node.is_some_and(|node| node.address.as_deref() == Some(member.address.as_str())))
}

/// The members that belong to a server: one, or two where k3s has just joined again.
pub fn members_of<'view>(server: &Server, observed: &Observed, view: &'view View) -> Vec<&'view Member> {
    view.members
        .iter()
        .flatten()
        .filter(|member| server_of(member, observed, view).is_some_and(|owner| owner.name == server.name))
        .collect()
}

fn node_of<'view>(member: &Member, view: &'view View) -> Option<&'view Node> {
    view.nodes.iter().find(|node| {
        !node.placeholder && !member.name.is_empty() && node.member.as_deref() == Some(member.name.as_str())
    })
}

/// Whether a member is alive, whoever it belongs to.
pub fn liveness_of(member: &Member, observed: &Observed, view: &View, now: Timestamp) -> Liveness {
    if member.name.is_empty() {
        return Liveness::Unknown("it has not started".into());
    }
    match (server_of(member, observed, view), node_of(member, view)) {
        (Some(server), _) if server.is_going() => {
            Liveness::Unknown(format!("the host of machine {} goes", server.name))
        }
        // Its k3s ends and starts again at any moment.
        (Some(server), _) if server.in_place != InPlace::No => {
            Liveness::Unknown(format!("machine {} is being updated in place", server.name))
        }
        (Some(server), _) => liveness::of_server(server, observed, now),
        (None, Some(node)) => liveness::of_node(node, &Probe::NotTried, now),
        (None, None) => Liveness::Unknown("no machine and no node is known to be its".into()),
    }
}

/// Named members that belong to no server.
pub fn unmatched<'view>(observed: &Observed, view: &'view View) -> Vec<&'view Member> {
    view.members
        .iter()
        .flatten()
        .filter(|member| !member.name.is_empty() && server_of(member, observed, view).is_none())
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

/// Voters that are not known to be alive, with the machine and the reason.
pub fn not_alive(observed: &Observed, view: &View, now: Timestamp) -> Vec<String> {
    view.members
        .iter()
        .flatten()
        .filter(|member| !member.learner && !member.name.is_empty())
        .filter_map(|member| {
            let liveness = liveness_of(member, observed, view, now);
            let why = liveness.problem()?;
            Some(match server_of(member, observed, view) {
                Some(server) => format!("etcd member of machine {} is not alive: {why}", server.name),
                None => format!("etcd {} is not alive: {why}", told(member)),
            })
        })
        .collect()
}

/// Why a server that may live is not taken yet: another one is lost, and comes first. `member` is the server's; nothing but a
/// guess may tell so.
pub fn another_is_lost(
    observed: &Observed,
    now: Timestamp,
    server: &Server,
    member: &Member,
) -> Option<String> {
    let view = observed.workload.view()?;
    if member.learner || !liveness::may_live(server, observed, now) {
        return None;
    }
    // k3s hands leadership to the first member it finds before one leaves: a dead one keeps a living one from leaving.
    other_voters(observed, view, server, member).find_map(|other| {
        let liveness = liveness_of(other, observed, view, now);
        let why = liveness.problem()?;
        Some(format!("another is lost and comes first: {}: {why}", told(other)))
    })
}

/// The same, and that its replacement joins first.
pub fn below_floor(observed: &Observed, now: Timestamp, server: &Server, member: &Member) -> Option<String> {
    if let Some(why) = another_is_lost(observed, now, server, member) {
        return Some(why);
    }
    let view = observed.workload.view()?;
    if member.learner || !liveness::may_live(server, observed, now) {
        return None;
    }
    let left = other_voters(observed, view, server, member).count();
    // One may be missing: the one that is taken. A plane of one has nobody else until its replacement has joined.
    let floor = observed.desired.replicas.saturating_sub(1).max(1);
    (left < floor).then(|| {
        format!(
            "{left} voters would be left alive, and of {} replicas {floor} must be: a replacement joins first",
            observed.desired.replicas
        )
    })
}

/// Why a server whose k3s may join etcd again before its host is gone cannot be let go yet.
pub fn host_is_counted_on(observed: &Observed, now: Timestamp, server: &Server) -> Option<String> {
    if server.stays_out {
        return None;
    }
    let projection = project(observed, now, MemberChange::HostGoes(&server.name))?;
    (!projection.holds()).then(|| {
        format!(
            "another provider made it, so its k3s may join etcd again before its host is gone, and {projection}: one more \
             server joins first"
        )
    })
}

/// The voters that are not the server's.
fn other_voters<'view>(
    observed: &'view Observed,
    view: &'view View,
    server: &'view Server,
    own: &'view Member,
) -> impl Iterator<Item = &'view Member> {
    let voters = view.members.iter().flatten().filter(|member| !member.learner);
    voters.filter(move |member| {
        let owner = server_of(member, observed, view);
        member.name != own.name && owner.is_none_or(|owner| owner.name != server.name)
    })
}

/// Servers other than `besides` that vote and are alive, with an alarm or without.
pub fn voting_servers(observed: &Observed, now: Timestamp, besides: &str) -> usize {
    observed
        .servers
        .iter()
        .filter(|server| server.name != besides)
        .filter(|server| health::agent(server, observed) == health::Agent::Healthy)
        .filter(|server| !observed.desired.embedded_etcd || health::member(server, observed, now).votes())
        .count()
}

/// Those of them with which nothing is wrong.
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
