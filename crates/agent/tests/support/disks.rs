//! What outlives a power cut, the log of what was done to it, and the parts of a host that do it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slipway_agent::boot_store::Medium;
use slipway_agent::engine::JournalMedium;
use slipway_agent::target::{SlotTarget, Through};
use slipway_slots::boot::{Contents, Layout, Step};
use slipway_slots::digest::Hasher;
use slipway_slots::{Digest, Slot};

pub const SECTOR: usize = 512;

/// The bytes of a boot store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreBytes {
    Disk(Vec<u8>),
    Files(BTreeMap<String, Vec<u8>>),
}

/// Everything durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Disks {
    pub a: Vec<u8>,
    pub b: Vec<u8>,
    pub store: StoreBytes,
    pub journal: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    A,
    B,
    Store,
    Journal,
}

impl Device {
    pub fn of(slot: Slot) -> Self {
        match slot {
            Slot::A => Self::A,
            Slot::B => Self::B,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskWrite {
    Bytes { offset: u64, bytes: Vec<u8> },
    Step(Step),
    Append(Vec<u8>),
    Replace(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Write(Device, DiskWrite),
    Flush(Device),
}

impl Disks {
    /// Tells states apart.
    pub fn digest(&self) -> Digest {
        let mut hasher = Hasher::new();
        hasher.update(&self.a);
        hasher.update(&self.b);
        hasher.update(&(self.journal.len() as u64).to_be_bytes());
        hasher.update(&self.journal);
        match &self.store {
            StoreBytes::Disk(disk) => hasher.update(disk),
            StoreBytes::Files(files) => {
                for (name, bytes) in files {
                    hasher.update(format!("{name} {} ", bytes.len()).as_bytes());
                    hasher.update(bytes);
                }
            }
        }
        hasher.finish()
    }

    pub fn apply(&mut self, device: Device, change: &DiskWrite) {
        match (device, change) {
            (Device::A, DiskWrite::Bytes { offset, bytes }) => put(&mut self.a, *offset, bytes),
            (Device::B, DiskWrite::Bytes { offset, bytes }) => put(&mut self.b, *offset, bytes),
            (Device::Journal, DiskWrite::Append(bytes)) => self.journal.extend_from_slice(bytes),
            (Device::Journal, DiskWrite::Replace(bytes)) => self.journal.clone_from(bytes),
            (Device::Store, DiskWrite::Bytes { offset, bytes }) => match &mut self.store {
                StoreBytes::Disk(disk) => put(disk, *offset, bytes),
                StoreBytes::Files(_) => panic!("the store is files"),
            },
            (Device::Store, DiskWrite::Step(step)) => match &mut self.store {
                StoreBytes::Disk(_) => panic!("the store is a disk"),
                StoreBytes::Files(files) => match step {
                    Step::WriteFile { name, bytes } => {
                        files.insert(name.clone(), bytes.clone());
                    }
                    Step::Rename { from, to } => {
                        if let Some(bytes) = files.remove(from) {
                            files.insert(to.clone(), bytes);
                        }
                    }
                    Step::Remove { name } => {
                        files.remove(name);
                    }
                    Step::Write { .. } | Step::Flush => panic!("{step:?} is no change of files"),
                },
            },
            other => panic!("{other:?} does not fit"),
        }
    }
}

fn put(disk: &mut [u8], offset: u64, bytes: &[u8]) {
    disk[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
}

/// The disks as a running host has them, and what was done to them.
#[derive(Debug)]
struct Inner {
    disks: Disks,
    log: Option<Vec<Event>>,
}

#[derive(Clone, Debug)]
pub struct Shared(Arc<Mutex<Inner>>);

impl Shared {
    pub fn new(disks: Disks, record: bool) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            disks,
            log: record.then(Vec::new),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn disks(&self) -> Disks {
        self.lock().disks.clone()
    }

    pub fn inspect(&self, inspect: impl FnOnce(&Disks)) {
        inspect(&self.lock().disks);
    }

    pub fn change(&self, change: impl FnOnce(&mut Disks)) {
        change(&mut self.lock().disks);
    }

    pub fn log(&self) -> Vec<Event> {
        self.lock().log.clone().unwrap_or_default()
    }

    pub fn write(&self, device: Device, change: DiskWrite) {
        let mut inner = self.lock();
        inner.disks.apply(device, &change);
        if let Some(log) = &mut inner.log {
            log.push(Event::Write(device, change));
        }
    }

    pub fn flush(&self, device: Device) {
        if let Some(log) = &mut self.lock().log {
            log.push(Event::Flush(device));
        }
    }

    /// How many bytes were written to a device.
    pub fn written(&self, device: Device) -> u64 {
        self.log()
            .iter()
            .map(|event| match event {
                Event::Write(written, DiskWrite::Bytes { bytes, .. }) if *written == device => {
                    bytes.len() as u64
                }
                _ => 0,
            })
            .sum()
    }
}

/// A slot's partition.
pub struct MemoryTarget {
    pub shared: Shared,
    pub slot: Slot,
    pub used_by: Option<String>,
}

impl SlotTarget for MemoryTarget {
    fn describe(&self) -> String {
        format!("slot {}", self.slot)
    }

    fn size(&self) -> u64 {
        let inner = self.shared.lock();
        match self.slot {
            Slot::A => inner.disks.a.len() as u64,
            Slot::B => inner.disks.b.len() as u64,
        }
    }

    fn in_use(&mut self) -> io::Result<Option<String>> {
        Ok(self.used_by.clone())
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8], _: Through) -> io::Result<()> {
        let inner = self.shared.lock();
        let disk = match self.slot {
            Slot::A => &inner.disks.a,
            Slot::B => &inner.disks.b,
        };
        let bytes = disk
            .get(offset as usize..offset as usize + buffer.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.shared.write(
            Device::of(self.slot),
            DiskWrite::Bytes {
                offset,
                bytes: bytes.to_vec(),
            },
        );
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.shared.flush(Device::of(self.slot));
        Ok(())
    }
}

/// The boot store's medium.
pub struct MemoryMedium(pub Shared);

impl Medium for MemoryMedium {
    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn load(&mut self, layout: &Layout) -> io::Result<Contents> {
        Ok(match (&self.0.lock().disks.store, layout) {
            (StoreBytes::Disk(disk), Layout::Extents(extents)) => Contents::Extents(
                extents
                    .iter()
                    .map(|extent| {
                        disk[extent.offset as usize..(extent.offset + extent.length) as usize].to_vec()
                    })
                    .collect(),
            ),
            (StoreBytes::Files(files), Layout::Files { prefix }) => Contents::Files(
                files
                    .iter()
                    .filter(|(name, _)| name.starts_with(prefix.as_str()))
                    .map(|(name, bytes)| (name.clone(), bytes.clone()))
                    .collect(),
            ),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        })
    }

    fn apply(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::Flush => self.0.flush(Device::Store),
            Step::Write { offset, bytes } => self.0.write(
                Device::Store,
                DiskWrite::Bytes {
                    offset: *offset,
                    bytes: bytes.clone(),
                },
            ),
            other => self.0.write(Device::Store, DiskWrite::Step(other.clone())),
        }
        Ok(())
    }
}

/// The journal's file.
pub struct MemoryJournal(pub Shared);

impl JournalMedium for MemoryJournal {
    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.0.lock().disks.journal.clone())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write(Device::Journal, DiskWrite::Append(bytes.to_vec()));
        self.0.flush(Device::Journal);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write(Device::Journal, DiskWrite::Replace(bytes.to_vec()));
        self.0.flush(Device::Journal);
        Ok(())
    }
}
