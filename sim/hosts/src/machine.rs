//! A machine that is not there: programs succeed, fail or take long as its faults say, and a reboot is a new boot id.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use slipway_agent::command::{Command, Outcome};
use slipway_agent::engine::{HealthCheck, Rebooter};
use slipway_agent::service::machine::{Heard, Machine, Ran};
use slipway_agent_api::proto::{Disk, Hardware};
use slipway_slots::machine::Health;
use tokio::sync::{Notify, oneshot};

/// What goes wrong on a host.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// A new slot comes up and is not healthy.
    pub unhealthy: bool,
    /// A new slot never comes up: the boot loader uses up its tries.
    pub does_not_boot: bool,
    /// Nor does one whose image has a kubelet of one of these versions.
    pub broken_versions: BTreeSet<String>,
    /// Programs by their name: exit code and how long they take.
    pub programs: BTreeMap<String, (i32, Duration)>,
}

/// What runs on a machine beside its agent: told of its programs and of its power. Called while the machine waits, so it answers soon.
pub trait System: Send + Sync {
    /// A program ran to its end; the files of the host are below `root`. `None`: it is not a program of this system, and succeeds.
    fn run(&self, host: &str, argv: &[String], root: &Path) -> Option<i32>;

    /// The machine has booted a slot whose image has this kubelet.
    fn booted(&self, host: &str, kubelet_version: Option<&str>);

    /// It is switched off, or reboots.
    fn went_down(&self, host: &str);
}

/// Told of each program that is started and of its end.
pub type OnProgram = Arc<dyn Fn(&str) + Send + Sync>;

pub struct SimulatedMachine {
    name: String,
    /// Where its files are.
    root: PathBuf,
    system: Option<Arc<dyn System>>,
    /// How often it was started is on its disk, so that a copy of the disk is a machine of its own.
    boots_file: PathBuf,
    boots: AtomicU64,
    pub faults: Mutex<Faults>,
    pub on_program: Mutex<Option<OnProgram>>,
    /// Programs that ran, with their arguments.
    ran: Mutex<Vec<Vec<String>>>,
    reboot: Notify,
}

impl SimulatedMachine {
    pub fn new(name: &str, folder: &Path, system: Option<Arc<dyn System>>) -> Arc<Self> {
        let boots_file = folder.join("boots");
        let boots = std::fs::read_to_string(&boots_file).ok();
        Arc::new(Self {
            name: name.to_owned(),
            root: folder.join("root"),
            system,
            boots_file,
            boots: AtomicU64::new(boots.and_then(|text| text.parse().ok()).unwrap_or(1)),
            faults: Mutex::default(),
            on_program: Mutex::default(),
            ran: Mutex::default(),
            reboot: Notify::new(),
        })
    }

    /// How often the machine was started.
    pub fn boots(&self) -> u64 {
        self.boots.load(Ordering::SeqCst)
    }

    pub fn ran(&self) -> Vec<Vec<String>> {
        self.ran.lock().clone()
    }

    /// The power is on again.
    pub fn started(&self) {
        let boots = self.boots.fetch_add(1, Ordering::SeqCst) + 1;
        if let Err(error) = std::fs::write(&self.boots_file, boots.to_string()) {
            tracing::error!(host = self.name, "the simulated disk fails: {error}");
        }
    }

    fn tell(&self, what: &str) {
        let told = self.on_program.lock().clone();
        if let Some(told) = told {
            told(what);
        }
    }

    /// A system with this kubelet runs.
    pub fn booted(&self, kubelet_version: Option<&str>) {
        if let Some(system) = &self.system {
            system.booted(&self.name, kubelet_version);
        }
    }

    /// Nothing runs any more.
    pub fn went_down(&self) {
        if let Some(system) = &self.system {
            system.went_down(&self.name);
        }
    }

    /// Ends when somebody on the machine asks for a reboot.
    pub async fn rebooting(&self) {
        self.reboot.notified().await;
    }
}

#[async_trait]
impl Machine for SimulatedMachine {
    async fn run_heard(&self, command: &Command, heard: Heard<'_>) -> Ran {
        let argv = command.argv.clone();
        self.ran.lock().push(argv.clone());
        let name = argv.first().cloned().unwrap_or_default();
        self.tell(&format!("{name} starts"));
        // Its arguments are what it says, at once.
        let mut output = format!("{}\n", argv.join(" ")).into_bytes();
        let truncated = output.len() > command.output_limit;
        output.truncate(command.output_limit);
        heard(&output);
        let (code, takes) = self
            .faults
            .lock()
            .programs
            .get(&name)
            .copied()
            .unwrap_or_default();
        let outcome = if tokio::time::timeout(command.time_limit, tokio::time::sleep(takes))
            .await
            .is_err()
        {
            Outcome::TimedOut {
                after: command.time_limit,
            }
        } else {
            if name == "reboot" {
                self.reboot.notify_one();
            }
            let of_system = self.system.as_ref().filter(|_| code == 0);
            let code = of_system
                .and_then(|system| system.run(&self.name, &argv, &self.root))
                .unwrap_or(code);
            Outcome::Exited { code }
        };
        self.tell(&format!("{name} ended"));
        Ran {
            outcome,
            output,
            truncated,
        }
    }

    fn boot_id(&self) -> String {
        format!("{}-{}", self.name, self.boots())
    }

    fn hardware(&self) -> Hardware {
        Hardware {
            architecture: "x86_64".to_owned(),
            processors: 4,
            memory_bytes: 8 << 30,
            kernel: "6.12.0-simulated".to_owned(),
            system: "Simulated host".to_owned(),
        }
    }

    fn disks(&self) -> Vec<Disk> {
        vec![Disk {
            name: "vda".to_owned(),
            size_bytes: 64 << 30,
            rotational: false,
            read_only: false,
        }]
    }

    fn announce(&self, interface: &str, address: IpAddr) -> std::io::Result<()> {
        self.tell(&format!("announces {address} on {interface}"));
        Ok(())
    }

    /// One of the range for measurements between networks, by its name.
    fn addresses(&self) -> Vec<IpAddr> {
        let digest = slipway_slots::Digest::of(self.name.as_bytes());
        vec![Ipv4Addr::new(198, 18, digest.0[0], digest.0[1]).into()]
    }
}

/// The engine's way to reboot the machine. It goes with the engine, and whoever holds the other end is told.
pub(crate) struct Power(
    pub Arc<SimulatedMachine>,
    #[expect(dead_code, reason = "its end is the message")] pub oneshot::Sender<()>,
);

impl Rebooter for Power {
    fn reboot(&mut self, _: &str) -> std::io::Result<()> {
        self.0.reboot.notify_one();
        Ok(())
    }
}

/// The health policy of a new system.
pub(crate) struct Feels(pub Arc<SimulatedMachine>);

impl HealthCheck for Feels {
    fn decide(&mut self) -> Health {
        if self.0.faults.lock().unhealthy {
            Health::Failed("the simulated system is not healthy".to_owned())
        } else {
            Health::Passed
        }
    }
}
