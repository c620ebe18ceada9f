//! Write, verify, arm, confirm or roll back: carries out what the state machine of `slipway-slots` decides.
//!
//! The engine is one loop: gather facts, decide, do. Starting after a crash is the same loop with fewer facts.

mod blocks;
mod failpoint;
mod health;
mod journal;
mod output;
mod perform;
mod preflight;
mod progress;
mod solid;
mod source;
mod status;
mod survey;
mod write;

use std::sync::Arc;

use jiff::Timestamp;
use slipway_slots::machine::{self, Action, Facts, Health, Refused, Volatile};
use slipway_slots::manifest::{self, ChunkIndex, Expectation, KeyRing, Manifest, Refusal, SignedManifest};
use slipway_slots::write_plan::{Limits, OnDeltaFailure};
use slipway_slots::{BySlot, Slot};

use crate::boot_store::{BootStore, StoreError};
use crate::target::SlotTarget;

pub use failpoint::{Failpoint, Failpoints, Unhindered};
pub use health::{HealthCheck, HealthPolicy, MachineTime, Probe, Soak, SystemProbe, Time};
pub use journal::{Journal, JournalError, JournalFile, JournalMedium, Line, Reading, read_lines};
pub use preflight::{Preflight, PreflightError};
pub use progress::{Progress, Watch};
pub use source::{ChunkSource, FetchError, Sources};
pub use status::{SlotStatus, Status};
pub use write::{WriteError, write_partition};

/// One partition of a slot, under the name that manifests use.
pub struct SlotPartition {
    pub name: String,
    pub target: Box<dyn SlotTarget>,
}

/// Who reboots the host when the engine has decided that it must be.
pub trait Rebooter: Send {
    fn reboot(&mut self, reason: &str) -> std::io::Result<()>;
}

/// The time of day, for expiry and the journal.
pub trait Clock: Send {
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Everything the engine works on.
pub struct Host {
    pub compatible: String,
    pub arch: String,
    pub keys: KeyRing,
    /// The slot this system was booted from; `None` in a recovery system.
    pub booted: Option<Slot>,
    /// The partitions of each slot in the manifest's order; the first carries the label.
    pub slots: BySlot<Vec<SlotPartition>>,
    pub store: Box<dyn BootStore>,
    pub journal: Box<dyn JournalMedium>,
    pub health: Box<dyn HealthCheck>,
    pub rebooter: Box<dyn Rebooter>,
    pub clock: Box<dyn Clock>,
    pub failpoints: Arc<dyn Failpoints>,
    pub limits: Limits,
    pub on_delta_failure: OnDeltaFailure,
    pub preflight: Preflight,
}

/// An image to write, and where its bytes can be had.
pub struct Image {
    pub signed: SignedManifest,
    pub sources: Sources,
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Image(#[from] Refusal),
    #[error("{place} is in use: {by}; nothing was written")]
    InUse { place: String, by: String },
    #[error("{place} is a partition of both slots; nothing was written")]
    SamePartition { place: String },
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{doing} {place}: {source}")]
    Io {
        doing: &'static str,
        place: String,
        source: std::io::Error,
    },
    #[error("operation {id} failed: {reason}")]
    Failed { id: String, reason: String },
    #[error("operation {id} was interrupted and its image is needed again: prepare it with the same id")]
    ImageNeeded { id: String },
}

/// What kind of failure it is, for whoever decides whether to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The same request may succeed later.
    Transient,
    /// Something else has to change first.
    Terminal,
}

impl EngineError {
    pub fn class(&self) -> Class {
        match self {
            Self::Refused(Refused::Busy { .. })
            | Self::InUse { .. }
            | Self::Preflight(_)
            | Self::Io { .. }
            | Self::Journal(_)
            | Self::ImageNeeded { .. } => Class::Transient,
            Self::Refused(_)
            | Self::Image(_)
            | Self::SamePartition { .. }
            | Self::Store(_)
            | Self::Failed { .. } => Class::Terminal,
        }
    }
}

/// Where the loop came to rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing to do, or waiting to be asked.
    Waiting(String),
    /// A reboot was requested.
    Rebooting(String),
    /// A person has to decide.
    Recovery(String),
}

pub struct Engine {
    host: Host,
    journal: Journal,
    volatile: Volatile,
    image: Option<Image>,
    watch: Watch,
    /// Of the partitions that were written, until they have been read back; `None` where none was needed.
    indexes: Vec<Option<ChunkIndex>>,
    /// An operation that an earlier run of the agent began.
    resumed: bool,
}

impl Engine {
    /// Reads the journal and repairs the boot store. Nothing is decided yet: [`Engine::run`] does.
    pub fn open(mut host: Host) -> Result<Self, EngineError> {
        host.store.repair()?;
        let medium = std::mem::replace(&mut host.journal, Box::new(journal::Closed));
        let journal = Journal::open(medium)?;
        let resumed = journal.ledger().current.is_some();
        Ok(Self {
            host,
            journal,
            volatile: Volatile::default(),
            image: None,
            watch: Watch::default(),
            indexes: Vec::new(),
            resumed,
        })
    }

    /// For watching and cancelling from another thread.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    pub fn facts(&mut self) -> Result<Facts, EngineError> {
        let boot = self.host.store.read()?.state;
        let booted_image = match self.host.booted {
            Some(slot) => self.label(slot).ok().flatten(),
            None => None,
        };
        Ok(Facts {
            booted: self.host.booted,
            booted_image: booted_image.as_ref().map(|(_, manifest)| machine::BootedImage {
                image: manifest.id(),
                version: manifest.version.clone(),
                epoch: manifest.epoch,
            }),
            boot,
            ledger: self.journal.ledger().clone(),
            volatile: self.volatile.clone(),
        })
    }

    /// Does what there is to do, until there is nothing or somebody has to act.
    pub fn run(&mut self) -> Result<Rest, EngineError> {
        loop {
            let facts = self.facts()?;
            let decision = machine::decide(&facts);
            match decision.action {
                Action::Wait if self.volatile.rebooting => return Ok(Rest::Rebooting(decision.reason)),
                Action::Wait => return Ok(Rest::Waiting(decision.reason)),
                Action::Recover => return Ok(Rest::Recovery(decision.reason)),
                action => self.perform(action, &decision.reason, &facts)?,
            }
        }
    }

    /// Writes `image` to the slot that does not run, and verifies it. Asking again with the same id goes on where an
    /// interrupted run stopped.
    pub fn prepare(&mut self, id: &str, image: Image) -> Result<Manifest, EngineError> {
        let facts = self.facts()?;
        let manifest = self.admit(&image.signed, &facts)?;
        let entry = machine::accept(&facts, id, manifest.id(), &manifest.version, manifest.epoch)?;
        self.check_unused(facts.booted.map_or(Slot::B, Slot::other))?;
        self.host.preflight.check()?;
        if let Some(entry) = entry {
            self.volatile = Volatile::default();
            self.resumed = false;
            self.perform(Action::Record(entry), "asked for", &facts)?;
        }
        self.image = Some(image);
        let result = self.run();
        self.image = None;
        result?;
        match self.journal.ledger().ended(id).map(|ended| &ended.outcome) {
            Some(machine::Outcome::Failed { reason }) if self.journal.ledger().current.is_none() => {
                Err(EngineError::Failed {
                    id: id.to_owned(),
                    reason: reason.clone(),
                })
            }
            _ => Ok(manifest),
        }
    }

    /// Arms the prepared slot and requests the reboot.
    pub fn activate(&mut self, id: &str, tries: u8) -> Result<Rest, EngineError> {
        let facts = self.facts()?;
        if let Some(entry) = machine::activate(&facts, id, tries)? {
            self.perform(Action::Record(entry), "asked for", &facts)?;
        }
        let rest = self.run()?;
        self.failed_end(id)?;
        Ok(rest)
    }

    /// Confirms the slot on trial at once, whatever its health policy says.
    pub fn confirm(&mut self, id: &str) -> Result<Rest, EngineError> {
        if machine::confirm(&self.facts()?, id)? {
            self.volatile.health = Health::Passed;
        }
        self.run()
    }

    /// Leaves the running slot for the other one.
    pub fn roll_back(&mut self, reason: &str) -> Result<Rest, EngineError> {
        let facts = self.facts()?;
        if let Some(entry) = machine::roll_back(&facts, reason)? {
            self.perform(Action::Record(entry), reason, &facts)?;
        }
        self.run()
    }

    pub fn cancel(&mut self, id: &str) -> Result<Rest, EngineError> {
        let facts = self.facts()?;
        if let Some(entry) = machine::cancel(&facts, id)? {
            self.perform(Action::Record(entry), "asked for", &facts)?;
        }
        self.run()
    }

    fn failed_end(&self, id: &str) -> Result<(), EngineError> {
        match self.journal.ledger().ended(id).map(|ended| &ended.outcome) {
            Some(machine::Outcome::Failed { reason }) if self.journal.ledger().current.is_none() => {
                Err(EngineError::Failed {
                    id: id.to_owned(),
                    reason: reason.clone(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Every check that needs no byte of the image: before anything is changed.
    fn admit(&mut self, signed: &SignedManifest, facts: &Facts) -> Result<Manifest, EngineError> {
        let target = facts.booted.map_or(Slot::B, Slot::other);
        let partitions: Vec<_> = self.host.slots[target]
            .iter()
            .map(|partition| (partition.name.clone(), partition.target.size()))
            .collect();
        // A clock that was set back does not revive an expired image: the running one's making is a lower bound.
        let built = match self.host.booted {
            Some(slot) => self.label(slot).ok().flatten(),
            None => None,
        };
        let now = self.host.clock.now();
        let expectation = Expectation {
            keys: &self.host.keys,
            compatible: &self.host.compatible,
            arch: &self.host.arch,
            epoch: facts
                .boot
                .epoch
                .max(facts.booted_image.as_ref().map_or(0, |image| image.epoch)),
            now: built.map_or(now, |(_, manifest)| now.max(manifest.created)),
            partitions: &partitions,
            quarantined: &facts.ledger.quarantined,
        };
        Ok(manifest::admit(signed, &expectation)?)
    }

    /// Refuses a slot that somebody else uses, or that is the other one as well.
    fn check_unused(&mut self, slot: Slot) -> Result<(), EngineError> {
        let others: Vec<_> = self.host.slots[slot.other()]
            .iter()
            .map(|partition| partition.target.describe())
            .collect();
        for partition in &mut self.host.slots[slot] {
            let target = &mut partition.target;
            let by = target.in_use().map_err(|source| EngineError::Io {
                doing: "asking who uses",
                place: target.describe(),
                source,
            })?;
            if let Some(by) = by {
                return Err(EngineError::InUse {
                    place: target.describe(),
                    by,
                });
            }
            let place = target.describe();
            if others.contains(&place) {
                return Err(EngineError::SamePartition { place });
            }
        }
        Ok(())
    }
}
