//! What the journal says: the operation under way, how the last ones ended, and which images are quarantined.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Digest, Slot};

/// How many ended operations are remembered.
const HISTORY: usize = 50;

/// One attempt to bring one image to one slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Chosen by whoever asked; asking again with the same id is joining, not starting.
    pub id: String,
    pub image: Digest,
    pub version: String,
    pub epoch: u64,
    pub target: Slot,
}

/// How far the operation under way is known to have come.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Progress {
    /// The target slot is given up and being written.
    Accepted,
    /// It was read back once and was right. It is read back again before it is armed by another run of the agent.
    Verified,
    /// The host is to boot it.
    Activated { tries: u8 },
    /// The host is to leave it.
    RollingBack { reason: String, quarantine: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Current {
    pub operation: Operation,
    pub progress: Progress,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Outcome {
    Confirmed,
    RolledBack { reason: String, quarantine: bool },
    Failed { reason: String },
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ended {
    pub operation: Operation,
    pub outcome: Outcome,
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Entry {
    Accepted(Operation),
    Progressed {
        id: String,
        progress: Progress,
    },
    /// A rollback that nobody's upgrade asked for: of the image that is confirmed.
    Returning {
        operation: Operation,
        reason: String,
    },
    Ended {
        id: String,
        outcome: Outcome,
    },
    /// A journal that was shortened begins with what it said before.
    Summary(Ledger),
    /// Lifts the quarantine of an image.
    Released {
        image: Digest,
    },
}

/// The journal, read from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ledger {
    pub current: Option<Current>,
    /// Oldest first.
    pub history: Vec<Ended>,
    pub quarantined: BTreeMap<Digest, String>,
}

impl Ledger {
    /// Lines that contradict what came before are left out: the journal never makes anything worse.
    pub fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Accepted(operation) => {
                self.current = Some(Current {
                    operation: operation.clone(),
                    progress: Progress::Accepted,
                });
            }
            Entry::Progressed { id, progress } => {
                if let Some(current) = &mut self.current
                    && current.operation.id == *id
                {
                    current.progress = progress.clone();
                }
            }
            Entry::Returning { operation, reason } => {
                self.current = Some(Current {
                    operation: operation.clone(),
                    progress: Progress::RollingBack {
                        reason: reason.clone(),
                        quarantine: true,
                    },
                });
            }
            Entry::Ended { id, outcome } => {
                if self
                    .current
                    .as_ref()
                    .is_some_and(|current| current.operation.id == *id)
                    && let Some(current) = self.current.take()
                {
                    self.end(current.operation, outcome.clone());
                }
            }
            Entry::Summary(ledger) => *self = ledger.clone(),
            Entry::Released { image } => {
                self.quarantined.remove(image);
            }
        }
    }

    fn end(&mut self, operation: Operation, outcome: Outcome) {
        if let Outcome::RolledBack {
            reason,
            quarantine: true,
        } = &outcome
        {
            self.quarantined.insert(operation.image, reason.clone());
        }
        self.history.push(Ended { operation, outcome });
        if self.history.len() > HISTORY {
            self.history.remove(0);
        }
    }

    pub fn ended(&self, id: &str) -> Option<&Ended> {
        self.history.iter().rfind(|ended| ended.operation.id == id)
    }
}
