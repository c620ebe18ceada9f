//! What stories of K3s on edge hosts share: Cluster API's real core, and our control plane, bootstrap and infrastructure providers and our
//! runtime extension in one manager with the rights they declare. Which hosts there are is the story's own.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::ByteString;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_edge::hooks::can_update::STRATEGY;
use slipway_k3s_sim::{Simulator, Timing};
use slipway_kit::manager::{Manager, Setup, free_port, roles};
use slipway_testbed::{
    Cluster, ManagementCluster,
    wait::{until_gone_within, until_within},
};

use crate::{
    k3s_fleet::{BOOTSTRAP, CONTROL_PLANE, CORE, is_true},
    support::{apply, objects},
};

pub const BINARY: &str = env!("CARGO_BIN_EXE_slipway-edge");
const USER: &str = "slipway-edge";
pub const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io/v1alpha1";
pub const EDGE: &str = "edge.slipway.dev/v1alpha1";
pub const NAME: &str = "north";
pub const VERSIONS: [&str; 3] = ["v1.34.3+k3s1", "v1.35.2+k3s1", "v1.36.3+k3s1"];
/// The hosts, and what they are for.
pub const HOSTS: [(&str, &str); 2] = [("box-1", "server"), ("box-2", "worker")];
/// A hang guard: hosts and Cluster API are asked and not watched in several places, and the machine is shared.
pub const LONG: Duration = Duration::from_mins(15);

pub struct Story {
    pub management: Cluster,
    pub client: Client,
    pub namespace: String,
    /// Where hosts join.
    pub address: String,
    /// What the hosts run together.
    pub cluster: Arc<slipway_k3s_sim::Cluster>,
    /// Reference and digest of the image with each version.
    pub images: BTreeMap<String, (String, String)>,
    /// What EdgeHosts say, by their names; nothing where they are not named.
    pub host_specs: BTreeMap<String, Value>,
    /// Every Machine there ever was.
    pub machines: Arc<Mutex<BTreeSet<String>>>,
    _manager: Manager,
    _simulator: Arc<Simulator>,
}

impl Story {
    pub async fn begin(name: &str) -> Result<Self> {
        let management = ManagementCluster::builder()
            .name(name)
            .cluster_api()
            .scheduler(false)
            .start()
            .await?;
        let mut packages = slipway_k3s::provider().packages;
        packages.extend(slipway_edge::provider().packages);
        roles::install(&management, &packages, USER).await?;
        let folder = management.description().directory.join("edge-manager");
        let address = format!("127.0.0.1:{}", free_port()?);
        let setup = Setup::new(&management, Path::new(BINARY), &folder, USER, None)?.with([
            "--providers=k3s,edge".to_owned(),
            format!("--edge-address={address}"),
        ]);
        setup.install(&management).await?;
        let manager = setup.start("manager").await?;
        let client = management.client();
        register(&client, &setup).await?;
        let simulator = Simulator::new(Timing::HURRIED);
        let cluster = simulator.cluster(NAME).await?;
        let namespace = management.namespace(name).await?;
        let machines = Arc::default();
        remember(
            objects(&client, &namespace, CORE, "Machine"),
            Arc::clone(&machines),
        );
        Ok(Self {
            cluster,
            images: BTreeMap::new(),
            host_specs: BTreeMap::new(),
            management,
            client,
            namespace,
            address,
            machines,
            _manager: manager,
            _simulator: simulator,
        })
    }

    pub fn of(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        objects(&self.client, &self.namespace, version, kind)
    }

    pub fn image(&self, version: &str) -> Result<Value> {
        let (reference, digest) = self.images.get(version).context("an image of the version")?;
        Ok(json!({"reference": reference, "digest": digest}))
    }

    /// One server and one worker, each on the host that is meant for it. What is deleted by the garbage collector, in its own time, has
    /// other names for each version.
    pub fn manifests(&self, version: &str) -> Result<Vec<Value>> {
        let endpoint = self.cluster.endpoint;
        let minor = version.split('.').nth(1).unwrap_or_default();
        let (servers, workers) = (format!("servers-{minor}"), format!("workers-{minor}"));
        let template = |name: &str, role: &str| -> Result<Value> {
            Ok(
                json!({"apiVersion": INFRASTRUCTURE, "kind": "EdgeMachineTemplate", "metadata": {"name": name},
                "spec": {"template": {"spec": {"hostSelector": {"matchLabels": {"role": role}}, "image": self.image(version)?}}}}),
            )
        };
        // k3s comes with the image, and the node is known by the claim of its host.
        let agent = json!({"airGapped": true, "providerID": "{{ ds.meta_data.provider_id }}"});
        let group = "infrastructure.cluster.x-k8s.io";
        let mut manifests: Vec<Value> = HOSTS
            .into_iter()
            .map(|(name, role)| {
                let spec = self.host_specs.get(name).cloned().unwrap_or_else(|| json!({}));
                json!({"apiVersion": EDGE, "kind": "EdgeHost", "metadata": {"name": name, "labels": {"role": role}}, "spec": spec})
            })
            .collect();
        manifests.extend([
            template(&servers, "server")?,
            template(&workers, "worker")?,
            json!({"apiVersion": INFRASTRUCTURE, "kind": "EdgeCluster", "metadata": {"name": NAME},
                "spec": {"controlPlaneEndpoint": {"host": endpoint.ip().to_string(), "port": endpoint.port()}}}),
            json!({"apiVersion": CONTROL_PLANE, "kind": "KThreesControlPlane", "metadata": {"name": NAME}, "spec": {
                "replicas": 1, "version": version, "rolloutStrategy": {"type": "External"},
                "kthreesConfigSpec": {"agentConfig": agent},
                "machineTemplate": {"infrastructureRef": {"apiVersion": INFRASTRUCTURE, "kind": "EdgeMachineTemplate", "name": servers,
                    "namespace": self.namespace}}}}),
            json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": NAME}, "spec": {
                "clusterNetwork": {"pods": {"cidrBlocks": ["10.42.0.0/16"]}},
                "infrastructureRef": {"apiGroup": group, "kind": "EdgeCluster", "name": NAME},
                "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KThreesControlPlane", "name": NAME}}}),
            json!({"apiVersion": BOOTSTRAP, "kind": "KThreesConfigTemplate", "metadata": {"name": workers},
                "spec": {"template": {"spec": {"agentConfig": agent}}}}),
            json!({"apiVersion": CORE, "kind": "MachineDeployment",
                "metadata": {"name": "workers", "annotations": {(STRATEGY): "External"}}, "spec": {
                "clusterName": NAME, "replicas": 1, "selector": {"matchLabels": {"pool": "workers"}},
                "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
                "template": {"metadata": {"labels": {"pool": "workers"}}, "spec": {
                    "clusterName": NAME, "version": version,
                    "bootstrap": {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KThreesConfigTemplate", "name": workers}},
                    "infrastructureRef": {"apiGroup": group, "kind": "EdgeMachineTemplate", "name": workers}}}}}),
        ]);
        Ok(manifests)
    }

    pub async fn until_up(&self) -> Result<()> {
        let planes = self.of(CONTROL_PLANE, "KThreesControlPlane");
        until_within(LONG, &planes, NAME, "have its server", |plane| {
            plane.data["status"]["availableReplicas"] == 1 && is_true(plane, "Available")
        })
        .await?;
        let deployments = self.of(CORE, "MachineDeployment");
        until_within(LONG, &deployments, "workers", "have its worker", |deployment| {
            deployment.data["status"]["availableReplicas"] == 1
        })
        .await?;
        Ok(())
    }

    /// Machines by name, with their uids.
    pub async fn uids(&self) -> Result<BTreeMap<String, String>> {
        let all = self.of(CORE, "Machine").list(&ListParams::default()).await?;
        Ok(all
            .into_iter()
            .map(|machine| (machine.name_any(), machine.uid().unwrap_or_default()))
            .collect())
    }

    /// Brings the cluster to a version over those before it that there are images of, and waits until it is there.
    pub async fn upgrade(&self, versions: &[&str]) -> Result<()> {
        let images = versions
            .iter()
            .map(|version| {
                let mut image = self.image(version)?;
                image["version"] = json!(version);
                Ok(image)
            })
            .collect::<Result<Vec<_>>>()?;
        let upgrade = json!({"apiVersion": EDGE, "kind": "ClusterUpgrade", "metadata": {"name": "up"},
            "spec": {"clusterName": NAME, "version": versions.last(), "images": images}});
        apply(&self.client, &self.namespace, &[upgrade]).await?;
        let upgrades = self.of(EDGE, "ClusterUpgrade");
        let done = until_within(LONG, &upgrades, "up", "be done", |upgrade| {
            upgrade.data["status"]["phase"] == "Done"
        })
        .await?;
        ensure!(done.data["status"]["upToDate"] == 2, "{:?}", done.data["status"]);
        Ok(())
    }

    /// What each host runs, as the cluster sees it.
    pub fn versions(&self) -> BTreeMap<String, String> {
        self.cluster.look(|model| {
            let hosts = model.hosts.iter();
            hosts
                .map(|(name, host)| (name.clone(), host.version.clone()))
                .collect()
        })
    }

    pub async fn delete(&self) -> Result<()> {
        let clusters = self.of(CORE, "Cluster");
        clusters.delete(NAME, &DeleteParams::default()).await?;
        until_gone_within(LONG, &clusters, NAME).await?;
        let secrets = self.of("v1", "Secret");
        let is_of_a_person = |secret: &DynamicObject| {
            let mut managers = secret.managed_fields().iter();
            managers.any(|entry| entry.manager.as_deref() == Some("a-user"))
        };
        for secret in secrets.list(&ListParams::default()).await? {
            // What a person has made stays.
            if is_of_a_person(&secret) {
                continue;
            }
            until_gone_within(LONG, &secrets, &secret.name_any()).await?;
        }
        let hosts = self.of(EDGE, "EdgeHost");
        for (name, _) in HOSTS {
            until_within(LONG, &hosts, name, "be wiped and free", |host| {
                let claimed = host.data["status"]["conditions"].as_array().into_iter().flatten();
                let mut claimed = claimed.filter(|one| one["type"] == "Claimed");
                host.data["spec"]["claim"].is_null() && claimed.any(|one| one["reason"] == "Free")
            })
            .await?;
        }
        Ok(())
    }
}

/// Tells Cluster API where the extension is, and waits until it has asked it.
async fn register(client: &Client, setup: &Setup) -> Result<()> {
    let kind = GroupVersionKind::gvk("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig");
    let configs: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let ca = std::fs::read(setup.folder.join("certificates/ca.crt"))?;
    let config = json!({"apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig", "metadata": {"name": "edge"},
        "spec": {"clientConfig": {"url": setup.url(), "caBundle": ByteString(ca)}}});
    configs
        .patch("edge", &PatchParams::apply("a-user"), &Patch::Apply(config))
        .await?;
    until_within(LONG, &configs, "edge", "be discovered", |config| {
        is_true(config, "Discovered")
    })
    .await?;
    Ok(())
}

/// Writes down the name of every Machine that is ever there.
fn remember(machines: Api<DynamicObject>, seen: Arc<Mutex<BTreeSet<String>>>) {
    let events = watcher(machines, watcher::Config::default());
    tokio::spawn(async move {
        let mut events = std::pin::pin!(events.default_backoff().applied_objects());
        while let Some(event) = events.next().await {
            if let Ok(machine) = event {
                seen.lock().insert(machine.name_any());
            }
        }
    });
}
