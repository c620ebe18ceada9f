//! Hosts of the edge provider that run the simulated K3s together. Their agents are real: they join a manager, execute bootstrap data over
//! files, write slots and reboot. What installs k3s on one brings it up in the simulator, and a reboot brings up what the booted slot holds.

use std::{collections::BTreeMap, fs, io, path::Path, sync::Arc, time::Duration};

use parking_lot::Mutex;
use slipway_agent_api::token::JoinToken;
use slipway_hosts_sim::{NodeImage, Options, Reach, Registry, SimulatedHost, System};
use slipway_k3s_sim::{Cluster, Machine, installs_k3s};
use tempfile::TempDir;

/// What k3s leaves for taking it off a host again.
const UNINSTALL: &str = "k3s-uninstall.sh";
/// How long a host tries to join: its manager may not have opened its port yet.
const JOIN_DEADLINE: Duration = Duration::from_mins(1);
const JOIN_AGAIN: Duration = Duration::from_millis(100);

/// Lets a host join its manager, and starts it.
pub async fn join(host: &Arc<SimulatedHost>, token: &JoinToken) -> io::Result<()> {
    let began = tokio::time::Instant::now();
    while let Err(problem) = host.join(token).await {
        if began.elapsed() > JOIN_DEADLINE {
            return Err(io::Error::other(problem));
        }
        // Nothing tells when the manager opens its port.
        tokio::time::sleep(JOIN_AGAIN).await;
    }
    host.start().await
}

/// k3s on simulated hosts, all of one cluster. The version that runs is that of the booted slot.
pub struct K3sOnHosts {
    cluster: Arc<Cluster>,
    versions: Mutex<BTreeMap<String, String>>,
}

impl K3sOnHosts {
    pub fn new(cluster: Arc<Cluster>) -> Arc<Self> {
        Arc::new(Self {
            cluster,
            versions: Mutex::default(),
        })
    }

    fn install(&self, host: &str, command: &str, root: &Path) -> i32 {
        let machine = Machine {
            name: host.to_owned(),
            image_version: self.versions.lock().get(host).cloned(),
            ..Machine::default()
        };
        let mut files = BTreeMap::new();
        let installed = read_below(root, root, &mut files)
            .map_err(|error| error.to_string())
            .and_then(|()| {
                self.cluster
                    .install(&machine, files, command)
                    .map_err(|error| error.to_string())
            });
        match installed {
            Ok(()) => 0,
            Err(why) => {
                tracing::warn!(host, why, "k3s does not come up");
                1
            }
        }
    }
}

/// Every file below a folder, by the path that the host knows it by.
fn read_below(root: &Path, folder: &Path, files: &mut BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read_below(root, &path, files)?;
        } else if let Ok(below) = path.strip_prefix(root) {
            files.insert(format!("/{}", below.display()), fs::read(&path)?);
        }
    }
    Ok(())
}

impl System for K3sOnHosts {
    fn run(&self, host: &str, argv: &[String], root: &Path) -> Option<i32> {
        let command = argv.join(" ");
        if installs_k3s(&command) {
            return Some(self.install(host, &command, root));
        }
        if argv.first().is_some_and(|program| program == UNINSTALL) {
            self.cluster.destroy(host);
            // As the script does; what else is to go is the agent's to delete.
            let _ = fs::remove_dir_all(root.join("etc/rancher"));
            return Some(0);
        }
        None
    }

    fn booted(&self, host: &str, kubelet_version: Option<&str>) {
        if let Some(version) = kubelet_version {
            self.versions.lock().insert(host.to_owned(), version.to_owned());
            self.cluster.upgrade(host, version);
        }
        self.cluster.revive(host);
    }

    fn went_down(&self, host: &str) {
        self.cluster.kill(host);
    }
}

/// A site: hosts, a registry with their images, and the cluster that they run. Everything ends with it.
pub struct EdgeSite {
    pub cluster: Arc<Cluster>,
    registry: Registry,
    images: BTreeMap<String, Arc<NodeImage>>,
    options: Options,
    hosts: Mutex<BTreeMap<String, Arc<SimulatedHost>>>,
    folder: TempDir,
}

impl EdgeSite {
    /// Images of these versions of k3s; hosts are installed with the first. They are away for so long when they reboot.
    pub async fn start(cluster: Arc<Cluster>, versions: &[&str], away: Duration) -> io::Result<Self> {
        let mut images = BTreeMap::new();
        for (epoch, version) in (1_u64..).zip(versions) {
            let image = NodeImage::build(version.trim_start_matches('v'), epoch)?;
            images.insert((*version).to_owned(), Arc::new(image));
        }
        let installed = versions.first().and_then(|version| images.get(*version));
        let installed = installed.ok_or_else(|| io::Error::other("a site has at least one version"))?;
        let registry = Registry::start(images.values().map(AsRef::as_ref)).await?;
        let mut options = Options::new(Arc::clone(installed));
        options.reach = Reach::Tunnel;
        options.away = away;
        options.registries.plain_http = vec![registry.address.clone()];
        options.system = Some(K3sOnHosts::new(Arc::clone(&cluster)));
        Ok(Self {
            cluster,
            registry,
            images,
            options,
            hosts: Mutex::default(),
            folder: tempfile::tempdir()?,
        })
    }

    /// The reference and the digest of the image of a version.
    pub fn image(&self, version: &str) -> Option<(String, String)> {
        let image = self.images.get(version)?;
        let reference = format!("{}/nodes/k3s", self.registry.address);
        Some((reference, image.digest.to_string()))
    }

    /// A new host that joins a manager, and serves it from then on.
    pub async fn add(
        &self,
        name: &str,
        fleet: &str,
        manager: &str,
        token: &JoinToken,
    ) -> io::Result<Arc<SimulatedHost>> {
        let host = SimulatedHost::install(self.folder.path(), name, fleet, manager, self.options.clone())?;
        join(&host, token).await?;
        self.hosts.lock().insert(name.to_owned(), Arc::clone(&host));
        Ok(host)
    }
}
