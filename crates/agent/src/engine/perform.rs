//! One action of the state machine, carried out; each is durable when it returns, or will be done again.

use std::io;

use slipway_slots::boot::BootChange;
use slipway_slots::machine::{Action, Entry, Facts, Operation, Outcome, Progress};
use slipway_slots::manifest::{
    ChunkEntry, ChunkIndex, LABEL_SIZE, LabelError, Manifest, PartitionImage, SignedManifest, decode_label,
    encode_label,
};
use slipway_slots::{Digest, Slot};

use super::progress::Meter;
use super::write::{WriteError, Writing};
use super::{Engine, EngineError, Failpoint};
use crate::target::{SlotTarget, Through};

impl Engine {
    pub(super) fn perform(&mut self, action: Action, reason: &str, facts: &Facts) -> Result<(), EngineError> {
        match action {
            Action::Record(entry) => {
                let point = failpoint_after(&entry);
                let now = self.host.clock.now();
                self.journal.record(entry, reason, now)?;
                self.reached(point);
            }
            Action::Boot(change) => {
                self.host.store.change(change)?;
                self.reached(match change {
                    BootChange::Arm { .. } => Failpoint::Armed,
                    BootChange::Confirm { .. } => Failpoint::Confirmed,
                    BootChange::MakeUnbootable(slot) if facts.booted == Some(slot) => Failpoint::SlotGivenUp,
                    BootChange::MakeUnbootable(_) => Failpoint::MadeUnbootable,
                });
            }
            Action::Write => {
                let operation = running(facts);
                let written = self.write(&operation);
                self.volatile.written = Some(match written {
                    Ok(()) => Ok(()),
                    Err(Stopped::Failed(reason)) => Err(reason),
                    Err(Stopped::Error(error)) => return Err(error),
                });
                self.volatile.read_back = None;
            }
            Action::Verify => {
                let operation = running(facts);
                let verified = self.verify(&operation)?;
                self.volatile.read_back = Some(verified);
                self.reached(Failpoint::ReadBack);
            }
            Action::CheckHealth => {
                self.reached(Failpoint::TrialStarted);
                self.volatile.health = self.host.health.decide();
                self.reached(Failpoint::HealthDecided);
            }
            Action::Reboot => {
                self.host
                    .rebooter
                    .reboot(reason)
                    .map_err(|source| EngineError::Io {
                        doing: "rebooting",
                        place: "the host".to_owned(),
                        source,
                    })?;
                self.volatile.rebooting = true;
                self.reached(Failpoint::RebootRequested);
            }
            Action::Wait | Action::Recover => {}
        }
        Ok(())
    }

    fn reached(&self, point: Failpoint) {
        self.host.failpoints.reached(point);
    }

    /// Every partition, then the label. The label comes last so that a slot never claims to be what it is not yet.
    fn write(&mut self, operation: &Operation) -> Result<(), Stopped> {
        let target = operation.target;
        self.check_unused(target).map_err(Stopped::Error)?;
        let held = self.label(target).ok().flatten();
        let labelled = held.is_some_and(|(_, manifest)| manifest.id() == operation.image);
        let Some(image) = &mut self.image else {
            return Err(Stopped::Error(EngineError::ImageNeeded {
                id: operation.id.clone(),
            }));
        };
        let failed = |error: WriteError| Stopped::Failed(error.to_string());
        let manifest = image
            .signed
            .unverified()
            .map_err(|error| Stopped::Failed(error.to_string()))?;
        if manifest.id() != operation.image {
            return Err(Stopped::Failed(
                "the image is not the one that was accepted".to_owned(),
            ));
        }
        let mut meter = Meter::new(self.watch.clone(), manifest.size());
        self.indexes.clear();
        let (targets, seeds) = match target {
            Slot::A => (&mut self.host.slots.a, &mut self.host.slots.b),
            Slot::B => (&mut self.host.slots.b, &mut self.host.slots.a),
        };
        for (at, partition) in manifest.partitions.iter().enumerate() {
            let writing = Writing {
                partition,
                sources: &mut image.sources,
                seed: seeds
                    .get_mut(at)
                    .map(|seed| &mut *seed.target as &mut dyn SlotTarget),
                limits: self.host.limits,
                on_delta_failure: self.host.on_delta_failure,
                resumed: self.resumed,
                labelled,
                failpoints: &*self.host.failpoints,
                meter: &mut meter,
            };
            let index = writing.run(&mut *targets[at].target).map_err(failed)?;
            self.indexes.push(index);
        }
        self.host.failpoints.reached(Failpoint::Written);
        let label = encode_label(&image.signed).map_err(|error| Stopped::Failed(error.to_string()))?;
        let first = &mut targets[0].target;
        let offset = first.size() - LABEL_SIZE as u64;
        let mut old = vec![0; LABEL_SIZE];
        let place = first.describe();
        let read = |source| {
            failed(WriteError::Read {
                place: place.clone(),
                source,
            })
        };
        let write = |source| {
            failed(WriteError::Write {
                place: place.clone(),
                source,
            })
        };
        first.read_at(offset, &mut old, Through::Cache).map_err(read)?;
        if old != label {
            first.write_at(offset, &label).map_err(write)?;
            first.flush().map_err(write)?;
        }
        self.host.failpoints.reached(Failpoint::LabelWritten);
        Ok(())
    }

    /// Reads the whole slot back from its medium. `Ok(Err(_))` is an answer: the slot is not what it should be.
    fn verify(&mut self, operation: &Operation) -> Result<Result<(), String>, EngineError> {
        let slot = operation.target;
        for partition in &mut self.host.slots[slot] {
            let target = &mut partition.target;
            target.flush().map_err(|source| EngineError::Io {
                doing: "flushing",
                place: target.describe(),
                source,
            })?;
        }
        self.reached(Failpoint::Flushed);
        let (_, manifest) = match self.label(slot)? {
            Some(label) if label.1.id() == operation.image => label,
            Some(_) => return Ok(Err(format!("the label of slot {slot} is of another image"))),
            None => return Ok(Err(format!("slot {slot} has no readable label"))),
        };
        let mut indexes = std::mem::take(&mut self.indexes).into_iter();
        for (image, partition) in manifest.partitions.iter().zip(&mut self.host.slots[slot]) {
            let target = &mut *partition.target;
            let difference = match indexes.next().flatten() {
                Some(index) => difference_by_chunk(target, &index),
                None => difference(target, image),
            };
            match difference {
                Ok(None) => {}
                Ok(Some(difference)) => {
                    let name = &image.name;
                    return Ok(Err(format!(
                        "partition {name} of slot {slot} was read back as {difference}"
                    )));
                }
                Err(error) => {
                    return Ok(Err(format!("{} cannot be read back: {error}", target.describe())));
                }
            }
        }
        Ok(Ok(()))
    }

    /// The signed manifest at the end of a slot; `None` when there is none that can be read.
    pub(super) fn label(&mut self, slot: Slot) -> Result<Option<(SignedManifest, Manifest)>, EngineError> {
        let Some(first) = self.host.slots[slot].first_mut() else {
            return Ok(None);
        };
        let target = &mut first.target;
        let Some(offset) = target.size().checked_sub(LABEL_SIZE as u64) else {
            return Ok(None);
        };
        let mut bytes = vec![0; LABEL_SIZE];
        target
            .read_at(offset, &mut bytes, Through::Medium)
            .map_err(|source| EngineError::Io {
                doing: "reading the label of",
                place: target.describe(),
                source,
            })?;
        Ok(decode_label(&bytes)
            .and_then(|signed| {
                let manifest = signed
                    .unverified()
                    .map_err(|error| LabelError::Unreadable(error.into()))?;
                Ok((signed, manifest))
            })
            .ok())
    }
}

/// So many chunks are read back before they are compared: their digests take half a megabyte.
const COMPARED: usize = 16_384;

/// What the medium holds that the index does not name. The index is as trustworthy as the manifest, which has its digest, and
/// its chunks are hashed side by side.
fn difference_by_chunk(target: &mut dyn SlotTarget, index: &ChunkIndex) -> io::Result<Option<String>> {
    for entries in index.entries.chunks(COMPARED) {
        let lengths: Vec<u32> = entries.iter().map(|entry| entry.length).collect();
        let found = target.digests(entries[0].offset, &lengths, Through::Medium)?;
        let differs = |(entry, found): &(&ChunkEntry, Digest)| entry.digest != *found;
        if let Some((entry, found)) = entries.iter().zip(found).find(differs) {
            let (offset, length) = (entry.offset, entry.length);
            let (found, expected) = (found.short(), entry.digest.short());
            return Ok(Some(format!(
                "{found} at {offset}+{length}: it must be {expected}"
            )));
        }
    }
    Ok(None)
}

fn difference(target: &mut dyn SlotTarget, image: &PartitionImage) -> io::Result<Option<String>> {
    let found = target.digest(0, image.size, Through::Medium)?;
    let (short, expected) = (found.short(), image.digest.short());
    Ok((found != image.digest).then(|| format!("{short}: it must be {expected}")))
}

/// Why a write did not come to its end.
enum Stopped {
    /// The operation ends with this reason.
    Failed(String),
    /// The operation stays as it is.
    Error(EngineError),
}

fn running(facts: &Facts) -> Operation {
    facts
        .ledger
        .current
        .as_ref()
        .map(|current| current.operation.clone())
        .expect("a slot is written and verified only for an operation")
}

fn failpoint_after(entry: &Entry) -> Failpoint {
    match entry {
        Entry::Accepted(_) => Failpoint::Accepted,
        Entry::Progressed {
            progress: Progress::Verified | Progress::Accepted,
            ..
        } => Failpoint::Verified,
        Entry::Progressed {
            progress: Progress::Activated { .. },
            ..
        } => Failpoint::Activated,
        Entry::Progressed {
            progress: Progress::RollingBack { .. },
            ..
        }
        | Entry::Returning { .. } => Failpoint::RollbackRecorded,
        Entry::Ended {
            outcome:
                Outcome::Confirmed | Outcome::RolledBack { .. } | Outcome::Failed { .. } | Outcome::Cancelled,
            ..
        }
        | Entry::Summary(_)
        | Entry::Released { .. } => Failpoint::Finished,
    }
}
