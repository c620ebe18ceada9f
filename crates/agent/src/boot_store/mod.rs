//! Boot stores: a format (`slipway_slots::boot::Codec`) on a medium. Reads survive damage, changes survive a power cut.

mod medium;
mod stored;

use slipway_slots::boot::{BootChange, BootState, ChangeRefused, CodecError};

pub use medium::{Device, Directory, Medium};
pub use stored::Stored;

/// What a boot loader reads to choose a slot.
pub trait BootStore: Send {
    /// The format's name, as in the configuration.
    fn name(&self) -> &'static str;

    /// What the store says, and what is damaged in it.
    fn read(&mut self) -> Result<Reading, StoreError>;

    /// Makes the change durable. Damage is repaired on the way. Returns the new state.
    fn change(&mut self, change: BootChange) -> Result<BootState, StoreError>;

    /// Sets up a store that was never written: for the installation of a host.
    fn install(&mut self, state: &BootState) -> Result<(), StoreError>;

    /// Writes the state afresh where copies of it are damaged or missing; does nothing to an intact store.
    fn repair(&mut self) -> Result<(), StoreError>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub state: BootState,
    pub problems: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the {store} boot store at {place} cannot be {doing}: {source}")]
    Io {
        store: &'static str,
        place: String,
        doing: &'static str,
        source: std::io::Error,
    },
    #[error("the {store} boot store at {place} holds no state that can be trusted: {problems}")]
    Unreadable {
        store: &'static str,
        place: String,
        problems: String,
    },
    #[error("the boot store does not {change}: {source}")]
    Refused {
        change: BootChange,
        source: ChangeRefused,
    },
    #[error(transparent)]
    Codec(#[from] CodecError),
}
