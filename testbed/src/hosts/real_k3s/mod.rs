//! Hosts that run a real k3s, each with a network, a disk and processes of its own in namespaces that end with this
//! process. Every cluster has its own network and a load balancer for its endpoint; nothing of this machine is changed.

mod image;
mod kubelet;
mod machine;
mod network;
mod releases;

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use kube::{Client, Config};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::timeout;

use self::{machine::Machine, network::Switch};
pub use self::{
    network::unavailable,
    releases::{Release, ReleaseError, Releases},
};
use super::{
    api::Endpoint,
    backend::{Backend, BackendError, Booting},
};
use crate::{balancer::Balancer, directory::Directory, ports::Port};

/// A server that takes longer to tell its members cannot tell them.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the hosts of one cluster stand.
pub(crate) struct Site {
    launcher: PathBuf,
    releases: Releases,
    directory: PathBuf,
    logs: PathBuf,
    switch: Switch,
    balancer: Balancer,
    endpoint: SocketAddr,
    _port: Port,
}

struct RunningCluster {
    site: Arc<Site>,
    machines: Mutex<BTreeMap<String, Arc<Machine>>>,
    left_behind: Mutex<Vec<String>>,
}

/// Clusters by the `namespace/name` of their Cluster. All ends with this value.
pub struct RealK3s {
    launcher: PathBuf,
    releases: Releases,
    places: tokio::sync::Mutex<BTreeMap<String, Arc<RunningCluster>>>,
    /// For those who cannot wait.
    known: Mutex<BTreeMap<String, Arc<RunningCluster>>>,
    refused: Mutex<BTreeMap<String, BTreeMap<String, String>>>,
    next: Mutex<usize>,
    // Dropped last, when nothing runs on it any more.
    directory: Directory,
}

impl RealK3s {
    /// `launcher` is the part that ties a process to this one.
    pub fn new(launcher: PathBuf, releases: Releases) -> io::Result<RealK3s> {
        Ok(RealK3s {
            launcher,
            releases,
            places: tokio::sync::Mutex::default(),
            known: Mutex::default(),
            refused: Mutex::default(),
            next: Mutex::default(),
            directory: Directory::create("k3s", None)?,
        })
    }

    /// Nobody will want the logs.
    pub fn all_went_well(&mut self) {
        self.directory.all_went_well();
    }

    fn number(&self) -> usize {
        let mut next = self.next.lock();
        *next += 1;
        *next
    }

    async fn place(&self, cluster: &str) -> io::Result<Arc<RunningCluster>> {
        let mut places = self.places.lock().await;
        if let Some(place) = places.get(cluster) {
            return Ok(Arc::clone(place));
        }
        let switch = Switch::start(
            &self.launcher,
            &self.directory.logs(),
            &format!("switch{}", self.number()),
        )?;
        let balancer = Balancer::start(Some(&switch.namespace()))?;
        let port = Port::free()?;
        // An address that no certificate names by itself, and that is the same for this machine and every host.
        let [high, low] = port.number.to_be_bytes();
        let endpoint = SocketAddr::from((Ipv4Addr::new(127, 83, high, low.max(1)), port.number));
        balancer.listen(TcpListener::bind(endpoint)?)?;
        let place = Arc::new(RunningCluster {
            site: Arc::new(Site {
                launcher: self.launcher.clone(),
                releases: self.releases.clone(),
                directory: self.directory.path().to_owned(),
                logs: self.directory.logs(),
                switch,
                balancer,
                endpoint,
                _port: port,
            }),
            machines: Mutex::default(),
            left_behind: Mutex::default(),
        });
        places.insert(cluster.to_owned(), Arc::clone(&place));
        self.known.lock().insert(cluster.to_owned(), Arc::clone(&place));
        Ok(place)
    }

    fn known(&self, cluster: &str) -> Option<Arc<RunningCluster>> {
        self.known.lock().get(cluster).cloned()
    }

    /// Hosts on which k3s does not run, and why.
    pub fn failures(&self, cluster: &str) -> BTreeMap<String, String> {
        let mut failures = self.refused.lock().get(cluster).cloned().unwrap_or_default();
        if let Some(place) = self.known(cluster) {
            for (name, machine) in place.machines.lock().iter() {
                if let Some(why) = machine.failure().filter(|_| machine.has_power()) {
                    failures.insert(name.clone(), why);
                }
            }
        }
        failures
    }

    /// Hosts that are there, with or without power.
    pub fn hosts(&self, cluster: &str) -> Vec<String> {
        let place = self.known(cluster);
        place.map_or_else(Vec::new, |place| place.machines.lock().keys().cloned().collect())
    }

    /// Hosts that went while etcd still counted on them.
    pub fn left_behind(&self, cluster: &str) -> Vec<String> {
        let place = self.known(cluster);
        place.map_or_else(Vec::new, |place| place.left_behind.lock().clone())
    }

    /// The processes of a host, as this machine numbers them.
    pub fn processes(&self, cluster: &str, host: &str) -> Vec<u32> {
        let machine = self.known(cluster).and_then(|place| place.machine(host));
        machine.map_or_else(Vec::new, |machine| machine.processes())
    }

    /// Pulls the network cable of a host, or plugs it in again.
    pub fn connect(&self, cluster: &str, host: &str, connected: bool) -> io::Result<()> {
        let place = self.known(cluster);
        let found = place.and_then(|place| Some((place.machine(host)?, Arc::clone(&place.site))));
        let (machine, site) = found
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no host {host}")))?;
        machine.connect(&site, connected)
    }

    /// What a file on the disk of a host holds.
    pub fn read(&self, cluster: &str, host: &str, path: &str) -> io::Result<String> {
        let machine = self.known(cluster).and_then(|place| place.machine(host));
        machine
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no host {host}")))?
            .read(path)
    }
}

impl RunningCluster {
    fn machine(&self, name: &str) -> Option<Arc<Machine>> {
        self.machines.lock().get(name).cloned()
    }

    /// What etcd has for members, as a server tells who knows the token.
    async fn members(&self, token: &str) -> Option<Value> {
        let uri = format!("https://{}", self.site.endpoint).parse().ok()?;
        let mut config = Config::new(uri);
        config.accept_invalid_certs = true;
        let client = Client::try_from(config).ok()?;
        let basic = BASE64_STANDARD.encode(format!("server:{token}"));
        let request = http::Request::get("/db/info")
            .header("authorization", format!("Basic {basic}"))
            .body(Vec::new())
            .ok()?;
        let answer = timeout(PATIENCE, client.request_text(request)).await.ok()?.ok()?;
        serde_json::from_str(&answer).ok()
    }

    /// Whether etcd still counts on a host.
    async fn counts_on(&self, machine: &Machine) -> bool {
        let others = self.site.balancer.targets();
        if !others.iter().any(|name| *name != machine.booting.name) {
            return false;
        }
        let Some(token) = machine.token() else {
            return false;
        };
        let url = format!("https://{}:2380", machine.address);
        let members = self.members(&token).await.unwrap_or_default();
        members["members"]
            .as_array()
            .is_some_and(|members| members.iter().any(|member| member["peerURLs"][0] == url))
    }
}

#[async_trait]
impl Backend for RealK3s {
    async fn endpoint(&self, cluster: &str) -> Result<Endpoint, BackendError> {
        let endpoint = self.place(cluster).await?.site.endpoint;
        Ok(Endpoint {
            host: endpoint.ip().to_string(),
            port: i32::from(endpoint.port()),
        })
    }

    async fn boot(&self, host: &Booting) -> Result<(), BackendError> {
        let place = self.place(&host.cluster).await?;
        let machine = match place.machine(&host.name) {
            Some(machine) => machine,
            None => match Machine::new(&place.site, self.number(), host) {
                Ok(machine) => {
                    let machine = Arc::new(machine);
                    place
                        .machines
                        .lock()
                        .insert(host.name.clone(), Arc::clone(&machine));
                    machine
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let mut refused = self.refused.lock();
                    let of_cluster = refused.entry(host.cluster.clone()).or_default();
                    of_cluster.insert(host.name.clone(), error.to_string());
                    return Err(BackendError::Refused(error.to_string()));
                }
                Err(error) => return Err(error.into()),
            },
        };
        machine.power_on(&place.site)?;
        Ok(())
    }

    async fn destroy(&self, cluster: &str, host: &str) -> Result<(), BackendError> {
        if let Some(refused) = self.refused.lock().get_mut(cluster) {
            refused.remove(host);
        }
        let Some(place) = self.known(cluster) else {
            return Ok(());
        };
        let Some(machine) = place.machine(host) else {
            return Ok(());
        };
        if machine.booting.is_control_plane && place.counts_on(&machine).await {
            place.left_behind.lock().push(host.to_owned());
        }
        let site = Arc::clone(&place.site);
        let scrapped = tokio::task::spawn_blocking(move || machine.scrap(&site)).await;
        scrapped.map_err(io::Error::other)??;
        place.machines.lock().remove(host);
        Ok(())
    }

    async fn set_alive(&self, cluster: &str, host: &str, alive: bool) -> Result<(), BackendError> {
        let place = self.known(cluster);
        let found = place.and_then(|place| Some((place.machine(host)?, Arc::clone(&place.site))));
        let Some((machine, site)) = found else {
            return Err(BackendError::Refused(format!(
                "no host {host} runs in cluster {cluster}"
            )));
        };
        if alive {
            machine.power_on(&site)?;
            return Ok(());
        }
        let off = tokio::task::spawn_blocking(move || machine.power_off(&site)).await;
        off.map_err(io::Error::other)?;
        Ok(())
    }
}

impl Drop for RealK3s {
    fn drop(&mut self) {
        for place in self.known.get_mut().values() {
            for machine in place.machines.lock().values() {
                machine.power_off(&place.site);
            }
        }
    }
}
