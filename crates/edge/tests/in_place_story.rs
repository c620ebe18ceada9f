//! Machines of a real Cluster API that are updated in place: core and the runtime extension are real, with the rights that its package
//! declares, and core calls the replica that stands by. Hosts are simulated, and so is what runs on them.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Node, Pod, Secret},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use slipway_capi::{in_place, names::annotation};
use slipway_edge::{
    api::{EdgeMachine, GROUP, INFRASTRUCTURE_GROUP, NodeUpgrade, VERSION},
    hooks::can_update::STRATEGY,
    machine::BOOTSTRAPPED_ANNOTATION,
    provider,
};
use slipway_kit::manager::roles;
use slipway_runtime::{Clock, Context, Manager, Metrics, Settings, manager};
use slipway_testbed::{
    Cluster, WorkloadCluster,
    hosts::Hosts,
    install::install,
    shared,
    wait::{until, until_gone_within, until_within},
};
use tokio_util::sync::CancellationToken;

use crate::simulated_hosts::SimulatedHosts;

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1beta2";
const OLD: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000aa";
const NEW: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000bb";
const BEFORE: &str = "v1.34.2+k3s1";
const AFTER: &str = "v1.34.3+k3s1";
const USER: &str = "edge-extension";
/// Where its package is installed, and its lease is.
const EXTENSION_NAMESPACE: &str = "runtime-extension-edge-system";
/// Simulated hosts take their time for bootstrap data, and the machine is shared.
const LONG: Duration = Duration::from_mins(10);

/// What carries upgrades out is played by [`Story::run_upgrades`].
const PLAYED: &str = "nodeupgrade";

struct Story {
    client: Client,
    workload: Client,
    namespace: String,
    stop: CancellationToken,
}

impl Drop for Story {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn dynamic(client: &Client, namespace: &str, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

impl Story {
    fn api(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        dynamic(&self.client, &self.namespace, api_version, kind)
    }

    async fn apply(&self, manifests: &[Value]) -> Result<()> {
        for manifest in manifests {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (version, kind) = (text(&manifest["apiVersion"]), text(&manifest["kind"]));
            let name = text(&manifest["metadata"]["name"]);
            self.api(&version, &kind)
                .patch(
                    &name,
                    &PatchParams::apply("a-user").force(),
                    &Patch::Apply(manifest),
                )
                .await
                .with_context(|| format!("applying {kind} {name}"))?;
        }
        Ok(())
    }

    async fn workers(&self) -> Result<BTreeMap<String, (String, bool)>> {
        self.machines("pool=workers").await
    }

    /// Machines by name: their uids, and whether they are being deleted.
    async fn machines(&self, labels: &str) -> Result<BTreeMap<String, (String, bool)>> {
        let all = self
            .api(CORE, "Machine")
            .list(&ListParams::default().labels(labels))
            .await?;
        Ok(all
            .into_iter()
            .map(|machine| {
                let is_deleting = machine.metadata.deletion_timestamp.is_some();
                (
                    machine.name_any(),
                    (machine.uid().unwrap_or_default(), is_deleting),
                )
            })
            .collect())
    }

    /// Each machine is up to date at the version. Its owner may observe a change before it counts by it, so its counts do not say so.
    async fn until_upgraded(&self, names: impl Iterator<Item = &String>, version: &str) -> Result<()> {
        let machines = self.api(CORE, "Machine");
        for name in names {
            until_within(LONG, &machines, name, "be upgraded", |machine| {
                machine.data["status"]["nodeInfo"]["kubeletVersion"] == version
                    && is_true(machine, "UpToDate")
                    && !in_place::is_update_in_progress(&machine.metadata)
            })
            .await?;
        }
        Ok(())
    }

    /// The infrastructure provider over simulated hosts.
    fn run_infrastructure(&self, hosts: &SimulatedHosts) {
        let settings = Settings {
            namespace: Some(self.namespace.clone()),
            ..Settings::default()
        };
        let context = Context::new(self.client.clone(), settings, Metrics::new(), self.stop.clone());
        let controllers = provider::infrastructure(Arc::new(hosts.clone())).controllers;
        for controller in controllers.iter().filter(|controller| controller.name != PLAYED) {
            tokio::spawn((controller.run)(context.clone()));
        }
    }

    /// Machines whose host has run its bootstrap data have a node.
    fn run_kubelets(&self) {
        let machines: Api<EdgeMachine> = Api::namespaced(self.client.clone(), &self.namespace);
        let owners = self.api(CORE, "Machine");
        let configs = self.api("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfig");
        let workload = self.workload.clone();
        let nodes: Api<Node> = Api::all(workload.clone());
        let events = watcher(machines, watcher::Config::default());
        let work = async move {
            let mut events = std::pin::pin!(events.default_backoff().applied_objects());
            while let Some(event) = events.next().await {
                let Ok(machine) = event else { continue };
                let Some(id) = machine.spec.provider_id.clone() else {
                    continue;
                };
                if !machine.annotations().contains_key(BOOTSTRAPPED_ANNOTATION) {
                    continue;
                }
                let owner = owners.get(&machine.name_any()).await.expect("its Machine");
                let is_server = owner.labels().contains_key("cluster.x-k8s.io/control-plane");
                let node = node(
                    &machine.name_any(),
                    &id,
                    &owner.data["spec"]["version"],
                    is_server,
                );
                let _ = nodes.create(&PostParams::default(), &node).await;
                if is_server {
                    run_server(&workload, &machine.name_any()).await;
                    // Nobody can be dialled to ask how long a certificate is valid.
                    let told = json!({"metadata": {"annotations": {(annotation::CERTIFICATES_EXPIRY): "2036-01-01T00:00:00Z"}}});
                    let name = machine.name_any();
                    let _ = configs
                        .patch(&name, &PatchParams::default(), &Patch::Merge(told))
                        .await;
                }
            }
        };
        tokio::spawn(self.stop.clone().run_until_cancelled_owned(work));
    }

    /// Upgrades end as their host's would: another kubelet, and done.
    fn run_upgrades(&self) {
        let upgrades: Api<NodeUpgrade> = Api::namespaced(self.client.clone(), &self.namespace);
        let nodes: Api<Node> = Api::all(self.workload.clone());
        let events = watcher(upgrades.clone(), watcher::Config::default());
        let work = async move {
            let mut events = std::pin::pin!(events.default_backoff().applied_objects());
            while let Some(event) = events.next().await {
                let Ok(upgrade) = event else { continue };
                if upgrade.status.is_some() {
                    continue;
                }
                let spec = &upgrade.spec;
                let patch = json!({"status": {"nodeInfo": {"kubeletVersion": spec.version}}});
                nodes
                    .patch_status(&spec.machine_name, &PatchParams::default(), &Patch::Merge(patch))
                    .await
                    .expect("its node");
                let patch = json!({"status": {"phase": "Done", "endedAt": "2026-01-01T00:00:00Z"}});
                upgrades
                    .patch_status(&upgrade.name_any(), &PatchParams::default(), &Patch::Merge(patch))
                    .await
                    .expect("the upgrade");
            }
        };
        tokio::spawn(self.stop.clone().run_until_cancelled_owned(work));
    }

    /// A replica of the runtime extension: where it is, and the CA of its certificate.
    async fn run_extension(&self, management: &Cluster, folder: &Path) -> Result<(String, String, Metrics)> {
        std::fs::create_dir_all(folder)?;
        let kubeconfig = folder.join("kubeconfig");
        std::fs::write(&kubeconfig, management.kubeconfig_as(USER, None))?;
        let certificates = folder.join("certificates");
        let providers = vec![provider::provider()];
        let matches = manager::command(&providers).try_get_matches_from([
            "manager".to_owned(),
            "--providers=runtime-extension-edge".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--webhook-cert-dir={}", certificates.display()),
            "--webhook-self-signed=true".to_owned(),
            "--webhook-host=127.0.0.1".to_owned(),
            "--webhook-port=0".to_owned(),
            "--health-addr=0".to_owned(),
            "--diagnostics-address=0".to_owned(),
            "--leader-elect=true".to_owned(),
            format!("--leader-election-namespace={EXTENSION_NAMESPACE}"),
        ])?;
        let bound = Manager::from_matches(providers, &matches)?.bind().await?;
        let address = bound.addresses().webhook.context("it serves hooks")?;
        let ca = std::fs::read_to_string(certificates.join("ca.crt"))?;
        let metrics = bound.metrics().clone();
        tokio::spawn(bound.run(self.stop.clone()));
        Ok((format!("https://{address}"), ca, metrics))
    }
}

fn node(name: &str, provider_id: &str, version: &Value, is_server: bool) -> Node {
    let mut node = json!({
        "metadata": {"name": name, "labels": {}, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "spec": {"providerID": provider_id},
        "status": {"nodeInfo": {"architecture": "amd64", "bootID": "", "containerRuntimeVersion": "none://1",
            "kernelVersion": "none", "kubeProxyVersion": version, "kubeletVersion": version, "machineID": "",
            "operatingSystem": "linux", "osImage": "none", "systemUUID": ""}},
    });
    if is_server {
        node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = json!("");
        node["spec"]["taints"] =
            json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]);
    }
    serde_json::from_value(node).expect("a node")
}

/// What kubeadm leaves on a server, by which Cluster API sees that it is one.
async fn run_server(workload: &Client, node: &str) {
    const SYSTEM: &str = "kube-system";
    let pods: Api<Pod> = Api::namespaced(workload.clone(), SYSTEM);
    for component in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        let pod = json!({"metadata": {"name": format!("{component}-{node}"),
            "labels": {"component": component, "tier": "control-plane"}},
            "spec": {"nodeName": node, "hostNetwork": true, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": component, "image": component}]}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let _ = pods.create(&PostParams::default(), &pod).await;
    }
    let maps: Api<ConfigMap> = Api::namespaced(workload.clone(), SYSTEM);
    let said = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n";
    let map = json!({"metadata": {"name": "kubeadm-config"}, "data": {"ClusterConfiguration": said}});
    let map: ConfigMap = serde_json::from_value(map).expect("a map");
    let _ = maps.create(&PostParams::default(), &map).await;
}

fn template(name: &str, digest: &str, processors: u32) -> Value {
    json!({"apiVersion": format!("{INFRASTRUCTURE_GROUP}/{VERSION}"), "kind": "EdgeMachineTemplate", "metadata": {"name": name},
        "spec": {"template": {"spec": {"image": {"reference": "registry.example.com/nodes/k3s", "digest": digest},
            "minimum": {"processors": processors}}}}})
}

fn deployment(template: &str, version: &str) -> Value {
    json!({"apiVersion": CORE, "kind": "MachineDeployment",
        "metadata": {"name": "workers", "annotations": {(STRATEGY): "External"}}, "spec": {
        "clusterName": "north", "replicas": 2, "selector": {"matchLabels": {"pool": "workers"}},
        "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
        "template": {"metadata": {"labels": {"pool": "workers"}}, "spec": {
            "clusterName": "north", "version": version, "bootstrap": {"dataSecretName": "bootstrap"},
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeMachineTemplate", "name": template}}}}})
}

/// A cluster on three hosts. Its control plane is a Machine of its own, by which core takes the cluster for initialised.
fn manifests(kubeconfig: &str) -> Vec<Value> {
    let infrastructure = format!("{INFRASTRUCTURE_GROUP}/{VERSION}");
    let host = |name: &str| json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "EdgeHost", "metadata": {"name": name}, "spec": {}});
    let data = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    vec![
        host("box-1"),
        host("box-2"),
        host("box-3"),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bootstrap"}, "data": {"value": data("#cloud-config\n")}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "north-kubeconfig",
            "labels": {"cluster.x-k8s.io/cluster-name": "north"}}, "type": "cluster.x-k8s.io/secret", "data": {"value": data(kubeconfig)}}),
        json!({"apiVersion": infrastructure, "kind": "EdgeCluster", "metadata": {"name": "north"},
            "spec": {"controlPlaneEndpoint": {"host": "192.0.2.10", "port": 6443}}}),
        json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "north"}, "spec": {
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeCluster", "name": "north"}}}),
        json!({"apiVersion": infrastructure, "kind": "EdgeMachine", "metadata": {"name": "north-control"}, "spec": {}}),
        json!({"apiVersion": CORE, "kind": "Machine", "metadata": {"name": "north-control",
            "labels": {"cluster.x-k8s.io/control-plane": ""}}, "spec": {"clusterName": "north", "version": AFTER,
            "bootstrap": {"dataSecretName": "bootstrap"},
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeMachine", "name": "north-control"}}}),
        template("workers-a", OLD, 1),
        deployment("workers-a", BEFORE),
    ]
}

/// How often a hook was asked, as the replica counts it.
fn asked(metrics: &Metrics, hook: &str) -> u64 {
    let path = format!("v1alpha1/{hook}/");
    let text = metrics.encode();
    let lines = text
        .lines()
        .filter(|line| line.starts_with("controller_runtime_webhook_requests_total") && line.contains(&path));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

async fn until_asked(metrics: &Metrics, hook: &str, times: u64) -> Result<()> {
    // Nothing tells when a counter grows.
    let grown = async {
        while asked(metrics, hook) < times {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(LONG, grown)
        .await
        .with_context(|| format!("{hook} was asked {} times, not {times}", asked(metrics, hook)))
}

async fn register(story: &Story, base: &str, ca: &str) -> Result<Api<DynamicObject>> {
    let kind = GroupVersionKind::gvk("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig");
    let configs: Api<DynamicObject> = Api::all_with(story.client.clone(), &ApiResource::from_gvk(&kind));
    let config = json!({"apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig",
        "metadata": {"name": story.namespace}, "spec": {
            "clientConfig": {"url": base, "caBundle": ByteString(ca.as_bytes().to_vec())},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": story.namespace}}}});
    configs
        .patch(
            &story.namespace,
            &PatchParams::apply("a-user"),
            &Patch::Apply(config),
        )
        .await?;
    until(
        &configs,
        &story.namespace,
        "be discovered with three handlers",
        |config| {
            let handlers = config.data["status"]["handlers"].as_array().map(Vec::len);
            is_true(config, "Discovered") && handlers == Some(3)
        },
    )
    .await?;
    Ok(configs)
}

fn is_true(object: &DynamicObject, condition: &str) -> bool {
    let conditions = object.data["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == condition && one["status"] == "True")
}

async fn begin(hosts: &SimulatedHosts, workload: &Cluster) -> Result<Story> {
    let management = shared("capi").await?;
    let namespace = management.namespace("in-place").await?;
    let story = Story {
        client: management.client(),
        workload: workload.client(),
        namespace,
        stop: CancellationToken::new(),
    };
    let definitions: Vec<Value> = provider::provider()
        .packages
        .iter()
        .flat_map(|package| &package.crds)
        .map(|crd| json!(crd))
        .collect();
    install(&story.client, &definitions).await?;
    for name in ["box-1", "box-2", "box-3"] {
        hosts.add(name, 4);
    }
    story.run_infrastructure(hosts);
    story.run_kubelets();
    Ok(story)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e7_e17_a_machine_deployment_is_updated_in_place_and_what_cannot_be_is_left_alone() -> Result<()> {
    let hosts = SimulatedHosts::new(Clock::system());
    let workload = shared("workload").await?;
    let story = begin(&hosts, &workload).await?;
    let management = shared("capi").await?;
    let folder = tempfile::tempdir()?;
    let extension = [provider::extension()];
    roles::install(&management, &extension, USER).await?;
    let (_leader, _, _) = story
        .run_extension(&management, &folder.path().join("one"))
        .await?;
    // The first one has the lease, or will: one of the two always stands by, and either answers.
    let (base, ca, metrics) = story
        .run_extension(&management, &folder.path().join("two"))
        .await?;
    let configs = register(&story, &base, &ca).await?;

    let kubeconfig = workload.kubeconfig_as("edge-story", Some("system:masters"));
    story.apply(&manifests(&kubeconfig)).await?;
    let deployments = story.api(CORE, "MachineDeployment");
    until_within(
        LONG,
        &deployments,
        "workers",
        "have 2 available machines",
        |deployment| deployment.data["status"]["availableReplicas"] == 2,
    )
    .await?;
    let before = story.workers().await?;
    ensure!(before.len() == 2, "{before:?}");
    // Cluster API updates no machine in place whose bootstrap data is not noted as made, and of data that was given it notes nothing.
    for name in before.keys() {
        let made = json!({"status": {"initialization": {"bootstrapDataSecretCreated": true}}});
        let machines = story.api(CORE, "Machine");
        machines
            .patch_status(name, &PatchParams::default(), &Patch::Merge(made))
            .await?;
    }

    story.run_upgrades();
    story
        .apply(&[template("workers-b", NEW, 1), deployment("workers-b", AFTER)])
        .await?;
    story.until_upgraded(before.keys(), AFTER).await?;
    until_within(LONG, &deployments, "workers", "count them", |deployment| {
        let status = &deployment.data["status"];
        status["upToDateReplicas"] == 2 && status["availableReplicas"] == 2
    })
    .await?;
    ensure!(
        story.workers().await? == before,
        "the same machines: {before:?}, {:?}",
        story.workers().await?
    );
    let machines: Api<EdgeMachine> = Api::namespaced(story.client.clone(), &story.namespace);
    for name in before.keys() {
        let image = machines.get(name).await?.spec.image.context("an image")?;
        ensure!(image.digest == NEW, "{name} has {image:?}");
    }
    let upgrades: Api<NodeUpgrade> = Api::namespaced(story.client.clone(), &story.namespace);
    ensure!(
        upgrades.list(&ListParams::default()).await?.items.len() == 2,
        "one upgrade for each machine"
    );
    ensure!(
        asked(&metrics, "updatemachine") >= 4,
        "each is begun and told to be done"
    );

    // More processors cannot be had in place: nothing is deleted, nothing is made.
    let questions = asked(&metrics, "canupdatemachineset");
    story
        .apply(&[template("workers-c", OLD, 2), deployment("workers-c", BEFORE)])
        .await?;
    until_asked(&metrics, "canupdatemachineset", questions + 3).await?;
    ensure!(
        story.workers().await? == before,
        "nobody is replaced: {:?}",
        story.workers().await?
    );
    ensure!(
        upgrades.list(&ListParams::default()).await?.items.len() == 2,
        "and nobody upgraded"
    );

    let clusters = story.api(CORE, "Cluster");
    clusters.delete("north", &DeleteParams::default()).await?;
    until_gone_within(LONG, &clusters, "north").await?;
    configs.delete(&story.namespace, &DeleteParams::default()).await?;
    let secrets: Api<Secret> = Api::namespaced(story.client.clone(), &story.namespace);
    ensure!(
        secrets.get_opt("north-kubeconfig").await?.is_some(),
        "what the user made stays"
    );
    Ok(())
}

/// Three servers of the stock provider, with external etcd, as their provider wants them for updates in place.
fn servers(template: &str, version: &str) -> Value {
    json!({"apiVersion": CONTROL_PLANE, "kind": "KubeadmControlPlane", "metadata": {"name": "south"}, "spec": {
        "replicas": 3, "version": version,
        "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}}},
        "machineTemplate": {"metadata": {"annotations": {(STRATEGY): "External"}}, "spec": {
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeMachineTemplate", "name": template}}},
        "kubeadmConfigSpec": {"clusterConfiguration": {"etcd": {"external": {"endpoints": ["https://127.0.0.1:2379"],
            "caFile": "/etc/kubernetes/pki/etcd/ca.crt", "certFile": "/etc/kubernetes/pki/apiserver-etcd-client.crt",
            "keyFile": "/etc/kubernetes/pki/apiserver-etcd-client.key"}}}}}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e17_three_servers_of_a_kubeadm_control_plane_are_updated_in_place() -> Result<()> {
    let management = shared("capi").await?;
    let hosts = SimulatedHosts::new(Clock::system());
    // Control plane nodes are looked at all together, so this story has a workload cluster of its own.
    let workload = WorkloadCluster::builder()
        .name("edge-kubeadm")
        .kwok()
        .start()
        .await?;
    let story = begin(&hosts, &workload).await?;
    let cas = Hosts::start(&management, &story.namespace, &workload).await?;
    cas.give_cas("south").await?;
    let folder = tempfile::tempdir()?;
    roles::install(&management, &[provider::extension()], USER).await?;
    let (base, ca, _) = story.run_extension(&management, folder.path()).await?;
    let configs = register(&story, &base, &ca).await?;
    let infrastructure = format!("{INFRASTRUCTURE_GROUP}/{VERSION}");
    let host = |name: &str| json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "EdgeHost", "metadata": {"name": name}, "spec": {}});
    story
        .apply(&[
            host("box-1"),
            host("box-2"),
            host("box-3"),
            json!({"apiVersion": infrastructure, "kind": "EdgeCluster", "metadata": {"name": "south"},
                "spec": {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": workload.port()}}}),
            template("servers-a", OLD, 1),
            servers("servers-a", "v1.36.2"),
            json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "south"}, "spec": {
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeCluster", "name": "south"},
                "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "south"}}}),
        ])
        .await?;
    let planes = story.api(CONTROL_PLANE, "KubeadmControlPlane");
    let has_three = |plane: &DynamicObject| {
        let status = &plane.data["status"];
        status["availableReplicas"] == 3 && status["upToDateReplicas"] == 3 && status["readyReplicas"] == 3
    };
    until_within(LONG, &planes, "south", "have 3 servers", has_three).await?;
    let before = story.machines("cluster.x-k8s.io/control-plane").await?;
    ensure!(before.len() == 3, "{before:?}");
    story.run_upgrades();
    story
        .apply(&[template("servers-b", NEW, 1), servers("servers-b", "v1.36.3")])
        .await?;
    story.until_upgraded(before.keys(), "v1.36.3").await?;
    until_within(LONG, &planes, "south", "count them", has_three).await?;
    let after = story.machines("cluster.x-k8s.io/control-plane").await?;
    ensure!(after == before, "the same machines: {before:?}, {after:?}");
    let nodes: Api<Node> = Api::all(workload.client());
    for node in nodes.list(&ListParams::default()).await? {
        let version = node
            .status
            .and_then(|status| status.node_info)
            .map(|info| info.kubelet_version);
        ensure!(version.as_deref() == Some("v1.36.3"), "{version:?}");
    }
    let clusters = story.api(CORE, "Cluster");
    clusters.delete("south", &DeleteParams::default()).await?;
    until_gone_within(LONG, &clusters, "south").await?;
    configs.delete(&story.namespace, &DeleteParams::default()).await?;
    workload.stop();
    Ok(())
}
