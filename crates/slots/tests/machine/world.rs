//! A host in memory: slots that hold an image or garbage, a boot store, a journal, and an agent that can be killed
//! between any two actions.

use slipway_slots::boot::{BootState, SlotBoot};
use slipway_slots::machine::{
    Action, BootedImage, Decision, Facts, Health, Ledger, Progress, Volatile, decide,
};
use slipway_slots::{BySlot, Digest, Slot};

/// What a slot holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    Empty,
    /// Half written, or damaged since.
    Garbage,
    Image(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    pub booted: Option<Slot>,
    pub boot: BootState,
    pub contents: BySlot<Content>,
    pub ledger: Ledger,
    pub volatile: Volatile,
}

pub fn digest(version: &str) -> Digest {
    Digest::of(version.as_bytes())
}

/// The digit before the dot: images of version 5.x are of epoch 5.
pub fn epoch(version: &str) -> u64 {
    version
        .split('.')
        .next()
        .and_then(|digit| digit.parse().ok())
        .unwrap_or(0)
}

impl World {
    pub fn installed(version: &str) -> Self {
        Self {
            booted: Some(Slot::A),
            boot: BootState::installed(Slot::A),
            contents: BySlot {
                a: Content::Image(version.to_owned()),
                b: Content::Empty,
            },
            ledger: Ledger::default(),
            volatile: Volatile::default(),
        }
    }

    pub fn facts(&self) -> Facts {
        let booted_image = self.booted.and_then(|slot| match &self.contents[slot] {
            Content::Image(version) => Some(BootedImage {
                image: digest(version),
                version: version.clone(),
                epoch: epoch(version),
            }),
            _ => None,
        });
        Facts {
            booted: self.booted,
            booted_image,
            boot: self.boot,
            ledger: self.ledger.clone(),
            volatile: self.volatile.clone(),
        }
    }

    pub fn decide(&self) -> Decision {
        decide(&self.facts())
    }

    /// The version the operation under way is to write.
    fn version(&self) -> String {
        self.ledger
            .current
            .as_ref()
            .map(|current| current.operation.version.clone())
            .expect("an operation is under way")
    }

    fn target(&self) -> Slot {
        self.ledger
            .current
            .as_ref()
            .map(|current| current.operation.target)
            .expect("an operation is under way")
    }

    /// Carries out an action that ends well. Health is asked of `health`.
    pub fn perform(&mut self, action: &Action, health: &Health) {
        match action {
            Action::Record(entry) => {
                self.ledger.apply(entry);
                if self.ledger.current.is_none() {
                    self.volatile.written = None;
                    self.volatile.read_back = None;
                }
            }
            Action::Boot(change) => {
                self.boot = self.boot.with(*change).expect("a decided change is allowed");
            }
            Action::Write => {
                let (slot, version) = (self.target(), self.version());
                self.contents[slot] = Content::Image(version);
                self.volatile.written = Some(Ok(()));
                self.volatile.read_back = None;
            }
            Action::Verify => {
                let right = self.contents[self.target()] == Content::Image(self.version());
                self.volatile.read_back = Some(if right {
                    Ok(())
                } else {
                    Err("it was read back and is not what was written".to_owned())
                });
            }
            Action::CheckHealth => self.volatile.health = health.clone(),
            Action::Reboot => self.volatile.rebooting = true,
            Action::Wait | Action::Recover => {}
        }
    }

    /// The agent is killed and started again; the host runs on.
    pub fn agent_restart(&mut self) {
        self.volatile = Volatile {
            rebooting: false,
            ..Volatile::default()
        };
    }

    /// The boot loader chooses; a slot on trial whose system hangs is reset by the watchdog and chosen again, or not.
    pub fn power_cycle(&mut self, hangs: bool) {
        self.volatile = Volatile::default();
        loop {
            self.booted = self.boot.next_boot();
            let Some(slot) = self.booted else { return };
            self.boot = self.boot.after_boot_of(slot);
            if !(hangs && matches!(self.boot.slots[slot], SlotBoot::Trial { .. })) {
                return;
            }
        }
    }

    /// What must hold in every state, whatever was cut off where.
    pub fn check(&self) {
        for slot in Slot::BOTH {
            if self.boot.slots[slot].can_boot() {
                assert!(
                    matches!(self.contents[slot], Content::Image(_)),
                    "the boot store points to slot {slot}, which is not verified: {self:#?}"
                );
            }
        }
        assert!(self.boot.next_boot().is_some(), "nothing can boot: {self:#?}");
        assert!(
            Slot::BOTH
                .iter()
                .any(|slot| self.boot.slots[*slot] == SlotBoot::Good),
            "no slot is confirmed: {self:#?}"
        );
        if let Some(current) = &self.ledger.current
            && current.progress == Progress::Accepted
            && self.volatile.written.is_some()
        {
            assert_ne!(
                self.booted,
                Some(current.operation.target),
                "a running slot was written: {self:#?}"
            );
        }
    }
}
