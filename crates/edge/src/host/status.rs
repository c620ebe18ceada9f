//! What an EdgeHost says of itself: pure.

use jiff::Timestamp;
use slipway_capi::{
    condition::{self, Report, Status},
    names::{condition as condition_type, reason},
};

use super::{
    api::{EdgeHost, EdgeHostStatus},
    inventory,
    observe::{Agent, Observed},
    release::Claimant,
};

/// Whether its agent answers.
pub const REACHABLE: &str = "Reachable";
/// Whether an EdgeMachine has it.
pub const CLAIMED: &str = "Claimed";
/// The reason for `Claimed=Unknown`.
pub const CLAIMANT_MISSING: &str = "ClaimantMissing";

/// Why nothing is to be done to it that can be felt: as its spec says, or a person on site.
pub fn maintenance(host: &EdgeHost) -> Option<String> {
    host.spec.maintenance.clone().or_else(|| {
        let held = host.status.as_ref()?.maintenance.as_ref()?;
        Some(format!("{} ({})", held.reason, held.by))
    })
}

/// The reason of a host that is another EdgeHost's.
pub const NAME_TAKEN: &str = "NameTaken";

/// Whether the host is another EdgeHost's, of the same name in another namespace.
pub fn is_taken(host: &EdgeHost) -> bool {
    let status = host.status.as_ref();
    let found = status.and_then(|status| condition::find(&status.conditions, REACHABLE));
    found.is_some_and(|found| found.reason == NAME_TAKEN)
}

pub fn is_reachable(host: &EdgeHost) -> bool {
    let status = host.status.as_ref();
    status.is_some_and(|status| {
        condition::find(&status.conditions, REACHABLE).is_some_and(|found| found.status == "True")
    })
}

pub fn status(observed: &Observed, now: Timestamp) -> EdgeHostStatus {
    let host = &observed.host;
    let before = host.status.clone().unwrap_or_default();
    // What a host was that does not answer is still the best that is known.
    let mut status = match &observed.agent {
        Agent::Answers(answer) => EdgeHostStatus {
            conditions: before.conditions,
            ..inventory::status(answer)
        },
        Agent::Silent(_) | Agent::NotAsked => before,
    };
    let reachable = reachable(observed);
    let ready = ready(observed, &status, &reachable);
    for report in [reachable, claimed(observed), ready] {
        condition::set(&mut status.conditions, &report, host.metadata.generation, now);
    }
    status
}

fn reachable(observed: &Observed) -> Report {
    let no = |reason, message: String| Report::new(REACHABLE, Status::False, reason, message);
    match (&observed.agent, &observed.taken_in) {
        (_, Some(namespace)) => no(
            NAME_TAKEN,
            format!("the host is the EdgeHost of the same name in namespace {namespace}"),
        ),
        (Agent::Silent(why), None) => no("Unreachable", why.clone()),
        (Agent::NotAsked, None) => no("Unreachable", String::new()),
        (Agent::Answers(_), None) => Report::new(REACHABLE, Status::True, "Answers", ""),
    }
}

fn claimed(observed: &Observed) -> Report {
    let Some(claim) = &observed.host.spec.claim else {
        return Report::new(CLAIMED, Status::False, "Free", "");
    };
    let name = &claim.name;
    if claim.released {
        let message = format!("EdgeMachine {name} has let go of it, and it is wiped");
        return Report::new(CLAIMED, Status::True, "Wiping", message);
    }
    match observed.claimant {
        Claimant::Present => Report::new(
            CLAIMED,
            Status::True,
            "Claimed",
            format!("EdgeMachine {name} has it"),
        ),
        Claimant::NotSeen | Claimant::Gone => {
            let message = format!("EdgeMachine {name} is not there and has not released the host");
            Report::new(CLAIMED, Status::Unknown, CLAIMANT_MISSING, message)
        }
    }
}

fn ready(observed: &Observed, status: &EdgeHostStatus, reachable: &Report) -> Report {
    let no =
        |reason: &str, message: String| Report::new(condition_type::READY, Status::False, reason, message);
    if reachable.status != Status::True {
        return no(&reachable.reason, reachable.message.clone());
    }
    let mut shown = observed.host.clone();
    shown.status = Some(status.clone());
    if let Some(why) = maintenance(&shown) {
        return no("Maintenance", why);
    }
    if status.hardware.is_none() {
        return no(
            "NoInventory",
            "the agent has not told what the host is".to_owned(),
        );
    }
    Report::new(condition_type::READY, Status::True, reason::READY, "")
}
