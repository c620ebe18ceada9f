//! A stage for both controllers: an apiserver in memory, the simulated K3s, virtual time, and the parts Cluster API's
//! core and the hosts play: data secrets, nodes, drains.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

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
use serde_json::{Value, json};
use slipway_k3s::{
    api::{KThreesConfig, KThreesControlPlane},
    bootstrap::controller::ConfigReconciler,
    control_plane::controller::ControlPlaneReconciler,
    provider,
};
use slipway_k3s_sim::{Model, model};
use slipway_memory::Apiserver;
use slipway_runtime::controller::{Context, Reconciler};

pub const NAMESPACE: &str = "fleet";

/// A kind of somebody else, as far as the test needs it.
fn foreign_crd(group: &str, version: &str, kind: &str) -> CustomResourceDefinition {
    let plural = format!("{}s", kind.to_lowercase());
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let conditions = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        "items": any.clone()});
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"), "labels": {"cluster.x-k8s.io/v1beta2": version}},
        "spec": {
            "group": group, "scope": "Namespaced",
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

pub struct Stage {
    pub management: Apiserver,
    pub workload: Apiserver,
    pub model: Arc<parking_lot::Mutex<Model>>,
    pub context: Context,
    pub control_plane: ControlPlaneReconciler,
    /// Machines whose host never comes up.
    pub broken: std::collections::BTreeSet<String>,
}

impl Stage {
    pub async fn new(replicas: i32, version: &str) -> Self {
        let clock = slipway_runtime::Clock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time"));
        let (management, workload) = (Apiserver::new(clock), Apiserver::new(clock));
        for package in provider().packages {
            management.install(&package.crds, &package.conversion, &package.admission);
        }
        let core = "cluster.x-k8s.io";
        let infrastructure = "infrastructure.cluster.x-k8s.io";
        let foreign = [
            foreign_crd(core, "v1beta2", "Cluster"),
            foreign_crd(core, "v1beta2", "Machine"),
            foreign_crd(core, "v1beta2", "MachinePool"),
            foreign_crd(infrastructure, "v1beta1", "HostMachine"),
            foreign_crd(infrastructure, "v1beta1", "HostMachineTemplate"),
        ];
        management.install(&foreign, &[], &[]);
        // References are resolved by the labels of stored definitions.
        for crd in &foreign {
            let _ = Api::<CustomResourceDefinition>::all(management.client())
                .create(&PostParams::default(), crd)
                .await;
        }
        let model = Arc::new(parking_lot::Mutex::new(Model::new(clock.now())));
        let mut context = Context::for_tests(management.client(), 7);
        context.clock = clock;
        let (members, nodes) = (Arc::clone(&model), workload.clone());
        let connector = Arc::new(move |_kubeconfig: Secret, _authority: Secret, _token: String| {
            let (members, nodes) = (Arc::clone(&members), nodes.clone());
            Box::pin(async move { Ok((nodes.client(), supervisor(members))) })
                as futures::future::BoxFuture<'static, Result<_, slipway_k3s::error::Error>>
        });
        let stage = Self {
            management,
            workload,
            model,
            context,
            control_plane: ControlPlaneReconciler::connecting_by(connector),
            broken: std::collections::BTreeSet::new(),
        };
        stage.set_up(replicas, version).await;
        stage
    }

    pub fn dynamic(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.management.client(), NAMESPACE, &resource)
    }

    pub fn machines(&self) -> Api<DynamicObject> {
        self.dynamic("cluster.x-k8s.io", "v1beta2", "Machine")
    }

    pub fn clusters(&self) -> Api<DynamicObject> {
        self.dynamic("cluster.x-k8s.io", "v1beta2", "Cluster")
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

    pub async fn set_up(&self, replicas: i32, version: &str) {
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("a namespace");
        Api::all(self.management.client())
            .create(&PostParams::default(), &namespace)
            .await
            .expect("the namespace is created");
        let create = |api: Api<DynamicObject>, body: Value| async move {
            let object: DynamicObject = serde_json::from_value(body).expect("an object");
            api.create(&PostParams::default(), &object)
                .await
                .expect("it is created")
        };
        let cluster = create(
            self.clusters(),
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
        create(
            self.dynamic("infrastructure.cluster.x-k8s.io", "v1beta1", "HostMachineTemplate"),
            json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "HostMachineTemplate",
                "metadata": {"name": "hosts", "namespace": NAMESPACE}, "spec": {"template": {"spec": {"size": "small"}}}}),
        )
        .await;
        let plane: KThreesControlPlane = serde_json::from_value(json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KThreesControlPlane",
            "metadata": {"name": "edge", "namespace": NAMESPACE, "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "edge",
                "uid": cluster.metadata.uid, "controller": true,
            }]},
            "spec": {"replicas": replicas, "version": version, "machineTemplate": {
                "infrastructureRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "HostMachineTemplate", "name": "hosts"},
            }},
        }))
        .expect("a control plane");
        self.planes()
            .create(&PostParams::default(), &plane)
            .await
            .expect("it is created");
    }

    /// One round: time passes, core and hosts do their part, both controllers look once.
    pub async fn round(&mut self) {
        tokio::time::sleep(Duration::from_secs(15)).await;
        {
            let mut model = self.model.lock();
            let passed = self.context.clock.now().duration_since(model.now);
            model.advance(Duration::try_from(passed).unwrap_or_default());
        }
        self.core().await;
        self.copy_nodes().await;
        let configs = self
            .configs()
            .list(&ListParams::default())
            .await
            .expect("configs");
        for config in configs.items {
            for _ in 0..3 {
                let Some(config) = self
                    .configs()
                    .get_opt(&config.name_any())
                    .await
                    .expect("a config")
                else {
                    break;
                };
                ConfigReconciler
                    .reconcile(Arc::new(config), &self.context)
                    .await
                    .expect("a config reconciles");
            }
        }
        for _ in 0..3 {
            let Some(plane) = self.planes().get_opt("edge").await.expect("a control plane") else {
                break;
            };
            let outcome = self.control_plane.reconcile(Arc::new(plane), &self.context).await;
            if let Err(error) = outcome {
                panic!("the control plane reconciles: {error}");
            }
        }
        self.take_annotations().await;
    }

    /// What core and the hosts do by themselves.
    pub async fn core(&mut self) {
        let plane = self.planes().get_opt("edge").await.expect("a control plane");
        if plane.is_some_and(|plane| plane.status.is_some_and(|status| status.initialized)) {
            patch_status(
                &self.clusters(),
                "edge",
                json!({"initialization": {
                "infrastructureProvisioned": true, "controlPlaneInitialized": true}}),
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
            let name = machine.name_any();
            if machine.metadata.deletion_timestamp.is_some() {
                self.finish_deletion(&machine).await;
                continue;
            }
            let owner = json!({"metadata": {"finalizers": ["machine.cluster.x-k8s.io"]}});
            let _ = self
                .machines()
                .patch(&name, &PatchParams::default(), &Patch::Merge(&owner))
                .await;
            if let Some(config) = self.configs().get_opt(&name).await.expect("a config") {
                let patch = json!({"metadata": {"ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2",
                    "kind": "Machine", "name": name, "uid": machine.metadata.uid, "controller": true}]}});
                self.configs()
                    .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await
                    .expect("core becomes the owner");
                if let Some(secret) = config.status.and_then(|status| status.data_secret_name) {
                    self.boot(&name, &secret).await;
                }
            }
            let ready = self.model.lock().nodes.get(&name).map(|node| node.ready);
            if let Some(ready) = ready {
                patch_status(&self.machines(), &name, json!({"nodeRef": {"name": name}})).await;
                let status = if ready { "True" } else { "False" };
                set_condition(&self.machines(), &name, "Ready", status).await;
                set_condition(&self.machines(), &name, "Available", status).await;
            }
        }
    }

    pub async fn boot(&self, name: &str, secret: &str) {
        if self.broken.contains(name) || self.model.lock().hosts.contains_key(name) {
            return;
        }
        let secret = self.secrets().get(secret).await.expect("the data secret");
        let userdata = String::from_utf8(secret.data.expect("data")["value"].0.clone()).expect("text");
        let version = userdata
            .split("INSTALL_K3S_VERSION=")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .expect("a version")
            .to_owned();
        assert!(
            userdata.contains("cluster-cidr: 10.52.0.0/16"),
            "the Cluster's ranges are honoured"
        );
        let mut model = self.model.lock();
        if userdata.contains("cluster-init: true") {
            assert!(
                model.members.is_empty(),
                "S-15: a second machine would initialise"
            );
            model.initialize(name, &version);
        } else {
            model.join(name, &version);
        }
    }

    pub async fn finish_deletion(&self, machine: &DynamicObject) {
        let name = machine.name_any();
        if machine
            .annotations()
            .keys()
            .any(|key| key.starts_with("pre-terminate.delete.hook"))
        {
            let condition = json!({"type": "Deleting", "status": "True", "reason": "WaitingForPreTerminateHook",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            apply_condition(&self.machines(), &name, "core-deleting", condition).await;
            return;
        }
        let plane = self.planes().get_opt("edge").await.expect("an answer");
        let going = plane.is_none_or(|plane| plane.metadata.deletion_timestamp.is_some());
        {
            let mut model = self.model.lock();
            let healthy = model.has_quorum();
            model.destroy(&name);
            assert!(
                going || !healthy || model.has_quorum() || model.voters() == 0,
                "S-1: a host went and took quorum along"
            );
            model.delete_node(&name);
        }
        let patch = json!({"metadata": {"finalizers": null}});
        let _ = self
            .machines()
            .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        let _ = self.configs().delete(&name, &DeleteParams::default()).await;
    }

    /// Shows the model's nodes in the workload cluster.
    pub async fn copy_nodes(&self) {
        let api: Api<CoreNode> = Api::all(self.workload.client());
        let wanted: BTreeMap<String, Value> = {
            let model = self.model.lock();
            model
                .nodes
                .iter()
                .map(|(name, node)| (name.clone(), node_json(name, node)))
                .collect()
        };
        for node in api.list(&ListParams::default()).await.expect("nodes").items {
            if !wanted.contains_key(&node.name_any()) {
                let _ = api.delete(&node.name_any(), &DeleteParams::default()).await;
            }
        }
        for (name, body) in wanted {
            let _ = api.delete(&name, &DeleteParams::default()).await;
            let node: CoreNode = serde_json::from_value(body.clone()).expect("a node");
            api.create(&PostParams::default(), &node)
                .await
                .expect("a node is created");
            let status = json!({"status": body["status"]});
            api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
                .await
                .expect("a node's status");
        }
        // The watch takes the changes in.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    /// Brings what the controller wrote onto nodes back to the model, where k3s' own controllers act on it.
    pub async fn take_annotations(&self) {
        let api: Api<CoreNode> = Api::all(self.workload.client());
        for node in api.list(&ListParams::default()).await.expect("nodes").items {
            if node.annotations().contains_key(model::REMOVE_ANNOTATION) {
                let mut model = self.model.lock();
                let healthy = model.has_quorum();
                model.annotate(&node.name_any(), model::REMOVE_ANNOTATION, Some("true"));
                assert!(
                    !healthy || model.has_quorum(),
                    "S-1: removing a member cost quorum"
                );
            }
        }
    }

    pub fn settled(&self, servers: usize, version: &str) -> bool {
        let model = self.model.lock();
        model.healthy_voters() == servers
            && model.members.len() == servers
            && model
                .hosts
                .values()
                .filter(|host| host.alive)
                .all(|host| host.version == version)
    }

    pub async fn until_settled(&mut self, servers: usize, version: &str) {
        for _ in 0..160 {
            self.round().await;
            let machines = self
                .machines()
                .list(&ListParams::default())
                .await
                .expect("machines")
                .items
                .len();
            if machines == servers && self.settled(servers, version) {
                for _ in 0..3 {
                    self.round().await;
                }
                return;
            }
        }
        let plane = self.planes().get("edge").await.expect("a control plane");
        panic!(
            "{servers} servers of {version} do not settle: {:#?}",
            plane.status
        );
    }

    pub async fn patch_plane(&self, patch: Value) -> Result<KThreesControlPlane, kube::Error> {
        self.planes()
            .patch("edge", &PatchParams::default(), &Patch::Merge(&patch))
            .await
    }
}

fn node_json(name: &str, node: &model_node::Node) -> Value {
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

mod model_node {
    pub use slipway_k3s_sim::Node;
}

/// `/db/info`, as the supervisor answers it.
fn supervisor(model: Arc<parking_lot::Mutex<Model>>) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let model = Arc::clone(&model);
        async move {
            assert_eq!(request.uri().path(), "/db/info");
            let members: Vec<Value> = model
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
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        }
    });
    kube::Client::new(service, "default")
}

pub async fn patch_status(api: &Api<DynamicObject>, name: &str, status: Value) {
    api.patch_status(
        name,
        &PatchParams::default(),
        &Patch::Merge(&json!({"status": status})),
    )
    .await
    .expect("a status is written");
}

pub async fn set_condition(api: &Api<DynamicObject>, name: &str, type_: &str, status: &str) {
    let condition = json!({"type": type_, "status": status, "reason": "Played", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    apply_condition(api, name, &format!("core-{}", type_.to_lowercase()), condition).await;
}

async fn apply_condition(api: &Api<DynamicObject>, name: &str, manager: &str, condition: Value) {
    let body = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": name, "namespace": NAMESPACE}, "status": {"conditions": [condition]}});
    api.patch_status(name, &PatchParams::apply(manager).force(), &Patch::Apply(&body))
        .await
        .expect("a condition is applied");
}
