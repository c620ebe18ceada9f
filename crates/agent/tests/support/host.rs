//! Builds engines over a host in memory.

use std::io;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use slipway_agent::boot_store::{BootStore, Stored};
use slipway_agent::engine::{
    Clock, Engine, EngineError, Failpoints, HealthCheck, Host, Preflight, Rebooter, SlotPartition, Unhindered,
};
use slipway_slots::boot::{
    BootState, Codec, Contents, GptAttributes, Grubenv, Layout, Records, SystemdBoot, UbootEnv,
};
use slipway_slots::machine::Health;
use slipway_slots::write_plan::{Limits, OnDeltaFailure};
use slipway_slots::{BySlot, Slot};

use super::disks::{Disks, MemoryJournal, MemoryMedium, MemoryTarget, Shared, StoreBytes};
use super::images::signer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Records,
    Grubenv,
    Uboot,
    SystemdBoot,
    Gpt,
}

pub const STORE_DISK: u64 = 128 * 1024;

impl Kind {
    pub const ALL: [Self; 5] = [
        Self::Records,
        Self::Grubenv,
        Self::Uboot,
        Self::SystemdBoot,
        Self::Gpt,
    ];

    pub fn records() -> Records {
        Records { offset: 4096 }
    }

    pub fn uboot() -> UbootEnv {
        UbootEnv {
            offsets: [0, 8192],
            size: 1024,
        }
    }

    pub fn systemd_boot() -> SystemdBoot {
        SystemdBoot {
            entries: BySlot {
                a: "title A\nlinux /a/vmlinuz".into(),
                b: "title B\nlinux /b/vmlinuz".into(),
            },
        }
    }

    pub fn gpt() -> GptAttributes {
        GptAttributes {
            disk_size: STORE_DISK,
            partitions: BySlot { a: 1, b: 2 },
            tries: 3,
        }
    }

    pub fn codec(self) -> Box<dyn Codec> {
        match self {
            Self::Records => Box::new(Self::records()),
            Self::Grubenv => Box::new(Grubenv),
            Self::Uboot => Box::new(Self::uboot()),
            Self::SystemdBoot => Box::new(Self::systemd_boot()),
            Self::Gpt => Box::new(Self::gpt()),
        }
    }

    pub fn store(self, shared: &Shared) -> Box<dyn BootStore> {
        let medium = MemoryMedium(shared.clone());
        match self {
            Self::Records => Box::new(Stored::new(Self::records(), medium)),
            Self::Grubenv => Box::new(Stored::new(Grubenv, medium)),
            Self::Uboot => Box::new(Stored::new(Self::uboot(), medium)),
            Self::SystemdBoot => Box::new(Stored::new(Self::systemd_boot(), medium)),
            Self::Gpt => Box::new(Stored::new(Self::gpt(), medium)),
        }
    }

    /// The bytes of a store that holds `state`.
    pub fn bytes(self, state: &BootState) -> StoreBytes {
        let codec = self.codec();
        let blank = match codec.layout() {
            Layout::Files { .. } => StoreBytes::Files(std::collections::BTreeMap::new()),
            Layout::Extents(_) if self == Self::Gpt => StoreBytes::Disk(partitioned(STORE_DISK)),
            Layout::Extents(_) => StoreBytes::Disk(vec![0; STORE_DISK as usize]),
        };
        let shared = Shared::new(
            Disks {
                a: Vec::new(),
                b: Vec::new(),
                store: blank,
                journal: Vec::new(),
            },
            false,
        );
        let mut medium = MemoryMedium(shared.clone());
        let contents =
            slipway_agent::boot_store::Medium::load(&mut medium, &codec.layout()).expect("it loads");
        for step in codec.encode(&contents, state).expect("there is room") {
            slipway_agent::boot_store::Medium::apply(&mut medium, &step).expect("memory takes it");
        }
        shared.disks().store
    }

    /// What the store says.
    pub fn read(self, store: &StoreBytes) -> slipway_slots::boot::Decoded {
        let codec = self.codec();
        let contents = match (store, codec.layout()) {
            (StoreBytes::Disk(disk), Layout::Extents(extents)) => Contents::Extents(
                extents
                    .iter()
                    .map(|extent| {
                        disk[extent.offset as usize..(extent.offset + extent.length) as usize].to_vec()
                    })
                    .collect(),
            ),
            (StoreBytes::Files(files), _) => Contents::Files(files.clone()),
            (StoreBytes::Disk(_), Layout::Files { .. }) => panic!("the store is a disk"),
        };
        codec.decode(&contents)
    }
}

/// A disk with a GPT of two partitions, both copies good.
pub fn partitioned(size: u64) -> Vec<u8> {
    let sectors = size / 512;
    let mut entries = vec![0; 128 * 128];
    for number in 0..2_u8 {
        let entry = &mut entries[usize::from(number) * 128..][..128];
        entry[..16].fill(0x11);
        entry[16..32].fill(number + 1);
        let first = 40 + u64::from(number) * 40;
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&(first + 39).to_le_bytes());
    }
    let header = |own: u64, other: u64, at: u64| {
        let mut header = vec![0; 512];
        header[..8].copy_from_slice(b"EFI PART");
        header[8..12].copy_from_slice(&0x1_0000_u32.to_le_bytes());
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        header[24..32].copy_from_slice(&own.to_le_bytes());
        header[32..40].copy_from_slice(&other.to_le_bytes());
        header[40..48].copy_from_slice(&34_u64.to_le_bytes());
        header[48..56].copy_from_slice(&(sectors - 34).to_le_bytes());
        header[56..72].fill(0xab);
        header[72..80].copy_from_slice(&at.to_le_bytes());
        header[80..84].copy_from_slice(&128_u32.to_le_bytes());
        header[84..88].copy_from_slice(&128_u32.to_le_bytes());
        header[88..92].copy_from_slice(&crc32fast::hash(&entries).to_le_bytes());
        let sum = crc32fast::hash(&header[..92]);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        header
    };
    let mut disk = vec![0; size as usize];
    disk[512..1024].copy_from_slice(&header(1, sectors - 1, 2));
    disk[1024..1024 + entries.len()].copy_from_slice(&entries);
    let backup = (sectors - 33) as usize * 512;
    disk[backup..backup + entries.len()].copy_from_slice(&entries);
    let last = disk.len() - 512;
    disk[last..].copy_from_slice(&header(sectors - 1, 1, sectors - 33));
    disk
}

pub struct FixedHealth(pub Health);

impl HealthCheck for FixedHealth {
    fn decide(&mut self) -> Health {
        self.0.clone()
    }
}

/// Whoever drives the host reboots it when the engine rests.
pub struct NoReboot;

impl Rebooter for NoReboot {
    fn reboot(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }
}

pub struct FixedClock(pub Timestamp);

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        self.0
    }
}

pub fn noon() -> Timestamp {
    "2026-06-01T12:00:00Z".parse().expect("a time")
}

/// How a host differs from a plain one.
pub struct Setup {
    pub kind: Kind,
    pub limits: Limits,
    pub health: Health,
    pub failpoints: Arc<dyn Failpoints>,
    pub on_delta_failure: OnDeltaFailure,
    pub now: Timestamp,
    pub used_by: Option<String>,
    pub preflight: Preflight,
}

/// A host on mains with nothing on its disk that counts.
pub fn no_demands() -> Preflight {
    Preflight {
        supplies: "/nonexistent".into(),
        least_space: 0,
        ..Preflight::new(Path::new("/nonexistent"))
    }
}

impl Setup {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            limits: Limits {
                step: 4096,
                checkpoint: 8 * 4096,
            },
            health: Health::Passed,
            failpoints: Arc::new(Unhindered),
            on_delta_failure: OnDeltaFailure::Full,
            now: noon(),
            used_by: None,
            preflight: no_demands(),
        }
    }

    pub fn host(&self, shared: &Shared, booted: Option<Slot>) -> Host {
        let partition = |slot: Slot| {
            vec![SlotPartition {
                name: "root".into(),
                target: Box::new(MemoryTarget {
                    shared: shared.clone(),
                    slot,
                    used_by: (Some(slot) != booted).then(|| self.used_by.clone()).flatten(),
                }),
            }]
        };
        Host {
            compatible: "edge-box".into(),
            arch: "x86_64".into(),
            keys: signer().ring(),
            booted,
            slots: BySlot {
                a: partition(Slot::A),
                b: partition(Slot::B),
            },
            store: self.kind.store(shared),
            journal: Box::new(MemoryJournal(shared.clone())),
            health: Box::new(FixedHealth(self.health.clone())),
            rebooter: Box::new(NoReboot),
            clock: Box::new(FixedClock(self.now)),
            failpoints: self.failpoints.clone(),
            limits: self.limits,
            on_delta_failure: self.on_delta_failure,
            preflight: self.preflight.clone(),
        }
    }

    pub fn engine(&self, shared: &Shared, booted: Slot) -> Result<Engine, EngineError> {
        Engine::open(self.host(shared, Some(booted)))
    }
}
