//! How a host is let go: pure. A claim that was released is wiped off the host, and only then is the host free. Nobody but its
//! machine releases a claim while the machine exists; one whose machine is gone is released here.

use std::fmt;

use super::api::Claim;

/// The EdgeMachine that a claim names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Claimant {
    Present,
    /// No EdgeMachine has the claim's uid, as far as the watch shows.
    NotSeen,
    /// The same, and the apiserver itself was asked.
    Gone,
}

/// How far the host is wiped of this claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wipe {
    NotOrdered,
    Running,
    Done,
    /// It is ordered again: every part of it can be repeated.
    Failed {
        attempt: u32,
        message: String,
    },
    /// The host does not answer.
    Unreachable(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The host is its machine's, or nobody's.
    Keep,
    /// The claimant is looked up at the apiserver before anything is released.
    Confirm,
    Release {
        why: String,
    },
    OrderWipe {
        attempt: u32,
        why: String,
    },
    /// Take the claim out of the host.
    Free {
        why: String,
    },
    Wait {
        reason: &'static str,
        message: String,
    },
}

impl fmt::Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => formatter.write_str("keep"),
            Self::Confirm => formatter.write_str("look up the claimant"),
            Self::Release { why } => write!(formatter, "release the claim: {why}"),
            Self::OrderWipe { attempt: 1, why } => write!(formatter, "wipe the host: {why}"),
            Self::OrderWipe { attempt, why } => write!(formatter, "wipe the host (try {attempt}): {why}"),
            Self::Free { why } => write!(formatter, "free the host: {why}"),
            Self::Wait { reason, message } => write!(formatter, "wait {reason}: {message}"),
        }
    }
}

/// The id of the order: one for one try to wipe one claim, however often it is sent.
pub fn operation_id(claim: &Claim, attempt: u32) -> String {
    format!("wipe-{}-{attempt}", claim.uid)
}

/// Which try to wipe this claim an order was, if it was one.
pub fn attempt_of(claim: &Claim, operation: &str) -> Option<u32> {
    let attempt = operation.strip_prefix("wipe-")?.strip_prefix(&claim.uid)?;
    attempt.strip_prefix('-')?.parse().ok()
}

pub fn decide(claim: Option<&Claim>, claimant: Claimant, wipe: &Wipe) -> Decision {
    let Some(claim) = claim else {
        return Decision::Keep;
    };
    if !claim.released {
        return match claimant {
            Claimant::Present => Decision::Keep,
            Claimant::NotSeen => Decision::Confirm,
            Claimant::Gone => Decision::Release {
                why: format!("EdgeMachine {} is gone", claim.name),
            },
        };
    }
    match wipe {
        Wipe::NotOrdered => Decision::OrderWipe {
            attempt: 1,
            why: format!("EdgeMachine {} has let go of it", claim.name),
        },
        Wipe::Failed { attempt, message } => Decision::OrderWipe {
            attempt: attempt + 1,
            why: format!("the last try failed: {message}"),
        },
        Wipe::Running => Decision::Wait {
            reason: "Wiping",
            message: "data and secrets of the last machine are being removed".to_owned(),
        },
        Wipe::Unreachable(why) => Decision::Wait {
            reason: "Unreachable",
            message: format!("the host is wiped when it answers: {why}"),
        },
        Wipe::Done => Decision::Free {
            why: "nothing is left of the last machine".to_owned(),
        },
    }
}
