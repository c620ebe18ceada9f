//! What runs in machines. A guest has one program, `slipway-agent call`, and it runs in scripts of one form alone: whatever else is sent
//! to it is not found, as in a system that has nothing else.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use prost::Message;
use slipway_agent::cache::{Cache, Limits, RegistrySettings, Settings, Waits};
use slipway_agent::deliver::Deliveries;
use slipway_agent::engine::Unhindered;
use slipway_agent::service::{Host, Parts, Serving, WipePlan};
use slipway_agent_api::proto::LocalCall;
use slipway_hosts_sim::{SimulatedMachine, System};

/// The guests of a cloud, by the names of their machines.
#[async_trait]
pub trait Guests: Send + Sync + 'static {
    /// It boots a disk of this image.
    async fn start(&self, machine: &str, image: &str);

    async fn stop(&self, machine: &str, is_graceful: bool);

    /// Whether its system runs.
    fn answers(&self, machine: &str) -> bool;

    /// Runs a script: exit code, output and errors. `None`: nothing in the guest answers.
    async fn run(&self, machine: &str, script: &str) -> Option<(i32, String, String)>;
}

/// The call that a script hands to the agent; `None`: it is another script.
pub fn call_in(script: &str) -> Option<LocalCall> {
    let body = script.strip_prefix("#!/bin/sh\nexec slipway-agent call <<'END'\n")?;
    let encoded = body.strip_suffix("END\n")?.replace('\n', "");
    LocalCall::decode(BASE64_STANDARD.decode(encoded).ok()?.as_slice()).ok()
}

/// What a system is, by the name of its image.
#[derive(Clone, Debug, Default)]
struct Image {
    kubelet: Option<String>,
    does_not_boot: bool,
}

struct Guest {
    host_name: String,
    folder: PathBuf,
    machine: Arc<SimulatedMachine>,
    running: Option<Arc<Host>>,
}

/// Guests with real agents over files: what an agent remembers is on the disk that stays.
pub struct AgentGuests {
    folder: PathBuf,
    system: Option<Arc<dyn System>>,
    images: Mutex<BTreeMap<String, Image>>,
    guests: Mutex<BTreeMap<String, Guest>>,
}

impl AgentGuests {
    pub fn new(folder: &Path, system: Option<Arc<dyn System>>) -> Arc<Self> {
        Arc::new(Self {
            folder: folder.to_owned(),
            system,
            images: Mutex::default(),
            guests: Mutex::default(),
        })
    }

    /// A guest that is installed, with the name of its host.
    pub fn install(&self, machine: &str, host_name: &str) -> io::Result<Arc<SimulatedMachine>> {
        let folder = self.folder.join(machine);
        std::fs::create_dir_all(&folder)?;
        let simulated = SimulatedMachine::new(host_name, &folder, self.system.clone());
        let guest = Guest {
            host_name: host_name.to_owned(),
            folder,
            machine: simulated.clone(),
            running: None,
        };
        self.guests.lock().insert(machine.to_owned(), guest);
        Ok(simulated)
    }

    /// What an image has in it.
    pub fn image(&self, name: &str, kubelet: Option<&str>, does_not_boot: bool) {
        let image = Image {
            kubelet: kubelet.map(str::to_owned),
            does_not_boot,
        };
        self.images.lock().insert(name.to_owned(), image);
    }

    fn open(guest: &Guest) -> io::Result<Arc<Host>> {
        let state = guest.folder.join("state");
        let quota = 64 << 20;
        let settings = Settings {
            limits: Limits {
                quota,
                high: quota / 10 * 9,
                low: quota / 10 * 7,
            },
            margin: 0,
            default_ttl: None,
            waits: Waits::default(),
            architecture: "amd64".to_owned(),
            keys: None,
            now: jiff::Timestamp::now,
        };
        let steps = Arc::new(Unhindered);
        Host::open(Parts {
            name: guest.host_name.clone(),
            fleet: String::new(),
            root: guest.folder.join("root"),
            exchange: guest.folder.join("exchange"),
            cache: Cache::open(&guest.folder.join("cache"), settings, steps.clone())
                .map_err(io::Error::other)?,
            registries: RegistrySettings::default(),
            slots: None,
            machine: guest.machine.clone(),
            deliveries: Deliveries {
                k3s: None,
                containerd: None,
            },
            tls: None,
            reboot_command: vec!["reboot".to_owned()],
            tries: 3,
            wipe: WipePlan {
                commands: vec![vec!["k3s-uninstall.sh".to_owned()]],
                paths: vec![PathBuf::from("/var/lib/rancher")],
            },
            serving: Serving::default(),
            steps,
            state,
        })
    }
}

#[async_trait]
impl Guests for AgentGuests {
    async fn start(&self, machine: &str, image: &str) {
        let image = self.images.lock().get(image).cloned().unwrap_or_default();
        let mut guests = self.guests.lock();
        let Some(guest) = guests.get_mut(machine) else {
            tracing::error!(machine, "no guest is installed there");
            return;
        };
        if image.does_not_boot {
            return;
        }
        guest.machine.started();
        guest.machine.booted(image.kubelet.as_deref());
        match Self::open(guest) {
            Ok(host) => guest.running = Some(host),
            Err(error) => tracing::error!(machine, "the agent of the guest does not start: {error}"),
        }
    }

    async fn stop(&self, machine: &str, _: bool) {
        let mut guests = self.guests.lock();
        if let Some(guest) = guests.get_mut(machine) {
            guest.machine.went_down();
            if let Some(host) = guest.running.take() {
                host.stop();
            }
        }
    }

    fn answers(&self, machine: &str) -> bool {
        let guests = self.guests.lock();
        guests.get(machine).is_some_and(|guest| guest.running.is_some())
    }

    async fn run(&self, machine: &str, script: &str) -> Option<(i32, String, String)> {
        let host = self.guests.lock().get(machine)?.running.clone()?;
        let Some(call) = call_in(script) else {
            return Some((127, String::new(), "sh: not found".to_owned()));
        };
        let answer = host.answer(call).await;
        Some((
            0,
            format!("{}\n", BASE64_STANDARD.encode(answer.encode_to_vec())),
            String::new(),
        ))
    }
}
