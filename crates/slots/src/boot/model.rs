//! The boot state every store must be able to hold, and the only changes made to it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{BySlot, Slot};

/// More tries than every store can count (systemd-boot's names have one digit here, GPT has four bits).
pub const MAX_TRIES: u8 = 7;

/// What a boot loader may do with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SlotBoot {
    /// Never boot it: it is empty, being written, or was found bad.
    Unbootable,
    /// Verified, not yet confirmed: each boot takes one of the tries.
    Trial { left: u8, of: u8 },
    /// Confirmed by its own health checks.
    Good,
}

impl SlotBoot {
    pub fn can_boot(self) -> bool {
        match self {
            Self::Unbootable => false,
            Self::Trial { left, .. } => left > 0,
            Self::Good => true,
        }
    }
}

impl fmt::Display for SlotBoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unbootable => f.write_str("unbootable"),
            Self::Trial { left, of } => write!(f, "trial {left}/{of}"),
            Self::Good => f.write_str("good"),
        }
    }
}

/// The boot store's answer to "which slot, and how often still?".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BootState {
    pub slots: BySlot<SlotBoot>,
    /// Tried first; the other slot is the fallback.
    pub preferred: Slot,
    /// No image of a lower epoch may be written. Zero in stores that have no room for it: there, only the booted
    /// slot's label tells.
    pub epoch: u64,
}

impl BootState {
    /// A host as it leaves the factory: one slot filled, the other empty.
    pub fn installed(slot: Slot) -> Self {
        let mut slots = BySlot {
            a: SlotBoot::Unbootable,
            b: SlotBoot::Unbootable,
        };
        slots[slot] = SlotBoot::Good;
        Self {
            slots,
            preferred: slot,
            epoch: 0,
        }
    }

    /// The slot a boot loader takes now; `None` means recovery.
    pub fn next_boot(&self) -> Option<Slot> {
        [self.preferred, self.preferred.other()]
            .into_iter()
            .find(|slot| self.slots[*slot].can_boot())
    }

    /// What the boot loader leaves behind when it boots `slot`.
    pub fn after_boot_of(mut self, slot: Slot) -> Self {
        if let SlotBoot::Trial { left, .. } = &mut self.slots[slot] {
            *left = left.saturating_sub(1);
        }
        self
    }

    /// The state after `change`, or why it may not be made.
    pub fn with(mut self, change: BootChange) -> Result<Self, ChangeRefused> {
        match change {
            BootChange::MakeUnbootable(slot) => {
                if self.slots[slot.other()] != SlotBoot::Good {
                    return Err(ChangeRefused::NoOtherGoodSlot(slot));
                }
                self.slots[slot] = SlotBoot::Unbootable;
                self.preferred = slot.other();
            }
            BootChange::Arm { slot, tries } => {
                if !(1..=MAX_TRIES).contains(&tries) {
                    return Err(ChangeRefused::Tries(tries));
                }
                if self.slots[slot.other()] != SlotBoot::Good {
                    return Err(ChangeRefused::NoOtherGoodSlot(slot));
                }
                self.slots[slot] = SlotBoot::Trial {
                    left: tries,
                    of: tries,
                };
                self.preferred = slot;
            }
            BootChange::Confirm { slot, epoch } => {
                if self.slots[slot] == SlotBoot::Unbootable {
                    return Err(ChangeRefused::NotOnTrial(slot));
                }
                self.slots[slot] = SlotBoot::Good;
                self.preferred = slot;
                self.epoch = self.epoch.max(epoch);
            }
        }
        Ok(self)
    }
}

impl fmt::Display for BootState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "A {}, B {}, {} first, epoch {}",
            self.slots.a, self.slots.b, self.preferred, self.epoch
        )
    }
}

/// The changes the agent makes. What the boot loader does is [`BootState::after_boot_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BootChange {
    /// Before the first byte of a new image, and when an image turned out bad.
    MakeUnbootable(Slot),
    /// After the slot was read back and is what its manifest says.
    Arm { slot: Slot, tries: u8 },
    /// After the health checks passed in the booted slot.
    Confirm { slot: Slot, epoch: u64 },
}

impl fmt::Display for BootChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MakeUnbootable(slot) => write!(f, "make slot {slot} unbootable"),
            Self::Arm { slot, tries } => write!(f, "arm slot {slot} with {tries} tries"),
            Self::Confirm { slot, epoch } => write!(f, "confirm slot {slot} at epoch {epoch}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeRefused {
    #[error("slot {0} cannot be given up: the other slot is not known to be good")]
    NoOtherGoodSlot(Slot),
    #[error("slot {0} is not on trial: it was rolled back or never armed")]
    NotOnTrial(Slot),
    #[error("{0} tries: a slot is armed with 1 to {MAX_TRIES}")]
    Tries(u8),
}
