//! The next action, from the facts alone.

use crate::Slot;
use crate::boot::{BootChange, SlotBoot};

use super::{Action, Current, Decision, Entry, Facts, Health, Outcome, Progress};

/// What to do next. Carrying the action out changes the facts; the same facts give the same decision.
pub fn decide(facts: &Facts) -> Decision {
    if facts.volatile.rebooting {
        return decision(Action::Wait, "the host is rebooting");
    }
    let Some(booted) = facts.booted else {
        return decision(
            Action::Recover,
            "the agent does not run from slot A or B: choose an image and write it to a slot",
        );
    };
    match &facts.ledger.current {
        None => without_operation(facts, booted),
        Some(current) => with_operation(facts, booted, current),
    }
}

fn decision(action: Action, reason: impl Into<String>) -> Decision {
    Decision {
        action,
        reason: reason.into(),
    }
}

/// Nothing is under way, or the journal that told of it is lost.
fn without_operation(facts: &Facts, booted: Slot) -> Decision {
    let other = booted.other();
    match (facts.boot.slots[booted], facts.boot.slots[other]) {
        (SlotBoot::Trial { .. }, fallback) => match &facts.volatile.health {
            Health::Unknown => decision(Action::CheckHealth, format!("slot {booted} is on trial")),
            Health::Passed => decision(
                Action::Boot(BootChange::Confirm {
                    slot: booted,
                    epoch: facts.booted_image.as_ref().map_or(0, |image| image.epoch),
                }),
                "the health checks passed",
            ),
            Health::Failed(reason) if fallback == SlotBoot::Good => {
                decision(Action::Boot(BootChange::MakeUnbootable(booted)), reason)
            }
            Health::Failed(reason) => decision(
                Action::Recover,
                format!("{reason}; slot {other} cannot take over"),
            ),
        },
        (SlotBoot::Unbootable, SlotBoot::Good) => decision(
            Action::Reboot,
            format!("slot {booted} was found bad and slot {other} is good"),
        ),
        (SlotBoot::Unbootable, _) => decision(
            Action::Recover,
            format!("the boot store calls the running slot {booted} unbootable and knows no good one"),
        ),
        (SlotBoot::Good, SlotBoot::Trial { left, of }) if left < of => decision(
            Action::Boot(BootChange::MakeUnbootable(other)),
            format!("slot {other} was tried and left, and no journal tells why"),
        ),
        (SlotBoot::Good, _) => decision(
            Action::Wait,
            format!("slot {booted} is good; nothing is under way"),
        ),
    }
}

fn with_operation(facts: &Facts, booted: Slot, current: &Current) -> Decision {
    let target = current.operation.target;
    match &current.progress {
        Progress::RollingBack { reason, quarantine } => {
            rolling_back(facts, booted, current, reason, *quarantine)
        }
        Progress::Accepted if booted == target => end(
            current,
            Outcome::Failed {
                reason: format!("the host booted slot {target} before it was written"),
            },
            "a running slot is never written",
        ),
        Progress::Accepted => preparing(facts, current),
        Progress::Verified if booted == target => end(
            current,
            Outcome::Failed {
                reason: format!("the host booted slot {target} though it was not armed"),
            },
            "a running slot is never armed",
        ),
        Progress::Verified => decision(Action::Wait, format!("slot {target} is prepared; activate it")),
        Progress::Activated { tries } if booted == target => on_trial(facts, booted, current, *tries),
        Progress::Activated { tries } => activating(facts, current, *tries),
    }
}

fn preparing(facts: &Facts, current: &Current) -> Decision {
    let target = current.operation.target;
    if facts.boot.slots[target] != SlotBoot::Unbootable {
        return decision(
            Action::Boot(BootChange::MakeUnbootable(target)),
            format!("slot {target} is about to be written"),
        );
    }
    match (&facts.volatile.written, &facts.volatile.read_back) {
        (None, _) => decision(
            Action::Write,
            format!(
                "slot {target} is to hold {} ({})",
                current.operation.version,
                current.operation.image.short()
            ),
        ),
        (Some(Err(reason)), _) | (_, Some(Err(reason))) => end(
            current,
            Outcome::Failed {
                reason: reason.clone(),
            },
            "the slot is not what the manifest says",
        ),
        (Some(Ok(())), None) => decision(Action::Verify, "everything is written"),
        (Some(Ok(())), Some(Ok(()))) => progressed(
            current,
            Progress::Verified,
            "the slot was read back and is what the manifest says",
        ),
    }
}

fn activating(facts: &Facts, current: &Current, tries: u8) -> Decision {
    let target = current.operation.target;
    match facts.boot.slots[target] {
        SlotBoot::Unbootable => match &facts.volatile.read_back {
            None => decision(Action::Verify, "a slot is armed only by who has read it back"),
            Some(Ok(())) => decision(
                Action::Boot(BootChange::Arm { slot: target, tries }),
                "the slot was read back and is to be booted",
            ),
            Some(Err(reason)) => end(
                current,
                Outcome::Failed {
                    reason: reason.clone(),
                },
                "the slot is no longer what the manifest says",
            ),
        },
        SlotBoot::Trial { left, of } if left == of => {
            decision(Action::Reboot, format!("slot {target} is armed with {of} tries"))
        }
        SlotBoot::Trial { left: 0, of } => roll(
            current,
            format!("slot {target} did not come up in {of} tries"),
            "the boot loader returned to the old slot",
        ),
        SlotBoot::Trial { left, of } => roll(
            current,
            format!("slot {target} was left after {} of {of} tries", of - left),
            "the old slot was booted before the tries were used up",
        ),
        SlotBoot::Good => end(
            current,
            Outcome::Confirmed,
            "the boot store says that it was confirmed; the other slot was booted since",
        ),
    }
}

fn on_trial(facts: &Facts, booted: Slot, current: &Current, tries: u8) -> Decision {
    match facts.boot.slots[booted] {
        SlotBoot::Good => end(
            current,
            Outcome::Confirmed,
            "the boot store says that it was confirmed",
        ),
        SlotBoot::Unbootable => roll(
            current,
            format!("the boot store calls slot {booted} unbootable while it runs"),
            "what the boot store gave up is left",
        ),
        SlotBoot::Trial { .. } => match &facts.volatile.health {
            Health::Unknown => decision(
                Action::CheckHealth,
                format!("slot {booted} is on trial with {tries} tries"),
            ),
            Health::Passed => decision(
                Action::Boot(BootChange::Confirm {
                    slot: booted,
                    epoch: current.operation.epoch,
                }),
                "the health checks passed",
            ),
            Health::Failed(reason) if facts.boot.slots[booted.other()] == SlotBoot::Good => {
                roll(current, reason.clone(), "the health checks failed")
            }
            Health::Failed(reason) => decision(
                Action::Recover,
                format!("{reason}; slot {} cannot take over", booted.other()),
            ),
        },
    }
}

fn rolling_back(facts: &Facts, booted: Slot, current: &Current, reason: &str, quarantine: bool) -> Decision {
    let target = current.operation.target;
    let other = target.other();
    if facts.boot.slots[other] != SlotBoot::Good {
        return decision(
            Action::Recover,
            format!("{reason}; slot {other} cannot take over"),
        );
    }
    if facts.boot.slots[target] != SlotBoot::Unbootable {
        return decision(Action::Boot(BootChange::MakeUnbootable(target)), reason);
    }
    if booted == target {
        return decision(Action::Reboot, format!("slot {target} is given up: {reason}"));
    }
    let outcome = if quarantine {
        Outcome::RolledBack {
            reason: reason.to_owned(),
            quarantine,
        }
    } else {
        Outcome::Cancelled
    };
    end(current, outcome, &format!("slot {other} runs again"))
}

fn end(current: &Current, outcome: Outcome, reason: &str) -> Decision {
    decision(
        Action::Record(Entry::Ended {
            id: current.operation.id.clone(),
            outcome,
        }),
        reason,
    )
}

fn progressed(current: &Current, progress: Progress, reason: &str) -> Decision {
    decision(
        Action::Record(Entry::Progressed {
            id: current.operation.id.clone(),
            progress,
        }),
        reason,
    )
}

fn roll(current: &Current, why: String, reason: &str) -> Decision {
    progressed(
        current,
        Progress::RollingBack {
            reason: why,
            quarantine: true,
        },
        reason,
    )
}
