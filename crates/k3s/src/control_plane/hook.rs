//! The pre-terminate hook: a server that is being deleted keeps its host until its etcd member has left, whoever
//! deleted it, one after the other. A host that runs on after that is watched until it is gone: k3s may join again.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    health,
    liveness::{self, Liveness, Probe},
    observed::{Member, Node, Observed, Server, View},
    orphan,
    plan::Action,
    quorum::{self, MemberChange},
};
use crate::api::PRE_TERMINATE_HOOK;

/// How long the address of a deleted server that never joined must have been silent before its host is let go.
const SILENT_HOST: Duration = Duration::from_mins(2);

/// What happens next for the servers that are being deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No server is being deleted.
    Idle,
    Act(Action, String),
    Wait(String),
    /// Quorum, or the last copy of the state, hangs on a server that is being deleted: something else must be done
    /// before it can go.
    Stuck(String),
}

pub fn decide(observed: &Observed, now: Timestamp) -> Progress {
    let mut deleting: Vec<&Server> = observed
        .servers
        .iter()
        .filter(|server| server.is_deleting())
        .collect();
    deleting.sort_by_key(|server| (!server.is_going(), server.deleted_at, server.name.clone()));
    // Those on their way out first, then the oldest; one that is stuck does not keep a dead one from leaving.
    let mut stuck = None;
    for server in deleting {
        match decide_one(server, observed, now) {
            Progress::Idle => {}
            Progress::Stuck(why) => {
                stuck.get_or_insert(why);
            }
            progress => return progress,
        }
    }
    stuck.map_or(Progress::Idle, Progress::Stuck)
}

/// What happens next for one server that is being deleted.
pub fn decide_one(server: &Server, observed: &Observed, now: Timestamp) -> Progress {
    let name = &server.name;
    let release = |why: &str| release(server, why);
    let going = server.is_going();
    if !going && (observed.deleting || observed.cluster.deleting) {
        return release("the whole control plane goes");
    }
    if !going && server.hooks.others {
        return Progress::Wait(format!(
            "machine {name} waits for the pre-terminate hook of another controller"
        ));
    }
    if !going && !server.waiting_for_hook {
        return Progress::Wait(format!("waiting for the node of machine {name} to be drained"));
    }
    let gone = || Progress::Wait(format!("waiting for machine {name} to be deleted"));
    if !observed.desired.embedded_etcd || !observed.initialized {
        return if going {
            gone()
        } else {
            release("it has no etcd member")
        };
    }
    let Some(view) = observed.workload.view().filter(|view| view.members.is_some()) else {
        return if going {
            gone()
        } else {
            Progress::Wait(format!(
                "machine {name} keeps its host: the members of etcd are not known, so its own cannot leave"
            ))
        };
    };
    match quorum::members_of(server, observed, view).first() {
        Some(member) => leave(server, member, observed, now),
        None if going => gone(),
        None => without_member(server, view, observed, now),
    }
}

fn release(server: &Server, why: &str) -> Progress {
    let action = Action::ReleaseHook {
        machine: server.name.clone(),
    };
    Progress::Act(action, why.to_owned())
}

/// The member leaves etcd.
fn leave(server: &Server, member: &Member, observed: &Observed, now: Timestamp) -> Progress {
    let name = &server.name;
    if member.name.is_empty() {
        return Progress::Wait(format!(
            "machine {name} keeps its host until k3s has named its etcd member or given it up"
        ));
    }
    let stuck = |why: String| Progress::Stuck(format!("machine {name} keeps its host: {why}"));
    if !member.learner {
        if let Some(why) = quorum::below_floor(observed, now, server, member).filter(|_| !server.is_going()) {
            return stuck(why);
        }
        if quorum::voting_servers(observed, now, name) == 0 {
            return stuck("no other server is healthy".into());
        }
        if let Some(why) = quorum::host_is_counted_on(observed, now, server).filter(|_| !server.is_going()) {
            return stuck(why);
        }
    }
    match orphan::remove(member, Some(name), observed, now) {
        Ok(action) => Progress::Act(action, format!("machine {name} is being deleted")),
        Err(why) if why.starts_with("waiting") => Progress::Wait(format!("{why} of machine {name}")),
        Err(why) => stuck(why),
    }
}

/// No member is known to be its. The host goes if it was one and left, or if it never will be one.
fn without_member(server: &Server, view: &View, observed: &Observed, now: Timestamp) -> Progress {
    let name = &server.name;
    let release = |why: &str| release(server, why);
    let node = server.node.as_deref().and_then(|node| view.node(node));
    // k3s says of no other node whether it is a member.
    let left = node
        .is_some_and(|node| node.member.is_some() || node.removed_member.is_some() || node.voter.is_some());
    if left || server.removal_asked {
        return match quorum::host_is_counted_on(observed, now, server) {
            None => release("its etcd member has left"),
            Some(why) => Progress::Stuck(format!("machine {name} keeps its host: {why}")),
        };
    }
    if !server.has_bootstrap_data {
        return release("its host has nothing to boot with and never joins etcd");
    }
    // What nobody else is known to be the owner of may be its.
    let (own, nodes): (Vec<Node>, Vec<Node>) = view
        .nodes
        .iter()
        .filter(|node| !node.placeholder)
        .cloned()
        .partition(|node| Some(&node.name) == server.node.as_ref());
    let mut possible = view.members.iter().flatten().filter(|member| {
        quorum::server_of(member, observed, view).is_none()
            && orphan::may_be_servers(member, server, &own)
            && !nodes
                .iter()
                .any(|node| !member.name.is_empty() && node.member.as_deref() == Some(&member.name))
    });
    if let Some(member) = possible.next() {
        if member.name.is_empty() {
            return Progress::Wait(format!(
                "machine {name} keeps its host until k3s has named {} or given it up",
                quorum::told(member)
            ));
        }
        match claimants(member, server, observed, &nodes, now) {
            Claimants::NobodyElse => {}
            Claimants::OthersThatLeave => return leave_for_one_of_several(server, member, observed, now),
            Claimants::Others => {
                return Progress::Wait(format!(
                    "machine {name} keeps its host: etcd member {} may be its or another's, and nothing tells yet",
                    member.name
                ));
            }
        }
        return leave(server, member, observed, now);
    }
    // Its node was there and is gone: k3s took the member along.
    if server.node.is_some() && node.is_none() {
        return release("its node is gone, and k3s took the etcd member along");
    }
    let Some(projection) = quorum::project(observed, now, MemberChange::HostGoes(name)) else {
        return Progress::Wait(format!(
            "machine {name} keeps its host: the members of etcd are not known"
        ));
    };
    if projection.holds() {
        return release("etcd keeps its quorum even if its host still joins");
    }
    if let Liveness::Dead(why) = liveness::of_server(server, observed, now) {
        return release(&format!("its host is dead and never joins etcd: {why}"));
    }
    if never_joins(server, observed, now) {
        return release("nothing has answered at its address for two minutes: it never joins etcd");
    }
    Progress::Stuck(format!(
        "machine {name} keeps its host: k3s may still join from there, and {projection}; if its host never starts k3s, \
         remove the annotation {PRE_TERMINATE_HOOK} from the machine"
    ))
}

/// Who else may be the owner of a member that may be a server's.
enum Claimants {
    NobodyElse,
    /// All of them have come as far in their deletion as the server.
    OthersThatLeave,
    Others,
}

fn claimants(
    member: &Member,
    server: &Server,
    observed: &Observed,
    nodes: &[Node],
    now: Timestamp,
) -> Claimants {
    let leaves = |other: &Server| {
        other.is_going() || (other.is_deleting() && other.waiting_for_hook && !other.hooks.others)
    };
    let others = observed.servers.iter().filter(|other| other.name != server.name);
    let (leaving, staying): (Vec<Server>, Vec<Server>) = others.cloned().partition(leaves);
    let of_leaving = |node: &&Node| {
        leaving
            .iter()
            .any(|other| other.node.as_ref() == Some(&node.name))
    };
    let staying_nodes: Vec<Node> = nodes.iter().filter(|node| !of_leaving(node)).cloned().collect();
    if orphan::is_claimed(member, &staying, &staying_nodes, now) {
        Claimants::Others
    } else if orphan::is_claimed(member, &leaving, nodes, now) {
        Claimants::OthersThatLeave
    } else {
        Claimants::NobodyElse
    }
}

/// Whichever of the deleted servers a member belongs to, it leaves. On no machine is it noted that its member has left: the others
/// may not have joined yet, and each keeps its host until that is judged by itself.
fn leave_for_one_of_several(
    server: &Server,
    member: &Member,
    observed: &Observed,
    now: Timestamp,
) -> Progress {
    let (name, left) = (&server.name, &member.name);
    let stuck = |why: String| Progress::Stuck(format!("machine {name} keeps its host: {why}"));
    if let Some(why) = quorum::below_floor(observed, now, server, member) {
        return stuck(why);
    }
    match orphan::remove(member, None, observed, now) {
        Ok(action) => Progress::Act(
            action,
            format!("every machine that etcd member {left} may belong to is being deleted"),
        ),
        Err(why) if why.starts_with("waiting") => Progress::Wait(format!("{why}, maybe of machine {name}")),
        Err(why) => stuck(why),
    }
}

/// k3s listens before it joins. Where other servers are reached and this one's address has been silent all the time, none
/// runs there.
fn never_joins(server: &Server, observed: &Observed, now: Timestamp) -> bool {
    let silent =
        matches!(&server.probe, Probe::NoAnswer { since, .. } if health::age(*since, now) >= SILENT_HOST);
    silent
        && observed
            .servers
            .iter()
            .any(|other| other.name != server.name && other.probe.is_answer())
}

/// A server's member, where it is known and has a name.
pub fn member_of<'observed>(server: &Server, observed: &'observed Observed) -> Option<&'observed Member> {
    let view = observed.workload.view()?;
    let members = quorum::members_of(server, observed, view);
    members.into_iter().find(|member| !member.name.is_empty())
}
