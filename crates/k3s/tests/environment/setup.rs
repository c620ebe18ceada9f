//! What a user makes and reads: the kinds by name, and a cluster with its control plane, templates and workers.

use k8s_openapi::{
    api::core::v1::{Namespace, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_k3s::api::{KThreesConfig, KThreesControlPlane};
use slipway_kit::core::kinds::{CORE, INFRASTRUCTURE};

use super::{
    Environment, NAMESPACE,
    kinds::foreign_crds,
    objects::{create, merge, patch_status},
};

impl Environment {
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

    pub fn infra_machines(&self) -> Api<DynamicObject> {
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
}
