//! Where neither a server nor its kubelet can be asked, its lease is all that speaks for it, and it may have died since it was
//! renewed. So what relies on a server waits until its lease was renewed after that was decided: one that was lost before is
//! never taken for alive.

use std::time::Duration;

use jiff::Timestamp;
use slipway_capi::frame::What;

use super::{
    super::{
        health,
        liveness::Kubelet,
        observed::{InPlace, Node, Observed, Server, View},
        quorum,
    },
    Action, Draft,
};

/// As long as a lease that is not renewed says nothing against its node, and one more.
const STANDS: Duration = Duration::from_secs(30);
/// A renewal in time is told by no event.
const HEARD: Duration = Duration::from_secs(5);

/// Puts the question before an operation, unless every server it relies on was heard from.
pub(super) fn ask_first(observed: &Observed, now: Timestamp, mut draft: Draft) -> Draft {
    if !observed.desired.embedded_etcd {
        return draft;
    }
    let Some(view) = observed.workload.view() else {
        return draft;
    };
    let entries = &mut draft.plan.entries;
    let Some(index) = entries.iter().position(|entry| {
        entry
            .action()
            .is_some_and(|action| relies_on_others(action, observed, view))
    }) else {
        return draft;
    };
    let What::Do(action) = &entries[index].what else {
        return draft;
    };
    let operation = action.to_string();
    let question = observed
        .question
        .as_ref()
        .filter(|question| question.operation == operation && health::age(question.asked_at, now) <= STANDS);
    let asked_at = question.map_or(now, |question| question.asked_at);
    let unheard = unheard(observed, view, taken_by(action), asked_at, now);
    if unheard.is_empty() {
        return draft;
    }
    let asked = question.is_some();
    let why = format!(
        "{operation}: waiting to hear from {}, since neither their servers nor their kubelets can be asked",
        unheard.join(", ")
    );
    entries.remove(index);
    let draft = if asked {
        draft
    } else {
        draft.act(
            Action::AskServers { operation },
            "their leases are all that can be read",
        )
    };
    draft.wait("AskingServers", why).again_in(HEARD)
}

/// Whether an operation is safe only if other servers are alive.
fn relies_on_others(action: &Action, observed: &Observed, view: &View) -> bool {
    let server = |name: &str| observed.servers.iter().find(|server| server.name == name);
    match action {
        Action::CreateServer { .. } => !observed.servers.is_empty(),
        Action::DeleteServer { .. } => true,
        // What was begun is carried to its end.
        Action::UpdateInPlace { machine } => {
            server(machine).is_none_or(|server| server.in_place != InPlace::HalfTriggered)
        }
        // A learner has no vote, and the host of a server that was let go may be gone at any moment.
        Action::RemoveMember { member, machine, .. } | Action::RemoveOrphan { member, machine, .. } => {
            let mut members = view.members.iter().flatten();
            let votes = members.any(|entry| entry.name == *member && !entry.learner);
            votes && !machine.as_deref().and_then(server).is_some_and(Server::is_going)
        }
        _ => false,
    }
}

/// The machine, or the member, that an operation takes: nobody relies on it.
fn taken_by(action: &Action) -> Option<&str> {
    match action {
        Action::DeleteServer { machine, .. } | Action::UpdateInPlace { machine } => Some(machine),
        Action::RemoveMember { member, .. } | Action::RemoveOrphan { member, .. } => Some(member),
        _ => None,
    }
}

/// The nodes of voters that count as alive by nothing but a lease that was not renewed after the question.
fn unheard(
    observed: &Observed,
    view: &View,
    taken: Option<&str>,
    asked_at: Timestamp,
    now: Timestamp,
) -> Vec<String> {
    let voters = view.members.iter().flatten().filter(|member| !member.learner);
    let mut unheard = Vec::new();
    for member in voters {
        let server = quorum::server_of(member, observed, view);
        let is_taken = taken == Some(member.name.as_str())
            || server.is_some_and(|server| taken == Some(server.name.as_str()));
        let answers = server.is_some_and(|server| server.probe.is_answer());
        let alive = quorum::liveness_of(member, observed, view, now)
            .problem()
            .is_none();
        if is_taken || answers || !alive {
            continue;
        }
        let node = server.and_then(|server| view.node(server.node.as_deref()?));
        let by_member =
            |node: &&Node| !node.placeholder && node.member.as_deref() == Some(member.name.as_str());
        if let Some(node) = node.or_else(|| view.nodes.iter().find(by_member))
            && node.kubelet == Kubelet::NotAsked
            && node.lease.is_none_or(|lease| lease.silent_since <= asked_at)
        {
            unheard.push(format!("node {}", node.name));
        }
    }
    unheard
}
