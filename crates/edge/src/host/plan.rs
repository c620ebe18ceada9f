//! What an EdgeHost does next, and why: pure. Mostly nothing: its agent is asked now and then. A host that was released is wiped, and
//! only then is it free.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use slipway_capi::{condition, frame::Plan};

use super::{
    observe::{Agent, Observed, Orphan},
    release::{Claimant, Decision, Wipe, decide},
    status::{CLAIMANT_MISSING, CLAIMED},
};
use crate::node_upgrade::plan::backoff;

/// How long a claim outlives its machine. A machine that is deleted releases its claim itself, so whoever is missing without that is
/// mostly on its way: `clusterctl move` makes and deletes hosts and machines one after the other.
const CLAIMANT_MAY_BE_MISSING: SignedDuration = SignedDuration::from_hours(1);
/// The agent's protocol has no watch on what a host is.
const ASKED_EVERY: Duration = Duration::from_mins(1);
/// While it is wiped, or does not answer.
const ASKED_SOON: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Mark the claim as released, over the version that was read.
    Release,
    OrderWipe {
        attempt: u32,
    },
    /// Take the claim out of the host, over the version that was read.
    Free,
    /// Let go of an image that is kept for a job that is gone.
    Unpin(Orphan),
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Release => formatter.write_str("release the claim"),
            Self::OrderWipe { attempt: 1 } => formatter.write_str("wipe the host"),
            Self::OrderWipe { attempt } => write!(formatter, "wipe the host (try {attempt})"),
            Self::Free => formatter.write_str("free the host"),
            Self::Unpin(orphan) => write!(formatter, "let go of {} for {}", orphan.digest, orphan.owner),
        }
    }
}

/// Whether the claimant is looked up at the apiserver: only before a host is taken from it.
pub fn needs_confirmation(observed: &Observed) -> bool {
    let now = observed.now;
    let is_claimed = observed
        .host
        .spec
        .claim
        .as_ref()
        .is_some_and(|claim| !claim.released);
    is_claimed && observed.claimant == Claimant::NotSeen && now >= missing_until(observed, now)
}

/// Until when a claimant that is not there is waited for.
fn missing_until(observed: &Observed, now: Timestamp) -> Timestamp {
    let status = observed.host.status.as_ref();
    let since = status
        .and_then(|status| condition::find(&status.conditions, CLAIMED))
        .filter(|found| found.reason == CLAIMANT_MISSING)
        .map_or(now, |found| found.last_transition_time.0);
    since
        .checked_add(CLAIMANT_MAY_BE_MISSING)
        .unwrap_or(Timestamp::MAX)
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan<Action> {
    let mut plan = Plan::new();
    if let Some(namespace) = &observed.taken_in {
        plan.wait(
            "NameTaken",
            format!("the host is the EdgeHost of the same name in namespace {namespace}"),
        );
    } else {
        release(observed, now, &mut plan);
    }
    let host = &observed.host;
    if host.metadata.deletion_timestamp.is_some() && plan.actions().next().is_none() {
        match &host.spec.claim {
            Some(claim) if observed.taken_in.is_none() => {
                let message = format!("EdgeMachine {} has the host", claim.name);
                plan.wait("Claimed", message);
            }
            _ => {
                // What is waited for concerns the host, which goes on without this object.
                plan.entries.clear();
                plan.release_finalizer("nobody has the host");
            }
        }
    }
    for orphan in &observed.orphans {
        plan.regardless(Action::Unpin(orphan.clone()), "the HostImage is gone");
    }
    let is_settled = matches!(observed.agent, Agent::Answers(_)) && plan.is_empty();
    plan.revisit(
        if is_settled { ASKED_EVERY } else { ASKED_SOON },
        "the agent's protocol has no watch on what a host is",
    );
    plan
}

fn release(observed: &Observed, now: Timestamp, plan: &mut Plan<Action>) {
    let claim = observed.host.spec.claim.as_ref();
    match decide(claim, observed.claimant, &observed.wipe) {
        Decision::Keep => {}
        Decision::Confirm => {
            let name = claim.map(|claim| claim.name.as_str()).unwrap_or_default();
            let message = format!("EdgeMachine {name} is not there and has not released the host");
            plan.wait(CLAIMANT_MISSING, message)
                .until(missing_until(observed, now));
        }
        Decision::Release { why } => {
            plan.then(Action::Release, why).warned("ClaimantGone");
        }
        Decision::OrderWipe { attempt, why } => {
            let again = observed
                .wipe_ended
                .and_then(|ended| ended.checked_add(backoff(attempt - 1)).ok());
            match (again, &observed.wipe) {
                (Some(again), Wipe::Failed { message, .. }) if now < again => {
                    plan.wait("WipeFailed", format!("the host could not be wiped: {message}"))
                        .until(again);
                }
                _ => {
                    plan.then(Action::OrderWipe { attempt }, why);
                }
            }
        }
        Decision::Free { why } => {
            plan.then(Action::Free, why).announced("Wiped");
        }
        Decision::Wait { reason, message } => {
            plan.wait(reason, message);
        }
    }
}
