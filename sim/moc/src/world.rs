//! What a cloud has: machines, disks, images, and what it says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message;
use serde_json::Value;
use slipway_moc::edit::{POWER, STATUS, push, without};
use slipway_moc::wire::compute::{Disk, GalleryImage, StorageConfiguration, VirtualMachine};
use slipway_moc::wire::storage::VirtualHardDisk;
use slipway_moc::wire::{
    DownloadStatus, Error, ImageSource, PowerOperation, PowerState, ProvisionState, ProvisionStatus, Status,
    Version,
};
use slipway_moc::{Code, MocError};
use tokio::time::Instant;

use crate::Guests;

pub type Refused = (Code, String);

fn refuse<T>(code: Code, message: impl Into<String>) -> Result<T, Refused> {
    Err((code, message.into()))
}

/// How long things take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    pub import: Duration,
    pub disk: Duration,
    pub shutdown: Duration,
}

/// Something that takes time to make.
#[derive(Clone, Debug)]
pub struct Made {
    begun: Instant,
    takes: Duration,
    failure: Option<String>,
}

impl Made {
    fn status(&self) -> Status {
        let spent = self.begun.elapsed();
        let is_done = spent >= self.takes;
        let state = match (is_done, &self.failure) {
            (false, _) => ProvisionState::Importing,
            (true, None) => ProvisionState::Provisioned,
            (true, Some(_)) => ProvisionState::ProvisionFailed,
        };
        let percent = if is_done {
            100
        } else {
            i64::try_from(spent.as_millis() * 100 / self.takes.as_millis().max(1)).unwrap_or(100)
        };
        Status {
            provisioning: Some(ProvisionStatus {
                current: state.into(),
            }),
            last_error: self.failure.clone().filter(|_| is_done).map(|message| Error {
                message,
                code: Code::Failed as u32,
            }),
            download: Some(DownloadStatus {
                percent,
                bytes_done: percent << 20,
                bytes_total: 100 << 20,
            }),
            ..Status::default()
        }
    }

    fn is_good(&self) -> bool {
        self.failure.is_none() && self.begun.elapsed() >= self.takes
    }
}

#[derive(Clone, Debug)]
struct StoredImage {
    image: GalleryImage,
    made: Made,
}

#[derive(Clone, Debug)]
struct StoredDisk {
    disk: VirtualHardDisk,
    /// The name of the image that it was made from.
    image: String,
    made: Made,
}

#[derive(Clone, Debug)]
struct Machine {
    /// As it was written last, without status and power.
    bytes: Vec<u8>,
    version: u64,
    power: PowerState,
}

impl Machine {
    fn read(&self) -> VirtualMachine {
        VirtualMachine::decode(self.bytes.as_slice()).unwrap_or_default()
    }

    fn os_disk(&self) -> String {
        let storage = self.read().storage.unwrap_or_default();
        storage.os_disk.unwrap_or_default().disk_name
    }

    fn shown(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let status = Status {
            version: Some(Version {
                number: self.version.to_string(),
            }),
            provisioning: Some(ProvisionStatus {
                current: ProvisionState::Provisioned.into(),
            }),
            ..Status::default()
        };
        push(&mut bytes, STATUS, &status.encode_to_vec());
        let power = VirtualMachine {
            power_state: self.power.into(),
            ..VirtualMachine::default()
        };
        bytes.extend(power.encode_to_vec());
        bytes
    }
}

type Key = (String, String);

#[derive(Clone, Debug, Default)]
struct World {
    groups: BTreeSet<String>,
    machines: BTreeMap<Key, Machine>,
    images: BTreeMap<Key, StoredImage>,
    disks: BTreeMap<Key, StoredDisk>,
    /// Addresses that images are had from.
    sources: BTreeSet<String>,
    pace: Pace,
    /// How often each method was called.
    calls: BTreeMap<&'static str, usize>,
}

/// A cloud. Clones are the same one.
#[derive(Clone)]
pub struct Moc {
    world: Arc<Mutex<World>>,
    pub guests: Arc<dyn Guests>,
}

impl std::fmt::Debug for Moc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Moc")
    }
}

fn key(place: &str, name: &str) -> Key {
    (place.to_owned(), name.to_owned())
}

impl Moc {
    pub fn new(guests: Arc<dyn Guests>) -> Self {
        Self {
            world: Arc::default(),
            guests,
        }
    }

    /// A copy of the cloud as it stands, with other guests.
    pub fn copied(&self, guests: Arc<dyn Guests>) -> Self {
        Self {
            world: Arc::new(Mutex::new(self.world.lock().clone())),
            guests,
        }
    }

    pub fn set_pace(&self, pace: Pace) {
        self.world.lock().pace = pace;
    }

    /// An image can be had from there.
    pub fn offer(&self, url: &str) {
        self.world.lock().sources.insert(url.to_owned());
    }

    /// No longer.
    pub fn withdraw(&self, url: &str) {
        self.world.lock().sources.remove(url);
    }

    pub(crate) fn called(&self, method: &'static str) {
        *self.world.lock().calls.entry(method).or_default() += 1;
    }

    pub fn calls(&self, method: &str) -> usize {
        self.world.lock().calls.get(method).copied().unwrap_or_default()
    }

    /// A running machine with a disk of an image, a data disk, and fields that its clients do not know.
    pub async fn add(&self, location: &str, group: &str, name: &str, image: &str) {
        self.place(location, group, name, image);
        self.guests.start(name, image).await;
    }

    /// The same where its guest runs already.
    pub fn place(&self, location: &str, group: &str, name: &str, image: &str) {
        let os_disk = format!("{name}-os");
        {
            let mut world = self.world.lock();
            world.groups.insert(group.to_owned());
            let made = Made {
                begun: Instant::now(),
                takes: Duration::ZERO,
                failure: None,
            };
            for (disk, of) in [(os_disk.clone(), image), (format!("{name}-data"), "")] {
                let stored = StoredDisk {
                    disk: VirtualHardDisk {
                        name: disk.clone(),
                        group_name: group.to_owned(),
                        attached_virtual_machine_name: name.to_owned(),
                        ..VirtualHardDisk::default()
                    },
                    image: of.to_owned(),
                    made: made.clone(),
                };
                world.disks.insert(key(group, &disk), stored);
            }
            let machine = VirtualMachine {
                name: name.to_owned(),
                group_name: group.to_owned(),
                location_name: location.to_owned(),
                storage: Some(StorageConfiguration {
                    os_disk: Some(Disk { disk_name: os_disk }),
                    data_disks: vec![Disk {
                        disk_name: format!("{name}-data"),
                    }],
                    image_reference: image.to_owned(),
                }),
                ..VirtualMachine::default()
            };
            let mut bytes = machine.encode_to_vec();
            // Its network, its size, and something that no version of MOC has yet.
            push(&mut bytes, 5, b"\x0a\x05nic-1");
            push(&mut bytes, 12, b"\x08\x04");
            push(&mut bytes, 777, b"later");
            let machine = Machine {
                bytes,
                version: 1,
                power: PowerState::Running,
            };
            world.machines.insert(key(group, name), machine);
        }
    }

    /// Fields of a machine by their numbers, as they are on the wire.
    pub fn machine_bytes(&self, group: &str, name: &str) -> Option<Vec<u8>> {
        Some(self.world.lock().machines.get(&key(group, name))?.bytes.clone())
    }

    /// The disk that a machine boots from, and its data disks.
    pub fn disks_of(&self, group: &str, name: &str) -> (String, Vec<String>) {
        let world = self.world.lock();
        let machine = world.machines.get(&key(group, name)).map(Machine::read);
        let storage = machine.and_then(|machine| machine.storage).unwrap_or_default();
        (
            storage.os_disk.unwrap_or_default().disk_name,
            storage
                .data_disks
                .into_iter()
                .map(|disk| disk.disk_name)
                .collect(),
        )
    }

    /// Disks of a group by name.
    pub fn disks(&self, group: &str) -> Vec<String> {
        let world = self.world.lock();
        let of_group = world.disks.keys().filter(|(of, _)| of == group);
        of_group.map(|(_, name)| name.clone()).collect()
    }

    /// Somebody else writes the machine: whoever has read it before writes over an older version.
    pub fn touch(&self, group: &str, name: &str) {
        if let Some(machine) = self.world.lock().machines.get_mut(&key(group, name)) {
            machine.version += 1;
        }
    }

    /// Somebody pulls the plug.
    pub async fn cut_power(&self, group: &str, name: &str) {
        self.guests.stop(name, false).await;
        if let Some(machine) = self.world.lock().machines.get_mut(&key(group, name)) {
            machine.power = PowerState::Off;
        }
    }

    pub(crate) fn machine(&self, group: &str, name: &str) -> Result<Vec<u8>, Refused> {
        let world = self.world.lock();
        if !world.groups.contains(group) {
            return refuse(Code::InvalidGroup, format!("group {group} is not there"));
        }
        match world.machines.get(&key(group, name)) {
            Some(machine) => Ok(machine.shown()),
            None => refuse(Code::NotFound, format!("virtual machine {name} is not there")),
        }
    }

    pub(crate) fn write_machine(&self, bytes: &[u8]) -> Result<Vec<u8>, Refused> {
        let given = VirtualMachine::decode(bytes)
            .map_err(|_| (Code::InvalidInput, "no virtual machine".to_owned()))?;
        let mut world = self.world.lock();
        let World { machines, disks, .. } = &mut *world;
        let at = key(&given.group_name, &given.name);
        let Some(machine) = machines.get_mut(&at) else {
            return refuse(Code::NotSupported, "machines are not made here");
        };
        let version = given.status.as_ref().and_then(|status| status.version.as_ref());
        if version.is_some_and(|version| version.number != machine.version.to_string()) {
            return refuse(Code::InvalidVersion, "the machine has another version now");
        }
        let os_disk = given
            .storage
            .as_ref()
            .and_then(|storage| storage.os_disk.as_ref())
            .map(|disk| disk.disk_name.clone())
            .unwrap_or_default();
        let before = machine.os_disk();
        if os_disk != before {
            if machine.power != PowerState::Off {
                return refuse(
                    Code::InUse,
                    "the disk that a machine boots from is in use while it runs",
                );
            }
            let Some(disk) = disks.get_mut(&key(&given.group_name, &os_disk)) else {
                return refuse(Code::NotFound, format!("disk {os_disk} is not there"));
            };
            if !disk.made.is_good() {
                return refuse(Code::PendingState, format!("disk {os_disk} is not ready"));
            }
            let attached = &mut disk.disk.attached_virtual_machine_name;
            if !attached.is_empty() && *attached != given.name {
                return refuse(Code::InUse, format!("disk {os_disk} is attached to {attached}"));
            }
            attached.clone_from(&given.name);
            if let Some(old) = disks.get_mut(&key(&given.group_name, &before)) {
                old.disk.attached_virtual_machine_name.clear();
            }
        }
        let kept = without(bytes, STATUS).and_then(|bytes| without(&bytes, POWER));
        machine.bytes = kept.map_err(|_| (Code::InvalidInput, "no virtual machine".to_owned()))?;
        machine.version += 1;
        Ok(machine.shown())
    }

    pub(crate) async fn operate(&self, bytes: &[u8], operation: PowerOperation) -> Result<Vec<u8>, Refused> {
        let given = VirtualMachine::decode(bytes)
            .map_err(|_| (Code::InvalidInput, "no virtual machine".to_owned()))?;
        let at = key(&given.group_name, &given.name);
        let (image, power, shutdown) = {
            let world = self.world.lock();
            let Some(machine) = world.machines.get(&at) else {
                return refuse(
                    Code::NotFound,
                    format!("virtual machine {} is not there", given.name),
                );
            };
            let disk = world.disks.get(&key(&given.group_name, &machine.os_disk()));
            let image = disk.map(|disk| disk.image.clone()).unwrap_or_default();
            (image, machine.power, world.pace.shutdown)
        };
        let set = |power| {
            let mut world = self.world.lock();
            let Some(machine) = world.machines.get_mut(&at) else {
                return Vec::new();
            };
            machine.power = power;
            machine.shown()
        };
        match operation {
            PowerOperation::Start => {
                if power != PowerState::Running {
                    set(PowerState::Running);
                    self.guests.start(&given.name, &image).await;
                }
                Ok(set(PowerState::Running))
            }
            PowerOperation::Stop | PowerOperation::StopGraceful => {
                let is_graceful = operation == PowerOperation::StopGraceful;
                if power == PowerState::Running {
                    if is_graceful && !self.guests.answers(&given.name) {
                        return refuse(Code::Timeout, "the guest does not shut down");
                    }
                    if is_graceful {
                        tokio::time::sleep(shutdown).await;
                    }
                    self.guests.stop(&given.name, is_graceful).await;
                }
                Ok(set(PowerState::Off))
            }
            PowerOperation::Reset | PowerOperation::Unspecified => {
                refuse(Code::NotSupported, "an operation that is not served here")
            }
        }
    }

    pub(crate) async fn run_command(
        &self,
        bytes: &[u8],
        script: &str,
    ) -> Result<(i32, String, String), Refused> {
        let given = VirtualMachine::decode(bytes)
            .map_err(|_| (Code::InvalidInput, "no virtual machine".to_owned()))?;
        let power = {
            let world = self.world.lock();
            let machine = world.machines.get(&key(&given.group_name, &given.name));
            machine.map(|machine| machine.power)
        };
        match power {
            None => {
                return refuse(
                    Code::NotFound,
                    format!("virtual machine {} is not there", given.name),
                );
            }
            Some(PowerState::Running) => {}
            Some(_) => return refuse(Code::RunCommandFailed, "the machine does not run"),
        }
        match self.guests.run(&given.name, script).await {
            Some(ran) => Ok(ran),
            None => refuse(Code::RunCommandFailed, "the guest agent does not answer"),
        }
    }

    pub(crate) fn image(&self, location: &str, name: &str) -> Result<GalleryImage, Refused> {
        if location.is_empty() {
            return refuse(Code::InvalidInput, "Location not specified");
        }
        let world = self.world.lock();
        let Some(stored) = world.images.get(&key(location, name)) else {
            return refuse(Code::NotFound, format!("gallery image {name} is not there"));
        };
        let mut image = stored.image.clone();
        image.status = Some(stored.made.status());
        Ok(image)
    }

    pub(crate) fn write_image(&self, mut image: GalleryImage) -> Result<(), Refused> {
        if image.location_name.is_empty() || image.name.is_empty() {
            return refuse(Code::InvalidInput, "Location not specified");
        }
        if image.source_type() != ImageSource::Http {
            return refuse(Code::NotSupported, "a source that is not served here");
        }
        let source: Value = serde_json::from_str(&image.source_path).unwrap_or_default();
        let Some(url) = source["sasURI"].as_str() else {
            return refuse(Code::InvalidInput, "the source is no JSON with sasURI");
        };
        let mut world = self.world.lock();
        let at = key(&image.location_name, &image.name);
        if world.images.contains_key(&at) {
            return refuse(
                Code::AlreadyExists,
                format!("gallery image {} is there", image.name),
            );
        }
        let failure = (!world.sources.contains(url)).then(|| "the download ended with 404".to_owned());
        image.path = format!("C:\\ClusterStorage\\gallery\\{}.vhdx", image.name);
        let made = Made {
            begun: Instant::now(),
            takes: world.pace.import,
            failure,
        };
        world.images.insert(at, StoredImage { image, made });
        Ok(())
    }

    pub(crate) fn delete_image(&self, location: &str, name: &str) -> Result<(), Refused> {
        match self.world.lock().images.remove(&key(location, name)) {
            Some(_) => Ok(()),
            None => refuse(Code::NotFound, format!("gallery image {name} is not there")),
        }
    }

    /// Somebody takes an image out of the gallery.
    pub fn forget_image(&self, location: &str, name: &str) -> Result<(), MocError> {
        self.delete_image(location, name)
            .map_err(|(_, message)| MocError::told("deleting an image", &message))
    }

    pub(crate) fn disk(&self, group: &str, name: &str) -> Result<VirtualHardDisk, Refused> {
        let world = self.world.lock();
        if !world.groups.contains(group) {
            return refuse(Code::InvalidGroup, format!("group {group} is not there"));
        }
        let Some(stored) = world.disks.get(&key(group, name)) else {
            return refuse(Code::NotFound, format!("disk {name} is not there"));
        };
        let mut disk = stored.disk.clone();
        disk.status = Some(stored.made.status());
        Ok(disk)
    }

    pub(crate) fn write_disk(&self, disk: VirtualHardDisk) -> Result<(), Refused> {
        let mut world = self.world.lock();
        if !world.groups.contains(&disk.group_name) {
            return refuse(
                Code::InvalidGroup,
                format!("group {} is not there", disk.group_name),
            );
        }
        let at = key(&disk.group_name, &disk.name);
        if world.disks.contains_key(&at) {
            return refuse(Code::AlreadyExists, format!("disk {} is there", disk.name));
        }
        let of = world.images.values().find(|stored| {
            stored.image.path == disk.source_path && !disk.source_path.is_empty() && stored.made.is_good()
        });
        let Some(image) = of.map(|stored| stored.image.name.clone()) else {
            return refuse(Code::FileNotFound, "the source of the disk is not there");
        };
        let made = Made {
            begun: Instant::now(),
            takes: world.pace.disk,
            failure: None,
        };
        world.disks.insert(at, StoredDisk { disk, image, made });
        Ok(())
    }

    pub(crate) fn delete_disk(&self, group: &str, name: &str) -> Result<(), Refused> {
        let mut world = self.world.lock();
        let at = key(group, name);
        let Some(stored) = world.disks.get(&at) else {
            return refuse(Code::NotFound, format!("disk {name} is not there"));
        };
        let attached = stored.disk.attached_virtual_machine_name.clone();
        if !attached.is_empty() {
            return refuse(Code::InUse, format!("disk {name} is attached to {attached}"));
        }
        world.disks.remove(&at);
        Ok(())
    }
}
