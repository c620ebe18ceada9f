//! What surrounds both controllers: an apiserver in memory for the management cluster and one for the workload cluster,
//! the simulated K3s behind it, and the parts Cluster API's core, the health check and the hosts play. What must never
//! happen is noted where it happens.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
    time::Duration,
};

use http_body_util::BodyExt;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Namespace, Node as CoreNode, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_k3s::{
    api::{KThreesConfig, KThreesControlPlane},
    control_plane::workload::Connector,
    provider,
};
use slipway_k3s_sim::{Model, Node, model};
use slipway_memory::{
    Apiserver, Kinds, Snapshot,
    faults::{Fate, Faults},
};
use slipway_runtime::Clock;

pub const NAMESPACE: &str = "fleet";
const CORE: &str = "cluster.x-k8s.io";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
const PENDING_HOOKS: &str = "runtime.cluster.x-k8s.io/pending-hooks";
const UPDATE_IN_PROGRESS: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";

/// A kind of somebody else, as far as the test needs it.
fn foreign_crd(group: &str, version: &str, kind: &str) -> CustomResourceDefinition {
    let plural = format!("{}s", kind.to_lowercase());
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let conditions = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        "items": any.clone()});
    let scope = if kind == "ExtensionConfig" {
        "Cluster"
    } else {
        "Namespaced"
    };
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"), "labels": {"cluster.x-k8s.io/v1beta2": version}},
        "spec": {
            "group": group, "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [{"name": version, "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": any.clone(),
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        "properties": {"conditions": conditions}},
                }}}}],
        },
    }))
    .expect("a definition")
}

fn foreign_crds() -> Vec<CustomResourceDefinition> {
    vec![
        foreign_crd(CORE, "v1beta2", "Cluster"),
        foreign_crd(CORE, "v1beta2", "Machine"),
        foreign_crd(CORE, "v1beta2", "MachinePool"),
        foreign_crd("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig"),
        foreign_crd(INFRASTRUCTURE, "v1beta1", "HostMachine"),
        foreign_crd(INFRASTRUCTURE, "v1beta1", "HostMachineTemplate"),
    ]
}

/// Every kind and webhook there is in the management cluster, read once: schemas take long to make.
fn kinds() -> &'static Kinds {
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| {
        provider()
            .packages
            .iter()
            .map(|package| Kinds::read(&package.crds, &package.conversion, &package.admission))
            .fold(Kinds::read(&foreign_crds(), &[], &[]), Kinds::and)
    });
    &KINDS
}

/// What happened on the stage, beside the objects.
#[derive(Clone, Default)]
pub struct Book {
    /// Machines whose host never comes up.
    pub broken: BTreeSet<String>,
    /// What must never happen, and did.
    pub violations: Vec<String>,
    /// Hosts that were told to initialise a cluster.
    pub initialised: Vec<String>,
    /// Userdata by host, as it booted with it.
    pub userdata: BTreeMap<String, String>,
    /// The workload cluster's front door is shut.
    pub unreachable: bool,
    /// Requests to the workload cluster.
    pub workload_requests: usize,
    /// A health check hands silent servers over after this long.
    pub health_check_after: Option<Duration>,
    /// Updates in place are played by core itself: the host is restarted with the machine's version.
    pub plays_updates: bool,
    unhealthy_since: BTreeMap<String, Timestamp>,
    /// What the parts were last played on.
    played: Option<Cue>,
    /// The nodes as the workload cluster was last shown them, and the model's revision then.
    copied: (u64, BTreeMap<String, Value>),
    /// The version of the workload cluster whose annotations have been taken.
    taken: u64,
    /// What the first write of each secret said.
    secrets: BTreeMap<String, Value>,
}

impl Book {
    /// Servers that have been silent for longer than the health check waits.
    fn due(&self, now: Timestamp) -> Vec<String> {
        let Some(after) = self.health_check_after else {
            return Vec::new();
        };
        let after = jiff::SignedDuration::try_from(after).unwrap_or_default();
        let silent = self.unhealthy_since.iter();
        silent
            .filter(|(_, since)| now.duration_since(**since) >= after)
            .map(|(name, _)| name.clone())
            .collect()
    }
}

/// What core and the hosts act on: where it is the same, they have nothing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cue {
    management: u64,
    nodes: Vec<(String, bool)>,
    hosts: usize,
    members: Vec<(u64, bool)>,
    quorum: bool,
    broken: BTreeSet<String>,
    plays_updates: bool,
    health_check_after: Option<Duration>,
    /// Servers whose health check has run out.
    due: Vec<String>,
}

/// A theatre as it stood at one moment.
#[derive(Clone)]
pub struct Scene {
    pub management: Snapshot,
    workload: Snapshot,
    model: Model,
    book: Book,
}

/// Everything around the controllers. Clones share it.
#[derive(Clone)]
pub struct Theatre {
    pub management: Apiserver,
    pub workload: Apiserver,
    pub model: Arc<Mutex<Model>>,
    pub book: Arc<Mutex<Book>>,
    pub clock: Clock,
}

impl Theatre {
    pub fn new(management: Apiserver, clock: Clock) -> Self {
        management.install_kinds(kinds());
        let book = Book {
            plays_updates: true,
            ..Book::default()
        };
        Self {
            management,
            workload: Apiserver::new(clock),
            model: Arc::new(Mutex::new(Model::new(clock.now()))),
            book: Arc::new(Mutex::new(book)),
            clock,
        }
    }

    pub fn scene(&self) -> Scene {
        Scene {
            management: self.management.snapshot(),
            workload: self.workload.snapshot(),
            model: self.model.lock().clone(),
            book: self.book.lock().clone(),
        }
    }

    /// A theatre that goes on from a scene, with a clock that starts when it was taken.
    pub fn resume(management: Apiserver, clock: Clock, scene: &Scene) -> Self {
        management.restore(&scene.management);
        let workload = Apiserver::new(clock);
        workload.restore(&scene.workload);
        Self {
            management,
            workload,
            model: Arc::new(Mutex::new(scene.model.clone())),
            book: Arc::new(Mutex::new(scene.book.clone())),
            clock,
        }
    }

    /// How the controllers reach the workload cluster: through its apiserver in memory and the simulated supervisor, both
    /// counted, and both failing where the faults or the book say so.
    pub fn connector(&self, faults: &Faults) -> Connector {
        let (theatre, faults) = (self.clone(), faults.clone());
        Arc::new(move |_kubeconfig: Secret, _authority: Secret, _token: String| {
            let (theatre, faults) = (theatre.clone(), faults.clone());
            Box::pin(async move {
                let client = theatre.guarded(theatre.workload.client_with(faults.clone()));
                Ok((client, theatre.supervisor(faults)))
            }) as futures::future::BoxFuture<'static, Result<_, slipway_k3s::error::Error>>
        })
    }

    fn is_down(&self) -> bool {
        let mut book = self.book.lock();
        book.workload_requests += 1;
        book.unreachable || !self.model.lock().has_quorum()
    }

    /// The same client, behind a door that shuts when the plane is down.
    fn guarded(&self, client: kube::Client) -> kube::Client {
        let theatre = self.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (theatre, client) = (theatre.clone(), client.clone());
            async move {
                if theatre.is_down() {
                    return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
                }
                client.send(request).await.map_err(std::io::Error::other)
            }
        });
        kube::Client::new(service, "default")
    }

    /// `/db/info`, as the supervisor answers it.
    fn supervisor(&self, faults: Faults) -> kube::Client {
        let theatre = self.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (theatre, faults) = (theatre.clone(), faults.clone());
            async move {
                assert_eq!(request.uri().path(), "/db/info");
                let refused = || Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
                if theatre.is_down() {
                    return refused();
                }
                match faults.external("get /db/info", false).await {
                    Fate::Pass => {}
                    Fate::Refuse(_) | Fate::Lose | Fate::LoseAnswer => return refused(),
                    Fate::Hang | Fate::HangAnswer => std::future::pending().await,
                }
                let members: Vec<Value> = theatre
                    .model
                    .lock()
                    .members
                    .iter()
                    .map(|member| {
                        json!({"ID": member.id, "name": member.name, "isLearner": member.learner,
                            "peerURLs": [format!("https://{}:2380", member.address)]})
                    })
                    .collect();
                let body = json!({"members": members}).to_string();
                let body = http_body_util::Full::new(bytes::Bytes::from(body)).boxed();
                Ok(http::Response::new(body))
            }
        });
        kube::Client::new(service, "default")
    }

    pub fn dynamic(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.management.client(), NAMESPACE, &resource)
    }

    pub fn machines(&self) -> Api<DynamicObject> {
        self.dynamic(CORE, "v1beta2", "Machine")
    }

    pub fn clusters(&self) -> Api<DynamicObject> {
        self.dynamic(CORE, "v1beta2", "Cluster")
    }

    pub fn hosts(&self) -> Api<DynamicObject> {
        self.dynamic(INFRASTRUCTURE, "v1beta1", "HostMachine")
    }

    pub fn planes(&self) -> Api<KThreesControlPlane> {
        Api::namespaced(self.management.client(), NAMESPACE)
    }

    pub fn configs(&self) -> Api<KThreesConfig> {
        Api::namespaced(self.management.client(), NAMESPACE)
    }

    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.management.client(), NAMESPACE)
    }

    pub async fn servers(&self) -> Vec<DynamicObject> {
        let parameters = ListParams::default().labels("cluster.x-k8s.io/control-plane");
        self.machines().list(&parameters).await.expect("machines").items
    }

    /// A user's cluster of this many servers.
    pub async fn set_up(&self, replicas: i32, version: &str) {
        self.set_up_with(replicas, version, &json!({})).await;
    }

    /// The namespace, and the definitions of foreign kinds. Made by `set_up` where nobody did.
    pub async fn set_up_namespace(&self) {
        // References are resolved by the labels of stored definitions.
        for crd in &foreign_crds() {
            let _ = Api::<CustomResourceDefinition>::all(self.management.client())
                .create(&PostParams::default(), crd)
                .await;
        }
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("a namespace");
        let _ = Api::all(self.management.client())
            .create(&PostParams::default(), &namespace)
            .await;
    }

    /// The same, with a spec merged over it.
    pub async fn set_up_with(&self, replicas: i32, version: &str, more: &Value) {
        self.set_up_namespace().await;
        let cluster = create(
            &self.clusters(),
            json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
                "metadata": {"name": "edge", "namespace": NAMESPACE},
                "spec": {
                    "controlPlaneEndpoint": {"host": "10.9.9.9", "port": 6443},
                    "clusterNetwork": {"pods": {"cidrBlocks": ["10.52.0.0/16"]}},
                    "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KThreesControlPlane", "name": "edge"},
                }}),
        )
        .await;
        patch_status(
            &self.clusters(),
            "edge",
            json!({"initialization": {"infrastructureProvisioned": true}}),
        )
        .await;
        self.create_template("hosts", "small").await;
        let mut spec = json!({"replicas": replicas, "version": version, "machineTemplate": {
            "infrastructureRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "HostMachineTemplate", "name": "hosts"},
        }});
        merge(&mut spec, more);
        let plane: KThreesControlPlane = serde_json::from_value(json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KThreesControlPlane",
            "metadata": {"name": "edge", "namespace": NAMESPACE, "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "edge",
                "uid": cluster.metadata.uid, "controller": true,
            }]},
            "spec": spec,
        }))
        .expect("a control plane");
        self.planes()
            .create(&PostParams::default(), &plane)
            .await
            .expect("it is created");
    }

    pub async fn create_template(&self, name: &str, size: &str) {
        create(
            &self.dynamic(INFRASTRUCTURE, "v1beta1", "HostMachineTemplate"),
            json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "HostMachineTemplate",
                "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"template": {"spec": {"size": size}}}}),
        )
        .await;
    }

    /// A worker: its machine, its config and its host, as a MachineSet makes them.
    pub async fn create_worker(&self, name: &str, version: &str) {
        let labels = json!({"cluster.x-k8s.io/cluster-name": "edge"});
        create(
            &self.machines(),
            json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
                "spec": {"clusterName": "edge", "version": version,
                    "bootstrap": {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KThreesConfig", "name": name}},
                    "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "HostMachine", "name": name}}}),
        )
        .await;
        let config: KThreesConfig = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}, "spec": {}}))
        .expect("a config");
        self.configs()
            .create(&PostParams::default(), &config)
            .await
            .expect("it is created");
    }

    pub async fn patch_plane(&self, patch: Value) -> Result<KThreesControlPlane, kube::Error> {
        self.planes()
            .patch("edge", &PatchParams::default(), &Patch::Merge(&patch))
            .await
    }

    /// One step: the model's time catches up, core and hosts do their part, and what both sides wrote is exchanged.
    /// Where nothing moved since the last one, nothing is done.
    pub async fn step(&self) {
        {
            let mut model = self.model.lock();
            let passed = self.clock.now().duration_since(model.now);
            model.advance(Duration::try_from(passed).unwrap_or_default());
        }
        // Both are read before anything is done: what others write meanwhile is for the next step.
        let (workload, cue) = (self.workload.version(), self.cue());
        let mut moved = self.book.lock().taken != workload;
        if moved {
            self.take_annotations().await;
            self.book.lock().taken = workload;
        }
        if self.book.lock().played.as_ref() != Some(&cue) {
            self.core().await;
            self.book.lock().played = Some(cue);
            moved = true;
        }
        let revision = self.model.lock().revision;
        if moved || self.book.lock().copied.0 != revision {
            self.copy_nodes().await;
        }
    }

    fn cue(&self) -> Cue {
        let (model, book) = (self.model.lock(), self.book.lock());
        Cue {
            management: self.management.version(),
            nodes: model
                .nodes
                .iter()
                .map(|(name, node)| (name.clone(), node.ready))
                .collect(),
            hosts: model.hosts.len(),
            members: model
                .members
                .iter()
                .map(|member| (member.id, member.learner))
                .collect(),
            quorum: model.has_quorum(),
            broken: book.broken.clone(),
            plays_updates: book.plays_updates,
            health_check_after: book.health_check_after,
            due: book.due(self.clock.now()),
        }
    }

    fn violation(&self, what: impl Into<String>) {
        let what = format!("{}: {}", self.clock.now(), what.into());
        self.book.lock().violations.push(what);
    }

    /// What core and the hosts do by themselves.
    async fn core(&self) {
        let tell = self.management.look(|objects| {
            let said = |kind: &str, field: &str| {
                objects.iter().any(|object| {
                    object["kind"] == kind && object["status"].pointer(field) == Some(&json!(true))
                })
            };
            said("KThreesControlPlane", "/initialized")
                && !said("Cluster", "/initialization/controlPlaneInitialized")
        });
        if tell {
            patch_status(
                &self.clusters(),
                "edge",
                json!({"initialization": {"infrastructureProvisioned": true, "controlPlaneInitialized": true}}),
            )
            .await;
        }
        for machine in self
            .machines()
            .list(&ListParams::default())
            .await
            .expect("machines")
            .items
        {
            if machine.metadata.deletion_timestamp.is_some() {
                self.finish_deletion(&machine).await;
            } else {
                self.tend(&machine).await;
            }
        }
    }

    async fn tend(&self, machine: &DynamicObject) {
        let name = machine.name_any();
        if machine.finalizers().is_empty() {
            let patch = json!({"metadata": {"finalizers": ["machine.cluster.x-k8s.io"]}});
            let _ = self
                .machines()
                .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
        }
        // One that has booted has all it needs of its config.
        let booted = !machine.data["spec"]["bootstrap"]["dataSecretName"].is_null()
            && self.model.lock().hosts.contains_key(&name);
        if !booted && let Some(config) = self.configs().get_opt(&name).await.expect("a config") {
            let owned = config
                .owner_references()
                .iter()
                .any(|owner| owner.kind == "Machine" && Some(&owner.uid) == machine.metadata.uid.as_ref());
            if !owned {
                let patch = json!({"metadata": {"ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2",
                    "kind": "Machine", "name": name, "uid": machine.metadata.uid, "controller": true}]}});
                let _ = self
                    .configs()
                    .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await;
            }
            if let Some(secret) = config.status.and_then(|status| status.data_secret_name) {
                if machine.data["spec"]["bootstrap"]["dataSecretName"].is_null() {
                    let patch = json!({"spec": {"bootstrap": {"dataSecretName": secret}}});
                    let _ = self
                        .machines()
                        .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                        .await;
                }
                self.boot(&name, &secret).await;
            }
        }
        let ready = self.model.lock().nodes.get(&name).map(|node| node.ready);
        if let Some(ready) = ready {
            if machine.data["status"]["nodeRef"].is_null() {
                patch_status(&self.machines(), &name, json!({"nodeRef": {"name": name}})).await;
            }
            let status = if ready { "True" } else { "False" };
            for type_ in ["Ready", "Available"] {
                if condition(machine, type_)["status"] != status {
                    set_condition(&self.machines(), &name, type_, status).await;
                }
            }
        }
        self.check_health(machine, ready).await;
        if self.book.lock().plays_updates {
            self.play_update(machine).await;
        }
    }

    /// A MachineHealthCheck, where the book says so.
    async fn check_health(&self, machine: &DynamicObject, ready: Option<bool>) {
        let name = machine.name_any();
        let now = self.clock.now();
        if self.book.lock().health_check_after.is_none() {
            return;
        }
        let healthy = ready == Some(true) || (ready.is_none() && !self.book.lock().broken.contains(&name));
        let due = {
            let mut book = self.book.lock();
            if healthy {
                book.unhealthy_since.remove(&name);
            } else {
                book.unhealthy_since.entry(name.clone()).or_insert(now);
            }
            book.due(now).contains(&name)
        };
        if due && condition(machine, "HealthCheckSucceeded")["status"] != "False" {
            set_condition(&self.machines(), &name, "HealthCheckSucceeded", "False").await;
            set_condition(&self.machines(), &name, "OwnerRemediated", "False").await;
        }
    }

    pub async fn boot(&self, name: &str, secret: &str) {
        if self.book.lock().broken.contains(name) || self.model.lock().hosts.contains_key(name) {
            return;
        }
        let Some(secret) = self.secrets().get_opt(secret).await.expect("an answer") else {
            return;
        };
        let userdata = String::from_utf8(secret.data.expect("data")["value"].0.clone()).expect("text");
        let version = userdata
            .split("INSTALL_K3S_VERSION=")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .expect("a version")
            .to_owned();
        let mut model = self.model.lock();
        if userdata.contains("k3s-install.sh agent") {
            if model.join_worker(name, &version) {
                self.book.lock().userdata.insert(name.to_owned(), userdata);
            }
            return;
        }
        if !userdata.contains("cluster-cidr: 10.52.0.0/16") {
            drop(model);
            self.violation(format!("the Cluster's ranges are not honoured by {name}"));
            return;
        }
        if userdata.contains("datastore-endpoint: ") {
            // The model has no servers without etcd: the first keeps it, the others are nodes with a server's role.
            if model.members.is_empty() {
                model.initialize(name, &version);
            } else if model.join_worker(name, &version)
                && let Some(node) = model.nodes.get_mut(name)
            {
                node.labels
                    .insert("node-role.kubernetes.io/control-plane".into(), "true".into());
            }
            self.book.lock().userdata.insert(name.to_owned(), userdata);
            return;
        }
        if userdata.contains("cluster-init: true") {
            self.book.lock().initialised.push(name.to_owned());
            if !model.members.is_empty() {
                drop(model);
                self.violation(format!("S-15: {name} would initialise a second cluster"));
                return;
            }
            model.initialize(name, &version);
            self.book.lock().userdata.insert(name.to_owned(), userdata);
        } else if model.join(name, &version) {
            self.book.lock().userdata.insert(name.to_owned(), userdata);
        }
    }

    /// A machine that is being deleted: the drain, the hooks, the host, the node, the machine.
    pub async fn finish_deletion(&self, machine: &DynamicObject) {
        let name = machine.name_any();
        if machine
            .annotations()
            .keys()
            .any(|key| key.starts_with("pre-terminate.delete.hook"))
        {
            if condition(machine, "Deleting")["reason"] != "WaitingForPreTerminateHook" {
                let told = json!({"type": "Deleting", "status": "True", "reason": "WaitingForPreTerminateHook",
                    "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
                apply_condition(&self.machines(), &name, "core-deleting", told).await;
            }
            return;
        }
        let plane = self.planes().get_opt("edge").await.expect("an answer");
        let going = plane.is_none_or(|plane| plane.metadata.deletion_timestamp.is_some());
        let lost = {
            let mut model = self.model.lock();
            let healthy = model.has_quorum();
            model.destroy(&name);
            let lost = !going && healthy && !model.has_quorum() && model.voters() > 0;
            model.delete_node(&name);
            lost
        };
        if lost {
            self.violation(format!("S-1: the host of {name} went and took quorum along"));
        }
        self.book.lock().unhealthy_since.remove(&name);
        let patch = json!({"metadata": {"finalizers": null}});
        let _ = self
            .machines()
            .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        let _ = self.configs().delete(&name, &DeleteParams::default()).await;
        let _ = self.hosts().delete(&name, &DeleteParams::default()).await;
    }

    /// Core's part of an update in place where every extension says yes at once: the host restarts with the version its
    /// machine has now, then the marks go.
    async fn play_update(&self, machine: &DynamicObject) {
        let name = machine.name_any();
        if !machine.annotations().contains_key(PENDING_HOOKS) {
            return;
        }
        self.finish_update(machine).await;
        let version = machine.data["spec"]["version"].as_str().unwrap_or_default();
        let mut model = self.model.lock();
        model.upgrade(&name, version);
    }

    /// Core's last writes of an update in place.
    pub async fn finish_update(&self, machine: &DynamicObject) {
        let name = machine.name_any();
        let done = json!({"metadata": {"annotations": {UPDATE_IN_PROGRESS: null}}});
        let _ = self
            .configs()
            .patch(&name, &PatchParams::default(), &Patch::Merge(&done))
            .await;
        let _ = self
            .hosts()
            .patch(&name, &PatchParams::default(), &Patch::Merge(&done))
            .await;
        let done = json!({"metadata": {"annotations": {UPDATE_IN_PROGRESS: null, PENDING_HOOKS: null}}});
        let _ = self
            .machines()
            .patch(&name, &PatchParams::default(), &Patch::Merge(&done))
            .await;
    }

    /// Shows those of the model's nodes that changed in the workload cluster.
    async fn copy_nodes(&self) {
        let (revision, nodes): (u64, BTreeMap<String, Value>) = {
            let model = self.model.lock();
            let nodes = model.nodes.iter();
            let nodes = nodes.map(|(name, node)| (name.clone(), node_json(name, node)));
            (model.revision, nodes.collect())
        };
        let (_, copied) = std::mem::replace(&mut self.book.lock().copied, (revision, nodes.clone()));
        let api: Api<CoreNode> = Api::all(self.workload.client());
        for name in copied.keys().filter(|name| !nodes.contains_key(*name)) {
            let _ = api.delete(name, &DeleteParams::default()).await;
        }
        for (name, mut body) in nodes {
            if copied.get(&name) == Some(&body) {
                continue;
            }
            let present = api.get_opt(&name).await.expect("an answer");
            match present {
                None => {
                    let node: CoreNode = serde_json::from_value(body.clone()).expect("a node");
                    api.create(&PostParams::default(), &node)
                        .await
                        .expect("a node is created");
                }
                Some(present) => {
                    // What k3s took away goes away.
                    for key in [
                        model::MEMBER_ANNOTATION,
                        model::ADDRESS_ANNOTATION,
                        model::REMOVE_ANNOTATION,
                    ] {
                        if present.annotations().contains_key(key)
                            && body["metadata"]["annotations"].get(key).is_none()
                        {
                            body["metadata"]["annotations"][key] = Value::Null;
                        }
                    }
                    let patch = json!({"metadata": {"labels": body["metadata"]["labels"],
                        "annotations": body["metadata"]["annotations"]}});
                    api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                        .await
                        .expect("a node is written");
                }
            }
            let status = json!({"status": body["status"]});
            api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
                .await
                .expect("a node's status");
        }
    }

    /// Brings what the controller wrote onto nodes back to the model, where k3s' own controllers act on it.
    async fn take_annotations(&self) {
        let api: Api<CoreNode> = Api::all(self.workload.client());
        let nodes = api.list(&ListParams::default()).await.expect("nodes").items;
        for node in &nodes {
            let name = node.name_any();
            let lost = {
                let mut model = self.model.lock();
                let healthy = model.has_quorum();
                if !model.nodes.contains_key(&name) {
                    let labels = node.labels().clone();
                    if labels.contains_key("node-role.kubernetes.io/etcd")
                        && node
                            .annotations()
                            .contains_key(slipway_k3s::control_plane::workload::PLACEHOLDER)
                    {
                        model.create_node(&name, labels, node.annotations().clone());
                    }
                } else if node.annotations().contains_key(model::REMOVE_ANNOTATION)
                    && !model.nodes[&name]
                        .annotations
                        .contains_key(model::REMOVE_ANNOTATION)
                    && !model.nodes[&name]
                        .annotations
                        .contains_key(model::REMOVED_ANNOTATION)
                {
                    model.annotate(&name, model::REMOVE_ANNOTATION, Some("true"));
                }
                healthy && !model.has_quorum()
            };
            if lost {
                self.violation(format!("S-1: removing the member of {name} cost quorum"));
            }
        }
        let mut model = self.model.lock();
        let placed: Vec<String> = model
            .nodes
            .iter()
            .filter(|(_, node)| {
                node.annotations
                    .contains_key(slipway_k3s::control_plane::workload::PLACEHOLDER)
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in placed {
            if !nodes.iter().any(|node| node.name_any() == name) {
                model.delete_node(&name);
            }
        }
    }

    /// What holds of the objects at all times: secrets stay what the first host was told, and there is never more than
    /// one server too many.
    pub fn check(&self, objects: &[Value]) -> Result<(), String> {
        let mut book = self.book.lock();
        if let Some(violation) = book.violations.first() {
            return Err(violation.clone());
        }
        let of = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        if !book.initialised.is_empty() {
            for secret in of("Secret") {
                let name = secret["metadata"]["name"].as_str().unwrap_or_default();
                if !["edge-ca", "edge-cca", "edge-etcd", "edge-token"].contains(&name) {
                    continue;
                }
                let first = book
                    .secrets
                    .entry(name.to_owned())
                    .or_insert_with(|| secret["data"].clone());
                if *first != secret["data"] {
                    return Err(format!(
                        "Secret {name} was made anew after a host had been told the first one"
                    ));
                }
            }
        }
        if book.initialised.iter().collect::<BTreeSet<_>>().len() > 1 {
            return Err(format!("two hosts initialised: {:?}", book.initialised));
        }
        for plane in of("KThreesControlPlane") {
            let replicas = plane["spec"]["replicas"].as_u64().unwrap_or(1);
            let servers = of("Machine")
                .filter(|machine| {
                    !machine["metadata"]["labels"]["cluster.x-k8s.io/control-plane"].is_null()
                        && machine["metadata"]["deletionTimestamp"].is_null()
                })
                .count() as u64;
            // Somebody may have scaled down since.
            if servers > replicas.max(3) + 1 {
                return Err(format!("{servers} servers where {replicas} are wanted"));
            }
        }
        Ok(())
    }

    pub fn settled(&self, servers: usize, version: &str) -> bool {
        let model = self.model.lock();
        model.healthy_voters() == servers
            && model.members.len() == servers
            && model
                .hosts
                .values()
                .filter(|host| host.alive && host.server)
                .all(|host| host.version == version)
    }
}

/// Lays one value over another.
pub fn merge(target: &mut Value, over: &Value) {
    match (target, over) {
        (Value::Object(target), Value::Object(over)) => {
            for (key, value) in over {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (target, over) => *target = over.clone(),
    }
}

pub async fn create(api: &Api<DynamicObject>, body: Value) -> DynamicObject {
    let object: DynamicObject = serde_json::from_value(body).expect("an object");
    api.create(&PostParams::default(), &object)
        .await
        .expect("it is created")
}

/// A condition of a machine, or null.
pub fn condition(machine: &DynamicObject, type_: &str) -> Value {
    machine.data["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == type_)
        .cloned()
        .unwrap_or(Value::Null)
}

fn node_json(name: &str, node: &Node) -> Value {
    let time = |at: Timestamp| at.to_string();
    let mut conditions = vec![
        json!({"type": "Ready", "status": if node.ready { "True" } else { "False" },
        "reason": "Kubelet", "message": "Kubelet stopped posting node status.",
        "lastHeartbeatTime": time(node.ready_since), "lastTransitionTime": time(node.ready_since)}),
    ];
    if let Some(voter) = &node.voter {
        conditions.push(
            json!({"type": "EtcdIsVoter", "status": if voter.status { "True" } else { "False" },
            "reason": voter.reason, "message": voter.message,
            "lastHeartbeatTime": time(voter.heartbeat), "lastTransitionTime": time(voter.transition)}),
        );
    }
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": node.labels, "annotations": node.annotations},
        "spec": {"providerID": node.provider_id},
        "status": {"conditions": conditions, "nodeInfo": {
            "kubeletVersion": node.kubelet_version, "architecture": "", "bootID": "", "containerRuntimeVersion": "",
            "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}}})
}

pub async fn patch_status(api: &Api<DynamicObject>, name: &str, status: Value) {
    // Somebody may have deleted it since it was listed.
    let _ = api
        .patch_status(
            name,
            &PatchParams::default(),
            &Patch::Merge(&json!({"status": status})),
        )
        .await;
}

pub async fn set_condition(api: &Api<DynamicObject>, name: &str, type_: &str, status: &str) {
    let condition = json!({"type": type_, "status": status, "reason": "Played", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    apply_condition(api, name, &format!("core-{}", type_.to_lowercase()), condition).await;
}

async fn apply_condition(api: &Api<DynamicObject>, name: &str, manager: &str, condition: Value) {
    let body = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": name, "namespace": NAMESPACE}, "status": {"conditions": [condition]}});
    let _ = api
        .patch_status(name, &PatchParams::apply(manager).force(), &Patch::Apply(&body))
        .await;
}
