//! What a person or the operator is shown: slots, versions from their own bytes, what is under way, how it ended.

use serde::Serialize;
use slipway_slots::boot::SlotBoot;
use slipway_slots::machine::{self, Current, Ended};
use slipway_slots::{Digest, Slot};

use super::{Engine, EngineError, Progress};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub booted: Option<Slot>,
    pub slots: Vec<SlotStatus>,
    /// What is happening, or why nothing is: the decision the engine would take now.
    pub standing: String,
    pub current: Option<Current>,
    pub last: Option<Ended>,
    pub progress: Progress,
    /// Images that failed on this host.
    pub quarantined: Vec<(Digest, String)>,
    /// Damage found in the boot store and the journal.
    pub problems: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SlotStatus {
    pub slot: Slot,
    pub boot: SlotBoot,
    /// From the slot's label; only of slots that may boot, because others are empty or half written.
    pub image: Option<Digest>,
    pub version: Option<String>,
    pub kubelet_version: Option<String>,
}

impl Engine {
    pub fn status(&mut self) -> Result<Status, EngineError> {
        let reading = self.host.store.read()?;
        let facts = self.facts()?;
        let mut slots = Vec::new();
        for slot in Slot::BOTH {
            let boot = reading.state.slots[slot];
            let label = match boot {
                SlotBoot::Unbootable => None,
                _ => self.label(slot).ok().flatten(),
            };
            slots.push(SlotStatus {
                slot,
                boot,
                image: label.as_ref().map(|(_, manifest)| manifest.id()),
                version: label.as_ref().map(|(_, manifest)| manifest.version.clone()),
                kubelet_version: label.and_then(|(_, manifest)| manifest.kubelet_version),
            });
        }
        let mut problems = reading.problems;
        problems.extend_from_slice(self.journal.problems());
        Ok(Status {
            booted: facts.booted,
            slots,
            standing: machine::decide(&facts).reason,
            current: facts.ledger.current,
            last: facts.ledger.history.last().cloned(),
            progress: self.watch.progress(),
            quarantined: facts.ledger.quarantined.into_iter().collect(),
            problems,
        })
    }

    /// The operation under way.
    pub fn current(&self) -> Option<&Current> {
        self.journal.ledger().current.as_ref()
    }

    /// How operations ended, oldest first.
    pub fn history(&self) -> &[Ended] {
        &self.journal.ledger().history
    }
}
