//! K3s on edge hosts with Cluster API's real core and nothing of anybody else's: our control plane, bootstrap and infrastructure providers
//! and our runtime extension, in one manager with the rights they declare. Hosts are real agents over files; what installs k3s on them
//! reaches the simulator, and what a host runs is what its booted slot holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_edge::{
    fleet::{self, record},
    hooks::can_update::STRATEGY,
};
use slipway_edge_sim::EdgeSite;
use slipway_k3s_sim::{Simulator, Timing};
use slipway_kit::manager::{Manager, Setup, free_port, roles};
use slipway_testbed::{
    Cluster, ManagementCluster,
    wait::{until_gone_within, until_within},
};

use crate::{
    k3s_fleet::{BOOTSTRAP, CONTROL_PLANE, CORE, condition, is_true},
    support::{apply, objects},
};

pub const BINARY: &str = env!("CARGO_BIN_EXE_slipway-edge");
const USER: &str = "slipway-edge";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io/v1alpha1";
const EDGE: &str = "edge.slipway.dev/v1alpha1";
const NAME: &str = "north";
const VERSIONS: [&str; 3] = ["v1.34.3+k3s1", "v1.35.2+k3s1", "v1.36.3+k3s1"];
/// A hang guard: hosts and Cluster API are asked and not watched in several places, and the machine is shared.
const LONG: Duration = Duration::from_mins(15);

struct Story {
    management: Cluster,
    client: Client,
    namespace: String,
    site: EdgeSite,
    /// Where hosts join.
    address: String,
    /// Every Machine there ever was.
    machines: Arc<Mutex<BTreeSet<String>>>,
    _manager: Manager,
    _simulator: Arc<Simulator>,
}

impl Story {
    async fn begin() -> Result<Self> {
        let management = ManagementCluster::builder()
            .name("edge-k3s")
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
        let namespace = management.namespace("edge-k3s").await?;
        let machines = Arc::default();
        remember(
            objects(&client, &namespace, CORE, "Machine"),
            Arc::clone(&machines),
        );
        Ok(Self {
            site: EdgeSite::start(cluster, &VERSIONS, Duration::from_secs(1)).await?,
            management,
            client,
            namespace,
            address,
            machines,
            _manager: manager,
            _simulator: simulator,
        })
    }

    fn of(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        objects(&self.client, &self.namespace, version, kind)
    }

    /// A host joins with a token of its own, as a person would let it.
    async fn join(&self, name: &str) -> Result<Arc<slipway_hosts_sim::SimulatedHost>> {
        let valid = SignedDuration::from_hours(1);
        let token = fleet::issue_token(
            &self.client,
            fleet::DEFAULT_NAMESPACE,
            name,
            valid,
            Timestamp::now(),
        )
        .await?;
        Ok(self.site.add(name, record::FLEET, &self.address, &token).await?)
    }

    fn image(&self, version: &str) -> Result<Value> {
        let (reference, digest) = self.site.image(version).context("an image of the version")?;
        Ok(json!({"reference": reference, "digest": digest}))
    }

    /// One server and one worker, each on the host that is meant for it. What is deleted by the garbage collector, in its own time, has
    /// other names for each version.
    fn manifests(&self, version: &str) -> Result<Vec<Value>> {
        let endpoint = self.site.cluster.endpoint;
        let minor = version.split('.').nth(1).unwrap_or_default();
        let (servers, workers) = (format!("servers-{minor}"), format!("workers-{minor}"));
        let template = |name: &str, role: &str| -> Result<Value> {
            Ok(
                json!({"apiVersion": INFRASTRUCTURE, "kind": "EdgeMachineTemplate", "metadata": {"name": name},
                "spec": {"template": {"spec": {"hostSelector": {"matchLabels": {"role": role}}, "image": self.image(version)?}}}}),
            )
        };
        let host = |name: &str, role: &str| json!({"apiVersion": EDGE, "kind": "EdgeHost", "metadata": {"name": name, "labels": {"role": role}}, "spec": {}});
        // k3s comes with the image, and the node is known by the claim of its host.
        let agent = json!({"airGapped": true, "providerID": "{{ ds.meta_data.provider_id }}"});
        let group = "infrastructure.cluster.x-k8s.io";
        Ok(vec![
            host("box-1", "server"),
            host("box-2", "worker"),
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
        ])
    }

    async fn until_up(&self) -> Result<()> {
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
    async fn uids(&self) -> Result<BTreeMap<String, String>> {
        let all = self.of(CORE, "Machine").list(&ListParams::default()).await?;
        Ok(all
            .into_iter()
            .map(|machine| (machine.name_any(), machine.uid().unwrap_or_default()))
            .collect())
    }

    async fn delete(&self) -> Result<()> {
        let clusters = self.of(CORE, "Cluster");
        clusters.delete(NAME, &DeleteParams::default()).await?;
        until_gone_within(LONG, &clusters, NAME).await?;
        let secrets = self.of("v1", "Secret");
        for secret in secrets.list(&ListParams::default()).await? {
            until_gone_within(LONG, &secrets, &secret.name_any()).await?;
        }
        let hosts = self.of(EDGE, "EdgeHost");
        for name in ["box-1", "box-2"] {
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

/// A host of another size cannot be had in place, and the strategy forbids to replace: nothing happens, and the control plane says why.
async fn what_cannot_be_changed_in_place_is_left_alone(story: &Story) -> Result<()> {
    let larger = json!({"apiVersion": INFRASTRUCTURE, "kind": "EdgeMachineTemplate", "metadata": {"name": "larger"},
        "spec": {"template": {"spec": {"hostSelector": {"matchLabels": {"role": "server"}}, "image": story.image(VERSIONS[2])?,
            "minimum": {"processors": 3}}}}});
    apply(&story.client, &story.namespace, &[larger]).await?;
    let planes = story.of(CONTROL_PLANE, "KThreesControlPlane");
    let asked = json!({"spec": {"machineTemplate": {"infrastructureRef": {"name": "larger"}}}});
    planes
        .patch(NAME, &PatchParams::default(), &Patch::Merge(asked))
        .await?;
    until_within(LONG, &planes, NAME, "say why nothing happens", |plane| {
        let said = condition(plane, "RollingOut").map(|one| one["message"].as_str().unwrap_or_default());
        said.is_some_and(|said| said.contains("forbids to replace it") && said.contains("/spec/minimum"))
    })
    .await?;
    Ok(())
}

/// E-7, E-18, E-58: one server and one worker are made, brought over two minor versions in place without a third machine, left alone when a
/// change is not possible in place, deleted, and their hosts are wiped and taken again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e7_e18_e58_one_server_on_an_edge_host_is_made_upgraded_in_place_over_two_minors_and_deleted()
-> Result<()> {
    let story = Story::begin().await?;
    let server = story.join("box-1").await?;
    let worker = story.join("box-2").await?;
    apply(&story.client, &story.namespace, &story.manifests(VERSIONS[0])?).await?;
    story.until_up().await?;
    let before = story.uids().await?;
    ensure!(before.len() == 2, "{before:?}");
    ensure!(
        story.site.cluster.hosts().keys().eq(["box-1", "box-2"]),
        "{:?}, {:?}",
        story.site.cluster.hosts(),
        story.site.cluster.failures()
    );

    let images = VERSIONS[1..]
        .iter()
        .map(|version| {
            let mut image = story.image(version)?;
            image["version"] = json!(version);
            Ok(image)
        })
        .collect::<Result<Vec<_>>>()?;
    let upgrade = json!({"apiVersion": EDGE, "kind": "ClusterUpgrade", "metadata": {"name": "up"},
        "spec": {"clusterName": NAME, "version": VERSIONS[2], "images": images}});
    apply(&story.client, &story.namespace, &[upgrade]).await?;
    let upgrades = story.of(EDGE, "ClusterUpgrade");
    let done = until_within(LONG, &upgrades, "up", "be done", |upgrade| {
        upgrade.data["status"]["phase"] == "Done"
    })
    .await?;
    ensure!(done.data["status"]["upToDate"] == 2, "{:?}", done.data["status"]);
    ensure!(story.uids().await? == before, "the same machines: {before:?}");
    ensure!(
        story.machines.lock().len() == 2,
        "no third one: {:?}",
        story.machines.lock()
    );
    let versions = story.site.cluster.look(|model| {
        let hosts = model.hosts.iter();
        hosts
            .map(|(name, host)| (name.clone(), host.version.clone()))
            .collect::<Vec<_>>()
    });
    ensure!(
        versions.iter().all(|(_, version)| version == VERSIONS[2]),
        "{versions:?}"
    );
    // The server took both versions, and its etcd was saved before each; the worker took the last one alone.
    let saves = |host: &slipway_hosts_sim::SimulatedHost| {
        let ran = host.machine.ran();
        ran.iter()
            .filter(|argv| argv.get(1).is_some_and(|word| word == "etcd-snapshot"))
            .count()
    };
    ensure!(
        (server.machine.boots(), saves(&server)) == (3, 2),
        "{:?}",
        server.machine.ran()
    );
    ensure!(
        (worker.machine.boots(), saves(&worker)) == (2, 0),
        "{:?}",
        worker.machine.ran()
    );

    what_cannot_be_changed_in_place_is_left_alone(&story).await?;
    ensure!(story.uids().await? == before, "nobody is replaced: {before:?}");

    story.delete().await?;
    ensure!(story.site.cluster.hosts().is_empty(), "nothing runs k3s any more");
    for host in [&server, &worker] {
        let left = host.folder().join("root/var/lib/rancher");
        ensure!(!left.exists(), "{} is left", left.display());
    }

    // The hosts are taken again, and k3s begins on them again.
    apply(&story.client, &story.namespace, &story.manifests(VERSIONS[2])?).await?;
    story.until_up().await?;
    ensure!(
        story.uids().await?.keys().all(|name| !before.contains_key(name)),
        "other machines on the same hosts"
    );
    story.delete().await?;
    story.management.stop();
    Ok(())
}
