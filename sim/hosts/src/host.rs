//! One simulated host: folders and files, a boot loader, and the agent that is started again and again over them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use slipway_agent::boot_store::{BootStore, Device, Medium, Stored};
use slipway_agent::cache::{Cache, Limits, RegistrySettings, ServiceFailpoints, Settings, Waits};
use slipway_agent::deliver::{Deliveries, K3sFolder};
use slipway_agent::engine::{self, Engine, Failpoints, JournalFile, Preflight, SlotPartition, SystemClock};
use slipway_agent::enrol;
use slipway_agent::service::{Host, Parts, Serving, Slots, WipePlan};
use slipway_agent::target::LocalTarget;
use slipway_agent_api::serve::serve;
use slipway_agent_api::tls::{Callers, CurrentTls};
use slipway_agent_api::token::JoinToken;
use slipway_agent_api::tunnel::connect_tunnel;
use slipway_slots::boot::{BootState, Codec, Records};
use slipway_slots::manifest::{LABEL_SIZE, Manifest, decode_label};
use slipway_slots::write_plan::{Limits as WriteLimits, OnDeltaFailure};
use slipway_slots::{BySlot, Slot};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::image::{NodeImage, key_ring};
use crate::machine::{Feels, Power, SimulatedMachine, System};

/// Before a host behind NAT connects again.
const CONNECT_AGAIN: Duration = Duration::from_millis(50);

/// A loopback address of the host's own, with any port. It comes back to it after a restart, and connections that others make
/// meanwhile, from 127.0.0.1, cannot have taken its port.
fn own_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let [_, _, high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    format!("127.77.{high}.{low}:0")
}

/// How a host is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It listens on loopback.
    Direct,
    /// It is behind NAT, and connects to the manager.
    Tunnel,
}

/// How hosts are set up.
#[derive(Clone)]
pub struct Options {
    pub reach: Reach,
    pub quota: u64,
    /// The image that slot A holds when the host is made.
    pub installed: Arc<NodeImage>,
    pub registries: RegistrySettings,
    pub serving: Serving,
    /// How long to wait for whom.
    pub waits: Waits,
    /// What runs on the machine beside its agent.
    pub system: Option<Arc<dyn System>>,
    /// How long it is away when it reboots.
    pub away: Duration,
    /// Told of every step of the agent, for whoever cuts it short there.
    pub steps: Arc<dyn ServiceFailpoints>,
    pub failpoints: Arc<dyn Failpoints>,
}

/// What lives until the next power failure.
struct Agent {
    tasks: JoinSet<()>,
    host: Arc<Host>,
    /// Ends with the engine: two of them never work on the same files.
    engine: oneshot::Receiver<()>,
}

pub struct SimulatedHost {
    pub name: String,
    pub machine: Arc<SimulatedMachine>,
    folder: PathBuf,
    manager: String,
    fleet: String,
    options: Options,
    address: Mutex<Option<String>>,
    running: tokio::sync::Mutex<Option<Agent>>,
}

impl SimulatedHost {
    /// A host that was just installed; it has not joined yet.
    pub fn install(
        folder: &Path,
        name: &str,
        fleet: &str,
        manager: &str,
        options: Options,
    ) -> io::Result<Arc<Self>> {
        let folder = folder.join(name);
        fs::create_dir_all(folder.join("exchange"))?;
        let installed = options.installed.slot();
        fs::write(folder.join("b.img"), vec![0; installed.len()])?;
        fs::write(folder.join("a.img"), installed)?;
        fs::write(folder.join("store"), vec![0; Records::SIZE as usize])?;
        Stored::new(Records { offset: 0 }, Device::open(&folder.join("store"))?)
            .install(&BootState::installed(Slot::A))
            .map_err(io::Error::other)?;
        Ok(Self::found(folder, name, fleet, manager, options))
    }

    /// A host whose files are in `folder`: another machine with the same disks.
    pub fn found(folder: PathBuf, name: &str, fleet: &str, manager: &str, options: Options) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            machine: SimulatedMachine::new(name, &folder, options.system.clone()),
            folder,
            manager: manager.to_owned(),
            fleet: fleet.to_owned(),
            options,
            address: Mutex::new(None),
            running: tokio::sync::Mutex::new(None),
        })
    }

    /// Its files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The agent's state, where people hold the maintenance lock.
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// Where bundles are put.
    pub fn exchange(&self) -> PathBuf {
        self.folder.join("exchange")
    }

    /// Where it listens, if it does.
    pub fn address(&self) -> Option<String> {
        self.address.lock().clone()
    }

    pub async fn join(&self, token: &JoinToken) -> Result<(), slipway_agent_api::Problem> {
        enrol::enrol(
            &self.state(),
            &self.manager,
            &self.name,
            token,
            self.options.steps.as_ref(),
        )
        .await
        .map(|_| ())
    }

    fn boot_state(&self) -> io::Result<BootState> {
        let codec = Records { offset: 0 };
        let contents = Device::open(&self.folder.join("store"))?.load(&codec.layout())?;
        codec
            .decode(&contents)
            .state
            .ok_or_else(|| io::Error::other("the boot store cannot be read"))
    }

    /// The boot loader's half: takes a try and starts a slot. A slot that does not come up is tried until its tries are
    /// used up.
    fn boot(&self) -> io::Result<Slot> {
        let codec = Records { offset: 0 };
        loop {
            let state = self.boot_state()?;
            let slot = state
                .next_boot()
                .ok_or_else(|| io::Error::other("no slot of the simulated host boots"))?;
            let mut device = Device::open(&self.folder.join("store"))?;
            let contents = device.load(&codec.layout())?;
            let steps = codec
                .encode(&contents, &state.after_boot_of(slot))
                .map_err(io::Error::other)?;
            for step in steps {
                device.apply(&step)?;
            }
            fs::write(self.folder.join("booted"), slot.to_string())?;
            let trial = matches!(state.slots[slot], slipway_slots::boot::SlotBoot::Trial { .. });
            if !(trial && self.does_not_boot(slot)) {
                return Ok(slot);
            }
        }
    }

    fn does_not_boot(&self, slot: Slot) -> bool {
        let faults = self.machine.faults.lock();
        faults.does_not_boot
            || (!faults.broken_versions.is_empty()
                && self
                    .kubelet_version(slot)
                    .is_some_and(|version| faults.broken_versions.contains(&version)))
    }

    /// Of the image in a slot, by the label at its end; `None` where that cannot be read.
    fn kubelet_version(&self, slot: Slot) -> Option<String> {
        let file = match slot {
            Slot::A => "a.img",
            Slot::B => "b.img",
        };
        let bytes = fs::read(self.folder.join(file)).ok()?;
        let label = bytes.len().checked_sub(LABEL_SIZE)?;
        let signed = decode_label(&bytes[label..]).ok()?;
        Manifest::decode(signed.manifest.as_bytes()).ok()?.kubelet_version
    }

    fn engine(&self, booted: Slot, alive: oneshot::Sender<()>) -> io::Result<Engine> {
        let partition = |file: &str| -> io::Result<Vec<SlotPartition>> {
            Ok(vec![SlotPartition {
                name: "root".to_owned(),
                target: Box::new(LocalTarget::open(&self.folder.join(file))?),
            }])
        };
        Engine::open(engine::Host {
            compatible: "simulated".to_owned(),
            arch: "x86_64".to_owned(),
            keys: key_ring(),
            booted: Some(booted),
            slots: BySlot {
                a: partition("a.img")?,
                b: partition("b.img")?,
            },
            store: Box::new(Stored::new(
                Records { offset: 0 },
                Device::open(&self.folder.join("store"))?,
            )),
            journal: Box::new(JournalFile::new(&self.state().join("journal"))),
            health: Box::new(Feels(self.machine.clone())),
            rebooter: Box::new(Power(self.machine.clone(), alive)),
            clock: Box::new(SystemClock),
            failpoints: self.options.failpoints.clone(),
            limits: WriteLimits::default(),
            on_delta_failure: OnDeltaFailure::Full,
            preflight: Preflight {
                least_space: 0,
                // Simulated hosts are on mains.
                supplies: self.folder.join("no-supplies"),
                ..Preflight::new(&self.state())
            },
        })
        .map_err(io::Error::other)
    }

    /// Starts the agent on the machine as it stands. The machine reboots itself from then on.
    pub async fn start(self: &Arc<Self>) -> io::Result<()> {
        let booted = match fs::read_to_string(self.folder.join("booted")) {
            Ok(slot) => slot.parse().map_err(io::Error::other)?,
            Err(_) => {
                let slot = self.boot()?;
                self.machine.booted(self.kubelet_version(slot).as_deref());
                slot
            }
        };
        // Whoever stops it meanwhile, because it reboots at once, waits until it runs.
        let mut running = self.running.lock().await;
        *running = Some(self.agent(booted).await?);
        Ok(())
    }

    async fn agent(self: &Arc<Self>, booted: Slot) -> io::Result<Agent> {
        let state = self.state();
        let material = enrol::read(&state)
            .map_err(io::Error::other)?
            .ok_or_else(|| io::Error::other(format!("{} has not joined", self.name)))?;
        let tls = CurrentTls::new(&material, Callers::WithCertificate).map_err(io::Error::other)?;
        let cache = Cache::open(
            &self.folder.join("cache"),
            self.cache_settings(),
            self.options.steps.clone(),
        )
        .map_err(io::Error::other)?;
        let (alive, gone) = oneshot::channel();
        let slots = Slots::start(self.engine(booted, alive)?, cache.clone());
        let host = Host::open(Parts {
            name: self.name.clone(),
            fleet: self.fleet.clone(),
            state: state.clone(),
            root: self.folder.join("root"),
            exchange: self.exchange(),
            cache,
            registries: self.options.registries.clone(),
            slots: Some(slots),
            machine: self.machine.clone(),
            deliveries: Deliveries {
                k3s: Some(K3sFolder(self.folder.join("k3s-images"))),
                containerd: None,
            },
            tls: Some(tls.clone()),
            reboot_command: vec!["reboot".to_owned()],
            tries: 3,
            wipe: WipePlan {
                commands: vec![vec!["k3s-uninstall.sh".to_owned()]],
                paths: vec![PathBuf::from("/var/lib/rancher")],
            },
            serving: self.options.serving,
            steps: self.options.steps.clone(),
        })?;
        let mut tasks = JoinSet::new();
        self.reach(&mut tasks, &tls, &host).await?;
        tasks.spawn(enrol::keep_renewed(
            state,
            self.manager.clone(),
            self.name.clone(),
            tls,
            self.options.steps.clone(),
        ));
        let this = Arc::downgrade(self);
        let machine = self.machine.clone();
        tokio::spawn(async move {
            machine.rebooting().await;
            if let Some(host) = this.upgrade() {
                host.power_cycle().await;
            }
        });
        Ok(Agent {
            tasks,
            host,
            engine: gone,
        })
    }

    fn cache_settings(&self) -> Settings {
        let quota = self.options.quota;
        Settings {
            limits: Limits {
                quota,
                high: quota / 10 * 9,
                low: quota / 10 * 7,
            },
            margin: 0,
            default_ttl: None,
            waits: self.options.waits,
            architecture: "amd64".to_owned(),
            keys: Some(key_ring()),
            now: jiff::Timestamp::now,
        }
    }

    /// Listens, or connects to the manager again and again.
    async fn reach(
        &self,
        tasks: &mut JoinSet<()>,
        tls: &Arc<CurrentTls>,
        host: &Arc<Host>,
    ) -> io::Result<()> {
        match self.options.reach {
            Reach::Direct => {
                let kept = self.address();
                let listener = TcpListener::bind(kept.unwrap_or_else(own_address)).await?;
                *self.address.lock() = Some(listener.local_addr()?.to_string());
                tasks.spawn(serve(listener, tls.clone(), host.router()));
            }
            Reach::Tunnel => {
                let (manager, fleet, tls, router) = (
                    self.manager.clone(),
                    self.fleet.clone(),
                    tls.clone(),
                    Arc::new(host.router()),
                );
                tasks.spawn(async move {
                    loop {
                        if let Err(error) = connect_tunnel(&manager, &fleet, &tls, router.clone()).await {
                            tracing::debug!("{error}");
                        }
                        tokio::time::sleep(CONNECT_AGAIN).await;
                    }
                });
            }
        }
        Ok(())
    }

    /// kill -9 of the agent, and its service manager starts it again. The machine runs on.
    pub async fn kill_agent(self: &Arc<Self>) -> io::Result<()> {
        self.stop().await;
        self.start().await
    }

    /// Ends the agent without a word.
    pub async fn stop(&self) {
        if let Some(mut agent) = self.running.lock().await.take() {
            agent.host.stop();
            agent.tasks.shutdown().await;
            drop(agent.host);
            // Dropped, not sent: that is the message.
            let _ = agent.engine.await;
        }
    }

    /// Off and on again; the boot loader chooses.
    pub fn power_cycle(self: &Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let host = self.clone();
        Box::pin(async move {
            host.machine.went_down();
            host.stop().await;
            tokio::time::sleep(host.options.away).await;
            host.machine.started();
            let started = match host.boot() {
                Ok(slot) => {
                    host.machine.booted(host.kubelet_version(slot).as_deref());
                    host.start().await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = started {
                tracing::error!(host = host.name, "the simulated host does not start: {error}");
            }
        })
    }

    /// What the boot store says.
    pub fn boots_into(&self) -> io::Result<BootState> {
        self.boot_state()
    }
}
