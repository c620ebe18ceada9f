//! `node` of the configuration: slots, boot store and commands are those of another machine, reached over SSH. The journal
//! and the cache stay here.

use std::{fs, io, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use slipway_agent::{
    command::{Command, Event, Events, Outcome},
    engine::{HealthCheck, HealthPolicy, MachineTime, Probe, Rebooter, Soak, SystemProbe},
    ssh::{Node, RemoteDevice, RemoteDirectory, RemoteTarget},
};
use tokio::{runtime::Builder, sync::mpsc};

/// A node that was told to restart is waited for.
const RESTART: Duration = Duration::from_mins(10);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeConfig {
    host: String,
    #[serde(default = "default_port")]
    port: u16,
    #[serde(default = "default_user")]
    user: String,
    /// The keys that the node may show, as in its `/etc/ssh/ssh_host_*_key.pub`.
    host_keys: Vec<String>,
    /// The private key that lets us in; not encrypted.
    key_file: PathBuf,
    /// The agent's program there.
    #[serde(default = "default_helper")]
    helper: String,
}

fn default_port() -> u16 {
    22
}

fn default_user() -> String {
    "root".to_owned()
}

fn default_helper() -> String {
    "slipway-agent".to_owned()
}

impl NodeConfig {
    pub fn open(&self) -> Result<RemoteNode> {
        let key = fs::read_to_string(&self.key_file).with_context(|| {
            format!(
                "reading the key for node {} in {}",
                self.host,
                self.key_file.display()
            )
        })?;
        Ok(RemoteNode {
            node: Node::new(&self.host, self.port, &self.user, &self.host_keys, &key)?,
            helper: self.helper.clone(),
        })
    }
}

/// The machine that the slots are of.
#[derive(Clone)]
pub struct RemoteNode {
    node: Node,
    helper: String,
}

impl RemoteNode {
    pub fn target(&self, device: &str) -> Result<RemoteTarget> {
        Ok(RemoteTarget::open(&self.node, &self.helper, device)?)
    }

    pub fn device(&self, device: &str) -> Result<RemoteDevice> {
        Ok(RemoteDevice::open(&self.node, &self.helper, device)?)
    }

    pub fn directory(&self, directory: &str) -> Result<RemoteDirectory> {
        Ok(RemoteDirectory::open(&self.node, &self.helper, directory)?)
    }

    /// The kernel's command line, which names the slot.
    pub fn kernel_command_line(&self) -> Result<String> {
        let (outcome, output) = self.run(&Command::new(["cat", "/proc/cmdline"]))?;
        if !outcome.is_success() {
            bail!(
                "reading the kernel's command line of {}: it {outcome}",
                self.node.name()
            );
        }
        Ok(output)
    }

    /// Runs a command there; output is handed on as it comes.
    pub async fn command(&self, command: &Command, events: Events) -> Outcome {
        self.node.run(command, events).await
    }

    /// Runs a command there; what it wrote is for whoever knows it.
    fn run(&self, command: &Command) -> io::Result<(Outcome, String)> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (sender, mut events) = mpsc::channel(4);
        let (outcome, output) = runtime.block_on(async {
            tokio::join!(self.node.run(command, sender), async {
                let mut output = Vec::new();
                while let Some(event) = events.recv().await {
                    if let Event::Output(_, bytes) = event {
                        output.extend(bytes);
                    }
                }
                output
            })
        });
        Ok((outcome, String::from_utf8_lossy(&output).into_owned()))
    }

    pub fn rebooter(&self, command: &[String]) -> Box<dyn Rebooter> {
        Box::new(RebootOfNode {
            node: self.clone(),
            argv: command.to_vec(),
        })
    }

    /// Units and commands are asked about there; addresses from here, where the kubelet's own does not answer.
    pub fn health(&self, policy: &HealthPolicy) -> Result<Box<dyn HealthCheck>> {
        if policy.kubelet.is_some() {
            bail!("health.kubelet answers on the node alone: name a command that asks it there");
        }
        let Soak {
            time,
            soak,
            deadline,
            interval,
            ..
        } = policy.check();
        Ok(Box::new(Soak::<_, MachineTime> {
            probe: ProbeOfNode {
                node: self.clone(),
                policy: policy.clone(),
            },
            time,
            soak,
            deadline,
            interval,
        }))
    }
}

struct RebootOfNode {
    node: RemoteNode,
    argv: Vec<String>,
}

impl Rebooter for RebootOfNode {
    fn reboot(&mut self, reason: &str) -> io::Result<()> {
        tracing::info!(reason, node = self.node.node.name(), "rebooting");
        let mut command = Command::new(self.argv.clone());
        command.may_reboot = true;
        command.time_limit = RESTART;
        let (outcome, _) = self.node.run(&command)?;
        if outcome.is_success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("{} {outcome}", self.argv.join(" "))))
        }
    }
}

struct ProbeOfNode {
    node: RemoteNode,
    policy: HealthPolicy,
}

impl Probe for ProbeOfNode {
    fn observe(&mut self) -> Result<(), String> {
        let units = self.policy.units.iter().map(|unit| {
            let argv = ["systemctl", "is-active", "--quiet", "--", unit].map(str::to_owned);
            (format!("unit {unit}"), argv.to_vec())
        });
        let commands = self.policy.commands.iter();
        let commands = commands.map(|argv| (format!("command {}", argv.join(" ")), argv.clone()));
        for (what, argv) in units.chain(commands) {
            let mut command = Command::new(argv);
            command.time_limit = Duration::from_secs(self.policy.check_timeout_seconds.max(1));
            let (outcome, _) = self.node.run(&command).map_err(|error| error.to_string())?;
            if !outcome.is_success() {
                return Err(format!("{what} on {}: {outcome}", self.node.node.name()));
            }
        }
        SystemProbe(HealthPolicy {
            units: Vec::new(),
            commands: Vec::new(),
            ..self.policy.clone()
        })
        .observe()
    }
}
