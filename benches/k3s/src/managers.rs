//! The managers of a side as processes: how each is started, and what the kernel says of them.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use slipway_testbed::{Cluster, Peer, Process, Program, install, parts::BuiltPeer, peers};

use super::{Arguments, USER};

/// Linux counts processor time in hundredths of a second for every architecture there is.
const TICKS_PER_SECOND: f64 = 100.0;

/// Cluster API's own managers begin their user agent with this, whatever they ask for.
const CORE_AGENT: &str = "cluster-api";

pub enum Side {
    Slipway(PathBuf),
    Peer,
}

/// Memory of all managers of a side together, in MB.
pub struct Memory {
    pub now: f64,
    pub peak: f64,
}

impl Side {
    pub fn of(arguments: &Arguments) -> Result<Vec<Side>> {
        let mut sides: Vec<Side> = arguments.slipway.clone().map(Side::Slipway).into_iter().collect();
        if arguments.peer {
            sides.push(Side::Peer);
        }
        if sides.is_empty() {
            bail!("there is nobody to measure: name --slipway or --peer");
        }
        Ok(sides)
    }

    pub fn name(&self) -> &'static str {
        match self {
            Side::Slipway(_) => "slipway",
            Side::Peer => "cluster_api_k3s",
        }
    }

    /// Installs what the managers need and starts them. They may do everything: their rights are not what is looked at.
    pub async fn start(&self, cluster: &Cluster) -> Result<Managers> {
        let folder = cluster.description().directory.join("managers");
        fs::create_dir_all(&folder)?;
        let kubeconfig = folder.join("kubeconfig");
        fs::write(&kubeconfig, cluster.kubeconfig_as(USER, Some("system:masters")))?;
        let programs = match self {
            Side::Slipway(program) => vec![slipway(cluster, &folder, &kubeconfig, program).await?],
            Side::Peer => {
                let mut programs = Vec::new();
                for peer in [Peer::K3sBootstrap, Peer::K3sControlPlane] {
                    let built = peers::built(peer, cluster.parts()).await?;
                    install::install(&cluster.client(), &built.objects()?).await?;
                    programs.push(peer_program(&built, &kubeconfig)?);
                }
                programs
            }
        };
        let launcher = cluster.description().parts.join("bin/launch");
        let mut processes = Vec::new();
        for program in programs {
            let name = program.name.clone();
            processes.push(
                Process::start(&launcher, &folder, program).with_context(|| format!("starting {name}"))?,
            );
        }
        Ok(Managers { processes, folder })
    }
}

/// Our manager, its definitions and webhooks as the command line renders them.
async fn slipway(cluster: &Cluster, folder: &Path, kubeconfig: &Path, program: &Path) -> Result<Program> {
    let port = free_port()?;
    let certificates = folder.join("certificates");
    let output = tokio::process::Command::new(program)
        .args(["manifests", "--local", &format!("https://127.0.0.1:{port}")])
        .arg("--cert-dir")
        .arg(&certificates)
        .output()
        .await
        .context("rendering manifests")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    let rendered = install::parse(&String::from_utf8(output.stdout)?)?;
    install::install(&cluster.client(), &rendered).await?;
    Ok(Program {
        name: "slipway".into(),
        path: program.to_owned(),
        arguments: vec![
            "manager".into(),
            "--providers=k3s".into(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--webhook-cert-dir={}", certificates.display()),
            format!("--webhook-port={port}"),
            "--webhook-host=127.0.0.1".into(),
            format!("--health-addr=127.0.0.1:{}", free_port()?),
            format!("--diagnostics-address=127.0.0.1:{}", free_port()?),
            "--insecure-diagnostics".into(),
        ],
        environment: BTreeMap::new(),
    })
}

/// One manager of the peer.
fn peer_program(built: &BuiltPeer, kubeconfig: &Path) -> Result<Program> {
    Ok(Program {
        name: built.peer.name().to_owned(),
        path: built.binary(),
        arguments: vec![format!("--metrics-addr=127.0.0.1:{}", free_port()?)],
        environment: BTreeMap::from([
            ("ENABLE_WEBHOOKS".to_owned(), "false".to_owned()),
            ("KUBECONFIG".to_owned(), kubeconfig.display().to_string()),
        ]),
    })
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Whether a request to a workload cluster was made by a manager of either side, by its user agent.
pub fn is_a_managers(agent: &str) -> bool {
    !agent.starts_with(CORE_AGENT) || agent.starts_with("cluster-api-k3s")
}

/// What runs. Dropping it kills it.
pub struct Managers {
    processes: Vec<Process>,
    folder: PathBuf,
}

impl Managers {
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A manager that has ended has nothing to measure.
    pub fn check(&self) -> Result<()> {
        for process in &self.processes {
            if let Some(status) = process.ended() {
                bail!("{} ended with {status}:\n{}", process.name(), process.tail());
            }
        }
        Ok(())
    }

    /// Seconds of processor time so far, in user and kernel mode.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let mut seconds = 0.0;
        for process in &self.processes {
            let text = fs::read_to_string(format!("/proc/{}/stat", process.id()))?;
            // The name of the program may hold anything, but for its closing parenthesis.
            let (_, rest) = text.rsplit_once(')').context("stat names its program")?;
            let ticks = |index: usize| rest.split_whitespace().nth(index)?.parse::<f64>().ok();
            let (user, system) = ticks(11).zip(ticks(12)).context("stat counts ticks")?;
            seconds += (user + system) / TICKS_PER_SECOND;
        }
        Ok(seconds)
    }

    pub fn memory(&self) -> Result<Memory> {
        let mut memory = Memory { now: 0.0, peak: 0.0 };
        for process in &self.processes {
            let text = fs::read_to_string(format!("/proc/{}/status", process.id()))?;
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                line.trim().trim_end_matches(" kB").parse::<f64>().ok()
            };
            let (now, peak) = field("VmRSS:")
                .zip(field("VmHWM:"))
                .context("status tells memory")?;
            memory.now += now / 1024.0;
            memory.peak += peak / 1024.0;
        }
        Ok(memory)
    }

    pub fn stop(self) {
        for process in &self.processes {
            process.kill();
        }
    }
}
