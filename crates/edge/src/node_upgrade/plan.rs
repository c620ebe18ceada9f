//! What an upgrade does next, and why: pure, from what stands on the host, the node and the machine. There is no state of its own to
//! lose: a manager that starts in the middle, or the other replica, decides the same.
//!
//! Caching and preparing are not felt by anybody and need no permission. From the drain on the policy has to agree. The machine is hidden
//! from health checks from arming until it is ready again, and no longer than the deadline. Every end, good or bad, leaves the
//! node as it was found: not cordoned by us, not hidden by us.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use slipway_capi::frame::{Plan, What};

use super::{
    api::{NodeUpgradeSpec, Phase, Role},
    disturb,
    facts::{Facts, HostFacts, Order, OrderState, ReachedHost},
    fleet::HOST_UNREACHABLE,
    observe::Observed,
    status::ENDED,
    trial, undo,
};
use crate::version::{self, Skew, SkewProblem, Version};

/// While something is under way on the host: its agent tells only whoever asks.
const ASKED_SOON: Duration = Duration::from_secs(10);
/// While nothing is, and what is waited for is watched.
const ASKED_LATER: Duration = Duration::from_mins(1);

/// One idempotent call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Give the host an order.
    Order {
        order: Order,
        attempt: u32,
    },
    /// The host gives up the slot that was prepared and never booted.
    Abandon,
    /// The host need not keep the image in its cache for this upgrade.
    Unpin,
    /// It is this upgrade's turn, and nobody else's, to disturb a machine.
    TakePlace,
    Cordon,
    Uncordon,
    Evict {
        pod: String,
    },
    /// Health checks of machines leave this one alone.
    KeepOff,
    /// They do not any more.
    LetIn,
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order { order, attempt: 1 } => write!(formatter, "order {}", order.name()),
            Self::Order { order, attempt } => write!(formatter, "order {} (try {attempt})", order.name()),
            Self::Abandon => formatter.write_str("give up the prepared slot"),
            Self::Unpin => formatter.write_str("let go of the cached image"),
            Self::TakePlace => formatter.write_str("take its turn"),
            Self::Cordon => formatter.write_str("cordon the node"),
            Self::Uncordon => formatter.write_str("uncordon the node"),
            Self::Evict { pod } => write!(formatter, "evict Pod {pod}"),
            Self::KeepOff => formatter.write_str("keep health checks off the machine"),
            Self::LetIn => formatter.write_str("let health checks of the machine go on"),
        }
    }
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub phase: Phase,
    /// One word, for conditions and events.
    pub reason: &'static str,
    pub message: String,
    pub percent: Option<u32>,
    /// The drain is given up now.
    pub aborts_drain: bool,
    /// The host is told to go back now, for this reason.
    pub goes_back_because: Option<String>,
    /// Its turn goes on.
    pub keeps_place: bool,
    pub plan: Plan<Action>,
}

impl Decision {
    pub(super) fn new(phase: Phase, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            phase,
            reason,
            message: message.into(),
            percent: None,
            aborts_drain: false,
            goes_back_because: None,
            keeps_place: phase.disturbs(),
            plan: Plan::new(),
        }
    }

    pub(super) fn waiting(mut self) -> Self {
        self.plan.wait(self.reason, self.message.clone());
        self
    }

    pub(super) fn waiting_until(mut self, until: Timestamp) -> Self {
        self.plan.wait(self.reason, self.message.clone()).until(until);
        self
    }

    /// Its turn goes on, unless it has ended or is given up.
    pub(super) fn keeping_place(mut self) -> Self {
        self.keeps_place = !self.phase.is_terminal() && !self.aborts_drain;
        self
    }

    pub(super) fn doing(mut self, action: Action, why: impl Into<String>) -> Self {
        self.plan.then(action, why);
        self
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self
            .percent
            .map(|percent| format!(" {percent} %"))
            .unwrap_or_default();
        writeln!(formatter, "{}{percent}: {}", self.phase, self.message)?;
        write!(formatter, "{}", self.plan)
    }
}

/// How long a failed order waits before it is tried again: half a minute, doubled every time, at most an hour.
pub(crate) fn backoff(attempt: u32) -> SignedDuration {
    SignedDuration::from_secs((30_i64 << attempt.saturating_sub(1).min(7)).min(3600))
}

pub(super) fn after(time: Timestamp, minutes: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_mins(minutes))
        .unwrap_or(Timestamp::MAX)
}

/// What is done about it: what was decided, the end that is told once, and when hosts are asked again.
pub fn plan(observed: &Observed) -> Plan<Action> {
    let decision = observed.decision();
    let before = observed.facts.recorded.phase;
    let mut plan = decision.plan.clone();
    let is_told = plan
        .entries
        .iter()
        .any(|entry| matches!(entry.what, What::Report(_)));
    if decision.phase.is_terminal() && !before.is_terminal() && !is_told {
        let told = plan.report(decision.reason, decision.message.clone());
        if !matches!(decision.phase, Phase::Done | Phase::Superseded | Phase::Cancelled) {
            told.warned(decision.reason);
        }
    }
    if observed.is_settled() {
        if observed.facts.is_deleting && before.is_terminal() {
            plan.release_finalizer("nothing of it is left");
        }
        return plan;
    }
    let is_idle = matches!(decision.phase, Phase::Pending | Phase::Prepared);
    let after = if is_idle { ASKED_LATER } else { ASKED_SOON };
    plan.revisit(after, "hosts and nodes tell only whoever asks");
    plan
}

pub fn decide(facts: &Facts, now: Timestamp) -> Decision {
    let decision = next(facts, now);
    if decision.phase.disturbs() {
        decision
    } else {
        undo::left_as_found(facts, decision)
    }
}

fn next(facts: &Facts, now: Timestamp) -> Decision {
    if facts.recorded.phase.is_terminal() {
        return Decision::new(facts.recorded.phase, ENDED, facts.recorded.message.clone());
    }
    if let Some(decision) = undo::called_off(facts) {
        return decision;
    }
    let host = match &facts.host {
        HostFacts::Reached(host) => host,
        HostFacts::Unreachable { why } => return unreachable(facts, why, now),
    };
    if let Some(order) = host.order(Order::Rollback) {
        return trial::rolling_back(facts, host, order, now);
    }
    if host.runs(&facts.spec.image.digest) {
        return trial::verify(facts, host, now);
    }
    match host.order(Order::Arm) {
        Some(order) => trial::armed(facts, host, order, now),
        // The host has left a slot that was armed, and does not remember. One that still holds the slot was never told to boot it.
        None if facts.recorded.phase >= Phase::Rebooting && !host.holds_slot => {
            trial::rolled_back("the host does not run the image and has no record of why it left it")
        }
        None => before_arming(facts, host, now),
    }
}

/// Nothing is known of the host. In the middle of a reboot that is as it should be, up to the deadline.
fn unreachable(facts: &Facts, why: &str, now: Timestamp) -> Decision {
    let message = format!("host {} does not answer: {why}", facts.spec.host_name);
    let phase = match facts.recorded.phase {
        // Whoever keeps health checks off was about to reboot the host, whatever the status has forgotten.
        phase if facts.may_be_rebooting() => phase.max(Phase::Rebooting),
        // A drain does not go on without the host, and the node is not kept from its work meanwhile.
        Phase::Draining => Phase::Prepared,
        phase => phase,
    };
    let decision = Decision::new(phase, HOST_UNREACHABLE, message);
    match let_in_at(facts) {
        Some(deadline) if now < deadline => decision.waiting_until(deadline),
        Some(_) if phase.disturbs() => decision
            .doing(
                Action::LetIn,
                "the host was to be there again by now, so its machine is checked like any other",
            )
            .waiting(),
        _ => decision.waiting(),
    }
}

/// When health checks are let in again at the latest, if they are kept off.
pub(super) fn let_in_at(facts: &Facts) -> Option<Timestamp> {
    let since = facts.machine.as_ref()?.kept_off_since?;
    Some(after(since, facts.spec.deadlines.reboot_minutes()))
}

fn before_arming(facts: &Facts, host: &ReachedHost, now: Timestamp) -> Decision {
    if let Some(why) = &host.quarantined {
        let message = format!(
            "image {} has failed on this host before and is not tried again: {why}",
            facts.spec.image.short()
        );
        return failed("Quarantined", message);
    }
    if let Err(problem) = skew(facts)
        && !matches!(
            problem,
            SkewProblem::AheadOfControlPlane { .. } | SkewProblem::WorkerTooOld { .. }
        )
    {
        return failed("VersionSkew", problem.to_string());
    }
    for (order, phase, doing) in [
        (Order::Ensure, Phase::Caching, "fetching the image"),
        (
            Order::Prepare,
            Phase::Preparing,
            "writing the slot that does not run",
        ),
    ] {
        if let Some(decision) = ordered(host, order, phase, doing, now) {
            return decision;
        }
    }
    if !host.holds_slot {
        let attempt = host.order(Order::Prepare).map_or(1, |given| given.attempt + 1);
        let again = Action::Order {
            order: Order::Prepare,
            attempt,
        };
        return Decision::new(
            Phase::Preparing,
            "SlotGivenUp",
            "writing the slot that does not run, again",
        )
        .doing(again, "the host has given it up since");
    }
    disturb::before_draining(facts, host, now)
}

/// Gives an order, waits for it, or tries it again. `None`: it has succeeded.
pub(super) fn ordered(
    host: &ReachedHost,
    order: Order,
    phase: Phase,
    doing: &str,
    now: Timestamp,
) -> Option<Decision> {
    let Some(given) = host.order(order) else {
        let first = Action::Order { order, attempt: 1 };
        return Some(Decision::new(phase, "Ordered", doing).doing(first, "it comes next"));
    };
    let attempt = given.attempt;
    Some(match given.state {
        OrderState::Succeeded => return None,
        OrderState::Running => {
            let mut decision = Decision::new(phase, "Running", doing);
            decision.percent = given.percent.map(|percent| percent.min(100) / 5 * 5);
            decision.waiting()
        }
        OrderState::Interrupted => Decision::new(phase, "Interrupted", format!("{doing}, again")).doing(
            Action::Order { order, attempt },
            "the agent was restarted under it, and the same order goes on",
        ),
        OrderState::FailedForGood => failed("OrderFailed", format!("{doing} failed: {}", given.message)),
        OrderState::FailedForNow => {
            let again = given
                .ended_at
                .unwrap_or(given.accepted_at)
                .checked_add(backoff(attempt))
                .unwrap_or(Timestamp::MAX);
            let message = format!("{doing} failed: {}", given.message);
            if now < again {
                Decision::new(phase, "Retrying", message).waiting_until(again)
            } else {
                let attempt = attempt + 1;
                Decision::new(phase, "Retrying", message).doing(
                    Action::Order { order, attempt },
                    "the last try failed, and may not again",
                )
            }
        }
    })
}

pub(super) fn skew(facts: &Facts) -> Result<(), SkewProblem> {
    let Ok(to) = facts.spec.version.parse::<Version>() else {
        // Admission refuses it; without one nothing can be compared, and the kubelet's version is checked to the letter in the end.
        return Ok(());
    };
    version::check(&Skew {
        from: facts.running_version().as_ref(),
        to: &to,
        is_control_plane: facts.spec.role == Role::ControlPlane,
        control_plane: facts.cluster.control_plane.as_ref(),
        oldest_worker: facts.cluster.oldest_worker.as_ref(),
        allow_downgrade: facts.spec.allow_downgrade,
    })
}

/// How etcd is saved on its only server, program first.
pub fn snapshot_command(spec: &NodeUpgradeSpec, id: &str) -> Vec<String> {
    if !spec.snapshot_command.is_empty() {
        return spec.snapshot_command.clone();
    }
    ["k3s", "etcd-snapshot", "save", "--name", id]
        .map(ToOwned::to_owned)
        .into()
}

pub(super) fn failed(reason: &'static str, message: String) -> Decision {
    Decision::new(Phase::Failed, reason, message)
}
