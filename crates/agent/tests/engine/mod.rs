//! The engine on a host in memory: what it writes, what it refuses, what it says.

mod corruption;
mod health;
mod killed;
mod refusals;
mod sources;
mod upgrades;

use slipway_slots::Slot;
use slipway_slots::boot::BootState;

use crate::support::disks::{Disks, Shared};
use crate::support::host::{Kind, Setup};
use crate::support::images::{TestImage, blocks};

/// A host with version 1.0 in slot A, and version 2.0 to bring to it.
pub struct Bench {
    pub setup: Setup,
    pub old: TestImage,
    pub new: TestImage,
    pub shared: Shared,
    start: Disks,
}

pub const CHUNKS: usize = 16;

impl Bench {
    pub fn new() -> Self {
        Self::with(blocks(CHUNKS, 2, &[1, 2]))
    }

    pub fn with(new: Vec<u8>) -> Self {
        let setup = Setup::new(Kind::Records);
        let old = TestImage::build("1.0", 1, blocks(CHUNKS, 1, &[1, 2]));
        let size = CHUNKS * 4096 + 64 * 1024;
        let start = Disks {
            a: old.slot(size),
            b: vec![0xee; size],
            store: setup.kind.bytes(&BootState::installed(Slot::A)),
            journal: Vec::new(),
        };
        Self {
            setup,
            old,
            new: TestImage::build("2.0", 2, new),
            shared: Shared::new(start.clone(), true),
            start,
        }
    }

    /// The host as it was before anything was done to it.
    pub fn reset(&mut self) {
        self.shared = Shared::new(self.start.clone(), true);
    }
}
