//! The nodes of a pool: from the workload cluster where it can be reached, with a watch that requeues the pool, and from
//! the pool's scale set where it cannot.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, OnceLock},
};

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, NodeSystemInfo};
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::Value;
use slipway_runtime::{
    Context, Informer, Metrics, ObjectKey, Scope,
    controller::Trigger,
    informer::Pruning,
    workload::{Clients, Connector, Reachable, WorkloadCluster, WorkloadClusters},
};

use super::cluster_info::{ClusterInfo, Publication};
use crate::{Arm, ArmError, Priority, ResourceId, machine::Address, reconcile::Error};

/// Names a node's pool in AKS.
const POOL: &str = "kubernetes.azure.com/agentpool";
/// Says that node auto-provisioning made a node, which belongs to no pool of AKS then, whatever its other labels say.
const AUTO_PROVISIONED: &str = "karpenter.sh/nodepool";
/// Names the resource group of a node's cluster, as far as a label can hold it.
const CLUSTER: &str = "kubernetes.azure.com/cluster";
const LABEL_LENGTH: usize = 63;
/// The zone of a node; `0` where there are none.
const ZONE: &str = "topology.kubernetes.io/zone";
/// The node image that AKS gave a node.
const IMAGE: &str = "kubernetes.azure.com/node-image-version";
/// The tags by which AKS marks the scale set of a pool.
const SCALE_SET_TAGS: &[&str] = &["aks-managed-poolName", "poolName"];
/// What Azure calls the scale sets and machines of a resource group is the same in every version we could ask for.
pub(crate) const COMPUTE: &str = "2023-09-01";

/// The nodes of a pool, as far as the workload cluster lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeListing {
    /// It has not been asked yet, or its nodes are still being listed; an event follows.
    Pending,
    /// The provider ids of the pool's nodes, sorted.
    Nodes(Vec<String>),
    Unreachable,
    /// It answers, and does not let us list its nodes.
    Denied,
}

/// What a node says of the machine it runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    pub name: String,
    pub provider_id: String,
    pub zone: Option<String>,
    pub image: Option<String>,
    pub version: Option<String>,
    pub addresses: Vec<Address>,
}

impl NodeFacts {
    fn of(node: &Node) -> Option<Self> {
        let provider_id = node.spec.as_ref()?.provider_id.clone()?;
        let label = |name: &str| node.labels().get(name).cloned();
        let status = node.status.as_ref();
        let version = status.and_then(|status| status.node_info.as_ref());
        let addresses = status.and_then(|status| status.addresses.as_ref());
        let mut addresses: Vec<Address> = addresses
            .into_iter()
            .flatten()
            .map(|address| Address {
                type_: address.type_.clone(),
                address: address.address.clone(),
            })
            .collect();
        addresses.sort_by(|one, other| (&one.type_, &one.address).cmp(&(&other.type_, &other.address)));
        (!provider_id.is_empty()).then(|| Self {
            name: node.name_any(),
            provider_id,
            zone: label(ZONE).filter(|zone| zone != "0"),
            image: label(IMAGE),
            version: version
                .map(|info| info.kubelet_version.clone())
                .filter(|version| !version.is_empty()),
            addresses,
        })
    }
}

/// Which object stands for which pool, by the pool's name in AKS.
type Interest = Arc<Mutex<BTreeMap<String, ObjectKey>>>;

struct Watched {
    cluster: Arc<WorkloadCluster>,
    /// The version of the Secret that the kubeconfig was read from, where it is known.
    version: Option<String>,
    nodes: Informer<Node>,
    interest: Interest,
    cluster_info: Publication,
}

/// Which nodes are asked for, and for whom.
#[derive(Clone, Copy, Debug)]
pub struct PoolNodes<'a> {
    /// The pool's name in AKS.
    pub pool: &'a str,
    /// The resource group of the cluster's nodes, where it is known.
    pub group: Option<&'a str>,
    /// Requeued when they change.
    pub object: &'a ObjectKey,
}

impl Watched {
    fn of_pool(&self, pool: &str, group: Option<&str>) -> Vec<Arc<Node>> {
        let mut nodes = self.nodes.list();
        nodes.retain(|node| pool_of(node) == Some(pool) && !is_foreign(node, group));
        nodes
    }

    fn list(&self, request: &PoolNodes<'_>) -> NodeListing {
        let PoolNodes { pool, group, object } = *request;
        let known = self.interest.lock().get(pool) == Some(object);
        if !known {
            self.interest.lock().insert(pool.to_owned(), object.clone());
        }
        match self.cluster.health().reachable {
            Reachable::No { .. } => NodeListing::Unreachable,
            Reachable::Yes if self.nodes.is_synced() => {
                let mut ids: Vec<String> = self
                    .of_pool(pool, group)
                    .iter()
                    .filter_map(|node| node.spec.as_ref()?.provider_id.clone())
                    .filter(|id| !id.is_empty())
                    .collect();
                ids.sort();
                NodeListing::Nodes(ids)
            }
            Reachable::Yes if *self.nodes.denied().borrow() => NodeListing::Denied,
            Reachable::Yes | Reachable::Unknown => NodeListing::Pending,
        }
    }
}

/// All workload clusters whose nodes are watched.
#[derive(Clone, Default)]
pub struct Nodes {
    connector: Option<Connector>,
    clusters: Arc<OnceLock<WorkloadClusters>>,
    watched: Arc<Mutex<HashMap<ObjectKey, Watched>>>,
    /// Clusters that cannot be connected to with the kubeconfig there is.
    refused: Arc<Mutex<HashMap<ObjectKey, RefusedKubeconfig>>>,
}

/// A kubeconfig that nobody can connect with, and the objects that asked.
struct RefusedKubeconfig {
    version: String,
    objects: BTreeSet<ObjectKey>,
}

impl std::fmt::Debug for Nodes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Nodes").finish_non_exhaustive()
    }
}

/// Keeps of a node what is read: whose it is, its provider id, and what machines say of it.
fn prune(node: &mut Node) {
    node.status = node.status.take().map(|status| NodeStatus {
        addresses: status.addresses,
        node_info: status.node_info.map(|info| NodeSystemInfo {
            kubelet_version: info.kubelet_version,
            ..NodeSystemInfo::default()
        }),
        ..NodeStatus::default()
    });
    node.metadata.annotations = None;
    node.metadata.managed_fields = None;
    if let Some(labels) = &mut node.metadata.labels {
        const READ: &[&str] = &[POOL, CLUSTER, AUTO_PROVISIONED, ZONE, IMAGE];
        labels.retain(|name, _| READ.contains(&name.as_str()));
    }
    node.spec = node.spec.take().map(|spec| NodeSpec {
        provider_id: spec.provider_id,
        ..NodeSpec::default()
    });
}

const PRUNING: Pruning<Node> = Pruning {
    name: "aks-nodes",
    prune,
};

fn pool_of(node: &Node) -> Option<&str> {
    let labels = node.labels();
    let is_of_pool = !labels.contains_key(AUTO_PROVISIONED);
    is_of_pool.then(|| labels.get(POOL).map(String::as_str)).flatten()
}

/// Whether a node is of another cluster that shares the API server.
fn is_foreign(node: &Node, group: Option<&str>) -> bool {
    let (Some(labelled), Some(group)) = (node.labels().get(CLUSTER), group) else {
        return false;
    };
    let group: String = group.chars().take(LABEL_LENGTH).collect();
    !labelled.eq_ignore_ascii_case(&group)
}

impl Nodes {
    /// Connects to workload clusters in its own way.
    pub fn connecting_by(connector: Connector) -> Self {
        Self {
            connector: Some(connector),
            ..Self::default()
        }
    }

    fn clusters(&self, context: &Context) -> &WorkloadClusters {
        self.clusters.get_or_init(|| {
            let clients = Clients::of(context).connecting_by(self.connector.clone());
            WorkloadClusters::with(clients, context)
        })
    }

    /// Counts the workload clusters whose nodes are watched, under the name of their provider.
    pub fn count_held(&self, name: &str, metrics: &Metrics) {
        let (watched, refused) = (Arc::clone(&self.watched), Arc::clone(&self.refused));
        metrics.count_held(name, move || watched.lock().len() + refused.lock().len());
    }

    /// The same as [`Nodes::of_pool`] over the connection that there is, if its kubeconfig is of this version.
    pub fn of_connected_pool(
        &self,
        cluster: &ObjectKey,
        version: &str,
        request: &PoolNodes<'_>,
    ) -> Option<NodeListing> {
        if let Some(refused) = self
            .refused
            .lock()
            .get_mut(cluster)
            .filter(|refused| refused.version == version)
        {
            refused.objects.insert(request.object.clone());
            return Some(NodeListing::Unreachable);
        }
        let all = self.watched.lock();
        let watched = all.get(cluster)?;
        (watched.version.as_deref() == Some(version)).then(|| watched.list(request))
    }

    /// What the nodes of a pool say over the connection that there is; `None` where nobody can tell now.
    pub fn facts(&self, cluster: &ObjectKey, pool: &str, group: Option<&str>) -> Option<Vec<NodeFacts>> {
        let all = self.watched.lock();
        let watched = all.get(cluster)?;
        let reached = matches!(watched.cluster.health().reachable, Reachable::Yes);
        (reached && watched.nodes.is_synced()).then(|| {
            let nodes = watched.of_pool(pool, group);
            nodes.iter().filter_map(|node| NodeFacts::of(node)).collect()
        })
    }

    /// The nodes of a pool as the workload cluster shows them. From here on their changes requeue its object.
    pub fn of_pool(
        &self,
        cluster: &ObjectKey,
        kubeconfig: &str,
        version: Option<String>,
        request: &PoolNodes<'_>,
        context: &Context,
    ) -> NodeListing {
        let connected = match self.clusters(context).connect(cluster, kubeconfig) {
            Ok(connected) => connected,
            Err(error) => {
                tracing::debug!(%cluster, %error, "The workload cluster cannot be connected to");
                if let Some(version) = version {
                    let objects = BTreeSet::from([request.object.clone()]);
                    let refused = RefusedKubeconfig { version, objects };
                    self.refused.lock().insert(cluster.clone(), refused);
                }
                return NodeListing::Unreachable;
            }
        };
        self.refused.lock().remove(cluster);
        let mut all = self.watched.lock();
        let stale = all
            .get(cluster)
            .is_none_or(|watched| !Arc::ptr_eq(&watched.cluster, &connected));
        if stale {
            let watched = Watched {
                nodes: connected.informers.get_pruned(Scope::all(), PRUNING),
                interest: Interest::default(),
                cluster_info: Publication::over(connected.client.clone(), kubeconfig),
                cluster: Arc::clone(&connected),
                version: None,
            };
            if let Some(trigger) = context.trigger() {
                tokio::spawn(requeue(
                    connected.watch_health(),
                    watched.nodes.clone(),
                    Arc::clone(&watched.interest),
                    watched.cluster_info.clone(),
                    trigger,
                ));
            }
            all.insert(cluster.clone(), watched);
        }
        let Some(watched) = all.get_mut(cluster) else {
            return NodeListing::Pending;
        };
        watched.version = version;
        watched.list(request)
    }

    /// What `cluster-info` is in a cluster that answers. One object sees to it, the first of the cluster's pools.
    pub async fn cluster_info(&self, cluster: &ObjectKey, object: &ObjectKey) -> ClusterInfo {
        let publication = {
            let all = self.watched.lock();
            let watched = all.get(cluster).filter(|watched| {
                watched.interest.lock().values().next() == Some(object)
                    && matches!(watched.cluster.health().reachable, Reachable::Yes)
            });
            watched.map(|watched| watched.cluster_info.clone())
        };
        match publication {
            Some(publication) => publication.read().await,
            None => ClusterInfo::Unknown,
        }
    }

    /// What writes `cluster-info` over the connection that there is.
    pub fn publication(&self, cluster: &ObjectKey) -> Option<Publication> {
        let all = self.watched.lock();
        all.get(cluster).map(|watched| watched.cluster_info.clone())
    }

    /// A pool is gone; with the last one of a cluster the connection goes too.
    pub fn forget(&self, object: &ObjectKey) {
        self.refused.lock().retain(|_, refused| {
            refused.objects.remove(object);
            !refused.objects.is_empty()
        });
        let mut all = self.watched.lock();
        all.retain(|cluster, watched| {
            let is_left = {
                let mut interest = watched.interest.lock();
                interest.retain(|_, known| known != object);
                !interest.is_empty()
            };
            if !is_left && let Some(clusters) = self.clusters.get() {
                clusters.disconnect(cluster);
            }
            is_left
        });
    }
}

/// Requeues pools when their nodes change, and all of them when the cluster comes or goes. Ends with the connection.
async fn requeue(
    mut health: tokio::sync::watch::Receiver<slipway_runtime::workload::Health>,
    nodes: Informer<Node>,
    interest: Interest,
    cluster_info: Publication,
    trigger: Trigger,
) {
    let all = |interest: &Interest| {
        for key in interest.lock().values() {
            trigger.fire(key);
        }
    };
    let mut changes = nodes.subscribe();
    let mut denied = nodes.denied();
    let mut known = None;
    let mut listed = false;
    loop {
        tokio::select! {
            changed = health.changed() => {
                if changed.is_err() {
                    return;
                }
                let state = std::mem::discriminant(&health.borrow_and_update().reachable);
                if known != Some(state) {
                    known = Some(state);
                    cluster_info.ask_again();
                    all(&interest);
                }
            }
            changed = denied.changed() => {
                if changed.is_err() {
                    return;
                }
                denied.borrow_and_update();
                all(&interest);
            }
            () = nodes.synced(), if !listed => {
                listed = true;
                all(&interest);
            }
            change = changes.next() => {
                let Some(change) = change else { return };
                let interest = interest.lock();
                for key in change.objects().filter_map(|node| interest.get(pool_of(node)?)) {
                    trigger.fire(key);
                }
            }
        }
    }
}

/// A provider id as the nodes of AKS carry it: the resource group in lower case.
pub(crate) fn provider_id(machine: &str) -> String {
    let mut after_groups = false;
    let parts: Vec<String> = machine
        .split('/')
        .map(|part| {
            let lower = std::mem::take(&mut after_groups);
            after_groups = part.eq_ignore_ascii_case("resourceGroups");
            if lower {
                part.to_lowercase()
            } else {
                part.to_owned()
            }
        })
        .collect();
    format!("azure://{}", parts.join("/"))
}

pub(crate) fn is_of_pool(scale_set: &Value, pool: &str) -> bool {
    SCALE_SET_TAGS
        .iter()
        .any(|tag| scale_set["tags"][tag].as_str() == Some(pool))
}

/// The provider ids of a pool's machines, from its scale sets, sorted.
pub async fn from_scale_sets(arm: &Arm, group: &str, pool: &str) -> Result<Vec<String>, Error> {
    let scope = ResourceId::resource_group(arm.subscription(), group)
        .and_then(|group| group.provided("Microsoft.Compute/virtualMachineScaleSets", "all"))
        .map_err(ArmError::from)?;
    let path = format!(
        "/subscriptions/{}/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachineScaleSets",
        arm.subscription()
    );
    let client = arm.client();
    let sets = client.list(&scope, &path, COMPUTE, Priority::Refresh).await?;
    let mut ids = Vec::new();
    for set in sets.iter().filter(|set| is_of_pool(set, pool)) {
        let Some(name) = set["name"].as_str() else {
            continue;
        };
        let machines = format!("{path}/{name}/virtualMachines");
        let found = client.list(&scope, &machines, COMPUTE, Priority::Refresh).await?;
        ids.extend(
            found
                .iter()
                .filter_map(|machine| machine["id"].as_str())
                .map(provider_id),
        );
    }
    ids.sort();
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_provider_id_is_spelt_as_nodes_spell_it() {
        assert_eq!(
            provider_id(
                "/subscriptions/S/resourceGroups/MC_Group_c/providers/Microsoft.Compute/virtualMachineScaleSets/aks-A-vmss/virtualMachines/0"
            ),
            "azure:///subscriptions/S/resourceGroups/mc_group_c/providers/Microsoft.Compute/virtualMachineScaleSets/aks-A-vmss/virtualMachines/0"
        );
    }

    #[test]
    fn a_scale_set_is_found_by_either_tag() {
        assert!(is_of_pool(&json!({"tags": {"poolName": "a"}}), "a"));
        assert!(is_of_pool(&json!({"tags": {"aks-managed-poolName": "a"}}), "a"));
        assert!(!is_of_pool(&json!({"tags": {"poolName": "b"}}), "a"));
        assert!(!is_of_pool(&json!({}), "a"));
    }

    #[test]
    fn of_a_node_only_what_is_read_is_kept() {
        let mut node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {(POOL): "a", "x": "y"}, "annotations": {"k": "v"}},
            "spec": {"providerID": "azure:///n", "podCIDR": "10.0.0.0/24"},
            "status": {"images": [{"names": ["big"]}], "addresses": [{"type": "InternalIP", "address": "10.0.0.4"}],
                "nodeInfo": {"kubeletVersion": "v1.33.3", "osImage": "Ubuntu"}},
        }))
        .unwrap();
        prune(&mut node);
        let status = &json!(node)["status"];
        assert_eq!(status["images"], Value::Null);
        let facts = NodeFacts::of(&node).unwrap();
        assert_eq!(facts.version.as_deref(), Some("v1.33.3"));
        assert_eq!(facts.addresses[0].address, "10.0.0.4");
        assert!(!is_foreign(&node, Some("group")), "it does not say");
        node.labels_mut().insert(CLUSTER.into(), "MC_group".into());
        assert!(is_foreign(&node, Some("group")));
        assert!(!is_foreign(&node, Some("mc_group")) && !is_foreign(&node, None));
        node.labels_mut().remove(CLUSTER);
        assert_eq!(json!(node)["spec"], json!({"providerID": "azure:///n"}));
        assert_eq!(pool_of(&node), Some("a"));
        assert_eq!(node.labels().len(), 1);
        node.labels_mut()
            .insert(AUTO_PROVISIONED.into(), "default".into());
        prune(&mut node);
        assert_eq!(pool_of(&node), None, "AKS's pools did not make it");
    }
}
