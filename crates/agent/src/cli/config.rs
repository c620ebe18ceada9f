//! The host's configuration, `/etc/slipway-agent/config.yaml`: what its slots are, who signs its images, how it boots.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use slipway_agent::{
    boot_store::BootStore,
    disk_image::{ImagePartition, Select},
    engine::{
        Engine, HealthPolicy, Host, JournalFile, Preflight, Rebooter, SlotPartition, SystemClock, Unhindered,
    },
    self_update::Installation,
    target::{LocalTarget, SlotTarget},
};
use slipway_slots::{
    BySlot, Slot,
    boot::BootState,
    manifest::KeyRing,
    write_plan::{Limits, OnDeltaFailure},
};

use super::{
    node::{NodeConfig, RemoteNode},
    store::StoreConfig,
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The kind of host, as images name it in `compatible`.
    pub compatible: String,
    /// Journal, cache and lock; on the data partition.
    #[serde(default = "default_state")]
    pub state_directory: PathBuf,
    /// The keys whose signatures count.
    pub key_ring: PathBuf,
    pub boot_store: StoreConfig,
    pub slots: SlotsConfig,
    /// The machine whose slots and boot store these are, reached over SSH; this one unless said otherwise.
    #[serde(default)]
    pub node: Option<NodeConfig>,
    /// The slot in use, where the kernel's command line does not say it: on the host of a machine that is switched off.
    #[serde(default)]
    pub booted: Option<Slot>,
    #[serde(default)]
    pub health: HealthPolicy,
    #[serde(default = "default_reboot")]
    pub reboot_command: Vec<String>,
    /// How often a new slot may try to boot.
    #[serde(default = "default_tries")]
    pub tries: u8,
    /// What to do when chunks cannot be had: fetch the whole image, or fail.
    #[serde(default)]
    pub on_delta_failure: DeltaFailure,
    /// Bytes per second from the network.
    #[serde(default)]
    pub bandwidth_limit: Option<u64>,
    /// Other addresses that may have the image, such as hosts beside this one; asked before the address that an update names.
    #[serde(default)]
    pub mirrors: Vec<String>,
    /// A file with a bearer token for the network.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// The fleet this host belongs to.
    #[serde(default)]
    pub service: Option<super::serve::Service>,
    #[serde(default)]
    pub preflight: PreflightConfig,
}

/// What this host demands before an update begins; the usual demands where it says nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PreflightConfig {
    /// Percent, on a host that runs on battery.
    pub least_battery: Option<u8>,
    /// Bytes, where the state directory is.
    pub least_space: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub enum DeltaFailure {
    #[default]
    Full,
    Fail,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotsConfig {
    #[serde(rename = "A")]
    pub a: Vec<PartitionConfig>,
    #[serde(rename = "B")]
    pub b: Vec<PartitionConfig>,
}

/// A partition of a slot: a device or file, or a partition inside a disk image.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PartitionConfig {
    pub name: String,
    #[serde(default)]
    pub device: Option<PathBuf>,
    #[serde(default)]
    pub image: Option<PathBuf>,
    #[serde(default)]
    pub label: Option<String>,
}

fn default_state() -> PathBuf {
    "/var/lib/slipway-agent".into()
}

fn default_reboot() -> Vec<String> {
    ["systemctl", "reboot"].map(str::to_owned).to_vec()
}

fn default_tries() -> u8 {
    3
}

impl Config {
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("reading the configuration {}", path.display()))?;
        serde_saphyr::from_str(&text)
            .with_context(|| format!("the configuration {} is not right", path.display()))
    }

    pub fn token(&self) -> Result<Option<String>> {
        let Some(path) = &self.token_file else {
            return Ok(None);
        };
        let text =
            fs::read_to_string(path).with_context(|| format!("reading the token in {}", path.display()))?;
        Ok(Some(text.trim().to_owned()))
    }

    /// Sets up a boot store that was never written, with this slot in use.
    pub fn install(&self, slot: Slot) -> Result<()> {
        let node = self.node()?;
        Ok(self.store(node.as_ref())?.install(&BootState::installed(slot))?)
    }

    /// Slots and commands are another machine's.
    pub fn is_of_a_node(&self) -> bool {
        self.node.is_some()
    }

    pub fn node(&self) -> Result<Option<RemoteNode>> {
        self.node.as_ref().map(NodeConfig::open).transpose()
    }

    fn store(&self, node: Option<&RemoteNode>) -> Result<Box<dyn BootStore>> {
        self.boot_store
            .open(self.tries, node)
            .context("opening the boot store")
    }

    pub fn keys(&self) -> Result<KeyRing> {
        let keys = fs::read(&self.key_ring)
            .with_context(|| format!("reading the key ring {}", self.key_ring.display()))?;
        KeyRing::decode(&keys).with_context(|| format!("the key ring {}", self.key_ring.display()))
    }

    /// Where versions of the agent are.
    pub fn own_versions(&self) -> Installation {
        Installation::new(&self.state_directory.join("agent"), Arc::new(Unhindered))
    }

    /// Everything the engine works on.
    pub fn open(&self) -> Result<Engine> {
        if self.node.is_none() {
            return self.open_here();
        }
        // A node is asked by runtimes of its own, which cannot be started inside another one.
        std::thread::scope(|scope| match scope.spawn(|| self.open_here()).join() {
            Ok(opened) => opened,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    fn open_here(&self) -> Result<Engine> {
        let keys = self.keys()?;
        let node = self.node()?;
        fs::create_dir_all(&self.state_directory)
            .with_context(|| format!("making the state directory {}", self.state_directory.display()))?;
        let usual = Preflight::new(&self.state_directory);
        let host = Host {
            preflight: Preflight {
                least_battery: self.preflight.least_battery.unwrap_or(usual.least_battery),
                least_space: self.preflight.least_space.unwrap_or(usual.least_space),
                ..usual
            },
            compatible: self.compatible.clone(),
            arch: std::env::consts::ARCH.to_owned(),
            keys,
            booted: booted(node.as_ref())?.or(self.booted),
            slots: BySlot {
                a: partitions(&self.slots.a, node.as_ref())?,
                b: partitions(&self.slots.b, node.as_ref())?,
            },
            store: self.store(node.as_ref())?,
            journal: Box::new(JournalFile::new(&self.state_directory.join("journal"))),
            health: match &node {
                Some(node) => node.health(&self.health)?,
                None => Box::new(self.health.check()),
            },
            rebooter: match &node {
                Some(node) => node.rebooter(&self.reboot_command),
                None => Box::new(RebootCommand(self.reboot_command.clone())),
            },
            clock: Box::new(SystemClock),
            failpoints: Arc::new(Unhindered),
            limits: Limits::default(),
            on_delta_failure: match self.on_delta_failure {
                DeltaFailure::Full => OnDeltaFailure::Full,
                DeltaFailure::Fail => OnDeltaFailure::Fail,
            },
        };
        Ok(Engine::open(host)?)
    }
}

fn partitions(configured: &[PartitionConfig], node: Option<&RemoteNode>) -> Result<Vec<SlotPartition>> {
    let open = |partition: &PartitionConfig| -> Result<Box<dyn SlotTarget>> {
        Ok(match partition {
            PartitionConfig {
                device: Some(device),
                image: None,
                label: None,
                ..
            } => {
                let opened = match node {
                    Some(node) => text(device)
                        .and_then(|device| node.target(device))
                        .map(|target| -> Box<dyn SlotTarget> { Box::new(target) }),
                    None => LocalTarget::open(device)
                        .map(|target| -> Box<dyn SlotTarget> { Box::new(target) })
                        .map_err(anyhow::Error::new),
                };
                opened.with_context(|| {
                    format!("opening partition {} on {}", partition.name, device.display())
                })?
            }
            PartitionConfig { image: Some(_), .. } if node.is_some() => bail!(
                "partition {} of a slot is in a disk image; on a node, name a device of it",
                partition.name
            ),
            PartitionConfig {
                device: None,
                image: Some(image),
                label: Some(label),
                ..
            } => Box::new(ImagePartition::open(image, &Select::Label(label.clone()))?),
            _ => bail!(
                "partition {} of a slot needs either a device, or an image and the label of a partition in it",
                partition.name
            ),
        })
    };
    configured
        .iter()
        .map(|partition| {
            Ok(SlotPartition {
                name: partition.name.clone(),
                target: open(partition)?,
            })
        })
        .collect()
}

/// Paths go to a node as text.
pub fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not text", path.display()))
}

/// The slot that the boot loader named on the kernel's command line; none in a recovery system.
fn booted(node: Option<&RemoteNode>) -> Result<Option<Slot>> {
    let line = match node {
        Some(node) => node.kernel_command_line()?,
        None => fs::read_to_string("/proc/cmdline").context("reading the kernel's command line")?,
    };
    booted_in(&line)
}

fn booted_in(line: &str) -> Result<Option<Slot>> {
    let named = line.split_whitespace().find_map(|word| {
        word.strip_prefix("slipway.slot=")
            .or_else(|| word.strip_prefix("rauc.slot="))
    });
    match named {
        None => Ok(None),
        Some(name) => Ok(Some(
            name.parse()
                .context("slipway.slot on the kernel's command line")?,
        )),
    }
}

struct RebootCommand(Vec<String>);

impl Rebooter for RebootCommand {
    fn reboot(&mut self, reason: &str) -> io::Result<()> {
        tracing::info!(reason, "rebooting");
        let (program, arguments) = self.0.split_first().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "rebootCommand in the configuration is empty",
            )
        })?;
        let status = std::process::Command::new(program).args(arguments).status()?;
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("{program} {status}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../package/config.yaml");

    #[test]
    fn the_packaged_example_is_a_configuration() {
        let config: Config = serde_saphyr::from_str(EXAMPLE).expect("it parses");
        assert_eq!(config.tries, 3);
        assert!(matches!(config.boot_store, StoreConfig::Grubenv { .. }));
        let unknown = EXAMPLE.replace("compatible:", "compatibel:");
        let said = serde_saphyr::from_str::<Config>(&unknown)
            .expect_err("a typo")
            .to_string();
        assert!(said.contains("compatibel"), "{said}");
    }

    #[test]
    fn the_boot_loader_names_the_slot() {
        assert_eq!(booted_in("quiet slipway.slot=B ro").expect("B"), Some(Slot::B));
        assert_eq!(booted_in("rauc.slot=A").expect("A"), Some(Slot::A));
        assert_eq!(booted_in("quiet ro").expect("none"), None);
        assert!(booted_in("slipway.slot=C").is_err());
    }

    proptest::proptest! {
        #[test]
        fn a_configuration_takes_any_text(
            text in ".{0,300}",
            lines in proptest::collection::vec((0..25_usize, "[ a-z:{}0-9&*|-]{0,20}"), 1..4),
        ) {
            let _ = serde_saphyr::from_str::<Config>(&text);
            let mut damaged: Vec<String> = EXAMPLE.lines().map(str::to_owned).collect();
            for (at, line) in lines {
                if let Some(old) = damaged.get_mut(at) {
                    *old = line;
                }
            }
            let _ = serde_saphyr::from_str::<Config>(&damaged.join("\n"));
        }
    }
}
