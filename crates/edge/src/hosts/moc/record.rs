//! What is known of a virtual machine as a host, and where: one tag of it in MOC, so that whoever leads next goes on with it and
//! `clusterctl move` takes nothing from it. It is written over the version that was read. Pure. There is no secret in it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use slipway_agent_api::{
    Class, Problem,
    proto::{self, Operation, OperationState, UpgradeState},
};

/// The tag's key.
pub const TAG: &str = "slipway.dev/host";
pub const SLOTS: [&str; 2] = ["A", "B"];
/// So many operations that have ended are remembered.
const ENDED_KEPT: usize = 24;
const UPGRADES_KEPT: usize = 12;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Record {
    /// The highest one that gave an order.
    pub generation: u64,
    pub sequence: u64,
    /// The disks of slot A and slot B.
    pub disks: [Option<Held>; 2],
    /// Of the gallery, by digest, with who needs them.
    pub images: BTreeMap<String, BTreeSet<String>>,
    pub upgrades: Vec<Upgrade>,
    /// Images that failed here, with the reason.
    pub quarantined: BTreeMap<String, String>,
    pub operations: BTreeMap<String, StoredOperation>,
}

/// A disk of the host's system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Held {
    pub name: String,
    /// Of the image that it was made from; empty for one that was there before.
    pub digest: String,
    /// Its system has run, so that one may go back to it.
    pub has_run: bool,
    /// Its system did not come up, or was left.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_bad: bool,
}

impl Held {
    pub fn is_good(&self) -> bool {
        self.has_run && !self.is_bad
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    #[default]
    Writing,
    Prepared,
    Armed,
    RollingBack,
    Confirmed,
    RolledBack,
    Failed,
    GivenUp,
}

impl Stage {
    /// Another upgrade has to wait for the slot.
    pub fn holds_slot(self) -> bool {
        matches!(
            self,
            Self::Writing | Self::Prepared | Self::Armed | Self::RollingBack
        )
    }

    fn proto(self) -> UpgradeState {
        match self {
            Self::Writing => UpgradeState::Writing,
            Self::Prepared => UpgradeState::Prepared,
            Self::Armed => UpgradeState::Armed,
            Self::RollingBack => UpgradeState::RollingBack,
            Self::Confirmed => UpgradeState::Confirmed,
            Self::RolledBack => UpgradeState::RolledBack,
            Self::Failed => UpgradeState::Failed,
            Self::GivenUp => UpgradeState::GivenUp,
        }
    }
}

/// One image brought to one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Upgrade {
    pub id: String,
    pub digest: String,
    pub slot: usize,
    pub stage: Stage,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    #[default]
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

/// An operation that MOC carries out. Those of the guest are remembered by its agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StoredOperation {
    pub verb: String,
    /// Of the order.
    pub digest: String,
    pub generation: u64,
    pub sequence: u64,
    pub state: State,
    pub accepted_at: i64,
    pub ended_at: i64,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// What is left to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub reason: String,
    /// Once more may succeed.
    pub passes: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// An image in the gallery. `is_tried`: what failed from here on is of this try, and not of one before.
    Ensure {
        digest: String,
        owner: String,
        #[serde(default)]
        is_tried: bool,
    },
    /// A disk made from it.
    Prepare {
        upgrade: String,
        digest: String,
        slot: usize,
        #[serde(default)]
        is_tried: bool,
    },
    /// The machine on another disk.
    Switch(Switch),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Switch {
    /// The slot to boot.
    pub to: usize,
    /// The upgrade that is tried; empty where it is told to go back.
    pub upgrade: String,
    /// Why the slot is left.
    pub reason: String,
    /// The slot that was tried did not come up, and `to` is the one of before.
    pub is_back: bool,
    /// When the machine was told to stop, and to start.
    pub stop_at: Option<i64>,
    pub start_at: Option<i64>,
    /// It is started a second time: whether it ever was before nobody knows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_again: bool,
}

/// What the gallery calls an image: also what slots call it.
pub fn image_name(digest: &str) -> String {
    format!("slipway-{}", digest.strip_prefix("sha256:").unwrap_or(digest))
}

/// The digest of an image of the gallery whose name was made from one.
pub fn digest_of(name: &str) -> Option<String> {
    let hex = name.strip_prefix("slipway-")?;
    (hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| format!("sha256:{hex}"))
}

/// The disk of a slot with this image. Two images never share one.
pub fn disk_name(machine: &str, slot: usize, digest: &str) -> String {
    let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
    let short: String = hex.chars().take(16).collect();
    format!("{machine}-{}-{short}", SLOTS[slot].to_lowercase())
}

impl Record {
    /// Of a machine that nobody has had as a host: its disk is slot A.
    pub fn beginning(os_disk: &str, image: &str) -> Self {
        let held = Held {
            name: os_disk.to_owned(),
            digest: digest_of(image).unwrap_or_default(),
            has_run: true,
            is_bad: false,
        };
        Self {
            disks: [Some(held), None],
            ..Self::default()
        }
    }

    pub fn booted(&self, os_disk: &str) -> Option<usize> {
        let is_it = |held: &Option<Held>| held.as_ref().is_some_and(|held| held.name == os_disk);
        self.disks.iter().position(is_it)
    }

    pub fn upgrade_mut(&mut self, id: &str) -> Option<&mut Upgrade> {
        self.upgrades.iter_mut().rfind(|upgrade| upgrade.id == id)
    }

    /// What is under way, in the order in which it was taken.
    pub fn unfinished(&self) -> Vec<(&String, &StoredOperation)> {
        let mut found: Vec<_> = self
            .operations
            .iter()
            .filter(|(_, kept)| kept.state == State::Running)
            .collect();
        found.sort_by_key(|(_, kept)| kept.sequence);
        found
    }

    /// The machine is stopped, switched and started.
    pub fn is_switching(&self) -> bool {
        self.unfinished()
            .iter()
            .any(|(_, kept)| matches!(kept.work, Some(Work::Switch(_))))
    }

    /// The operation that works on slots.
    pub fn busy_with(&self) -> Option<&String> {
        let mut unfinished = self.unfinished().into_iter();
        let found = unfinished.find(|(_, kept)| !matches!(kept.work, Some(Work::Ensure { .. }) | None));
        found.map(|(id, _)| id)
    }

    pub fn put(&mut self, id: &str, mut kept: StoredOperation) {
        self.sequence += 1;
        kept.sequence = self.sequence;
        self.operations.insert(id.to_owned(), kept);
    }

    pub fn end(&mut self, id: &str, state: State, message: impl Into<String>, now: i64) {
        self.sequence += 1;
        let sequence = self.sequence;
        if let Some(kept) = self.operations.get_mut(id) {
            kept.state = state;
            kept.message = message.into();
            kept.ended_at = now;
            kept.sequence = sequence;
            kept.work = None;
        }
        self.tidy();
    }

    pub fn fail(&mut self, id: &str, problem: &Problem, now: i64) {
        self.end(id, State::Failed, problem.message.clone(), now);
        if let Some(kept) = self.operations.get_mut(id) {
            kept.failure = Some(Failure {
                reason: problem.reason.clone(),
                passes: !matches!(problem.class, Class::Terminal | Class::Denied),
            });
        }
    }

    fn tidy(&mut self) {
        let mut ended: Vec<_> = self
            .operations
            .iter()
            .filter(|(_, kept)| kept.state != State::Running)
            .map(|(id, kept)| (kept.sequence, id.clone()))
            .collect();
        ended.sort();
        for (_, id) in ended.iter().take(ended.len().saturating_sub(ENDED_KEPT)) {
            self.operations.remove(id);
        }
        let over = self.upgrades.len().saturating_sub(UPGRADES_KEPT);
        self.upgrades.drain(..over);
    }
}

/// As the agent's protocol has it. `trouble` is what holds it up now.
pub fn operation(id: &str, kept: &StoredOperation, trouble: Option<&str>) -> Operation {
    let state = match kept.state {
        State::Running => OperationState::Running,
        State::Succeeded => OperationState::Succeeded,
        State::Failed => OperationState::Failed,
        State::Cancelled => OperationState::Cancelled,
    };
    let problem = kept.failure.as_ref().map(|failure| {
        let class = if failure.passes {
            Class::Transient
        } else {
            Class::Terminal
        };
        Problem::new(class, failure.reason.clone(), kept.message.clone()).to_proto()
    });
    let message = match (kept.state, trouble) {
        (State::Running, Some(trouble)) => trouble.to_owned(),
        _ => kept.message.clone(),
    };
    Operation {
        id: id.to_owned(),
        verb: kept.verb.clone(),
        generation: kept.generation,
        state: state.into(),
        sequence: kept.sequence,
        accepted_at: kept.accepted_at,
        ended_at: kept.ended_at,
        message,
        problem,
        ..Operation::default()
    }
}

/// Slots, upgrades and quarantine as the agent's protocol has them, put into what the guest says of itself.
pub fn show(record: &Record, os_disk: &str, host: &mut proto::Host) {
    let booted = record.booted(os_disk);
    host.booted_slot = booted.map(|slot| SLOTS[slot].to_owned()).unwrap_or_default();
    host.generation = host.generation.max(record.generation);
    let digests = |digest: &str| -> Vec<String> {
        (!digest.is_empty())
            .then(|| digest.to_owned())
            .into_iter()
            .collect()
    };
    let name = |digest: &str| {
        if digest.is_empty() {
            String::new()
        } else {
            image_name(digest)
        }
    };
    host.slots = (0..2)
        .map(|slot| {
            let held = record.disks[slot].as_ref();
            let digest = held.map(|held| held.digest.as_str()).unwrap_or_default();
            let is_good = held.is_some_and(Held::is_good);
            proto::Slot {
                name: SLOTS[slot].to_owned(),
                boot: if booted == Some(slot) || is_good {
                    "good"
                } else {
                    "unbootable"
                }
                .to_owned(),
                image: name(digest),
                digests: digests(digest),
                ..proto::Slot::default()
            }
        })
        .collect();
    host.upgrades = record
        .upgrades
        .iter()
        .map(|upgrade| proto::Upgrade {
            id: upgrade.id.clone(),
            image: name(&upgrade.digest),
            version: String::new(),
            slot: SLOTS[upgrade.slot].to_owned(),
            state: upgrade.stage.proto().into(),
            reason: upgrade.reason.clone(),
            digests: digests(&upgrade.digest),
        })
        .collect();
    host.quarantined = record
        .quarantined
        .iter()
        .map(|(digest, reason)| proto::QuarantinedImage {
            digest: name(digest),
            reason: reason.clone(),
            digests: digests(digest),
        })
        .collect();
    let unfinished = record.unfinished();
    host.running_operations
        .extend(unfinished.iter().map(|(id, _)| (*id).clone()));
}

/// The images of the gallery that this host needs.
pub fn images(record: &Record) -> Vec<proto::Image> {
    record
        .images
        .iter()
        .map(|(digest, owners)| proto::Image {
            digest: digest.clone(),
            kind: "disk".to_owned(),
            slot_image: image_name(digest),
            users: owners
                .iter()
                .map(|owner| proto::ImageUser {
                    kind: "pin".to_owned(),
                    name: owner.clone(),
                    until: 0,
                })
                .collect(),
            ..proto::Image::default()
        })
        .collect()
}
