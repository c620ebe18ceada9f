//! What surrounds the autoscaler: MachineDeployments that make Machines, hosts that become Nodes, and a scheduler. All of it
//! follows from what the apiserver shows, so nothing of it has to be kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, api::PostParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_kit::{
    core::kinds::{CORE, INFRASTRUCTURE, foreign},
    journey::Surroundings,
    objects::{create, delete, find, holds, is_deleting, merge, merge_status, name, of_kind},
    sweep::World,
};
use slipway_runtime::{Clock, Settings, controller::Registration};

use super::workload::{budgets_hold, pod, pod_of};
use crate::world::Random;

pub const NAMESPACE: &str = "default";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";
/// On a budget: how many pods of its selector are kept up.
pub const KEPT: &str = "slipway.test/pods";
/// On a budget: how many cores each of them asks for; two if absent.
pub const SIZE: &str = "slipway.test/cores";
const DEPLOYMENT: &str = "cluster.x-k8s.io/deployment-name";
const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim";
const DELETE_FIRST: &str = "cluster.x-k8s.io/delete-machine";
const MIN: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size";
const MAX: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";
/// Of every host.
pub const CORES: i64 = 4;

/// On the Cluster: how Cluster API and the hosts are. `away`: they do nothing. `slow`: Machines get no provider id. `erratic`:
/// each thing is done at some passes and not at others.
const MOOD: &str = "slipway.test/mood";

/// On a MachineDeployment: its Machines come to nothing. `failed`: they fail; `failing-new`: those that
/// have not begun yet do. `blocked`: a preflight check keeps them from being made.
pub const TROUBLE: &str = "slipway.test/trouble";

/// The cluster.
pub struct Life {
    pub server: Apiserver,
    /// How often Cluster API has looked.
    passes: AtomicU64,
    /// Budgets that had the pods they ask for.
    budgets_met: Mutex<BTreeSet<String>>,
}

impl Life {
    fn over(server: &Apiserver) -> Self {
        Life {
            server: server.clone(),
            passes: AtomicU64::default(),
            budgets_met: Mutex::default(),
        }
    }
}

fn mood(objects: &[Value]) -> &str {
    let cluster = of_kind(objects, "Cluster").next();
    let mood = cluster.and_then(|cluster| cluster["metadata"]["annotations"][MOOD].as_str());
    mood.unwrap_or_default()
}

/// What a MachineDeployment suffers from.
fn trouble<'a>(objects: &'a [Value], deployment: &Value) -> &'a str {
    let found = deployment
        .as_str()
        .and_then(|named| find(objects, "MachineDeployment", named));
    let trouble = found.and_then(|deployment| deployment["metadata"]["annotations"][TROUBLE].as_str());
    trouble.unwrap_or_default()
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
        Life::over(server)
    }

    fn resume(server: &Apiserver, _: Clock, (): &()) -> Self {
        Life::over(server)
    }

    fn state(&self) {}

    fn controllers(self: &Arc<Self>, _: &Faults) -> Vec<Registration> {
        let controllers = slipway_autoscaler::provider().packages.remove(0).controllers;
        controllers.into_iter().map(gated).collect()
    }

    fn play(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        let life = Arc::clone(self);
        async move {
            let mut reconciled = 0;
            loop {
                let is_erratic = life.server.look(|objects| mood(objects) == "erratic");
                if is_erratic || life.server.version() != reconciled {
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
        budgets_hold(objects, &mut self.budgets_met.lock())
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
            "bound": bound, "nodes": count("Node"), "pods": count("Pod"), "running": running,
            "parts": count("EdgeMachine") + count("EdgeConfig")})
    }
}

/// The same with every gate on: without a static NodePool or a node that is ill they change nothing.
fn gated(registration: Registration) -> Registration {
    let run = registration.run;
    Registration {
        name: registration.name,
        run: Arc::new(move |mut context| {
            let mut settings = Settings::clone(&context.settings);
            for gate in ["NodeRepair", "StaticCapacity"] {
                settings.gates = settings.gates.with(gate, true);
            }
            context.settings = Arc::new(settings);
            run(context)
        }),
    }
}

fn created(kind: &str, metadata: &Value, spec: &Value) -> Value {
    json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": kind, "metadata": metadata, "spec": spec})
}

impl Life {
    /// One pass of Cluster API, the hosts and the scheduler.
    async fn reconcile(&self) {
        let objects: Vec<Value> = self.server.look(<[Value]>::to_vec);
        let mood = mood(&objects);
        let mut random = Random::new(self.passes.fetch_add(1, Ordering::SeqCst));
        let mut is_done = || mood != "away" && (mood != "erratic" || random.below(3) == 0);
        for deployment in of_kind(&objects, "MachineDeployment").filter(|_| is_done()) {
            self.scale(&objects, deployment).await;
        }
        for machine in of_kind(&objects, "Machine").filter(|_| is_done()) {
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
        if trouble(objects, &json!(named)) == "blocked" {
            let of_set = created(
                "MachineSet",
                &json!({"name": set, "namespace": NAMESPACE}),
                &json!({}),
            );
            let message = format!(
                "Scaling up from 0 to {replicas} replicas is blocked because:\n* the control plane upgrades"
            );
            let status = json!({"conditions": [{"type": "ScalingUp", "status": if replicas == 0 { "False" } else { "True" },
                "reason": "ScalingUp", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
            merge_status(&self.server, &of_set, status).await;
            return;
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

    /// A Machine's host boots at once, and is gone at once.
    async fn host(&self, objects: &[Value], machine: &Value) {
        let named = name(machine);
        let node = find(objects, "Node", named);
        if is_deleting(machine) {
            if let Some(node) = node {
                delete(&self.server, node).await;
            }
            // Core deletes what a Machine refers to.
            for part in ["EdgeMachine", "EdgeConfig"]
                .iter()
                .filter_map(|kind| find(objects, kind, named))
            {
                delete(&self.server, part).await;
            }
            merge(&self.server, machine, json!({"metadata": {"finalizers": null}})).await;
            return;
        }
        if machine["metadata"]["finalizers"].is_null() {
            let finalizers = json!({"metadata": {"finalizers": ["machine.cluster.x-k8s.io"]}});
            merge(&self.server, machine, finalizers).await;
            return;
        }
        let fails = match trouble(objects, &machine["metadata"]["labels"][DEPLOYMENT]) {
            "failed" => true,
            "failing-new" => machine["spec"]["providerID"].is_null(),
            _ => false,
        };
        if fails {
            merge_status(&self.server, machine, json!({"phase": "Failed"})).await;
            return;
        }
        let id = format!("test://{named}");
        if machine["spec"]["providerID"].is_null() {
            if mood(objects) == "slow" {
                return;
            }
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

    /// A Cluster, a MachineDeployment with sizes, and a NodePool over it.
    pub async fn found(&self, most: usize, limit: &str) {
        let metadata = json!({"name": "here", "namespace": NAMESPACE});
        create(&self.server, &created("Cluster", &metadata, &json!({}))).await;
        self.machine_deployment("general", most, "0.2", "").await;
        self.node_pool(json!({}), limit).await;
    }

    pub async fn machine_deployment(&self, named: &str, most: usize, price: &str, trouble: &str) {
        let metadata = json!({"name": named, "namespace": NAMESPACE, "annotations": {
            MIN: "0", MAX: most.to_string(), TROUBLE: trouble,
            "capacity.cluster-autoscaler.kubernetes.io/cpu": CORES.to_string(),
            "capacity.cluster-autoscaler.kubernetes.io/memory": "16Gi",
            "capacity.cluster-autoscaler.kubernetes.io/price": price}});
        let spec =
            json!({"clusterName": "here", "replicas": 0, "template": {"spec": {"clusterName": "here"}}});
        create(&self.server, &created("MachineDeployment", &metadata, &spec)).await;
    }

    /// A Cluster, two infrastructure machine templates of which one is taken, and a NodePool over them.
    pub async fn found_templates(&self, limit: &str) {
        // Stored, and not only known: the labels of definitions say which version has the contract.
        for (group, kind) in [
            (INFRASTRUCTURE, "EdgeMachine"),
            (INFRASTRUCTURE, "EdgeMachineTemplate"),
            (BOOTSTRAP, "EdgeConfig"),
            (BOOTSTRAP, "EdgeConfigTemplate"),
        ] {
            let definition = foreign(group, "v1beta1", kind);
            let definitions: Api<CustomResourceDefinition> = Api::all(self.server.client());
            let stored = definitions.create(&PostParams::default(), &definition).await;
            stored.expect("the definition is stored");
        }
        let metadata = json!({"name": "here", "namespace": NAMESPACE});
        create(&self.server, &created("Cluster", &metadata, &json!({}))).await;
        for (named, labels) in [("edge", json!({"fleet": "edge"})), ("other", json!({}))] {
            let template = json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "EdgeMachineTemplate",
                "metadata": {"name": named, "namespace": NAMESPACE, "labels": labels},
                "spec": {"template": {"spec": {"disk": "20Gi"}}}});
            create(&self.server, &template).await;
            let capacity = json!({"capacity": {"cpu": CORES.to_string(), "memory": "16Gi"}});
            merge_status(&self.server, &template, capacity).await;
        }
        create(
            &self.server,
            &json!({"apiVersion": format!("{BOOTSTRAP}/v1beta1"), "kind": "EdgeConfigTemplate",
                "metadata": {"name": "edge", "namespace": NAMESPACE}, "spec": {"template": {"spec": {"script": "true"}}}}),
        )
        .await;
        let class = json!({"clusterName": "here", "namespace": NAMESPACE, "labels": ["fleet=edge"],
            "scalableResource": {"group": INFRASTRUCTURE, "kind": "EdgeMachineTemplate"},
            "machineTemplate": {"version": "v1.36.3",
                "bootstrapRef": {"apiGroup": BOOTSTRAP, "kind": "EdgeConfigTemplate", "name": "edge"}}});
        self.node_pool(class, limit).await;
    }

    /// A Cluster, a MachineDeployment with sizes, and a static NodePool over it.
    pub async fn found_static(&self, most: usize, replicas: i64) {
        let metadata = json!({"name": "here", "namespace": NAMESPACE});
        create(&self.server, &created("Cluster", &metadata, &json!({}))).await;
        self.machine_deployment("general", most, "0.2", "").await;
        self.node_class(json!({})).await;
        create(
            &self.server,
            &json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "general"},
                "spec": {"replicas": replicas, "limits": {"nodes": "4"}, "template": {"spec": {"requirements": [],
                    "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "here"}}}}}),
        )
        .await;
    }

    async fn node_class(&self, class: Value) {
        create(
            &self.server,
            &json!({"apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
                "metadata": {"name": "here"}, "spec": class}),
        )
        .await;
    }

    async fn node_pool(&self, class: Value, limit: &str) {
        self.node_class(class).await;
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

    /// The same of so many cores each.
    pub async fn budget_of(&self, app: &str, pods: usize, least: usize, cores: usize) {
        self.budget(app, 0, least).await;
        let annotations = json!({KEPT: pods.to_string(), SIZE: cores.to_string()});
        let patch = json!({"metadata": {"annotations": annotations}});
        self.merge("PodDisruptionBudget", app, patch).await;
    }

    /// Cluster API and the hosts are so from now on.
    pub async fn feel(&self, mood: &str) {
        let mood = json!({"metadata": {"annotations": {MOOD: mood}}});
        self.merge("Cluster", "here", mood).await;
    }

    pub async fn pods(&self, names: impl IntoIterator<Item = String>) {
        for named in names {
            create(&self.server, &pod(&named, "")).await;
        }
    }

    /// The same of so many cores each.
    pub async fn pods_of(&self, names: impl IntoIterator<Item = String>, cores: usize) {
        for named in names {
            create(&self.server, &pod_of(&named, "", cores)).await;
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
