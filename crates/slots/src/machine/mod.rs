//! The upgrade and rollback state machine: facts in, the next action and its reason out.
//!
//! It has no memory of its own. What must outlive a crash is in the journal ([`Ledger`]) and in the boot store; the
//! rest ([`Volatile`]) begins empty whenever the agent starts, and losing it costs time, never safety. So there is no
//! difference between going on and recovering: both ask [`decide`].

mod command;
mod decide;
mod ledger;

use crate::boot::{BootChange, BootState};
use crate::{Digest, Slot};

pub use command::{Refused, accept, activate, cancel, confirm, roll_back};
pub use decide::decide;
pub use ledger::{Current, Ended, Entry, Ledger, Operation, Outcome, Progress};

/// Everything a decision depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `None` when the agent runs from a recovery system or cannot tell.
    pub booted: Option<Slot>,
    /// From the booted slot's label.
    pub booted_image: Option<BootedImage>,
    pub boot: BootState,
    pub ledger: Ledger,
    pub volatile: Volatile,
}

/// What the label of the booted slot says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootedImage {
    pub image: Digest,
    pub version: String,
    pub epoch: u64,
}

/// What this run of the agent found out. Lost in a crash, and then found out again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volatile {
    /// Every chunk of the image is in the target slot; an error ends the operation.
    pub written: Option<Result<(), String>>,
    /// The slot was read back from the medium after a flush.
    pub read_back: Option<Result<(), String>>,
    pub health: Health,
    pub rebooting: bool,
}

/// What the health policy says about the booted slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    #[default]
    Unknown,
    Passed,
    Failed(String),
}

/// What to do next, and why: one value for the journal, the log and the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub action: Action,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Append to the journal, durably.
    Record(Entry),
    /// Change the boot store, durably.
    Boot(BootChange),
    /// Bring the target slot to the image's bytes.
    Write,
    /// Flush, and read the target slot back from its medium.
    Verify,
    /// Run the health policy.
    CheckHealth,
    Reboot,
    /// Nothing, until somebody asks for something or the host has rebooted.
    Wait,
    /// No slot can be relied on; a person has to decide.
    Recover,
}
