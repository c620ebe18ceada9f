//! What surrounds the autoscaler: MachineDeployments that make Machines, hosts that become Nodes, and a scheduler. All of it
//! follows from what the apiserver shows, so nothing of it has to be kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_kit::{
    core::kinds::{CORE, foreign},
    journey::Surroundings,
    objects::{create, delete, find, holds, is_deleting, merge, merge_status, name, of_kind},
    sweep::World,
};
use slipway_runtime::{Clock, controller::Registration};

pub const NAMESPACE: &str = "default";
/// On a budget: how many pods of its selector are kept up.
const KEPT: &str = "slipway.test/pods";
const DEPLOYMENT: &str = "cluster.x-k8s.io/deployment-name";
const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim";
const DELETE_FIRST: &str = "cluster.x-k8s.io/delete-machine";
const MIN: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size";
const MAX: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";
/// Of every host.
const CORES: i64 = 4;

/// The cluster.
pub struct Life {
    server: Apiserver,
}

fn scalable(kind: &str) -> CustomResourceDefinition {
    let mut crd = serde_json::to_value(foreign(CORE, "v1beta2", kind)).expect("a definition");
    crd["spec"]["versions"][0]["subresources"]["scale"] =
        json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    serde_json::from_value(crd).expect("a definition")
}

impl Surroundings for Life {
    type State = ();

    fn new(server: &Apiserver, _: Clock) -> Self {
        server.install(
            &[
                foreign(CORE, "v1beta2", "Cluster"),
                foreign(CORE, "v1beta2", "Machine"),
                scalable("MachineDeployment"),
                scalable("MachineSet"),
                scalable("MachinePool"),
            ],
            &[],
            &[],
        );
        let package = slipway_autoscaler::provider().packages.remove(0);
        server.install(&package.crds, &package.conversion, &package.admission);
        Life {
            server: server.clone(),
        }
    }

    fn resume(server: &Apiserver, _: Clock, (): &()) -> Self {
        Life {
            server: server.clone(),
        }
    }

    fn state(&self) {}

    fn controllers(self: &Arc<Self>, _: &Faults) -> Vec<Registration> {
        slipway_autoscaler::provider().packages.remove(0).controllers
    }

    fn play(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        let life = Arc::clone(self);
        async move {
            let mut reconciled = 0;
            loop {
                if life.server.version() != reconciled {
                    reconciled = life.server.version();
                    life.reconcile().await;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        .boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        for deployment in of_kind(objects, "MachineDeployment") {
            let size = |key: &str| {
                let text = deployment["metadata"]["annotations"][key].as_str()?;
                text.parse::<i64>().ok()
            };
            let replicas = deployment["spec"]["replicas"].as_i64().unwrap_or(0);
            let (least, most) = (size(MIN).unwrap_or(0), size(MAX).unwrap_or(i64::MAX));
            if replicas < least || replicas > most {
                return Err(format!("{} has {replicas} replicas", name(deployment)));
            }
        }
        let mut bound = BTreeSet::new();
        for machine in of_kind(objects, "Machine").filter(|machine| !is_deleting(machine)) {
            if let Some(claim) = machine["metadata"]["labels"][CLAIM].as_str()
                && !bound.insert(claim)
            {
                return Err(format!("two Machines stand for claim {claim}"));
            }
        }
        for pool in of_kind(objects, "NodePool") {
            let limit = pool["spec"]["limits"]["nodes"]
                .as_str()
                .and_then(|text| text.parse().ok());
            let claims = of_kind(objects, "NodeClaim").filter(|claim| {
                claim["metadata"]["labels"]["karpenter.sh/nodepool"] == pool["metadata"]["name"]
            });
            let claims = claims.count();
            if limit.is_some_and(|limit: usize| claims > limit) {
                return Err(format!("NodePool {} has {claims} claims", name(pool)));
            }
        }
        budgets_hold(objects)
    }

    fn end_state(&self, objects: Vec<Value>) -> Value {
        let count = |kind: &str| of_kind(&objects, kind).count();
        let replicas: BTreeMap<&str, &Value> = of_kind(&objects, "MachineDeployment")
            .map(|deployment| (name(deployment), &deployment["spec"]["replicas"]))
            .collect();
        let ready = of_kind(&objects, "NodeClaim")
            .filter(|claim| holds(claim, "Ready"))
            .count();
        let bound = of_kind(&objects, "Machine")
            .filter(|machine| machine["metadata"]["labels"][CLAIM].is_string())
            .count();
        let running = of_kind(&objects, "Pod")
            .filter(|pod| pod["spec"]["nodeName"].is_string())
            .count();
        json!({"replicas": replicas, "claims": count("NodeClaim"), "ready": ready, "machines": count("Machine"),
            "bound": bound, "nodes": count("Node"), "pods": count("Pod"), "running": running})
    }
}

/// While nodes are drained, no budget has fewer pods than it asks for.
fn budgets_hold(objects: &[Value]) -> Result<(), String> {
    let is_draining = of_kind(objects, "NodeClaim").any(is_deleting);
    for budget in of_kind(objects, "PodDisruptionBudget").filter(|_| is_draining) {
        let least = budget["spec"]["minAvailable"].as_u64().unwrap_or(0);
        let running = selected(objects, budget)
            .filter(|pod| pod["spec"]["nodeName"].is_string() && !is_deleting(pod))
            .count();
        if (running as u64) < least {
            return Err(format!("budget {} has {running} pods", name(budget)));
        }
    }
    Ok(())
}

/// The pods of a budget.
fn selected<'a>(objects: &'a [Value], budget: &'a Value) -> impl Iterator<Item = &'a Value> {
    let app = &budget["spec"]["selector"]["matchLabels"]["app"];
    of_kind(objects, "Pod").filter(move |pod| pod["metadata"]["labels"]["app"] == *app)
}

fn created(kind: &str, metadata: &Value, spec: &Value) -> Value {
    json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": kind, "metadata": metadata, "spec": spec})
}

impl Life {
    /// One pass of Cluster API, the hosts and the scheduler.
    async fn reconcile(&self) {
        let objects: Vec<Value> = self.server.look(<[Value]>::to_vec);
        for deployment in of_kind(&objects, "MachineDeployment") {
            self.scale(&objects, deployment).await;
        }
        for machine in of_kind(&objects, "Machine") {
            self.host(&objects, machine).await;
        }
        for budget in of_kind(&objects, "PodDisruptionBudget") {
            self.replicate(&objects, budget).await;
        }
        self.schedule(&objects).await;
    }

    /// As many Machines as replicas ask for; those that are marked go first.
    async fn scale(&self, objects: &[Value], deployment: &Value) {
        let named = name(deployment);
        let replicas = usize::try_from(deployment["spec"]["replicas"].as_i64().unwrap_or(0)).unwrap_or(0);
        let of_this = |machine: &&Value| machine["metadata"]["labels"][DEPLOYMENT] == *named;
        let mut standing: Vec<&Value> = of_kind(objects, "Machine")
            .filter(of_this)
            .filter(|machine| !is_deleting(machine))
            .collect();
        let set = format!("{named}-set");
        if find(objects, "MachineSet", &set).is_none() {
            let owner = json!([{"apiVersion": format!("{CORE}/v1beta2"), "kind": "MachineDeployment", "name": named,
                "uid": deployment["metadata"]["uid"], "controller": true}]);
            let metadata = json!({"name": set, "namespace": NAMESPACE, "ownerReferences": owner,
                "labels": {DEPLOYMENT: named, "machine-template-hash": "1"},
                "annotations": {"machinedeployment.clusters.x-k8s.io/revision": "1"}});
            create(
                &self.server,
                &created("MachineSet", &metadata, &json!({"clusterName": "here"})),
            )
            .await;
        }
        // A name is never given twice.
        let first = self.server.version();
        for number in (first..).take(replicas.saturating_sub(standing.len())) {
            let fresh = format!("{named}-{number}");
            let metadata = json!({"name": fresh, "namespace": NAMESPACE, "labels": {DEPLOYMENT: named,
                "cluster.x-k8s.io/set-name": set, "machine-template-hash": "1"}, "finalizers": ["machine.cluster.x-k8s.io"]});
            create(
                &self.server,
                &created("Machine", &metadata, &json!({"clusterName": "here"})),
            )
            .await;
        }
        standing.sort_by_key(|machine| {
            let is_marked = machine["metadata"]["annotations"][DELETE_FIRST].is_string();
            (!is_marked, name(machine).to_owned())
        });
        for surplus in standing.iter().take(standing.len().saturating_sub(replicas)) {
            delete(&self.server, surplus).await;
        }
    }

    /// Keeps as many pods of a budget as it says, and its status as its controller would.
    async fn replicate(&self, objects: &[Value], budget: &Value) {
        let number = |value: &Value| value.as_str().and_then(|text| text.parse::<usize>().ok());
        let kept = number(&budget["metadata"]["annotations"][KEPT]).unwrap_or(0);
        let app = budget["spec"]["selector"]["matchLabels"]["app"]
            .as_str()
            .unwrap_or_default();
        let standing = selected(objects, budget).filter(|pod| !is_deleting(pod)).count();
        let first = self.server.version();
        for serial in (first..).take(kept.saturating_sub(standing)) {
            self.create(&pod(&format!("{app}-{serial}"), app)).await;
        }
        let running = selected(objects, budget)
            .filter(|pod| pod["spec"]["nodeName"].is_string() && !is_deleting(pod))
            .count();
        let least = usize::try_from(budget["spec"]["minAvailable"].as_u64().unwrap_or(0)).unwrap_or(0);
        let status = json!({"disruptionsAllowed": running.saturating_sub(least), "currentHealthy": running,
            "desiredHealthy": least, "expectedPods": kept});
        if budget["status"] != status {
            merge_status(&self.server, budget, status).await;
        }
    }

    /// A Machine's host boots at once, and is gone at once.
    async fn host(&self, objects: &[Value], machine: &Value) {
        let named = name(machine);
        let node = find(objects, "Node", named);
        if is_deleting(machine) {
            if let Some(node) = node {
                delete(&self.server, node).await;
            }
            merge(&self.server, machine, json!({"metadata": {"finalizers": null}})).await;
            return;
        }
        let id = format!("test://{named}");
        if machine["spec"]["providerID"].is_null() {
            merge(&self.server, machine, json!({"spec": {"providerID": id}})).await;
            return;
        }
        if node.is_none() {
            let amounts = json!({"cpu": CORES.to_string(), "memory": "16Gi", "pods": "110"});
            let made = json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": named, "labels": {"kubernetes.io/hostname": named, "kubernetes.io/arch": "amd64",
                    "kubernetes.io/os": "linux"}},
                "spec": {"providerID": id, "taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]}});
            create(&self.server, &made).await;
            let status = json!({"capacity": amounts, "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True"}]});
            merge_status(&self.server, &made, status).await;
            merge_status(
                &self.server,
                machine,
                json!({"nodeRef": {"name": named}, "phase": "Running"}),
            )
            .await;
        }
    }

    /// Puts pods on nodes without taints that have cores left, and says where there are none.
    async fn schedule(&self, objects: &[Value]) {
        let cores = |pod: &Value| -> i64 {
            let asked = &pod["spec"]["containers"][0]["resources"]["requests"]["cpu"];
            asked.as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let mut left: BTreeMap<&str, i64> = of_kind(objects, "Node")
            .filter(|node| !is_deleting(node) && node["spec"]["taints"].as_array().is_none_or(Vec::is_empty))
            .map(|node| (name(node), CORES))
            .collect();
        for pod in of_kind(objects, "Pod") {
            if let Some(node) = pod["spec"]["nodeName"].as_str() {
                if find(objects, "Node", node).is_none() {
                    delete(&self.server, pod).await;
                } else if let Some(left) = left.get_mut(node) {
                    *left -= cores(pod);
                }
            }
        }
        for pod in of_kind(objects, "Pod").filter(|pod| pod["spec"]["nodeName"].is_null()) {
            let asked = cores(pod);
            if let Some((node, left)) = left.iter_mut().find(|(_, left)| **left >= asked) {
                *left -= asked;
                merge(&self.server, pod, json!({"spec": {"nodeName": node}})).await;
                merge_status(&self.server, pod, json!({"phase": "Running", "conditions": null})).await;
            } else if pod["status"]["conditions"].is_null() {
                let unschedulable =
                    json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
                let status = json!({"phase": "Pending", "conditions": unschedulable});
                merge_status(&self.server, pod, status).await;
            }
        }
    }

    /// A Cluster, a MachineDeployment with sizes, and a NodePool over it.
    pub async fn found(&self, most: usize, limit: &str) {
        let metadata = json!({"name": "here", "namespace": NAMESPACE});
        create(&self.server, &created("Cluster", &metadata, &json!({}))).await;
        let metadata = json!({"name": "general", "namespace": NAMESPACE, "annotations": {
            MIN: "0", MAX: most.to_string(),
            "capacity.cluster-autoscaler.kubernetes.io/cpu": CORES.to_string(),
            "capacity.cluster-autoscaler.kubernetes.io/memory": "16Gi",
            "capacity.cluster-autoscaler.kubernetes.io/price": "0.2"}});
        let spec =
            json!({"clusterName": "here", "replicas": 0, "template": {"spec": {"clusterName": "here"}}});
        create(&self.server, &created("MachineDeployment", &metadata, &spec)).await;
        self.node_pool(json!({}), limit).await;
    }

    async fn node_pool(&self, class: Value, limit: &str) {
        create(
            &self.server,
            &json!({"apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
                "metadata": {"name": "here"}, "spec": class}),
        )
        .await;
        create(
            &self.server,
            &json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "general"},
                "spec": {"limits": {"nodes": limit}, "template": {"spec": {"requirements": [], "nodeClassRef": {
                    "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "here"}}}}}),
        )
        .await;
    }

    /// Pods that are kept up, and a budget of which at least so many run.
    pub async fn budget(&self, app: &str, pods: usize, least: usize) {
        let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": app, "namespace": NAMESPACE, "annotations": {KEPT: pods.to_string()}},
            "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": app}}}});
        create(&self.server, &budget).await;
    }

    pub async fn pods(&self, names: impl IntoIterator<Item = String>) {
        for named in names {
            create(&self.server, &pod(&named, "")).await;
        }
    }

    pub async fn delete_all(&self, kind: &str) {
        let objects: Vec<Value> = self.server.look(<[Value]>::to_vec);
        for object in of_kind(&objects, kind) {
            delete(&self.server, object).await;
        }
    }

    pub async fn merge(&self, kind: &str, named: &str, patch: Value) {
        let objects: Vec<Value> = self.server.look(<[Value]>::to_vec);
        let object = find(&objects, kind, named).expect("it is there").clone();
        merge(&self.server, &object, patch).await;
    }

    pub async fn create(&self, object: &Value) {
        create(&self.server, object).await;
    }
}

/// A pod of two cores, so that two share a node.
fn pod(named: &str, app: &str) -> Value {
    let requests = json!({"cpu": "2", "memory": "1Gi"});
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": named, "namespace": NAMESPACE, "labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]}})
}

/// Whether so many pods run.
pub fn run(objects: &[Value], expected: usize) -> bool {
    of_kind(objects, "Pod")
        .filter(|pod| pod["spec"]["nodeName"].is_string())
        .count()
        == expected
}

pub fn count(objects: &[Value], kind: &str) -> usize {
    of_kind(objects, kind).count()
}

/// Waits until as many pods run, and every claim is ready.
pub async fn until_running(world: &World, pods: usize) {
    world
        .until("pods run and claims are ready", |objects| {
            run(objects, pods) && of_kind(objects, "NodeClaim").all(|claim| holds(claim, "Ready"))
        })
        .await;
}
