//! The node of an upgrade in its workload cluster: how that is reached, and what is read of it.

use std::{collections::BTreeMap, fmt};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, Pod, Secret},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::ListParams,
    core::{NamespaceResourceScope, Selector},
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use slipway_capi::secret::kubeconfig;
use slipway_runtime::{
    Context, ObjectKey,
    workload::{Clients, Connector},
};

use super::{
    annotations,
    api::{Distribution, NodeUpgradeSpec},
    drain::Pods,
    facts::NodeFacts,
};
use crate::{
    error::Error,
    upgrade_policy::{
        api::{HealthGate, HealthGateKind},
        health::{self, Found},
    },
};

/// A connection that nobody has used for this long is given up.
const KEPT_UNUSED: SignedDuration = SignedDuration::from_hours(1);
/// What k3s gives the nodes of servers with an etcd of their own.
const ETCD_ROLE: &str = "node-role.kubernetes.io/etcd";

struct Connection {
    /// Of the Secret with the kubeconfig.
    version: Option<String>,
    client: Client,
    used: Timestamp,
}

/// The workload clusters, by their Cluster. One client each, as long as its kubeconfig stays.
#[derive(Default)]
pub struct Workloads {
    connector: Option<Connector>,
    connections: Mutex<BTreeMap<ObjectKey, Connection>>,
}

impl Workloads {
    pub fn new(connector: Option<Connector>) -> Self {
        Self {
            connector,
            connections: Mutex::default(),
        }
    }

    /// How many clusters something is kept for.
    pub fn len(&self) -> usize {
        self.connections.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub async fn client(&self, cluster: &ObjectKey, context: &Context) -> Result<Client, Error> {
        let name = format!("{}-kubeconfig", cluster.name());
        let namespace = cluster.namespace().unwrap_or_default();
        let secrets: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
        let secret = secrets
            .get(&name)
            .await
            .map_err(Error::api(format!("reading Secret {name}")))?;
        let (version, now) = (secret.resource_version(), context.clock.now());
        let mut connections = self.connections.lock();
        connections.retain(|_, known| now.duration_since(known.used) < KEPT_UNUSED);
        if let Some(known) = connections
            .get_mut(cluster)
            .filter(|known| known.version == version)
        {
            known.used = now;
            return Ok(known.client.clone());
        }
        let access = kubeconfig::access(&secret)
            .map_err(Error::cluster_api(format!("connecting to Cluster {cluster}")))?;
        let clients = Clients::of(context).connecting_by(self.connector.clone());
        let client = clients
            .connect(cluster, &access)
            .map_err(Error::api(format!("connecting to Cluster {cluster}")))?;
        let connection = Connection {
            version,
            client: client.clone(),
            used: now,
        };
        connections.insert(cluster.clone(), connection);
        Ok(client)
    }
}

pub async fn node(client: &Client, name: &str) -> Result<Option<Node>, Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let doing = format!("reading Node {name} of the workload cluster");
    nodes.get_opt(name).await.map_err(Error::api(doing))
}

/// What an upgrade is decided from. Pods are looked at while the node is drained, and not before.
pub async fn node_facts(
    client: &Client,
    node: &Node,
    spec: &NodeUpgradeSpec,
    upgrade: &str,
) -> Result<NodeFacts, Error> {
    let cordoned_by_us = annotations::cordoned_since(node, upgrade);
    let pods = if cordoned_by_us.is_some() && !spec.drain.skip {
        pods(client, &node.name_any()).await?
    } else {
        Pods::default()
    };
    let status = node.status.as_ref();
    let mut conditions = status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    Ok(NodeFacts {
        is_ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        kubelet_version: status
            .and_then(|status| status.node_info.as_ref())
            .map(|info| info.kubelet_version.clone())
            .unwrap_or_default(),
        is_cordoned: annotations::is_cordoned(node),
        cordoned_by_us,
        pods,
    })
}

async fn pods(client: &Client, node: &str) -> Result<Pods, Error> {
    let pods: Api<Pod> = Api::all(client.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let doing = || format!("reading the Pods of Node {node}");
    let pods = pods.list(&of_node).await.map_err(Error::api(doing()))?.items;
    if Pods::of(&pods, &[]).to_evict.is_empty() {
        return Ok(Pods::of(&pods, &[]));
    }
    let budgets: Api<PodDisruptionBudget> = Api::all(client.clone());
    let budgets = budgets.list(&ListParams::default()).await.map_err(Error::api(
        "reading the PodDisruptionBudgets of the workload cluster",
    ))?;
    Ok(Pods::of(&pods, &budgets.items))
}

/// What of the policy's gates is not well in the cluster, with so many machines of it being upgraded.
pub async fn unhealthy(
    client: &Client,
    gates: &[HealthGate],
    disturbed: usize,
) -> Result<Vec<String>, Error> {
    let mut unhealthy = Vec::new();
    for gate in gates {
        let found = match gate.kind {
            HealthGateKind::Deployment => Found::Deployments(selected(client, gate).await?),
            HealthGateKind::StatefulSet => Found::StatefulSets(selected(client, gate).await?),
            HealthGateKind::DaemonSet => Found::DaemonSets(selected(client, gate).await?),
            HealthGateKind::Node => Found::Nodes(listed(Api::all(client.clone()), gate).await?),
        };
        unhealthy.extend(health::unhealthy(gate, &found, disturbed));
    }
    Ok(unhealthy)
}

async fn selected<K>(client: &Client, gate: &HealthGate) -> Result<Vec<K>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + fmt::Debug,
{
    let api = match &gate.namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    listed(api, gate).await
}

async fn listed<K>(api: Api<K>, gate: &HealthGate) -> Result<Vec<K>, Error>
where
    K: Clone + DeserializeOwned + fmt::Debug,
{
    // Admission refuses a selector that cannot be read; with none such nothing is selected, and the gate stays shut.
    let selector = gate.selector.clone().unwrap_or_default();
    let Ok(selector) = Selector::try_from(selector) else {
        return Ok(Vec::new());
    };
    let parameters = ListParams::default().labels_from(&selector);
    let doing = format!("reading each {} of the workload cluster", gate.describe());
    Ok(api.list(&parameters).await.map_err(Error::api(doing))?.items)
}

/// Whether the only server of a cluster has an etcd of its own: k3s says so on its node, kubeadm runs it as a static Pod.
pub async fn has_etcd(client: &Client, node: &Node, distribution: Distribution) -> Result<bool, Error> {
    match distribution {
        Distribution::K3s => Ok(node.labels().contains_key(ETCD_ROLE)),
        Distribution::Kubeadm => {
            let pods: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
            let name = format!("etcd-{}", node.name_any());
            let found = pods.get_opt(&name).await;
            Ok(found
                .map_err(Error::api(format!("reading Pod {name} of the workload cluster")))?
                .is_some())
        }
    }
}

/// Whether `kubeadm upgrade apply` of a version was run: it writes the version down for the nodes that come after.
pub async fn is_applied(client: &Client, version: &str) -> Result<bool, Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let found = maps.get_opt("kubeadm-config").await;
    let found = found.map_err(Error::api(
        "reading ConfigMap kubeadm-config of the workload cluster",
    ))?;
    let text = found.and_then(|map| map.data?.remove("ClusterConfiguration"));
    Ok(text.is_some_and(|text| {
        let mut lines = text.lines();
        lines.any(|line| line.trim_end() == format!("kubernetesVersion: {version}"))
    }))
}
