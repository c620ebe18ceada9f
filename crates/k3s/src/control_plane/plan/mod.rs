//! What to do next: pure, from what is known to at most one step that touches a server or its member. Every refusal
//! and every wait says why.

mod action;
mod draft;
mod question;
mod scale;
mod update;

use std::time::Duration;

use jiff::Timestamp;
use slipway_capi::frame;

pub use self::{
    action::{Action, MachineCondition, Part, Why},
    draft::Draft,
};
use super::{
    hook::{self, Progress},
    observed::{InPlace, Observed, Server, View, Workload},
    orphan, ownership,
    preflight::{self, Operation},
    quorum,
    remediation::{self, Decision},
};

pub type Plan = frame::Plan<Action>;

/// A host that was let go may start k3s again before it is gone: its member is looked for this often.
const GOING_HOST: Duration = Duration::from_secs(5);
/// What a wait is for (a join, a promotion, evidence of life) is not always told by an event.
const WAITING: Duration = Duration::from_secs(15);
/// While the workload cluster does not answer there is no event to wait for.
const UNREACHABLE: Duration = Duration::from_secs(20);

/// What is done about the servers and the members of etcd.
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    servers(observed, now, Draft::default()).finish()
}

pub(super) fn servers(observed: &Observed, now: Timestamp, mut plan: Draft) -> Draft {
    if observed.initialized && observed.workload.view().is_none() {
        plan = plan.again_because(
            UNREACHABLE,
            "the workload cluster does not answer, and nobody tells when it does",
        );
    }
    if observed.deleting {
        return ownership::plan_deletion(observed, plan);
    }
    if !observed.cluster.infrastructure_ready {
        return plan.wait(
            "WaitingForInfrastructure",
            "waiting for the cluster's infrastructure",
        );
    }
    if !observed.cluster.endpoint_known {
        return plan.wait(
            "WaitingForEndpoint",
            "waiting for Cluster.spec.controlPlaneEndpoint",
        );
    }
    if !observed.foreign.is_empty() {
        return plan.wait(
            "MixedOwnership",
            format!(
                "refusing to work beside another owner: control plane machines {} belong to somebody else",
                observed.foreign.join(", ")
            ),
        );
    }
    if !observed.adoptable.is_empty() {
        return ownership::plan_adoption(observed, plan);
    }
    for server in &observed.servers {
        let machine = server.name.clone();
        // On every server from the start, so that whoever deletes one, its member leaves first.
        if !server.hooks.ours && !server.is_deleting() {
            plan = plan.act(
                Action::AddHook { machine },
                "whoever deletes the machine, its etcd member leaves first",
            );
        }
        let machine = server.name.clone();
        if server.health_check.ours_to_remediate && !server.health_check.failed && !server.is_deleting() {
            plan = plan.act(
                Action::ClearRemediationMark { machine },
                "its health check succeeds again",
            );
        }
    }
    if remediation::is_stale(observed) {
        plan = plan.act(
            Action::ForgetRemediation,
            "no machine is missing because of it any more",
        );
    }
    if let Workload::Reachable(view) = &observed.workload {
        for node in view.nodes.iter().filter(|node| node.placeholder) {
            let done = node.removed_member.is_some()
                || !node.removal_requested
                || !view
                    .members
                    .iter()
                    .flatten()
                    .any(|member| Some(member.name.as_str()) == node.member.as_deref());
            if done {
                plan = plan.act(
                    Action::DeletePlaceholder {
                        node: node.name.clone(),
                    },
                    "the member it stands for is gone",
                );
            }
        }
        for (node, member) in withdrawn(observed, view, now) {
            plan = plan.act(
                Action::WithdrawRemoval { node, member },
                "the machine stays, or its member may not leave any more",
            );
        }
    }
    operate(observed, now, plan)
}

/// Requests of ours that no longer hold: the machine stays, or its member may not leave any more.
fn withdrawn(observed: &Observed, view: &View, now: Timestamp) -> Vec<(String, String)> {
    let requested = view
        .nodes
        .iter()
        .filter(|node| node.removal_requested && node.removal_is_ours && !node.placeholder);
    requested
        .filter_map(|node| {
            let member = node.member.as_ref()?;
            let listed = view.members.iter().flatten().any(|entry| entry.name == *member);
            let server = observed
                .servers
                .iter()
                .find(|server| server.node.as_ref() == Some(&node.name))?;
            let holds = server.is_deleting()
                && !matches!(hook::decide_one(server, observed, now), Progress::Stuck(_));
            (listed && !holds).then(|| (node.name.clone(), member.clone()))
        })
        .collect()
}

/// At most one operation, and none before the servers it relies on were heard from.
fn operate(observed: &Observed, now: Timestamp, plan: Draft) -> Draft {
    question::ask_first(observed, now, decide(observed, now, plan))
}

fn decide(observed: &Observed, now: Timestamp, plan: Draft) -> Draft {
    let mut plan = plan;
    match orphan::decide(observed, now) {
        Some(Ok((action @ Action::AnnounceOrphan { .. }, why))) => {
            plan = plan.act(action, why).again_in(WAITING);
        }
        Some(Ok((action, why))) => return plan.act(action, why),
        Some(Err(why)) => plan = plan.wait("OrphanedEtcdMember", why).again_in(WAITING),
        None => {}
    }
    match hook::decide(observed, now) {
        Progress::Act(action, why) => return plan.act(action, why),
        Progress::Wait(why) => {
            let going = observed.servers.iter().any(Server::is_going);
            let after = if going { GOING_HOST } else { WAITING };
            return plan.wait("WaitingForDeletion", why).again_in(after);
        }
        Progress::Stuck(why) => return unstick(observed, now, plan.wait("QuorumAtRisk", why)),
        Progress::Idle => {}
    }
    if let Some(server) = observed
        .servers
        .iter()
        .find(|server| server.in_place == InPlace::HalfTriggered)
    {
        return plan.act(
            Action::UpdateInPlace {
                machine: server.name.clone(),
            },
            "its update was begun, and is carried to its end",
        );
    }
    let (plan, replaced) = remediate(observed, now, plan);
    if replaced {
        return plan;
    }
    if let Some(server) = observed
        .servers
        .iter()
        .find(|server| server.in_place == InPlace::Updating)
    {
        return plan.wait(
            "UpdatingInPlace",
            format!("machine {} is being updated in place", server.name),
        );
    }
    let outdated = observed
        .servers
        .iter()
        .any(|server| server.is_outdated() && !server.is_deleting());
    if outdated && observed.initialized {
        return update::roll_out(observed, now, plan);
    }
    scale::scale(observed, now, plan)
}

/// A server somebody deleted cannot go: a dead one is taken away first, or a replacement joins first.
fn unstick(observed: &Observed, now: Timestamp, plan: Draft) -> Draft {
    let (plan, replaced) = remediate(observed, now, plan);
    let (deleting, staying): (Vec<&Server>, Vec<&Server>) =
        observed.servers.iter().partition(|server| server.is_deleting());
    let one_more = deleting
        .iter()
        .any(|server| quorum::host_is_counted_on(observed, now, server).is_some());
    // Where all that stay are enough, it is something else that must come first, and the wait says what.
    if replaced || (staying.len() >= observed.desired.replicas && !one_more) {
        return plan.again_in(WAITING);
    }
    match preflight::check(observed, now, Operation::Replace) {
        Ok(()) => plan.act(
            scale::create(observed),
            "a server that is being deleted cannot go before its replacement has joined",
        ),
        Err(why) => plan.wait_all("PreflightChecks", why).again_in(WAITING),
    }
}

/// Adds what remediation wants, and says whether that is an operation.
fn remediate(observed: &Observed, now: Timestamp, mut plan: Draft) -> (Draft, bool) {
    match remediation::decide(observed, now) {
        Decision::Nothing => {}
        Decision::Replace { machine, record } => {
            let action = Action::DeleteServer {
                machine,
                why: Why::Remediation(record),
            };
            return (plan.act(action, "its health check failed"), true);
        }
        Decision::Deferred { machine, reason } => {
            let told = format!("machine {machine} is not replaced yet: {reason}");
            plan = explain(plan, machine, false, reason)
                .wait("RemediationDeferred", told)
                .again_in(WAITING);
        }
        Decision::Impossible { machine, reason } => {
            let told = format!("machine {machine} cannot be replaced: {reason}");
            plan = explain(plan, machine, true, reason).wait("CannotBeRemediated", told);
        }
    }
    (plan, false)
}

fn explain(plan: Draft, machine: String, impossible: bool, reason: String) -> Draft {
    let action = Action::ExplainRemediation {
        machine,
        impossible,
        reason,
    };
    plan.act(action, "whoever asked for it reads it there")
}
