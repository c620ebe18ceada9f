//! What is accepted of a host that is a virtual machine of MOC, and what is done to it next: pure. A new system is a new disk beside the old
//! one; the machine is shut down, switched and started, and goes back to the disk of before when its guest does not answer in time. Data
//! disks are not touched.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use slipway_agent_api::{
    Class, Problem,
    order::Order,
    proto::{self, start_request::Verb},
};
use slipway_moc::wire::{PowerOperation, PowerState};

use super::record::{
    Held, Record, SLOTS, Stage, State, StoredOperation, Switch, Upgrade, Work, disk_name, image_name,
};

/// A guest that is shut down has this long; then it is switched off.
const SHUTDOWN_WITHIN: SignedDuration = SignedDuration::from_mins(3);
/// A new system has this long until its guest answers; then the machine goes back.
const ANSWERS_WITHIN: SignedDuration = SignedDuration::from_mins(10);

/// How an image or a disk stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    #[default]
    Absent,
    Pending {
        percent: Option<i64>,
    },
    Ready,
    Failed(String),
}

/// What MOC says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The disk that the machine boots from.
    pub os_disk: String,
    pub power: PowerState,
    /// By digest.
    pub images: BTreeMap<String, Standing>,
    /// By name.
    pub disks: BTreeMap<String, Standing>,
    /// Images that are not in the gallery can be had from somewhere.
    pub has_source: bool,
    /// Whether the guest's agent answers; `None`: it was not asked.
    pub guest_answers: Option<bool>,
}

/// What is done next, one call of MOC at a time.
#[derive(Clone, Debug, PartialEq)]
pub enum CloudStep {
    /// Write what is known, and nothing else.
    Record(Box<Record>),
    ImportImage {
        digest: String,
    },
    DeleteImage {
        digest: String,
    },
    MakeDisk {
        slot: usize,
        digest: String,
    },
    DeleteDisk {
        name: String,
    },
    Power(PowerOperation),
    /// Another disk to boot from, with what is known.
    BootFrom {
        disk: String,
        record: Box<Record>,
    },
    AskGuest,
    /// Nothing until something changes by itself; with what it does, for people.
    Wait(String),
}

fn is_over(since: i64, now: i64, limit: SignedDuration) -> bool {
    now.saturating_sub(since) >= i64::try_from(limit.as_millis()).unwrap_or(i64::MAX)
}

/// Everything that can be done now, each with the operation it is for. One that has to wait holds up no other.
pub fn next(record: &Record, facts: &Facts, machine: &str, now: i64) -> Vec<(String, CloudStep)> {
    let steps = record.unfinished().into_iter().filter_map(|(id, kept)| {
        let step = match kept.work.as_ref()? {
            Work::Ensure { digest, is_tried, .. } => ensure(record, facts, id, digest, *is_tried, now),
            Work::Prepare {
                digest,
                slot,
                is_tried,
                ..
            } => prepare(record, facts, machine, (id, digest, *slot, *is_tried), now),
            Work::Switch(switch) => switching(record, facts, id, switch, now),
        };
        Some((id.clone(), step))
    });
    steps.collect()
}

/// From here on a failure is of this try.
fn tried(record: &Record, id: &str) -> CloudStep {
    changed(record, |record| {
        if let Some(Work::Ensure { is_tried, .. } | Work::Prepare { is_tried, .. }) =
            record.operations.get_mut(id).and_then(|kept| kept.work.as_mut())
        {
            *is_tried = true;
        }
    })
}

fn changed(record: &Record, change: impl FnOnce(&mut Record)) -> CloudStep {
    let mut record = record.clone();
    change(&mut record);
    CloudStep::Record(Box::new(record))
}

fn failed(record: &Record, id: &str, class: Class, reason: &str, message: String, now: i64) -> CloudStep {
    let problem = Problem::new(class, reason, message);
    changed(record, |record| record.fail(id, &problem, now))
}

fn pending(what: &str, percent: Option<i64>) -> CloudStep {
    CloudStep::Wait(match percent {
        Some(percent) => format!("{what} ({percent}%)"),
        None => what.to_owned(),
    })
}

fn ensure(record: &Record, facts: &Facts, id: &str, digest: &str, is_tried: bool, now: i64) -> CloudStep {
    let name = image_name(digest);
    match facts.images.get(digest).unwrap_or(&Standing::Absent) {
        Standing::Absent if !facts.has_source => failed(
            record,
            id,
            Class::Terminal,
            "NotInGallery",
            format!(
                "the gallery has no image {name}: import it under that name, or say in spec.platform.moc.imageURL of the EdgeHost where \
                 images are had from"
            ),
            now,
        ),
        Standing::Absent if is_tried => CloudStep::ImportImage {
            digest: digest.to_owned(),
        },
        Standing::Absent => tried(record, id),
        Standing::Pending { percent } => pending("the gallery imports the image", *percent),
        Standing::Ready => changed(record, |record| in_gallery(record, id, now)),
        Standing::Failed(_) if !is_tried && facts.has_source => CloudStep::DeleteImage {
            digest: digest.to_owned(),
        },
        // What is left of it is taken away by the next try, so that its reason can be read until then.
        Standing::Failed(why) => failed(
            record,
            id,
            Class::Transient,
            "ImportFailed",
            format!("the gallery could not import image {name}: {why}"),
            now,
        ),
    }
}

fn in_gallery(record: &mut Record, id: &str, now: i64) {
    let work = record.operations.get(id).and_then(|kept| kept.work.clone());
    let Some(Work::Ensure { digest, owner, .. }) = work else {
        return;
    };
    let owners = record.images.entry(digest.clone()).or_default();
    if !owner.is_empty() {
        owners.insert(owner);
    }
    let message = format!("image {} is in the gallery", image_name(&digest));
    record.end(id, State::Succeeded, message, now);
}

fn prepare(
    record: &Record,
    facts: &Facts,
    machine: &str,
    (id, digest, slot, is_tried): (&str, &str, usize, bool),
    now: i64,
) -> CloudStep {
    let name = disk_name(machine, slot, digest);
    // The disk of before leaves the slot; what the machine boots from is never in it.
    if let Some(held) = record.disks[slot].as_ref().filter(|held| held.name != name) {
        return match facts.disks.get(&held.name).unwrap_or(&Standing::Absent) {
            Standing::Absent => changed(record, |record| record.disks[slot] = None),
            _ => CloudStep::DeleteDisk {
                name: held.name.clone(),
            },
        };
    }
    match facts.disks.get(&name).unwrap_or(&Standing::Absent) {
        Standing::Absent if is_tried => CloudStep::MakeDisk {
            slot,
            digest: digest.to_owned(),
        },
        Standing::Absent => tried(record, id),
        Standing::Pending { percent } => pending("the disk is made", *percent),
        // Somebody has written to it since it was made.
        Standing::Ready if !is_tried && record.disks[slot].as_ref().is_some_and(|held| held.has_run) => {
            CloudStep::DeleteDisk { name }
        }
        Standing::Failed(_) if !is_tried => CloudStep::DeleteDisk { name },
        Standing::Failed(why) => {
            let problem = Problem::new(
                Class::Transient,
                "DiskFailed",
                format!("disk {name} could not be made: {why}"),
            );
            changed(record, |record| give_up(record, id, &problem, now))
        }
        Standing::Ready => changed(record, |record| {
            record.disks[slot] = Some(Held {
                name: name.clone(),
                digest: digest.to_owned(),
                ..Held::default()
            });
            if let Some(upgrade) = upgrade_of(record, id) {
                upgrade.stage = Stage::Prepared;
            }
            let message = format!("disk {name} is slot {}", SLOTS[slot]);
            record.end(id, State::Succeeded, message, now);
        }),
    }
}

/// The upgrade that an operation is about.
fn upgrade_of<'a>(record: &'a mut Record, id: &str) -> Option<&'a mut Upgrade> {
    let upgrade = match record.operations.get(id)?.work.as_ref()? {
        Work::Prepare { upgrade, .. } => upgrade.clone(),
        Work::Switch(switch) => switch.upgrade.clone(),
        Work::Ensure { .. } => return None,
    };
    record.upgrade_mut(&upgrade)
}

/// An operation that failed for good takes its upgrade with it, where that has not been armed.
pub fn give_up(record: &mut Record, id: &str, problem: &Problem, now: i64) {
    if let Some(upgrade) = upgrade_of(record, id)
        && upgrade.stage == Stage::Writing
    {
        upgrade.stage = Stage::Failed;
        upgrade.reason.clone_from(&problem.message);
    }
    record.fail(id, problem, now);
}

fn with_switch(record: &Record, id: &str, switch: Switch) -> Record {
    let mut record = record.clone();
    if let Some(kept) = record.operations.get_mut(id) {
        kept.work = Some(Work::Switch(switch));
    }
    record
}

fn switching(record: &Record, facts: &Facts, id: &str, switch: &Switch, now: i64) -> CloudStep {
    let noted = |switch: Switch| CloudStep::Record(Box::new(with_switch(record, id, switch)));
    let Some(disk) = record.disks[switch.to].as_ref() else {
        let message = format!("slot {} has no disk", SLOTS[switch.to]);
        return failed(record, id, Class::Terminal, "NoDisk", message, now);
    };
    if facts.os_disk != disk.name {
        if facts.power == PowerState::Off {
            let next = Switch {
                start_at: None,
                ..switch.clone()
            };
            return CloudStep::BootFrom {
                disk: disk.name.clone(),
                record: Box::new(with_switch(record, id, next)),
            };
        }
        return match switch.stop_at {
            None => noted(Switch {
                stop_at: Some(now),
                ..switch.clone()
            }),
            Some(since) if is_over(since, now, SHUTDOWN_WITHIN) || facts.power == PowerState::Critical => {
                CloudStep::Power(PowerOperation::Stop)
            }
            Some(_) => CloudStep::Power(PowerOperation::StopGraceful),
        };
    }
    let starts = |is_again| {
        noted(Switch {
            start_at: Some(now),
            is_again,
            ..switch.clone()
        })
    };
    let Some(since) = switch.start_at else {
        return starts(false);
    };
    let is_over = is_over(since, now, ANSWERS_WITHIN);
    match (facts.power, facts.guest_answers) {
        (PowerState::Running, Some(true)) => changed(record, |record| arrived(record, id, switch, now)),
        (PowerState::Running, None) => CloudStep::AskGuest,
        // Whoever wrote that it starts may have gone before it did.
        (PowerState::Off, _) if is_over && !switch.is_again => starts(true),
        _ if is_over => does_not_come_up(record, id, switch, now),
        (PowerState::Off | PowerState::Saved | PowerState::Paused, _) => {
            CloudStep::Power(PowerOperation::Start)
        }
        _ => CloudStep::Wait(format!("slot {} starts", SLOTS[switch.to])),
    }
}

/// The machine runs on the disk that it was to run on.
fn arrived(record: &mut Record, id: &str, switch: &Switch, now: i64) {
    let left = 1 - switch.to;
    let is_left = switch.is_back || switch.upgrade.is_empty();
    if is_left {
        let digest = record.disks[left]
            .as_ref()
            .map(|held| held.digest.clone())
            .unwrap_or_default();
        if let Some(held) = &mut record.disks[left] {
            held.is_bad = true;
        }
        if !digest.is_empty() {
            record.quarantined.insert(digest.clone(), switch.reason.clone());
        }
        if let Some(upgrade) = record.upgrade_mut(&switch.upgrade) {
            upgrade.stage = Stage::RolledBack;
            upgrade.reason.clone_from(&switch.reason);
        } else {
            record.upgrades.push(Upgrade {
                id: format!("rollback-{}", record.sequence),
                digest,
                slot: switch.to,
                stage: Stage::RolledBack,
                reason: switch.reason.clone(),
            });
        }
        let message = format!("the host is back on slot {}: {}", SLOTS[switch.to], switch.reason);
        record.end(id, State::Succeeded, message, now);
        return;
    }
    if let Some(upgrade) = record.upgrade_mut(&switch.upgrade) {
        upgrade.stage = Stage::Confirmed;
    }
    if let Some(held) = &mut record.disks[switch.to] {
        held.has_run = true;
    }
    let message = format!("the host runs slot {}", SLOTS[switch.to]);
    record.end(id, State::Succeeded, message, now);
}

fn does_not_come_up(record: &Record, id: &str, switch: &Switch, now: i64) -> CloudStep {
    let minutes = ANSWERS_WITHIN.as_mins();
    let why = format!(
        "the guest on slot {} did not answer within {minutes} minutes",
        SLOTS[switch.to]
    );
    if switch.is_back || switch.upgrade.is_empty() {
        // There is no other one: a person has to look, and an order may try again.
        return failed(record, id, Class::Transient, "NoSlotComesUp", why, now);
    }
    let back = Switch {
        to: 1 - switch.to,
        upgrade: switch.upgrade.clone(),
        reason: why,
        is_back: true,
        ..Switch::default()
    };
    let mut record = with_switch(record, id, back);
    if let Some(upgrade) = record.upgrade_mut(&switch.upgrade) {
        upgrade.stage = Stage::RollingBack;
    }
    CloudStep::Record(Box::new(record))
}

/// Whether MOC carries out an order, and not the guest's agent.
pub fn is_of_the_cloud(verb: &Verb, record: &Record) -> bool {
    let is_known = |digest: &str| record.images.contains_key(digest);
    match verb {
        // Container images are the guest's.
        Verb::Ensure(ensure) => ensure.delivery() == proto::Delivery::None,
        Verb::Pin(pin) => is_known(&pin.digest),
        Verb::Unpin(unpin) => is_known(&unpin.digest),
        Verb::Evict(evict) => is_known(&evict.digest),
        Verb::Prepare(_) | Verb::Arm(_) | Verb::Confirm(_) | Verb::Rollback(_) | Verb::GiveUp(_) => true,
        _ => false,
    }
}

/// What the guest says, as far as an order of the cloud has to know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestFacts {
    pub generation: u64,
    pub maintenance: Option<String>,
    /// An operation that works on the whole host.
    pub busy_with: Option<String>,
}

/// The record with the order in it. What cannot be done ends at once, as a failure that stays.
pub fn accept(
    record: &Record,
    order: &Order,
    guest: &GuestFacts,
    facts: &Facts,
    now: i64,
) -> Result<Record, Problem> {
    let conflict = |reason: &str, message: String| Err(Problem::new(Class::Conflict, reason, message));
    fence(record, order.generation, guest.generation)?;
    let mut next = record.clone();
    next.generation = next.generation.max(order.generation);
    let digest = order.digest.to_string();
    if let Some(known) = record.operations.get(&order.id) {
        if known.digest != digest {
            return Err(Problem::new(
                Class::Terminal,
                "IdReused",
                format!("operation {} was ordered with other contents", order.id),
            ));
        }
        return Ok(next);
    }
    let nature = order.nature();
    if let (true, Some(why)) = (nature.disturbs, &guest.maintenance) {
        return conflict("Maintenance", why.clone());
    }
    let busy = record.busy_with().or(guest.busy_with.as_ref());
    if let (true, Some(other)) = (nature.exclusive, busy) {
        return conflict("Busy", format!("operation {other} runs"));
    }
    next.put(
        &order.id,
        StoredOperation {
            verb: nature.name.to_owned(),
            digest,
            generation: order.generation,
            accepted_at: now,
            message: "running".to_owned(),
            ..StoredOperation::default()
        },
    );
    match begin(&mut next, &order.verb, facts) {
        Ok(Some(work)) => {
            if let Some(kept) = next.operations.get_mut(&order.id) {
                kept.work = Some(work);
            }
        }
        Ok(None) => next.end(&order.id, State::Succeeded, "done", now),
        Err(problem) => next.fail(&order.id, &problem, now),
    }
    Ok(next)
}

/// Orders of a lower number than the highest that was seen are refused.
pub fn fence(record: &Record, generation: u64, of_guest: u64) -> Result<(), Problem> {
    let highest = record.generation.max(of_guest);
    if generation < highest {
        return Err(Problem::new(
            Class::Conflict,
            "StaleGeneration",
            format!("generation {generation} is over: {highest} gives orders"),
        ));
    }
    Ok(())
}

/// What is to be done for an order; `None`: nothing is left.
fn begin(record: &mut Record, verb: &Verb, facts: &Facts) -> Result<Option<Work>, Problem> {
    let refused = |class, reason: &str, message: String| Err(Problem::new(class, reason, message));
    match verb {
        Verb::Ensure(ensure) => Ok(Some(Work::Ensure {
            digest: ensure
                .image
                .as_ref()
                .map(|image| image.digest.clone())
                .unwrap_or_default(),
            owner: ensure.pin_owner.clone(),
            is_tried: false,
        })),
        Verb::Pin(pin) => {
            if let Some(owners) = record.images.get_mut(&pin.digest) {
                owners.insert(pin.owner.clone());
            }
            Ok(None)
        }
        Verb::Unpin(unpin) => {
            if let Some(owners) = record.images.get_mut(&unpin.digest) {
                owners.remove(&unpin.owner);
                if owners.is_empty() {
                    record.images.remove(&unpin.digest);
                }
            }
            Ok(None)
        }
        Verb::Evict(evict) => {
            record.images.remove(&evict.digest);
            Ok(None)
        }
        Verb::Prepare(prepare) => {
            if !record.images.contains_key(&prepare.digest) {
                let message = "the image is not in the gallery for this host: order it first".to_owned();
                return refused(Class::Terminal, "NotCached", message);
            }
            if let Some(why) = record.quarantined.get(&prepare.digest) {
                return refused(
                    Class::Terminal,
                    "ImageRefused",
                    format!("the image failed here before: {why}"),
                );
            }
            let holder = record
                .upgrades
                .iter()
                .find(|upgrade| upgrade.id != prepare.upgrade && upgrade.stage.holds_slot());
            if let Some(other) = holder {
                return refused(
                    Class::Transient,
                    "Refused",
                    format!("upgrade {} has the slot", other.id),
                );
            }
            let Some(booted) = record.booted(&facts.os_disk) else {
                return refused(
                    Class::Terminal,
                    "ForeignDisk",
                    format!(
                        "the machine boots from disk {}, which is neither slot: somebody has switched it",
                        facts.os_disk
                    ),
                );
            };
            let slot = 1 - booted;
            record
                .upgrades
                .retain(|upgrade| upgrade.id != prepare.upgrade || !upgrade.stage.holds_slot());
            record.upgrades.push(Upgrade {
                id: prepare.upgrade.clone(),
                digest: prepare.digest.clone(),
                slot,
                ..Upgrade::default()
            });
            Ok(Some(Work::Prepare {
                upgrade: prepare.upgrade.clone(),
                digest: prepare.digest.clone(),
                slot,
                is_tried: false,
            }))
        }
        Verb::GiveUp(given_up) => {
            if let Some(upgrade) = record
                .upgrade_mut(&given_up.upgrade)
                .filter(|upgrade| matches!(upgrade.stage, Stage::Writing | Stage::Prepared))
            {
                upgrade.stage = Stage::GivenUp;
            }
            Ok(None)
        }
        Verb::Arm(arm) => match record.upgrade_mut(&arm.upgrade) {
            Some(upgrade) if upgrade.stage == Stage::Prepared => {
                upgrade.stage = Stage::Armed;
                let to = upgrade.slot;
                Ok(Some(Work::Switch(Switch {
                    to,
                    upgrade: arm.upgrade.clone(),
                    ..Switch::default()
                })))
            }
            Some(upgrade) if matches!(upgrade.stage, Stage::Armed | Stage::Confirmed) => Ok(None),
            _ => refused(
                Class::Terminal,
                "Refused",
                format!("upgrade {} is not prepared", arm.upgrade),
            ),
        },
        // A system is kept as soon as its guest answers.
        Verb::Confirm(_) => Ok(None),
        Verb::Rollback(rollback) => {
            let booted = record.booted(&facts.os_disk);
            let to = booted.map(|booted| 1 - booted);
            match to.filter(|to| record.disks[*to].as_ref().is_some_and(Held::is_good)) {
                Some(to) => Ok(Some(Work::Switch(Switch {
                    to,
                    reason: rollback.reason.clone(),
                    ..Switch::default()
                }))),
                None => refused(
                    Class::Terminal,
                    "NothingToReturnTo",
                    "the other slot has no system that ran".to_owned(),
                ),
            }
        }
        _ => refused(
            Class::Terminal,
            "InvalidRequest",
            "this is an order for the guest".to_owned(),
        ),
    }
}
