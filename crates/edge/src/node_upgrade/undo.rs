//! How an upgrade ends that is not to go on, and what every end leaves behind: nothing.

use super::{
    api::Phase,
    facts::{Facts, Order, OrderState},
    plan::{Action, Decision},
};

/// Adds what is left to take back. A node or a machine that somebody else has cordoned or hidden stays so.
pub(super) fn left_as_found(facts: &Facts, mut decision: Decision) -> Decision {
    let is_cordoned = facts
        .node
        .as_ref()
        .is_some_and(|node| node.cordoned_by_us.is_some());
    let has = |decision: &Decision, action: &Action| decision.plan.actions().any(|planned| planned == action);
    if is_cordoned && !has(&decision, &Action::Uncordon) {
        decision
            .plan
            .regardless(Action::Uncordon, "no upgrade leaves a node cordoned");
    }
    let is_kept_off = facts
        .machine
        .as_ref()
        .is_some_and(|machine| machine.kept_off_since.is_some());
    if is_kept_off && !has(&decision, &Action::LetIn) {
        decision
            .plan
            .regardless(Action::LetIn, "the host does not reboot any more");
    }
    let holds_slot = facts.reached().is_some_and(|host| host.holds_slot);
    if decision.phase.is_terminal() && holds_slot {
        decision.plan.regardless(
            Action::Abandon,
            "the slot that was prepared is never booted, and must not be in the way of the next one",
        );
    }
    if decision.phase.is_terminal() && facts.reached().is_some_and(|host| host.is_pinned) {
        decision.plan.regardless(Action::Unpin, "the upgrade has ended");
    }
    decision
}

/// The machine is gone or going, the upgrade is deleted, or a newer one takes its place. A slot that the host was told to boot decides
/// about itself first: half a reboot cannot be called off.
pub(super) fn called_off(facts: &Facts) -> Option<Decision> {
    let machine = facts.machine.as_ref();
    let (phase, reason, message) = if machine.is_none_or(|machine| machine.uid != facts.spec.machine_uid) {
        let message = format!("Machine {} is gone", facts.spec.machine_name);
        (Phase::Cancelled, "MachineGone", message)
    } else if machine.is_some_and(|machine| machine.is_deleting) {
        let message = format!("Machine {} is being deleted", facts.spec.machine_name);
        (Phase::Cancelled, "MachineDeleted", message)
    } else if facts.is_deleting {
        (
            Phase::Cancelled,
            "Deleted",
            "the NodeUpgrade is deleted".to_owned(),
        )
    } else if let Some(newer) = &facts.newer {
        (
            Phase::Superseded,
            "Superseded",
            format!("NodeUpgrade {newer} takes its place"),
        )
    } else {
        return None;
    };
    let is_going = machine.is_none_or(|machine| machine.is_deleting || machine.uid != facts.spec.machine_uid);
    let Some(host) = facts.reached() else {
        // A host that is away may be in the middle of a reboot. Its machine goes all the same: the host is wiped when it is there again.
        return (is_going || !facts.may_be_rebooting()).then(|| Decision::new(phase, reason, message));
    };
    let is_armed = host.order(Order::Arm).is_some();
    if is_armed && !is_going {
        return None;
    }
    let running = |order: Order| {
        host.order(order)
            .is_some_and(|given| given.state == OrderState::Running)
    };
    let mut decision = Decision::new(phase, reason, message);
    // What is being written cannot be cut off: its end is waited for, and nothing is done with it.
    if running(Order::Prepare) && !is_going {
        decision.phase = Phase::Preparing;
        let message = decision.message.clone();
        decision.plan.wait(reason, message);
        return Some(decision);
    }
    Some(decision)
}
