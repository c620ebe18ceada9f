//! Workload clusters that are scaled from one management cluster, all of them apiserver simulators, with a Cluster API, hosts and
//! schedulers that are just enough.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    ByteString, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_runtime::Clock;

use crate::{
    core::kinds::{CORE, foreign},
    objects::{create, delete, find, is_deleting, merge, merge_status, name, of_kind},
};

pub const NAMESPACE: &str = "fleet";
const CLUSTER: &str = "cluster.x-k8s.io/cluster-name";
const DEPLOYMENT: &str = "cluster.x-k8s.io/deployment-name";
const DELETE_FIRST: &str = "cluster.x-k8s.io/delete-machine";
/// On a Cluster: it is to be scaled from the management cluster.
pub const CHOSEN: &str = "slipway.dev/autoscaled";
/// Of every host; a pod asks for two.
const CORES: usize = 4;

/// The servers. Clones share them.
#[derive(Clone)]
pub struct ScaledClusters {
    pub management: Apiserver,
    pub workloads: Arc<BTreeMap<String, Apiserver>>,
}

/// Whether an object of the management cluster is a Cluster's, or that Cluster.
pub fn is_of(object: &Value, cluster: &str) -> bool {
    object["metadata"]["labels"][CLUSTER] == cluster
        || (object["kind"] == "Cluster" && name(object) == cluster)
}

/// A NodeClass that names nothing.
pub fn class() -> Value {
    json!({"apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
        "metadata": {"name": "general"}, "spec": {}})
}

fn scalable(kind: &str) -> CustomResourceDefinition {
    let mut crd = serde_json::to_value(foreign(CORE, "v1beta2", kind)).expect("a definition");
    crd["spec"]["versions"][0]["subresources"]["scale"] =
        json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    serde_json::from_value(crd).expect("a definition")
}

/// The kinds of Cluster API that an autoscaler reads.
pub fn kinds() -> Vec<CustomResourceDefinition> {
    vec![
        foreign(CORE, "v1beta2", "Cluster"),
        foreign(CORE, "v1beta2", "Machine"),
        scalable("MachineDeployment"),
        scalable("MachineSet"),
        scalable("MachinePool"),
    ]
}

impl ScaledClusters {
    /// Empty servers of these names.
    pub fn new(names: impl IntoIterator<Item = String>, clock: Clock) -> Self {
        let management = Apiserver::new(clock);
        management.install(&kinds(), &[], &[]);
        let workloads = names.into_iter().map(|name| (name, Apiserver::new(clock)));
        ScaledClusters {
            management,
            workloads: Arc::new(workloads.collect()),
        }
    }

    /// A Cluster that is reached at this address, and its MachineDeployment.
    pub async fn found_in_management(&self, cluster: &str, address: &str, is_chosen: bool) {
        let labels = if is_chosen { json!({CHOSEN: ""}) } else { json!({}) };
        let made = json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "Cluster",
            "metadata": {"name": cluster, "namespace": NAMESPACE, "labels": labels}, "spec": {}});
        create(&self.management, &made).await;
        let initialized = json!({"initialization": {"controlPlaneInitialized": true}});
        merge_status(&self.management, &made, initialized).await;
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {"token": "canary"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        let data = serde_json::to_value(ByteString(kubeconfig.to_string().into_bytes()));
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": {"name": format!("{cluster}-kubeconfig"), "namespace": NAMESPACE, "labels": {CLUSTER: cluster}},
            "data": {"value": data.expect("a text")}});
        create(&self.management, &secret).await;
        let deployment = json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "MachineDeployment",
            "metadata": {"name": format!("{cluster}-workers"), "namespace": NAMESPACE, "labels": {CLUSTER: cluster},
                "annotations": {
                    "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "0",
                    "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "5",
                    "capacity.cluster-autoscaler.kubernetes.io/cpu": CORES.to_string(),
                    "capacity.cluster-autoscaler.kubernetes.io/memory": "16Gi",
                    "capacity.cluster-autoscaler.kubernetes.io/price": "0.2"}},
            "spec": {"clusterName": cluster, "replicas": 0, "template": {"spec": {"clusterName": cluster}}}});
        create(&self.management, &deployment).await;
    }

    /// Whether the autoscaler's kinds are served in a workload cluster.
    pub fn serves_kinds(&self, cluster: &str) -> bool {
        self.workloads[cluster].look(|all| of_kind(all, "CustomResourceDefinition").count()) == 3
    }

    /// A NodePool, which nobody gives nodes of up, and its NodeClass.
    pub async fn found_in_workload(&self, cluster: &str) {
        let server = &self.workloads[cluster];
        create(server, &class()).await;
        create(
            server,
            &json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "general"},
                "spec": {"disruption": {"consolidateAfter": "Never"}, "template": {"spec": {"requirements": [], "nodeClassRef": {
                    "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "general"}}}}}),
        )
        .await;
    }

    /// Pods of which two share a node.
    pub async fn pods(&self, cluster: &str, prefix: &str, number: usize) {
        for one in 0..number {
            let requests = json!({"cpu": "2", "memory": "1Gi"});
            let pod = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": format!("{prefix}-{one}"), "namespace": "default"},
                "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]}});
            create(&self.workloads[cluster], &pod).await;
        }
    }

    pub fn replicas(&self, cluster: &str) -> i64 {
        let named = format!("{cluster}-workers");
        self.management.look(|all| {
            let deployment = find(all, "MachineDeployment", &named);
            deployment.map_or(0, |one| one["spec"]["replicas"].as_i64().unwrap_or(0))
        })
    }

    /// How many pods of a workload cluster run.
    pub fn running(&self, cluster: &str) -> usize {
        self.workloads[cluster].look(|all| {
            let running = of_kind(all, "Pod").filter(|pod| pod["spec"]["nodeName"].is_string());
            running.count()
        })
    }

    /// Cluster API, the hosts and the schedulers, for ever.
    pub async fn play(self) {
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        loop {
            let mut has_changed = |name: &str, server: &Apiserver| {
                let version = server.version();
                seen.insert(name.to_owned(), version) != Some(version)
            };
            if has_changed("", &self.management) {
                self.reconcile().await;
            }
            for (name, server) in self.workloads.iter() {
                if has_changed(name, server) {
                    schedule(server).await;
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn reconcile(&self) {
        let objects = self.management.look(<[Value]>::to_vec);
        for deployment in of_kind(&objects, "MachineDeployment") {
            self.scale(&objects, deployment).await;
        }
        for machine in of_kind(&objects, "Machine") {
            let cluster = machine["spec"]["clusterName"].as_str().unwrap_or_default();
            if let Some(workload) = self.workloads.get(cluster) {
                self.host(workload, machine).await;
            }
        }
    }

    /// As many Machines as replicas ask for; those that are marked go first.
    async fn scale(&self, objects: &[Value], deployment: &Value) {
        let replicas = usize::try_from(deployment["spec"]["replicas"].as_i64().unwrap_or(0)).unwrap_or(0);
        let named = name(deployment);
        let mut standing: Vec<&Value> = of_kind(objects, "Machine")
            .filter(|machine| machine["metadata"]["labels"][DEPLOYMENT] == *named && !is_deleting(machine))
            .collect();
        let first = self.management.version();
        for number in (first..).take(replicas.saturating_sub(standing.len())) {
            let cluster = &deployment["spec"]["clusterName"];
            let machine = json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "Machine",
            "metadata": {"name": format!("{named}-{number}"), "namespace": NAMESPACE,
                "labels": {DEPLOYMENT: named, CLUSTER: cluster}},
            "spec": {"clusterName": cluster}});
            create(&self.management, &machine).await;
        }
        standing.sort_by_key(|machine| !machine["metadata"]["annotations"][DELETE_FIRST].is_string());
        for surplus in standing.iter().take(standing.len().saturating_sub(replicas)) {
            delete(&self.management, surplus).await;
        }
    }

    /// A Machine's host boots at once.
    async fn host(&self, workload: &Apiserver, machine: &Value) {
        let named = name(machine);
        let id = format!("test://{named}");
        if workload.look(|all| find(all, "Node", named).is_some()) {
            return;
        }
        merge(&self.management, machine, json!({"spec": {"providerID": id}})).await;
        let amounts = json!({"cpu": CORES.to_string(), "memory": "16Gi", "pods": "110"});
        let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": named, "labels": {"kubernetes.io/hostname": named, "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux"}},
        "spec": {"providerID": id, "taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]}});
        create(workload, &node).await;
        let status = json!({"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]});
        merge_status(workload, &node, status).await;
        let running = json!({"nodeRef": {"name": named}, "phase": "Running"});
        merge_status(&self.management, machine, running).await;
    }
}

/// Two pods a node, on nodes without taints.
async fn schedule(workload: &Apiserver) {
    let objects = workload.look(<[Value]>::to_vec);
    let mut left: BTreeMap<&str, usize> = of_kind(&objects, "Node")
        .filter(|node| node["spec"]["taints"].as_array().is_none_or(Vec::is_empty))
        .map(|node| (name(node), CORES / 2))
        .collect();
    for pod in of_kind(&objects, "Pod") {
        if let Some(left) = pod["spec"]["nodeName"]
            .as_str()
            .and_then(|node| left.get_mut(node))
        {
            *left -= 1;
        }
    }
    for pod in of_kind(&objects, "Pod").filter(|pod| pod["spec"]["nodeName"].is_null()) {
        if let Some((node, left)) = left.iter_mut().find(|(_, left)| **left > 0) {
            *left -= 1;
            merge(workload, pod, json!({"spec": {"nodeName": node}})).await;
            merge_status(workload, pod, json!({"phase": "Running", "conditions": null})).await;
        } else if pod["status"]["conditions"].is_null() {
            let unschedulable =
                json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
            merge_status(
                workload,
                pod,
                json!({"phase": "Pending", "conditions": unschedulable}),
            )
            .await;
        }
    }
}
