//! What stories of machines that are updated in place share: a real Cluster API and the runtime extension, with the rights that its package
//! declares. Hosts are simulated, and so is what runs on them.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use futures::StreamExt;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Node, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use slipway_capi::{in_place, names::annotation};
use slipway_edge::{
    api::{EdgeMachine, INFRASTRUCTURE_GROUP, NodeUpgrade, VERSION},
    hooks::can_update::STRATEGY,
    hosts::Hosts,
    machine::BOOTSTRAPPED_ANNOTATION,
    provider,
};
use slipway_runtime::{Clock, Context, Manager, Metrics, Settings, manager};
use slipway_testbed::{
    Cluster,
    install::install,
    shared,
    wait::{until, until_within},
};
use tokio_util::sync::CancellationToken;

use crate::simulated_hosts::{Pace, SimulatedHosts};

pub const CORE: &str = "cluster.x-k8s.io/v1beta2";
pub const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1beta2";
pub const BEFORE: &str = "v1.34.2+k3s1";
pub const AFTER: &str = "v1.34.3+k3s1";
/// What hosts run: it leaves there whose host this is.
const BOOTSTRAP: &str = "## template: jinja\n#cloud-config\nwrite_files:\n- path: /etc/occupant\n  content: '{{ ds.meta_data.provider_id }}'\n";
pub const USER: &str = "edge-extension";
/// Where its package is installed, and its lease is.
const EXTENSION_NAMESPACE: &str = "runtime-extension-edge-system";
/// A hang guard: Cluster API asks again after a while, and the machine is shared.
pub const LONG: Duration = Duration::from_mins(10);

/// The controller that carries upgrades out.
const UPGRADES: &str = "nodeupgrade";

/// Who carries upgrades out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrades {
    /// The test, by [`Story::run_upgrades`].
    Played,
    /// The controller, on agents.
    Done,
}

pub fn hurried_hosts() -> SimulatedHosts {
    SimulatedHosts::new(Clock::system()).at_pace(Pace::HURRIED)
}

pub struct Story {
    pub client: Client,
    workload: Client,
    pub namespace: String,
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
    pub fn api(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        dynamic(&self.client, &self.namespace, api_version, kind)
    }

    pub async fn apply(&self, manifests: &[Value]) -> Result<()> {
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

    pub async fn workers(&self) -> Result<BTreeMap<String, (String, bool)>> {
        self.machines("pool=workers").await
    }

    /// Machines by name: their uids, and whether they are being deleted.
    pub async fn machines(&self, labels: &str) -> Result<BTreeMap<String, (String, bool)>> {
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
    pub async fn until_upgraded(&self, names: impl Iterator<Item = &String>, version: &str) -> Result<()> {
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

    /// Cluster API updates no machine in place whose bootstrap data is not noted as made, and of data that was given it notes nothing.
    pub async fn note_bootstrap_data(&self, names: impl Iterator<Item = &String>) -> Result<()> {
        let machines = self.api(CORE, "Machine");
        for name in names {
            let made = json!({"status": {"initialization": {"bootstrapDataSecretCreated": true}}});
            machines
                .patch_status(name, &PatchParams::default(), &Patch::Merge(made))
                .await?;
        }
        Ok(())
    }

    /// The infrastructure provider over these hosts.
    fn run_infrastructure(&self, hosts: Arc<dyn Hosts>, upgrades: Upgrades) {
        let settings = Settings {
            namespace: Some(self.namespace.clone()),
            ..Settings::default()
        };
        let context = Context::new(self.client.clone(), settings, Metrics::new(), self.stop.clone());
        let controllers = provider::infrastructure(hosts).controllers;
        let runs = |name: &str| name != UPGRADES || upgrades == Upgrades::Done;
        for controller in controllers.iter().filter(|controller| runs(controller.name)) {
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
    pub fn run_upgrades(&self) {
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
    pub async fn run_extension(
        &self,
        management: &Cluster,
        folder: &Path,
    ) -> Result<(String, String, Metrics)> {
        self.run_extension_with(management, folder, &[]).await
    }

    /// The same with more arguments.
    pub async fn run_extension_with(
        &self,
        management: &Cluster,
        folder: &Path,
        more: &[&str],
    ) -> Result<(String, String, Metrics)> {
        std::fs::create_dir_all(folder)?;
        let kubeconfig = folder.join("kubeconfig");
        std::fs::write(&kubeconfig, management.kubeconfig_as(USER, None))?;
        let certificates = folder.join("certificates");
        let providers = vec![provider::provider()];
        let mut arguments = vec![
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
        ];
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        let matches = manager::command(&providers).try_get_matches_from(arguments)?;
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
            "labels": {"component": component, "tier": "control-plane"},
            "annotations": {"kubernetes.io/config.mirror": "of a file"}},
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

pub fn deployment(template: &str, version: &str) -> Value {
    json!({"apiVersion": CORE, "kind": "MachineDeployment",
        "metadata": {"name": "workers", "annotations": {(STRATEGY): "External"}}, "spec": {
        "clusterName": "north", "replicas": 2, "selector": {"matchLabels": {"pool": "workers"}},
        "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
        "template": {"metadata": {"labels": {"pool": "workers"}}, "spec": {
            "clusterName": "north", "version": version, "bootstrap": {"dataSecretName": "bootstrap"},
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeMachineTemplate", "name": template}}}}})
}

/// A cluster without machines of a deployment. Its control plane is a Machine of its own, by which core takes the cluster for initialised;
/// stories share a workload cluster, so its node has a name of its own.
pub fn manifests(kubeconfig: &str, control: &str) -> Vec<Value> {
    let infrastructure = format!("{INFRASTRUCTURE_GROUP}/{VERSION}");
    let data = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    vec![
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bootstrap"}, "data": {"value": data(BOOTSTRAP)}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "north-kubeconfig",
            "labels": {"cluster.x-k8s.io/cluster-name": "north"}}, "type": "cluster.x-k8s.io/secret", "data": {"value": data(kubeconfig)}}),
        json!({"apiVersion": infrastructure, "kind": "EdgeCluster", "metadata": {"name": "north"},
            "spec": {"controlPlaneEndpoint": {"host": "192.0.2.10", "port": 6443}}}),
        json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "north"}, "spec": {
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeCluster", "name": "north"}}}),
        json!({"apiVersion": infrastructure, "kind": "EdgeMachine", "metadata": {"name": control}, "spec": {}}),
        json!({"apiVersion": CORE, "kind": "Machine", "metadata": {"name": control,
            "labels": {"cluster.x-k8s.io/control-plane": ""}}, "spec": {"clusterName": "north", "version": AFTER,
            "bootstrap": {"dataSecretName": "bootstrap"},
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeMachine", "name": control}}}),
    ]
}

/// How often a hook was asked, as the replica counts it.
pub fn asked(metrics: &Metrics, hook: &str) -> u64 {
    let path = format!("v1alpha1/{hook}/");
    let text = metrics.encode();
    let lines = text
        .lines()
        .filter(|line| line.starts_with("controller_runtime_webhook_requests_total") && line.contains(&path));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

pub async fn until_asked(metrics: &Metrics, hook: &str, times: u64) -> Result<()> {
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

pub async fn register(story: &Story, base: &str, ca: &str) -> Result<Api<DynamicObject>> {
    register_with(story, base, ca, 3).await
}

/// Tells Cluster API where the extension is, and waits until it knows so many handlers.
pub async fn register_with(
    story: &Story,
    base: &str,
    ca: &str,
    handlers: usize,
) -> Result<Api<DynamicObject>> {
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
        "be discovered with its handlers",
        |config| {
            let found = config.data["status"]["handlers"].as_array().map(Vec::len);
            is_true(config, "Discovered") && found == Some(handlers)
        },
    )
    .await?;
    Ok(configs)
}

pub fn is_true(object: &DynamicObject, condition: &str) -> bool {
    let conditions = object.data["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == condition && one["status"] == "True")
}

/// A story on hosts in memory, whose upgrades are played.
pub async fn begin(hosts: &SimulatedHosts, workload: &Cluster) -> Result<Story> {
    for name in ["box-1", "box-2", "box-3"] {
        hosts.add(name, 4);
    }
    begin_on(Arc::new(hosts.clone()), workload, Upgrades::Played).await
}

/// A story on other hosts.
pub async fn begin_on(hosts: Arc<dyn Hosts>, workload: &Cluster, upgrades: Upgrades) -> Result<Story> {
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
    story.run_infrastructure(hosts, upgrades);
    story.run_kubelets();
    Ok(story)
}
