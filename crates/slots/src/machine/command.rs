//! What somebody may ask for, and when it is refused. Each gives the line to write to the journal, or nothing when it
//! is so already.

use crate::boot::{MAX_TRIES, SlotBoot};
use crate::{Digest, Slot};

use super::{Current, Entry, Facts, Operation, Outcome, Progress};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("operation {running} is under way: wait for its end or cancel it")]
    Busy { running: String },
    #[error("operation {id} is for image {running}, not {asked}: use an id of its own for each image")]
    OtherImage {
        id: String,
        running: String,
        asked: String,
    },
    #[error("operation {id} has ended: {how}")]
    Ended { id: String, how: String },
    #[error("there is no operation {id}")]
    Unknown { id: String },
    #[error("slot {0} runs and is not confirmed yet: nothing is written before it is")]
    OnTrial(Slot),
    #[error("slot {0} runs: it is never written")]
    Running(Slot),
    #[error("the agent does not run from slot A or B")]
    NotBooted,
    #[error("image {image} is quarantined on this host: {reason}")]
    Quarantined { image: String, reason: String },
    #[error("operation {id} is not prepared yet")]
    NotPrepared { id: String },
    #[error("operation {id} is being rolled back: {reason}")]
    RollingBack { id: String, reason: String },
    #[error("operation {id} is not on trial: there is nothing to confirm")]
    NotOnTrial { id: String },
    #[error("operation {id} runs on trial: roll it back instead")]
    AlreadyBooted { id: String },
    #[error("slot {0} cannot take over: it is {1}")]
    NoFallback(Slot, SlotBoot),
    #[error("{0} tries: 1 to {MAX_TRIES} can be counted")]
    Tries(u8),
}

/// Begins to bring `image` to the slot that does not run. The target of `operation` is not the caller's choice.
pub fn accept(
    facts: &Facts,
    id: &str,
    image: Digest,
    version: &str,
    epoch: u64,
) -> Result<Option<Entry>, Refused> {
    if let Some(current) = &facts.ledger.current {
        let running = &current.operation;
        if running.id != id {
            return Err(Refused::Busy {
                running: running.id.clone(),
            });
        }
        if running.image != image {
            return Err(Refused::OtherImage {
                id: id.to_owned(),
                running: running.image.short(),
                asked: image.short(),
            });
        }
        return Ok(None);
    }
    if let Some(ended) = facts.ledger.ended(id)
        && !matches!(ended.outcome, Outcome::Failed { .. } | Outcome::Cancelled)
    {
        return match &ended.outcome {
            Outcome::Confirmed if ended.operation.image == image => Ok(None),
            outcome => Err(Refused::Ended {
                id: id.to_owned(),
                how: describe(outcome),
            }),
        };
    }
    if let Some(reason) = facts.ledger.quarantined.get(&image) {
        return Err(Refused::Quarantined {
            image: image.short(),
            reason: reason.clone(),
        });
    }
    let booted = facts.booted.ok_or(Refused::NotBooted)?;
    if facts.boot.slots[booted] != SlotBoot::Good {
        return Err(Refused::OnTrial(booted));
    }
    Ok(Some(Entry::Accepted(Operation {
        id: id.to_owned(),
        image,
        version: version.to_owned(),
        epoch,
        target: booted.other(),
    })))
}

/// The prepared slot is to be booted.
pub fn activate(facts: &Facts, id: &str, tries: u8) -> Result<Option<Entry>, Refused> {
    if !(1..=MAX_TRIES).contains(&tries) {
        return Err(Refused::Tries(tries));
    }
    let current = running(facts, id)?;
    match &current.progress {
        Progress::Accepted => Err(Refused::NotPrepared { id: id.to_owned() }),
        Progress::Verified => Ok(Some(Entry::Progressed {
            id: id.to_owned(),
            progress: Progress::Activated { tries },
        })),
        Progress::Activated { .. } => Ok(None),
        Progress::RollingBack { reason, .. } => Err(Refused::RollingBack {
            id: id.to_owned(),
            reason: reason.clone(),
        }),
    }
}

/// Whether the slot may be confirmed now. `Ok(false)`: it was confirmed before.
pub fn confirm(facts: &Facts, id: &str) -> Result<bool, Refused> {
    if let Some(ended) = facts.ledger.ended(id)
        && facts
            .ledger
            .current
            .as_ref()
            .is_none_or(|current| current.operation.id != id)
    {
        return match &ended.outcome {
            Outcome::Confirmed => Ok(false),
            outcome => Err(Refused::Ended {
                id: id.to_owned(),
                how: describe(outcome),
            }),
        };
    }
    let current = running(facts, id)?;
    match &current.progress {
        Progress::RollingBack { reason, .. } => Err(Refused::RollingBack {
            id: id.to_owned(),
            reason: reason.clone(),
        }),
        Progress::Activated { .. }
            if facts.booted == Some(current.operation.target)
                && facts.boot.slots[current.operation.target] != SlotBoot::Unbootable =>
        {
            Ok(true)
        }
        _ => Err(Refused::NotOnTrial { id: id.to_owned() }),
    }
}

/// Stops an operation whose slot does not run yet.
pub fn cancel(facts: &Facts, id: &str) -> Result<Option<Entry>, Refused> {
    let current = running(facts, id)?;
    if facts.booted == Some(current.operation.target) {
        return Err(Refused::AlreadyBooted { id: id.to_owned() });
    }
    match &current.progress {
        Progress::Accepted | Progress::Verified => Ok(Some(Entry::Ended {
            id: id.to_owned(),
            outcome: Outcome::Cancelled,
        })),
        Progress::Activated { .. } => Ok(Some(Entry::Progressed {
            id: id.to_owned(),
            progress: Progress::RollingBack {
                reason: "cancelled".to_owned(),
                quarantine: false,
            },
        })),
        Progress::RollingBack { .. } => Ok(None),
    }
}

/// Leaves the running slot for the other one, on trial or long confirmed.
pub fn roll_back(facts: &Facts, reason: &str) -> Result<Option<Entry>, Refused> {
    let booted = facts.booted.ok_or(Refused::NotBooted)?;
    let fallback = facts.boot.slots[booted.other()];
    if let Some(current) = &facts.ledger.current {
        if matches!(current.progress, Progress::RollingBack { .. }) {
            return Ok(None);
        }
        if current.operation.target != booted {
            return Err(Refused::Busy {
                running: current.operation.id.clone(),
            });
        }
    }
    if fallback != SlotBoot::Good {
        return Err(Refused::NoFallback(booted.other(), fallback));
    }
    Ok(Some(match &facts.ledger.current {
        Some(current) => Entry::Progressed {
            id: current.operation.id.clone(),
            progress: Progress::RollingBack {
                reason: reason.to_owned(),
                quarantine: true,
            },
        },
        None => {
            let image = facts.booted_image.as_ref();
            Entry::Returning {
                operation: Operation {
                    id: format!("rollback-of-{booted}-{}", facts.ledger.history.len()),
                    image: image.map_or(Digest([0; 32]), |image| image.image),
                    version: image.map_or_else(|| "unknown".to_owned(), |image| image.version.clone()),
                    epoch: image.map_or(0, |image| image.epoch),
                    target: booted,
                },
                reason: reason.to_owned(),
            }
        }
    }))
}

fn running<'a>(facts: &'a Facts, id: &str) -> Result<&'a Current, Refused> {
    match &facts.ledger.current {
        Some(current) if current.operation.id == id => Ok(current),
        _ => Err(match facts.ledger.ended(id) {
            Some(ended) => Refused::Ended {
                id: id.to_owned(),
                how: describe(&ended.outcome),
            },
            None => Refused::Unknown { id: id.to_owned() },
        }),
    }
}

fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Confirmed => "confirmed".to_owned(),
        Outcome::RolledBack { reason, .. } => format!("rolled back: {reason}"),
        Outcome::Failed { reason } => format!("failed: {reason}"),
        Outcome::Cancelled => "cancelled".to_owned(),
    }
}
