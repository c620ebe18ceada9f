//! One visit of a machine: it is read, and what its record says is to be done is done, as far as it can be now. The only part of this port
//! that calls MOC to change something.

use std::{collections::BTreeSet, future::Future, time::Duration};

use prost::Message;
use serde_json::json;
use slipway_agent_api::{
    Class, Problem,
    proto::{self, GetHostRequest, ListOperationsRequest, Operation, local_answer::Answer, local_call::Call},
};
use slipway_moc::{
    Cloud, MocError,
    edit::{MachineEdit, changed, tag},
    wire::{
        ImageSource, PowerState, ProvisionState, Status,
        compute::{GalleryImage, OperatingSystem, VirtualMachine},
        storage::VirtualHardDisk,
    },
};
use slipway_runtime::Clock;
use tokio::{task::JoinHandle, time::timeout};

use super::{
    Known, MocPlace, guest,
    plan::{CloudStep, Facts, Standing, give_up, next},
    record::{Record, TAG, Work, disk_name, image_name},
    shown,
};
use crate::hosts::HostAddress;

/// So long one call is waited for that copies or stops something; it goes on without us, and its end is seen at the next visit.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most steps of one visit.
const STEPS: usize = 24;

/// A call that goes on. It ends with this process, or when nobody has the host any more.
pub struct Running(JoinHandle<Result<(), MocError>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub struct Visit<'a> {
    cloud: Cloud,
    host: &'a HostAddress,
    place: &'a MocPlace,
    known: &'a mut Known,
    /// The machine as MOC sent it.
    bytes: Vec<u8>,
    machine: VirtualMachine,
    pub record: Record,
    guest: Option<Result<proto::Host, Problem>>,
}

/// What came of a step.
enum Came {
    /// Something is different now.
    On,
    /// It is waited for this.
    Waits(String),
}

fn standing(status: Option<&Status>) -> Standing {
    let status = status.cloned().unwrap_or_default();
    let state = status.provisioning.as_ref().map_or(
        ProvisionState::Unknown,
        slipway_moc::wire::ProvisionStatus::current,
    );
    match state {
        ProvisionState::Created
        | ProvisionState::Provisioned
        | ProvisionState::Imported
        | ProvisionState::Updated => Standing::Ready,
        ProvisionState::CreateFailed
        | ProvisionState::ProvisionFailed
        | ProvisionState::ImportFailed
        | ProvisionState::UpdateFailed
        | ProvisionState::DeleteFailed => {
            let said = status.last_error.map(|error| error.message).unwrap_or_default();
            let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
            Standing::Failed(if words.is_empty() {
                format!("{state:?}")
            } else {
                words.chars().take(300).collect()
            })
        }
        ProvisionState::Deleted => Standing::Absent,
        _ => Standing::Pending {
            percent: status.download.map(|download| download.percent.clamp(0, 100)),
        },
    }
}

fn read(host: &HostAddress, bytes: &[u8]) -> Result<(VirtualMachine, Record), Problem> {
    let odd = |what: &str| {
        Problem::new(
            Class::Terminal,
            "RecordUnreadable",
            format!("virtual machine of host {}: {what}", host.name),
        )
    };
    let machine = VirtualMachine::decode(bytes).map_err(|_| odd("what MOC says of it cannot be read"))?;
    let storage = machine.storage.clone().unwrap_or_default();
    let os_disk = storage.os_disk.map(|disk| disk.disk_name).unwrap_or_default();
    let record = match tag(&machine, TAG) {
        Some(text) => serde_json::from_str(text).map_err(|_| {
            odd(
                "its tag slipway.dev/host cannot be read: take the tag off, and the disk it boots from becomes slot A",
            )
        })?,
        None => Record::beginning(&os_disk, &storage.image_reference),
    };
    Ok((machine, record))
}

impl<'a> Visit<'a> {
    pub async fn begin(
        cloud: Cloud,
        host: &'a HostAddress,
        place: &'a MocPlace,
        known: &'a mut Known,
    ) -> Result<Self, Problem> {
        let bytes = Self::fetch(&cloud, place).await?;
        let (machine, record) = read(host, &bytes)?;
        Ok(Self {
            cloud,
            host,
            place,
            known,
            bytes,
            machine,
            record,
            guest: None,
        })
    }

    async fn fetch(cloud: &Cloud, place: &MocPlace) -> Result<Vec<u8>, Problem> {
        let found = cloud.machine(&place.group, &place.machine).await;
        found.map_err(|error| error.problem())?.ok_or_else(|| {
            Problem::new(
                Class::Terminal,
                "NoMachine",
                format!(
                    "MOC has no virtual machine {} in group {}",
                    place.machine, place.group
                ),
            )
        })
    }

    async fn read_again(&mut self) -> Result<(), Problem> {
        self.bytes = Self::fetch(&self.cloud, self.place).await?;
        (self.machine, self.record) = read(self.host, &self.bytes)?;
        Ok(())
    }

    pub fn os_disk(&self) -> &str {
        let storage = self.machine.storage.as_ref();
        storage
            .and_then(|storage| storage.os_disk.as_ref())
            .map(|disk| disk.disk_name.as_str())
            .unwrap_or_default()
    }

    pub fn operation(&self, id: &str) -> Option<Operation> {
        let kept = self.record.operations.get(id)?;
        Some(shown(id, kept, self.known))
    }

    pub fn operations(&self) -> Vec<Operation> {
        let all = self.record.operations.iter();
        all.map(|(id, kept)| shown(id, kept, self.known)).collect()
    }

    /// Asks the guest's agent. While the machine is switched over it is away, like any host that reboots.
    pub async fn ask(&mut self, call: Call) -> Result<Answer, Problem> {
        let away = |message: String| Problem::new(Class::Transient, "Unreachable", message);
        if self.record.is_switching() {
            return Err(away(format!(
                "host {} is switched to another disk",
                self.host.name
            )));
        }
        self.ask_anyway(call).await
    }

    async fn ask_anyway(&mut self, call: Call) -> Result<Answer, Problem> {
        let power = self.machine.power_state();
        if power != PowerState::Running {
            return Err(Problem::new(
                Class::Transient,
                "Unreachable",
                format!("the virtual machine of host {} is {power:?}", self.host.name),
            ));
        }
        guest::call(&self.cloud, &self.bytes, call).await
    }

    async fn ask_host(&mut self) -> Result<proto::Host, Problem> {
        if let Some(known) = &self.guest {
            return known.clone();
        }
        let answered = match self.ask_anyway(Call::GetHost(GetHostRequest {})).await {
            Ok(Answer::Host(host)) if host.name == self.host.name => Ok(host),
            Ok(Answer::Host(host)) => Err(Problem::new(
                Class::Terminal,
                "OtherHost",
                format!(
                    "the guest says that it is host {}: start it with `slipway-agent guest --host {}`, or name the right machine in \
                     spec.platform.moc",
                    host.name, self.host.name
                ),
            )),
            Ok(_) => Err(guest::odd()),
            Err(problem) => Err(problem),
        };
        self.guest = Some(answered.clone());
        answered
    }

    pub async fn guest_host(&mut self) -> Result<proto::Host, Problem> {
        if self.record.is_switching() {
            let message = format!("host {} is switched to another disk", self.host.name);
            return Err(Problem::new(Class::Transient, "Unreachable", message));
        }
        self.ask_host().await
    }

    pub async fn guest_operations(&mut self) -> Result<Vec<Operation>, Problem> {
        match self.ask(Call::ListOperations(ListOperationsRequest {})).await? {
            Answer::Operations(listed) => Ok(listed.operations),
            _ => Err(guest::odd()),
        }
    }

    /// What MOC says of everything that the record speaks of.
    pub async fn facts(&mut self) -> Result<Facts, Problem> {
        let mut facts = Facts {
            os_disk: self.os_disk().to_owned(),
            power: self.machine.power_state(),
            has_source: self.place.image_url.is_some(),
            guest_answers: self.guest.as_ref().map(Result::is_ok),
            ..Facts::default()
        };
        let mut disks = BTreeSet::new();
        for (_, kept) in self.record.unfinished() {
            match &kept.work {
                Some(Work::Ensure { digest, .. }) => {
                    facts.images.insert(digest.clone(), Standing::Absent);
                }
                Some(Work::Prepare { digest, slot, .. }) => {
                    disks.insert(disk_name(&self.place.machine, *slot, digest));
                    disks.extend(self.record.disks[*slot].iter().map(|held| held.name.clone()));
                }
                _ => {}
            }
        }
        for (digest, found) in &mut facts.images {
            let image = self.cloud.image(&self.place.location, &image_name(digest)).await;
            let image = image.map_err(|error| error.problem())?;
            *found = image.map_or(Standing::Absent, |image| standing(image.status.as_ref()));
        }
        for name in disks {
            let disk = self.cloud.disk(&self.place.group, &name).await;
            let disk = disk.map_err(|error| error.problem())?;
            let found = disk.map_or(Standing::Absent, |disk| standing(disk.status.as_ref()));
            facts.disks.insert(name, found);
        }
        Ok(facts)
    }

    /// Writes the record, over the version that was read, and reads the machine again.
    pub async fn write(&mut self, record: Record, os_disk: Option<String>) -> Result<(), Problem> {
        let text = serde_json::to_string(&record)
            .map_err(|error| Problem::new(Class::Terminal, "RecordUnreadable", error.to_string()))?;
        let change = MachineEdit {
            os_disk,
            tag: Some((TAG.to_owned(), text)),
        };
        let bytes = changed(&self.bytes, &change)
            .map_err(|error| Problem::new(Class::Terminal, "RecordUnreadable", error.to_string()))?;
        let written = self.cloud.write_machine(bytes).await;
        written.map_err(|error| error.problem())?;
        self.read_again().await
    }

    /// Does what can be done now. What cannot be is said of the operation, and tried at the next visit.
    pub async fn drive(&mut self, clock: &Clock) {
        let mut done = Vec::new();
        for _ in 0..STEPS {
            let now = clock.now().as_millisecond();
            let facts = match self.facts().await {
                Ok(facts) => facts,
                Err(problem) => {
                    self.troubled(&problem);
                    return;
                }
            };
            let mut is_on = false;
            for (id, step) in next(&self.record, &facts, &self.place.machine, now) {
                // What has changed nothing is not done twice in one visit.
                if done.contains(&step) {
                    continue;
                }
                match self.perform(&step).await {
                    Ok(Came::On) => {
                        self.known.trouble.remove(&id);
                        done.push(step);
                        is_on = true;
                        break;
                    }
                    Ok(Came::Waits(what)) => {
                        self.known.trouble.insert(id, what);
                    }
                    Err(problem) if problem.class == Class::Terminal => {
                        let mut record = self.record.clone();
                        give_up(&mut record, &id, &problem, now);
                        match self.write(record, None).await {
                            Ok(()) => is_on = true,
                            Err(problem) => self.troubled(&problem),
                        }
                        break;
                    }
                    Err(problem) => {
                        self.known.trouble.insert(id, problem.message);
                    }
                }
            }
            if !is_on {
                return;
            }
        }
    }

    /// What holds up everything.
    fn troubled(&mut self, problem: &Problem) {
        let ids: Vec<_> = self
            .record
            .unfinished()
            .into_iter()
            .map(|(id, _)| id.clone())
            .collect();
        for id in ids {
            self.known.trouble.insert(id, problem.message.clone());
        }
    }

    async fn perform(&mut self, step: &CloudStep) -> Result<Came, Problem> {
        let cloud = self.cloud.clone();
        match step {
            CloudStep::Record(record) => {
                self.write(record.as_ref().clone(), None).await?;
                Ok(Came::On)
            }
            CloudStep::BootFrom { disk, record } => {
                self.write(record.as_ref().clone(), Some(disk.clone())).await?;
                Ok(Came::On)
            }
            CloudStep::AskGuest => {
                let _ = self.ask_host().await;
                Ok(Came::On)
            }
            CloudStep::Wait(what) => Ok(Came::Waits(what.clone())),
            CloudStep::ImportImage { digest } => {
                let image = self.gallery_image(digest);
                let key = format!("image {digest}");
                self.long(key, "the gallery imports the image", async move {
                    cloud.create_image(image).await
                })
                .await
            }
            CloudStep::DeleteImage { digest } => {
                let image = GalleryImage {
                    name: image_name(digest),
                    location_name: self.place.location.clone(),
                    ..GalleryImage::default()
                };
                let key = format!("no image {digest}");
                self.long(key, "an image that failed is taken away", async move {
                    cloud.delete_image(image).await
                })
                .await
            }
            CloudStep::MakeDisk { slot, digest } => self.make_disk(*slot, digest).await,
            CloudStep::DeleteDisk { name } => {
                let disk = VirtualHardDisk {
                    name: name.clone(),
                    group_name: self.place.group.clone(),
                    container_name: self.place.container.clone().unwrap_or_default(),
                    ..VirtualHardDisk::default()
                };
                let key = format!("no disk {name}");
                self.long(key, "the disk of before is taken away", async move {
                    cloud.delete_disk(disk).await
                })
                .await
            }
            CloudStep::Power(operation) => {
                let (machine, operation) = (self.bytes.clone(), *operation);
                let came = self
                    .long(
                        format!("power {operation:?}"),
                        "the machine changes its power state",
                        async move { cloud.operate(machine, operation).await },
                    )
                    .await?;
                self.read_again().await?;
                self.guest = None;
                Ok(came)
            }
        }
    }

    fn gallery_image(&self, digest: &str) -> GalleryImage {
        let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
        let url = self.place.image_url.as_deref().unwrap_or_default();
        let source = json!({"sasURI": url.replace("{digest}", hex)});
        GalleryImage {
            name: image_name(digest),
            location_name: self.place.location.clone(),
            container_name: self.place.container.clone().unwrap_or_default(),
            operating_system: OperatingSystem::Linux.into(),
            source_path: source.to_string(),
            source_type: ImageSource::Http.into(),
            ..GalleryImage::default()
        }
    }

    async fn make_disk(&mut self, slot: usize, digest: &str) -> Result<Came, Problem> {
        let name = image_name(digest);
        let image = self.cloud.image(&self.place.location, &name).await;
        let image = image.map_err(|error| error.problem())?;
        let image = image.filter(|image| standing(image.status.as_ref()) == Standing::Ready);
        let Some(image) = image else {
            return Err(Problem::new(
                Class::Terminal,
                "NotCached",
                format!("image {name} is no longer in the gallery"),
            ));
        };
        let disk = VirtualHardDisk {
            name: disk_name(&self.place.machine, slot, digest),
            group_name: self.place.group.clone(),
            location_name: self.place.location.clone(),
            container_name: self.place.container.clone().unwrap_or_default(),
            source_path: image.path,
            source_type: ImageSource::Local.into(),
            dynamic: true,
            ..VirtualHardDisk::default()
        };
        let (key, cloud) = (format!("disk {}", disk.name), self.cloud.clone());
        self.long(
            key,
            "the disk is made",
            async move { cloud.create_disk(disk).await },
        )
        .await
    }

    /// A call that may take long. It goes on when we do, and is not made twice meanwhile.
    async fn long(
        &mut self,
        key: String,
        what: &str,
        call: impl Future<Output = Result<(), MocError>> + Send + 'static,
    ) -> Result<Came, Problem> {
        let mut running = match self.known.running.remove(&key) {
            Some(running) => running,
            None => Running(tokio::spawn(call)),
        };
        match timeout(PATIENCE, &mut running.0).await {
            Ok(Ok(Ok(()))) => Ok(Came::On),
            Ok(Ok(Err(error))) => Err(error.problem()),
            Ok(Err(_)) => Err(Problem::new(
                Class::Transient,
                "Unreachable",
                format!("{what}: the call was cut off"),
            )),
            Err(_) => {
                self.known.running.insert(key, running);
                Ok(Came::Waits(what.to_owned()))
            }
        }
    }
}
