//! From a slot that is written to a host that is told to boot it: what has to hold before the node is felt to be missing, the drain, and
//! arming.

use jiff::Timestamp;
use slipway_capi::frame::Plan;

use super::{
    api::{Distribution, OnDrainTimeout, Phase, Role},
    facts::{Facts, NodeFacts, Order, ReachedHost},
    fleet::MAINTENANCE,
    plan::{Action, Decision, after, failed, ordered, skew},
};
use crate::upgrade_policy::judge::Verdict;

/// The slot is written. Everything that has to hold before the node is felt to be missing.
pub(super) fn before_draining(facts: &Facts, host: &ReachedHost, now: Timestamp) -> Decision {
    let is_draining = facts
        .node
        .as_ref()
        .is_some_and(|node| node.cordoned_by_us.is_some());
    let prepared = |reason, message: String| Decision::new(Phase::Prepared, reason, message);
    if let Some(reason) = &host.maintenance {
        return prepared(MAINTENANCE, format!("the host is in maintenance: {reason}")).waiting();
    }
    if let Err(problem) = skew(facts) {
        return prepared("VersionSkew", problem.to_string()).waiting();
    }
    let machine = &facts.spec.machine_name;
    let Some(fleet) = &facts.fleet else {
        return prepared("NotInFleet", format!("Machine {machine} is not known yet")).waiting();
    };
    match fleet.judge(machine, now) {
        Verdict::Go => {}
        Verdict::Halted { message } => return prepared("Halted", message).waiting(),
        Verdict::Wait {
            reason,
            message,
            until,
        } => {
            let decision = prepared(reason, message);
            return match until {
                Some(until) => decision.waiting_until(until),
                None => decision.waiting(),
            };
        }
    }
    let Some(node) = &facts.node else {
        let decision = prepared(
            "NodeUnknown",
            "the node cannot be seen, so it is not drained".to_owned(),
        );
        return decision.waiting();
    };
    if let Some(aborted) = facts.recorded.drain_aborted_at
        && !is_draining
    {
        let again = after(aborted, facts.spec.drain.retry_minutes());
        if now < again {
            let message = format!(
                "the drain took longer than {} minutes",
                facts.spec.drain.minutes()
            );
            return prepared("DrainTimedOut", message).waiting_until(again);
        }
    }
    let decision = disturb(facts, host, node, now);
    if decision.phase.is_terminal() || decision.aborts_drain || fleet.has_place(machine) {
        return decision.keeping_place();
    }
    after_taking_place(decision).keeping_place()
}

/// The place is taken before anything else: another may have been let go since.
fn after_taking_place(mut decision: Decision) -> Decision {
    let mut plan = Plan::new();
    plan.then(
        Action::TakePlace,
        "the slot is prepared, and the policy lets it go",
    );
    for mut entry in decision.plan.entries {
        entry.group = Some(entry.group.map_or(2, |group| group + 1));
        plan.entries.push(entry);
    }
    decision.plan = plan;
    decision
}

/// It is its turn: etcd is saved, the node is drained, the host is armed.
fn disturb(facts: &Facts, host: &ReachedHost, node: &NodeFacts, now: Timestamp) -> Decision {
    if facts.spec.role == Role::ControlPlane && facts.cluster.etcd_members == 1 {
        if facts.spec.distribution == Distribution::Kubeadm && facts.spec.snapshot_command.is_empty() {
            let message =
                "it is the only server of its etcd, and spec.snapshotCommand says no way to save it first";
            return failed("NoSnapshot", message.to_owned());
        }
        let saving = "saving etcd, whose only member this is";
        if let Some(decision) = ordered(host, Order::Snapshot, Phase::Prepared, saving, now) {
            return decision;
        }
    }
    drain(facts, node, now)
}

fn drain(facts: &Facts, node: &NodeFacts, now: Timestamp) -> Decision {
    let policy = &facts.spec.drain;
    let Some(since) = node.cordoned_by_us else {
        let mut decision = Decision::new(Phase::Draining, "Draining", "the node takes no more pods");
        decision
            .plan
            .then(Action::Cordon, "it is its turn")
            .announced("Draining");
        return decision;
    };
    let deadline = after(since, policy.minutes());
    if policy.skip || node.pods.is_empty() {
        return arm(facts, "the node is drained");
    }
    if now >= deadline {
        let left = node.pods.message();
        return match policy.on_timeout {
            OnDrainTimeout::Reboot => arm(facts, &format!("the drain is over its time: {left}")),
            OnDrainTimeout::Abort => {
                let message = format!("the drain took longer than {} minutes: {left}", policy.minutes());
                let mut decision = Decision::new(Phase::Prepared, "DrainTimedOut", message.clone());
                decision.aborts_drain = true;
                decision
                    .plan
                    .then(Action::Uncordon, message)
                    .warned("DrainTimedOut");
                decision
            }
        };
    }
    let mut decision = Decision::new(Phase::Draining, "Draining", node.pods.message());
    for pod in &node.pods.to_evict {
        decision
            .plan
            .regardless(Action::Evict { pod: pod.clone() }, "its node is to be rebooted");
    }
    decision.waiting_until(deadline)
}

/// The last things before the reboot, in this order: whoever hides a machine from its health checks has drained it.
fn arm(facts: &Facts, why: &str) -> Decision {
    let mut decision = Decision::new(Phase::Rebooting, "Arming", why);
    if facts
        .machine
        .as_ref()
        .is_some_and(|machine| machine.kept_off_since.is_none())
    {
        decision
            .plan
            .then(Action::KeepOff, "its node is away while the host reboots");
    }
    let arm = Action::Order {
        order: Order::Arm,
        attempt: 1,
    };
    decision.plan.then(arm, why).announced("Rebooting");
    decision
}
