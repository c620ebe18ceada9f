//! The managers of a side as processes: how each is started, and what the kernel says of them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use slipway_kit::manager::{
    Manager, Setup, free_port,
    measure::{self, Memory},
};
use slipway_testbed::{Cluster, Part, Process, Program, Upstream, install, parts::BuiltUpstream, upstream};

use super::{Arguments, USER};

/// Cluster API's own managers begin their user agent with this, whatever they ask for.
const CORE_AGENT: &str = "cluster-api";

pub enum Side {
    Slipway(PathBuf),
    Upstream,
}

impl Side {
    pub fn of(arguments: &Arguments) -> Result<Vec<Side>> {
        let mut sides: Vec<Side> = arguments.slipway.clone().map(Side::Slipway).into_iter().collect();
        if arguments.upstream {
            sides.push(Side::Upstream);
        }
        if sides.is_empty() {
            bail!("there is nobody to measure: name --slipway or --upstream");
        }
        Ok(sides)
    }

    pub fn name(&self) -> &'static str {
        match self {
            Side::Slipway(_) => "slipway",
            Side::Upstream => "cluster_api_k3s",
        }
    }

    /// Installs what the managers need and starts them. They may do everything: their rights are not what is measured.
    pub async fn start(&self, cluster: &Cluster) -> Result<Managers> {
        let folder = cluster.description().directory.join("managers");
        let mut managers = Managers {
            ours: None,
            theirs: Vec::new(),
            folder: folder.clone(),
        };
        match self {
            Side::Slipway(program) => {
                let setup = Setup::new(cluster, program, &folder, USER, Some("system:masters"))?
                    .with(["--providers=k3s"]);
                setup.install(cluster).await?;
                managers.ours = Some(setup.start("slipway").await?);
            }
            Side::Upstream => {
                fs::create_dir_all(&folder)?;
                let kubeconfig = folder.join("kubeconfig");
                fs::write(&kubeconfig, cluster.kubeconfig_as(USER, Some("system:masters")))?;
                for upstream in [Upstream::K3sBootstrap, Upstream::K3sControlPlane] {
                    let built = upstream::built(upstream, cluster.parts()).await?;
                    install::install(&cluster.client(), &built.objects()?).await?;
                    let program = upstream_program(&built, &kubeconfig)?;
                    let process = Process::start(&cluster.parts().binary(Part::Launch), &folder, program);
                    let process = process.with_context(|| format!("starting {}", upstream.name()))?;
                    managers.theirs.push(process);
                }
            }
        }
        Ok(managers)
    }
}

/// One manager of cluster-api-k3s.
fn upstream_program(built: &BuiltUpstream, kubeconfig: &Path) -> Result<Program> {
    Ok(Program {
        name: built.upstream.name().to_owned(),
        path: built.binary(),
        arguments: vec![format!("--metrics-addr=127.0.0.1:{}", free_port()?)],
        environment: BTreeMap::from([
            ("ENABLE_WEBHOOKS".to_owned(), "false".to_owned()),
            ("KUBECONFIG".to_owned(), kubeconfig.display().to_string()),
        ]),
    })
}

/// Whether a request to a workload cluster was made by a manager of either side, by its user agent.
pub fn is_a_managers(agent: &str) -> bool {
    !agent.starts_with(CORE_AGENT) || agent.starts_with("cluster-api-k3s")
}

/// What runs: our manager or theirs. Dropping it kills it.
pub struct Managers {
    ours: Option<Manager>,
    theirs: Vec<Process>,
    folder: PathBuf,
}

impl Managers {
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        let ours = self.ours.iter().map(Manager::id);
        ours.chain(self.theirs.iter().map(Process::id))
    }

    /// A manager that has ended has nothing to measure.
    pub fn check(&self) -> Result<()> {
        if let Some(manager) = &self.ours {
            manager.check()?;
        }
        for process in &self.theirs {
            if let Some(status) = process.ended() {
                bail!("{} ended with {status}:\n{}", process.name(), process.tail());
            }
        }
        Ok(())
    }

    /// Seconds of processor time so far, in user and kernel mode.
    pub fn cpu_seconds(&self) -> Result<f64> {
        self.ids().map(measure::cpu_seconds).sum()
    }

    /// Memory of all managers of a side together.
    pub fn memory(&self) -> Result<Memory> {
        let mut total = Memory::default();
        for id in self.ids() {
            let memory = measure::memory(id)?;
            total.now += memory.now;
            total.peak += memory.peak;
        }
        Ok(total)
    }
}
