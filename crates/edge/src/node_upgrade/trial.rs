//! From a host that was told to boot its new slot to a node that is ready again, or to the slot it came from.

use jiff::Timestamp;

use super::{
    api::{Distribution, Phase},
    facts::{Facts, Order, OrderFacts, OrderState, ReachedHost},
    plan::{Action, Decision, after, failed, let_in_at, ordered},
};

/// The host was told to boot the new slot.
pub(super) fn armed(facts: &Facts, host: &ReachedHost, order: &OrderFacts, now: Timestamp) -> Decision {
    let deadline = after(order.accepted_at, facts.spec.deadlines.reboot_minutes());
    match order.state {
        OrderState::Running | OrderState::Interrupted => {
            let message = if host.has_booted(&facts.spec.image.digest) {
                "the new slot runs on trial"
            } else {
                "the host reboots into the new slot"
            };
            let mut decision = Decision::new(Phase::Rebooting, "Rebooting", message);
            if order.state == OrderState::Interrupted {
                let attempt = order.attempt;
                let again = Action::Order {
                    order: Order::Arm,
                    attempt,
                };
                decision = decision.doing(
                    again,
                    "the agent was restarted under it, and the same order goes on",
                );
            }
            if now < deadline {
                return decision.waiting_until(deadline);
            }
            decision.reason = "Overdue";
            decision.message = format!(
                "{message}, and was to have decided within {} minutes",
                facts.spec.deadlines.reboot_minutes()
            );
            if let_in_at(facts).is_some_and(|deadline| now >= deadline) {
                decision.plan.regardless(
                    Action::LetIn,
                    "the deadline has passed, so the machine is checked like any other",
                );
            }
            decision.waiting()
        }
        OrderState::Succeeded => rolled_back(host.left_because.as_deref().unwrap_or(&order.message)),
        // Refused before anything was changed, or the boot store could not be written: the old slot runs.
        OrderState::FailedForGood | OrderState::FailedForNow => failed(
            "OrderFailed",
            format!("arming the new slot failed: {}", order.message),
        ),
    }
}

/// The host runs the image. Then Kubernetes has to.
pub(super) fn verify(facts: &Facts, host: &ReachedHost, now: Timestamp) -> Decision {
    // A host may have forgotten that it was told to. Who never was runs the image since before it was asked for, or by somebody else's order.
    let decided = match host.order(Order::Arm) {
        Some(order) => order.ended_at,
        None => facts
            .machine
            .as_ref()
            .and_then(|machine| machine.kept_off_since)
            .or(facts.created),
    };
    let decided = decided.unwrap_or(now);
    if facts.spec.distribution == Distribution::Kubeadm
        && let Some(decision) = ordered(
            host,
            Order::Kubernetes,
            Phase::Verifying,
            "running kubeadm upgrade",
            now,
        )
    {
        // A step that fails for good on the new slot is a reason to go back, not to stay.
        let failed = host
            .order(Order::Kubernetes)
            .filter(|order| order.state == OrderState::FailedForGood);
        return match failed {
            Some(order) => go_back(&format!("kubeadm upgrade failed: {}", order.message)),
            None => decision,
        };
    }
    let deadline = after(decided, facts.spec.deadlines.verify_minutes());
    let missing = match &facts.node {
        None => Some("the node is not there".to_owned()),
        Some(node) if node.kubelet_version != facts.spec.version => Some(format!(
            "the kubelet reports {} and not {}",
            node.kubelet_version, facts.spec.version
        )),
        Some(node) if !node.is_ready => Some("the node is not ready".to_owned()),
        Some(_) => None,
    };
    let Some(missing) = missing else {
        let message = format!(
            "the node runs {} from image {}",
            facts.spec.version,
            facts.spec.image.short()
        );
        return Decision::new(Phase::Done, "Upgraded", message);
    };
    if now < deadline {
        let mut decision = Decision::new(Phase::Verifying, "Verifying", missing);
        if let_in_at(facts).is_some_and(|deadline| now >= deadline) {
            decision.plan.regardless(
                Action::LetIn,
                "the deadline has passed, so the machine is checked like any other",
            );
        }
        return decision.waiting_until(deadline);
    }
    // Without an order to arm it was not this upgrade that brought the host here: it is not for it to go back.
    if host.order(Order::Arm).is_none() {
        return failed("NotVerified", missing);
    }
    go_back(&format!(
        "after {} minutes {missing}",
        facts.spec.deadlines.verify_minutes()
    ))
}

fn go_back(why: &str) -> Decision {
    let mut decision = Decision::new(Phase::RollingBack, "RollingBack", why);
    decision.goes_back_because = Some(why.to_owned());
    let rollback = Action::Order {
        order: Order::Rollback,
        attempt: 1,
    };
    decision
        .plan
        .then(Action::KeepOff, "its node is away while the host reboots again");
    decision.plan.then(rollback, why).warned("RollingBack");
    decision
}

pub(super) fn rolling_back(
    facts: &Facts,
    host: &ReachedHost,
    order: &OrderFacts,
    now: Timestamp,
) -> Decision {
    let why = facts
        .recorded
        .rollback_reason
        .as_deref()
        .or(host.left_because.as_deref())
        .unwrap_or("it was told to, and the reason is not recorded");
    if !host.has_booted(&facts.spec.image.digest) && order.state != OrderState::Running {
        return rolled_back(why);
    }
    match order.state {
        OrderState::Running | OrderState::Succeeded | OrderState::Interrupted => {
            let decision = Decision::new(Phase::RollingBack, "RollingBack", why);
            let deadline = after(order.accepted_at, facts.spec.deadlines.reboot_minutes());
            if now < deadline {
                return decision.waiting_until(deadline);
            }
            failed(
                "NotRolledBack",
                format!(
                    "the host was told to go back and still runs the image: {}",
                    order.message
                ),
            )
        }
        OrderState::FailedForGood | OrderState::FailedForNow => failed(
            "NotRolledBack",
            format!("the host cannot go back: {}", order.message),
        ),
    }
}

pub(super) fn rolled_back(why: &str) -> Decision {
    let mut decision = Decision::new(Phase::RolledBack, "RolledBack", why);
    decision
        .plan
        .report("RolledBack", format!("the host went back: {why}"))
        .warned("RolledBack");
    decision
}
