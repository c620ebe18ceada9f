//! The pre-terminate hook: a server that is being deleted keeps its host until its etcd member has left, whoever
//! deleted it, one after the other.

use jiff::Timestamp;

use super::{
    health,
    observed::{Observed, Server, View},
    plan::Action,
    quorum::{self, Step},
};

/// What happens next for the servers that are being deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No server is being deleted.
    Idle,
    Act(Action),
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
    deleting.sort_by_key(|server| (server.deleted_at, server.name.clone()));
    // Oldest first; one that is stuck does not keep a dead one from leaving.
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

fn decide_one(server: &Server, observed: &Observed, now: Timestamp) -> Progress {
    let name = &server.name;
    let release = || {
        Progress::Act(Action::ReleaseHook {
            machine: name.clone(),
        })
    };
    if !server.hooks.ours && !server.hooks.legacy {
        return Progress::Wait(format!("waiting for machine {name} to be deleted"));
    }
    if observed.deleting || observed.cluster.deleting {
        return release();
    }
    if server.hooks.others {
        return Progress::Wait(format!(
            "machine {name} waits for the pre-terminate hook of another controller"
        ));
    }
    if !server.waiting_for_hook {
        return Progress::Wait(format!("waiting for the node of machine {name} to be drained"));
    }
    if !observed.desired.embedded_etcd || !observed.initialized {
        return release();
    }
    let Some(view) = observed.workload.view() else {
        return Progress::Wait(format!(
            "machine {name} keeps its host: the workload cluster does not answer, so its etcd member cannot leave"
        ));
    };
    if view.members.is_none() {
        return Progress::Wait(format!(
            "machine {name} keeps its host: the members of etcd are not known"
        ));
    }
    match server.node.as_deref().and_then(|node| view.node(node)) {
        Some(node) => member_of_node(server, node, view, observed, now),
        None => without_node(server, view, observed, now),
    }
}

fn member_of_node(
    server: &Server,
    node: &super::observed::Node,
    view: &View,
    observed: &Observed,
    now: Timestamp,
) -> Progress {
    let name = &server.name;
    let listed = |member: &str| view.members.iter().flatten().any(|entry| entry.name == member);
    let Some(member) = node.member.as_deref().filter(|member| listed(member)) else {
        // It has left, or it never was one.
        return Progress::Act(Action::ReleaseHook {
            machine: name.clone(),
        });
    };
    let is_learner = view
        .members
        .iter()
        .flatten()
        .any(|entry| entry.name == member && entry.learner);
    if !is_learner {
        let step = Step {
            remove: Some(member),
            ..Step::default()
        };
        let Some(projection) = quorum::project(observed, now, step) else {
            return Progress::Wait(format!(
                "machine {name} keeps its host: the members of etcd are not known"
            ));
        };
        if !projection.holds() {
            return Progress::Stuck(format!(
                "machine {name} keeps its host: without its member, {projection}"
            ));
        }
    }
    if quorum::healthy_servers(observed, now, name) == 0 {
        return Progress::Stuck(format!(
            "machine {name} keeps its host: no other server is healthy"
        ));
    }
    if node.removal_requested {
        return Progress::Wait(format!(
            "waiting for k3s to remove the etcd member {member} of machine {name}"
        ));
    }
    Progress::Act(Action::RemoveMember {
        node: node.name.clone(),
        member: member.to_owned(),
    })
}

/// The node is gone or never came. A member without a server may still be this one's.
fn without_node(server: &Server, view: &View, observed: &Observed, now: Timestamp) -> Progress {
    let name = &server.name;
    let unmatched = quorum::unmatched(observed, view);
    if unmatched.is_empty() && quorum::learners(view) == 0 {
        return Progress::Act(Action::ReleaseHook {
            machine: name.clone(),
        });
    }
    let step = Step {
        distrust_unmatched: true,
        ..Step::default()
    };
    let dead = quorum::project(observed, now, step);
    if dead.as_ref().is_some_and(quorum::Projection::holds) {
        // Even if its host takes an unknown member along, quorum stays; the ghost is removed afterwards.
        return Progress::Act(Action::ReleaseHook {
            machine: name.clone(),
        });
    }
    let other_provisioning = observed
        .servers
        .iter()
        .any(|other| other.name != *name && other.node.is_none() && !other.is_deleting());
    if other_provisioning {
        return Progress::Wait(format!(
            "machine {name} keeps its host: it may have an etcd member that cannot be told from another machine's"
        ));
    }
    match unmatched.first() {
        Some(member) => remove_unmatched(member, view, observed, now).unwrap_or_else(Progress::Wait),
        None => Progress::Wait(format!(
            "machine {name} keeps its host until k3s has settled its etcd member"
        )),
    }
}

/// Has a member without a server removed, through its node if it has one.
pub fn remove_unmatched(
    member: &super::observed::Member,
    view: &View,
    observed: &Observed,
    now: Timestamp,
) -> Result<Progress, String> {
    let step = Step {
        remove: Some(member.name.as_str()),
        ..Step::default()
    };
    let holds = quorum::project(observed, now, step).is_some_and(|projection| projection.holds());
    if !holds && !member.learner {
        return Err(format!(
            "etcd member {} belongs to no machine and cannot be removed: quorum would be lost",
            member.name
        ));
    }
    let node = view
        .nodes
        .iter()
        .find(|node| node.member.as_deref() == Some(member.name.as_str()));
    match node {
        Some(node) if node.removal_requested => Err(format!(
            "waiting for k3s to remove the etcd member {}",
            member.name
        )),
        Some(node) => Ok(Progress::Act(Action::RemoveMember {
            node: node.name.clone(),
            member: member.name.clone(),
        })),
        None => Ok(Progress::Act(Action::RemoveGhost {
            member: member.name.clone(),
            address: member.address.clone(),
        })),
    }
}

/// The name of a server's member, where its node tells it.
pub fn member_of(server: &Server, observed: &Observed) -> Option<String> {
    health::member_name(server, observed.workload.view()?).map(ToOwned::to_owned)
}
