//! The hosts of stories of machines that are updated in place: real agents over files, which write slots, boot them, run bootstrap data, and
//! run kubeadm. That is a program in the slot, which is run from the one that was booted and writes down how it was called. Their nodes
//! are played, with the version that the booted slot has.

use std::{fs, io, path::Path, process, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_agent_api::Identity;
use slipway_edge::{
    api::{EdgeMachine, GROUP, INFRASTRUCTURE_GROUP, VERSION},
    hosts::{HostAddress, Hosts, native::NativeHosts},
    node_upgrade::{
        facts::ReachedHost,
        reading::{Answers, reached},
    },
};
use slipway_hosts_sim::{FLEET, Fleet, NodeImage, Options, Registry, SimulatedHost, System};
use slipway_testbed::Cluster;

use crate::in_place_world::Story;

pub const BOXES: [&str; 3] = ["box-1", "box-2", "box-3"];
/// Where kubeadm writes down how it was called, on each host.
const CALLS: &str = "kubeadm.calls";

/// An image whose slot begins with kubeadm: it writes down its version, and with what it was called.
fn image(version: &str, epoch: u64) -> io::Result<NodeImage> {
    let version = version.trim_start_matches('v');
    let program = format!("#!/bin/sh\necho \"{version}: kubeadm $2\" >> \"$1\"\n");
    let mut slot = program.into_bytes();
    slot.resize(64 << 10, 0);
    NodeImage::with_contents(version, epoch, slot)
}

/// What of a command line kubeadm is called with; `None`: it calls something else.
fn kubeadm(argv: &[String]) -> Option<String> {
    let line = argv.join(" ");
    let (_, arguments) = line.split_once("kubeadm ")?;
    let arguments = arguments.split("&&").next().unwrap_or_default();
    Some(arguments.trim().to_owned())
}

/// The program that the booted slot begins with, called as the host calls it.
fn run_from_slot(folder: &Path, arguments: &str) -> io::Result<i32> {
    let booted = fs::read_to_string(folder.join("booted"))?;
    let slot = fs::read(folder.join(format!("{}.img", booted.to_lowercase())))?;
    let program: Vec<u8> = slot.into_iter().take_while(|byte| *byte != 0).collect();
    let at = folder.join("kubeadm");
    fs::write(&at, program)?;
    let ended = process::Command::new("/bin/sh")
        .arg(&at)
        .arg(folder.join(CALLS))
        .arg(arguments)
        .status()?;
    Ok(ended.code().unwrap_or(-1))
}

/// kubeadm and the kubelets of the hosts.
struct Kubernetes {
    workload: Client,
    /// Whose nodes they are, once the story has begun.
    machines: Mutex<Option<Api<EdgeMachine>>>,
}

impl System for Kubernetes {
    fn run(&self, host: &str, argv: &[String], root: &Path) -> Option<i32> {
        let arguments = kubeadm(argv)?;
        let folder = root.parent()?;
        let code = run_from_slot(folder, &arguments).unwrap_or_else(|error| {
            tracing::error!(host, "kubeadm of the slot cannot be run: {error}");
            127
        });
        Some(code)
    }

    /// The kubelet of the slot tells its version.
    fn booted(&self, host: &str, version: Option<&str>) {
        let (Some(machines), Some(version)) = (self.machines.lock().clone(), version) else {
            return;
        };
        let (nodes, host) = (Api::<Node>::all(self.workload.clone()), host.to_owned());
        let told = json!({"status": {"nodeInfo": {"kubeletVersion": version}}});
        tokio::spawn(async move {
            let all = machines.list(&ListParams::default()).await.expect("machines");
            let of_host = all
                .into_iter()
                .find(|machine| machine.spec.host_name.as_deref() == Some(&host));
            let name = of_host.expect("the machine of the host").name_any();
            nodes
                .patch_status(&name, &PatchParams::default(), &Patch::Merge(told))
                .await
                .expect("its node");
        });
    }

    fn went_down(&self, _: &str) {}
}

/// Three hosts that listen, installed with one version, and the registry that they have another from.
pub struct Site {
    /// Hosts have joined it, and their certificates end with it.
    _fleet: Fleet,
    registry: Registry,
    system: Arc<Kubernetes>,
    port: Arc<NativeHosts>,
    pub before: Arc<NodeImage>,
    pub after: NodeImage,
    pub hosts: Vec<Arc<SimulatedHost>>,
}

impl Site {
    pub async fn start(workload: &Cluster, before: &str, after: &str) -> Result<Self> {
        let fleet = Fleet::start(Duration::from_hours(24)).await?;
        let (before, after) = (Arc::new(image(before, 1)?), image(after, 2)?);
        let registry = Registry::start([before.as_ref(), &after]).await?;
        let system = Arc::new(Kubernetes {
            workload: workload.client(),
            machines: Mutex::default(),
        });
        let mut options = Options::new(before.clone());
        options.away = Duration::from_secs(1);
        options.registries.plain_http = vec![registry.address.clone()];
        options.system = Some(system.clone());
        let mut hosts = Vec::new();
        for name in BOXES {
            hosts.push(fleet.add(name, options.clone()).await?);
        }
        let tls = fleet.tls(&Identity::Operator { fleet: FLEET.into() })?;
        Ok(Self {
            port: Arc::new(NativeHosts::new(tls, fleet.board.clone())),
            _fleet: fleet,
            registry,
            system,
            before,
            after,
            hosts,
        })
    }

    /// What controllers order through.
    pub fn port(&self) -> Arc<dyn Hosts> {
        self.port.clone()
    }

    /// From now on nodes of this story follow what their host boots.
    pub fn is_of(&self, story: &Story) {
        let machines = Api::namespaced(story.client.clone(), &story.namespace);
        *self.system.machines.lock() = Some(machines);
    }

    /// The EdgeHosts.
    pub fn objects(&self) -> Vec<Value> {
        let hosts = self.hosts.iter();
        hosts
            .map(|host| {
                json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "EdgeHost", "metadata": {"name": host.name},
                    "spec": {"address": host.address()}})
            })
            .collect()
    }

    pub fn template(&self, name: &str, image: &NodeImage, processors: u32) -> Value {
        let reference = format!("{}/nodes/kubernetes", self.registry.address);
        json!({"apiVersion": format!("{INFRASTRUCTURE_GROUP}/{VERSION}"), "kind": "EdgeMachineTemplate", "metadata": {"name": name},
            "spec": {"template": {"spec": {"image": {"reference": reference, "digest": image.digest.to_string()},
                "minimum": {"processors": processors}}}}})
    }

    pub fn host(&self, name: &str) -> Result<&Arc<SimulatedHost>> {
        let mut hosts = self.hosts.iter();
        hosts
            .find(|host| host.name == name)
            .context("a host of that name")
    }

    /// What a host says of an upgrade to the second version, by its uid.
    pub async fn reached(&self, name: &str, upgrade: &str) -> Result<ReachedHost> {
        let place = HostAddress {
            name: name.to_owned(),
            address: self.host(name)?.address(),
            ..HostAddress::default()
        };
        let inventory = self.port.inventory(&place).await?;
        let answers = Answers {
            host: &inventory,
            operations: &self.port.operations(&place).await?,
            images: &self.port.images(&place).await?,
            maintenance: None,
        };
        Ok(reached(answers, upgrade, &self.after.digest.to_string()))
    }

    /// How often hosts were started again, by their names.
    pub fn reboots(&self) -> Vec<(&str, u64)> {
        let hosts = self.hosts.iter();
        hosts
            .map(|host| (host.name.as_str(), host.machine.boots() - 1))
            .filter(|(_, reboots)| *reboots > 0)
            .collect()
    }

    /// How kubeadm was called on each host, one after the other.
    pub fn calls(&self) -> Result<Vec<Vec<String>>> {
        let read = |host: &Arc<SimulatedHost>| {
            let text = fs::read_to_string(host.folder().join(CALLS));
            text.map(|text| text.lines().map(str::to_owned).collect())
                .with_context(|| format!("kubeadm was not called on {}", host.name))
        };
        self.hosts.iter().map(read).collect()
    }
}
