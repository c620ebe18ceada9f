//! One K3s cluster in a namespace of its own, as a user and its hosts see it. What the hosts run on is a [`Tier`]:
//! the scenarios know nothing of it.

use std::{pin::pin, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use slipway_k3s_sim::{Simulator, Timing};
use slipway_testbed::{
    Cluster,
    hosts::{Backend, Hosts, SimulatedK3s},
    wait::{until_gone_within, until_within},
};

use crate::support::{apply, objects};

pub const CORE: &str = "cluster.x-k8s.io/v1beta2";
pub const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io/v1beta2";
pub const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1beta2";
pub const HOSTS: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
const HOSTS_GROUP: &str = "infrastructure.cluster.x-k8s.io";

/// How often, and how many times, etcd is asked whether it has promoted its learners.
const PROMOTION_LOOK: Duration = Duration::from_millis(250);
const PROMOTION_LOOKS: usize = 240;

/// What the K3s of a story really is.
pub trait Tier: Send + Sync {
    fn backend(&self) -> Arc<dyn Backend>;

    /// How often etcd of a cluster (`namespace/name`) lost its quorum, if that can be told.
    fn quorum_losses(&self, cluster: &str) -> Option<u64>;

    /// Servers that went while etcd still counted on them, if that can be told.
    fn left_behind(&self, cluster: &str) -> Option<Vec<String>>;

    /// Hosts that did not come up, and why.
    fn failures(&self, cluster: &str) -> Vec<String>;

    /// Hosts that are left of a cluster.
    fn hosts(&self, cluster: &str) -> Vec<String>;

    /// What servers and workers are configured with besides, as a KThreesControlPlane says it.
    fn config(&self) -> Option<Value> {
        None
    }

    /// A hang guard: the longest wait of a story ends long before, unless it never does.
    fn deadline(&self) -> Duration {
        Duration::from_mins(4)
    }
}

/// The simulator, in a hurry.
pub struct Simulated {
    simulator: Arc<Simulator>,
    config: Option<Value>,
}

impl Simulated {
    pub fn new() -> Arc<Self> {
        Self::configured(None)
    }

    pub fn with_config(config: Value) -> Arc<Self> {
        Self::configured(Some(config))
    }

    fn configured(config: Option<Value>) -> Arc<Self> {
        Arc::new(Self {
            config,
            simulator: Simulator::new(Timing::HURRIED),
        })
    }
}

impl Tier for Simulated {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(SimulatedK3s::new(Arc::clone(&self.simulator)))
    }

    fn config(&self) -> Option<Value> {
        self.config.clone()
    }

    fn quorum_losses(&self, cluster: &str) -> Option<u64> {
        Some(self.simulator.get(cluster)?.quorum_losses())
    }

    fn left_behind(&self, cluster: &str) -> Option<Vec<String>> {
        Some(self.simulator.get(cluster)?.left_behind())
    }

    fn failures(&self, cluster: &str) -> Vec<String> {
        let failures = self.simulator.get(cluster).map(|cluster| cluster.failures());
        let told = |(host, error): (String, _)| format!("{host}: {error}");
        failures.unwrap_or_default().into_iter().map(told).collect()
    }

    fn hosts(&self, cluster: &str) -> Vec<String> {
        let hosts = self.simulator.get(cluster).map(|cluster| cluster.hosts());
        hosts.unwrap_or_default().into_keys().collect()
    }
}

/// One member of etcd, as `/db/info` tells it.
#[derive(Debug)]
pub struct Member {
    pub name: String,
    pub learner: bool,
}

/// One cluster called `edge`.
pub struct Fleet {
    pub tier: Arc<dyn Tier>,
    pub management: Arc<Cluster>,
    pub client: Client,
    pub namespace: String,
    pub hosts: Hosts,
}

pub const NAME: &str = "edge";

impl Fleet {
    pub async fn start(management: Arc<Cluster>, prefix: &str, tier: Arc<dyn Tier>) -> Result<Fleet> {
        let namespace = management.namespace(prefix).await?;
        Fleet::serve(management, namespace, tier).await
    }

    /// Serves a namespace that is there already.
    pub async fn serve(management: Arc<Cluster>, namespace: String, tier: Arc<dyn Tier>) -> Result<Fleet> {
        let hosts = Hosts::start_on(&management, &namespace, tier.backend()).await?;
        Ok(Fleet {
            client: management.client(),
            tier,
            management,
            namespace,
            hosts,
        })
    }

    pub fn of(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        objects(&self.client, &self.namespace, version, kind)
    }

    pub fn planes(&self) -> Api<DynamicObject> {
        self.of(CONTROL_PLANE, "KThreesControlPlane")
    }

    /// How the tier knows this cluster.
    pub fn key(&self) -> String {
        format!("{}/{NAME}", self.namespace)
    }

    /// Applies a cluster of servers and workers.
    pub async fn create(&self, servers: usize, workers: usize, version: &str) -> Result<()> {
        let group = HOSTS_GROUP;
        let mut manifests = vec![
            json!({"apiVersion": HOSTS, "kind": "TestHostCluster", "metadata": {"name": NAME}, "spec": {
                "failureDomains": ["east", "north", "west"],
            }}),
            json!({"apiVersion": HOSTS, "kind": "TestHostMachineTemplate", "metadata": {"name": NAME},
                "spec": {"template": {"spec": {}}}}),
            json!({"apiVersion": CONTROL_PLANE, "kind": "KThreesControlPlane", "metadata": {"name": NAME}, "spec": {
                "replicas": servers,
                "version": version,
                "machineTemplate": {
                    "infrastructureRef": {"apiVersion": HOSTS, "kind": "TestHostMachineTemplate", "name": NAME,
                        "namespace": self.namespace},
                },
                "remediationStrategy": {"retryPeriod": "1s", "minHealthyPeriod": "1s"},
            }}),
            json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": NAME}, "spec": {
                "clusterNetwork": {"pods": {"cidrBlocks": ["10.42.0.0/16"]}},
                "infrastructureRef": {"apiGroup": group, "kind": "TestHostCluster", "name": NAME},
                "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KThreesControlPlane", "name": NAME},
            }}),
        ];
        let config = self.tier.config();
        if let Some(config) = &config {
            manifests[2]["spec"]["kthreesConfigSpec"] = config.clone();
        }
        if workers > 0 {
            let mut config = config.unwrap_or_else(|| json!({}));
            config["agentConfig"] = json!({
                "nodeLabels": ["example.com/pool=workers"],
                "nodeTaints": ["example.com/edge=yes:NoSchedule"],
            });
            manifests.push(
                json!({"apiVersion": BOOTSTRAP, "kind": "KThreesConfigTemplate", "metadata": {"name": NAME},
                "spec": {"template": {"spec": config}}}),
            );
            manifests.push(
                json!({"apiVersion": CORE, "kind": "MachineDeployment", "metadata": {"name": "workers"}, "spec": {
                    "clusterName": NAME,
                    "replicas": workers,
                    "selector": {"matchLabels": {"pool": "workers"}},
                    "template": {"metadata": {"labels": {"pool": "workers"}}, "spec": {
                        "clusterName": NAME,
                        "version": version,
                        "bootstrap": {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KThreesConfigTemplate", "name": NAME}},
                        "infrastructureRef": {"apiGroup": group, "kind": "TestHostMachineTemplate", "name": NAME},
                    }},
                }}),
            );
        }
        apply(&self.client, &self.namespace, &manifests).await
    }

    /// A health check that takes a silent node for unhealthy at once.
    pub async fn check_health(&self) -> Result<()> {
        let check = json!({"apiVersion": CORE, "kind": "MachineHealthCheck", "metadata": {"name": "servers"}, "spec": {
            "clusterName": NAME,
            "selector": {"matchLabels": {"cluster.x-k8s.io/control-plane": ""}},
            "checks": {"unhealthyNodeConditions": [{"type": "Ready", "status": "Unknown", "timeoutSeconds": 1}]},
            "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": "100%"}},
        }});
        apply(&self.client, &self.namespace, &[check]).await
    }

    pub async fn patch_plane(&self, spec: Value) -> Result<DynamicObject> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        Ok(self.planes().patch(NAME, &PatchParams::default(), &patch).await?)
    }

    /// Waits until all servers are there, of this version, and nothing is left to do; and looks at what is behind it.
    pub async fn until_settled(&self, servers: usize, version: &str) -> Result<()> {
        self.until_plane(&format!("have {servers} servers of {version}"), |plane| {
            let status = &plane.data["status"];
            let counts = [
                "replicas",
                "readyReplicas",
                "upToDateReplicas",
                "availableReplicas",
            ];
            status["observedGeneration"] == json!(plane.metadata.generation)
                && counts.iter().all(|count| status[*count] == servers)
                && status["version"] == version
                && is_true(plane, "Available")
                && !is_true(plane, "RollingOut")
                && !is_true(plane, "ScalingDown")
                && !is_true(plane, "ScalingUp")
        })
        .await?;
        // A server is ready before etcd makes it a voter, and etcd tells nobody when it does: it is asked.
        let all_vote = |members: &[Member]| {
            let votes = |member: &Member| !member.learner && !member.name.is_empty();
            members.len() == servers && members.iter().all(votes)
        };
        let mut members = self.members().await?;
        for _ in 0..PROMOTION_LOOKS {
            if all_vote(&members) {
                break;
            }
            tokio::time::sleep(PROMOTION_LOOK).await;
            members = self.members().await?;
        }
        ensure!(
            all_vote(&members),
            "etcd has {members:?} where {servers} voters were expected"
        );
        ensure!(self.servers().await?.len() == servers);
        let failures = self.tier.failures(&self.key());
        ensure!(failures.is_empty(), "hosts did not come up: {failures:?}");
        Ok(())
    }

    pub async fn until_plane(
        &self,
        what: &str,
        is_so: impl Fn(&DynamicObject) -> bool,
    ) -> Result<DynamicObject> {
        Ok(until_within(self.tier.deadline(), &self.planes(), NAME, what, is_so).await?)
    }

    /// The machines of the servers, oldest first.
    pub async fn servers(&self) -> Result<Vec<DynamicObject>> {
        let selected = ListParams::default().labels("cluster.x-k8s.io/control-plane");
        let mut machines = self.of(CORE, "Machine").list(&selected).await?.items;
        machines.sort_by_key(|machine| machine.metadata.creation_timestamp.as_ref().map(|time| time.0));
        Ok(machines)
    }

    pub async fn server_names(&self) -> Result<Vec<String>> {
        Ok(self.servers().await?.iter().map(ResourceExt::name_any).collect())
    }

    /// The host of a machine.
    pub async fn host_of(&self, machine: &str) -> Result<String> {
        let machine = self.of(CORE, "Machine").get(machine).await?;
        let name = machine.data["spec"]["infrastructureRef"]["name"].as_str();
        Ok(name.context("a machine has a host")?.to_owned())
    }

    pub async fn kill(&self, machine: &str) -> Result<()> {
        Ok(self.hosts.kill(&self.host_of(machine).await?).await?)
    }

    pub async fn revive(&self, machine: &str) -> Result<()> {
        Ok(self.hosts.revive(&self.host_of(machine).await?).await?)
    }

    /// Waits until a machine is gone, whatever else happens to the others.
    pub async fn until_gone(&self, machine: &str) -> Result<()> {
        Ok(until_gone_within(self.tier.deadline(), &self.of(CORE, "Machine"), machine).await?)
    }

    pub async fn secret(&self, suffix: &str, key: &str) -> Result<String> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret = secrets.get(&format!("{NAME}-{suffix}")).await?;
        let data = secret.data.unwrap_or_default();
        let value = data.get(key).with_context(|| format!("{suffix} has {key}"))?;
        Ok(String::from_utf8(value.0.clone())?)
    }

    pub async fn workload_config(&self) -> Result<Config> {
        let kubeconfig = kube::config::Kubeconfig::from_yaml(&self.secret("kubeconfig", "value").await?)?;
        Ok(Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await?)
    }

    /// The cluster itself, by the kubeconfig its users get.
    pub async fn workload(&self) -> Result<Client> {
        Ok(Client::try_from(self.workload_config().await?)?)
    }

    pub async fn nodes(&self) -> Result<Vec<Node>> {
        let nodes: Api<Node> = Api::all(self.workload().await?);
        Ok(nodes.list(&ListParams::default()).await?.items)
    }

    /// The members of etcd, as the supervisor tells them to who knows the token.
    pub async fn members(&self) -> Result<Vec<Member>> {
        let token = self.secret("token", "value").await?;
        let mut config = self.workload_config().await?;
        config.auth_info = kube::config::AuthInfo::default();
        let client = Client::try_from(config)?;
        let basic = BASE64_STANDARD.encode(format!("server:{}", token.trim_end()));
        let request = http::Request::get("/db/info")
            .header("authorization", format!("Basic {basic}"))
            .body(Vec::new())?;
        let answer: Value = serde_json::from_str(&client.request_text(request).await?)?;
        let members = answer["members"].as_array().context("members")?;
        Ok(members
            .iter()
            .map(|member| Member {
                name: member["name"].as_str().unwrap_or_default().to_owned(),
                learner: member["isLearner"] == true,
            })
            .collect())
    }

    /// Waits until what the machines of the servers are together is `so`.
    pub async fn until_servers(
        &self,
        what: &str,
        so: impl Fn(&[DynamicObject]) -> bool,
    ) -> Result<Vec<DynamicObject>> {
        let selected = watcher::Config::default().labels("cluster.x-k8s.io/control-plane");
        let changes = watcher(self.of(CORE, "Machine"), selected).default_backoff();
        let waiting = async {
            let mut changes = pin!(changes);
            while changes.try_next().await?.is_some() {
                let servers = self.servers().await?;
                if so(&servers) {
                    return Ok(servers);
                }
            }
            anyhow::bail!("the watch ended")
        };
        match tokio::time::timeout(self.tier.deadline(), waiting).await {
            Ok(found) => found,
            Err(_) => {
                let left = self.server_names().await?;
                anyhow::bail!("the servers did not {what}; they are {left:?}")
            }
        }
    }
}

/// Whether a condition holds, in the new form wherever an object keeps it.
pub fn is_true(object: &DynamicObject, desired: &str) -> bool {
    condition(object, desired).is_some_and(|one| one["status"] == "True")
}

pub fn condition<'a>(object: &'a DynamicObject, desired: &str) -> Option<&'a Value> {
    let status = &object.data["status"];
    let conditions = match status["v1beta2"]["conditions"].as_array() {
        Some(conditions) => conditions,
        None => status["conditions"].as_array()?,
    };
    conditions.iter().find(|one| one["type"] == desired)
}
