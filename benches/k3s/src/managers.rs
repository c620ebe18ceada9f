//! The managers of a side as processes: how each is started, and what the kernel says of them.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use slipway_testbed::{Cluster, Process, Program, install};

use super::{Arguments, USER};

/// Linux counts processor time in hundredths of a second for every architecture there is.
const TICKS_PER_SECOND: f64 = 100.0;

/// Cluster API's own managers begin their user agent with this, whatever they ask for.
const CORE_AGENT: &str = "cluster-api";

pub enum Side {
    Slipway(PathBuf),
    Peer {
        bootstrap: PathBuf,
        control_plane: PathBuf,
        module: PathBuf,
    },
}

/// Memory of all managers of a side together, in MB.
pub struct Memory {
    pub now: f64,
    pub peak: f64,
}

impl Side {
    pub fn of(arguments: &Arguments) -> Result<Vec<Side>> {
        let mut sides: Vec<Side> = arguments.slipway.clone().map(Side::Slipway).into_iter().collect();
        let peer = (
            &arguments.peer_bootstrap,
            &arguments.peer_control_plane,
            &arguments.peer_module,
        );
        if let (Some(bootstrap), Some(control_plane), Some(module)) = peer {
            sides.push(Side::Peer {
                bootstrap: bootstrap.clone(),
                control_plane: control_plane.clone(),
                module: module.clone(),
            });
        }
        if sides.is_empty() {
            bail!("there is nobody to measure: name --slipway or --peer-bootstrap");
        }
        Ok(sides)
    }

    pub fn name(&self) -> &'static str {
        match self {
            Side::Slipway(_) => "slipway",
            Side::Peer { .. } => "cluster_api_k3s",
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
            Side::Peer {
                bootstrap,
                control_plane,
                module,
            } => {
                install::install(&cluster.client(), &peer_definitions(module)?).await?;
                vec![
                    peer("bootstrap", bootstrap, &kubeconfig)?,
                    peer("control-plane", control_plane, &kubeconfig)?,
                ]
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

/// One manager of the peer. Its webhooks only fill in defaults, which the manifests have, and convert versions, of
/// which only one is used here; they stay off, because both managers would serve them at the same port.
fn peer(name: &str, program: &Path, kubeconfig: &Path) -> Result<Program> {
    Ok(Program {
        name: name.to_owned(),
        path: program.to_owned(),
        arguments: vec![format!("--metrics-addr=127.0.0.1:{}", free_port()?)],
        environment: BTreeMap::from([
            ("ENABLE_WEBHOOKS".to_owned(), "false".to_owned()),
            ("KUBECONFIG".to_owned(), kubeconfig.display().to_string()),
        ]),
    })
}

/// The peer's definitions from its module, labelled as its releases label them and without conversion.
fn peer_definitions(module: &Path) -> Result<Vec<Value>> {
    let mut definitions = Vec::new();
    for (part, provider) in [
        ("bootstrap", "bootstrap-k3s"),
        ("controlplane", "control-plane-k3s"),
    ] {
        let bases = module.join(part).join("config/crd/bases");
        let entries = fs::read_dir(&bases).with_context(|| format!("reading {}", bases.display()))?;
        for entry in entries {
            let entry = entry?;
            // The control plane's folder has old copies of the bootstrap kinds.
            if !entry.file_name().to_string_lossy().starts_with(part) {
                continue;
            }
            for mut definition in install::parse(&fs::read_to_string(entry.path())?)? {
                definition["metadata"]["labels"] = json!({
                    "cluster.x-k8s.io/v1beta1": "v1beta1_v1beta2",
                    "cluster.x-k8s.io/provider": provider,
                });
                if let Some(spec) = definition["spec"].as_object_mut() {
                    spec.remove("conversion");
                }
                definitions.push(definition);
            }
        }
    }
    if definitions.is_empty() {
        bail!("{} has no definitions", module.display());
    }
    Ok(definitions)
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
