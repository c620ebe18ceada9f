//! The hosts: real agents over files, a registry with the image they run and the one they are to run, and the nodes that follow them. The
//! node of host `box-7` is `m-7`, as its machine is.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_edge::fleet::{self, record};
use slipway_hosts_sim::{NodeImage, Options, Reach, Registry, SimulatedHost, System};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::world;

pub const OLD: &str = "v1.34.2+k3s1";
pub const NEW: &str = "v1.34.3+k3s1";
/// So many hosts join at once.
const AT_ONCE: usize = 16;

/// The name of a machine, and of its node, by its host's.
fn machine_of(host: &str) -> String {
    host.replacen("box-", "m-", 1)
}

/// What happened to a host: the kubelet that came up, or none.
type Happened = (String, Option<String>);

struct Kubelets(UnboundedSender<Happened>);

impl System for Kubelets {
    fn run(&self, _: &str, _: &[String], _: &Path) -> Option<i32> {
        None
    }

    fn booted(&self, host: &str, version: Option<&str>) {
        let _ = self.0.send((machine_of(host), version.map(ToOwned::to_owned)));
    }

    fn went_down(&self, host: &str) {
        let _ = self.0.send((machine_of(host), None));
    }
}

/// Nodes, and what core shows of them on Machines.
async fn follow(mut happened: UnboundedReceiver<Happened>, workload: Client, management: Client) {
    let nodes: Api<Node> = Api::all(workload);
    let machines: Api<DynamicObject> = world::objects(&management, world::CORE, "Machine");
    while let Some((name, version)) = happened.recv().await {
        let ready = if version.is_some() { "True" } else { "False" };
        let mut status = json!({"conditions": [{"type": "Ready", "status": ready}]});
        if let Some(version) = &version {
            status["nodeInfo"] = world::node_info(version);
            let seen = json!({"status": {"nodeInfo": world::node_info(version)}});
            let _ = machines
                .patch_status(&name, &PatchParams::default(), &Patch::Merge(seen))
                .await;
        }
        let patch = json!({"status": status});
        // Before its node is made a host is installed, and nobody looks.
        let _ = nodes
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
    }
}

pub struct Site {
    registry: Registry,
    image: NodeImage,
    options: Options,
    hosts: Mutex<BTreeMap<String, Arc<SimulatedHost>>>,
    folder: tempfile::TempDir,
}

impl Site {
    pub async fn start(workload: Client, management: Client, away: Duration) -> Result<Self> {
        let build = |version: &str, epoch| NodeImage::build(version.trim_start_matches('v'), epoch);
        let (installed, image) = (build(OLD, 1)?, build(NEW, 2)?);
        let registry = Registry::start([&image]).await?;
        let (sender, happened) = unbounded_channel();
        tokio::spawn(follow(happened, workload, management));
        let mut options = Options::new(Arc::new(installed));
        options.reach = Reach::Tunnel;
        options.away = away;
        options.registries.plain_http = vec![registry.address.clone()];
        options.system = Some(Arc::new(Kubelets(sender)));
        Ok(Self {
            registry,
            image,
            options,
            hosts: Mutex::default(),
            folder: tempfile::tempdir()?,
        })
    }

    /// What hosts are to run.
    pub fn image(&self) -> Value {
        json!({"reference": format!("{}/nodes/k3s", self.registry.address), "digest": self.image.digest.to_string()})
    }

    /// Each host joins with a token of its own.
    pub async fn join(&self, client: &Client, manager: &str, count: usize) -> Result<()> {
        stream::iter(0..count)
            .map(|number| self.join_one(client, manager, format!("box-{number}")))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    async fn join_one(&self, client: &Client, manager: &str, name: String) -> Result<()> {
        let valid = SignedDuration::from_hours(1);
        let token =
            fleet::issue_token(client, fleet::DEFAULT_NAMESPACE, &name, valid, Timestamp::now()).await?;
        let host = SimulatedHost::install(
            self.folder.path(),
            &name,
            record::FLEET,
            manager,
            self.options.clone(),
        )?;
        slipway_edge_sim::join(&host, &token)
            .await
            .with_context(|| format!("{name} does not join"))?;
        self.hosts.lock().insert(name, host);
        Ok(())
    }

    pub fn boots(&self) -> u64 {
        self.hosts.lock().values().map(|host| host.machine.boots()).sum()
    }
}
