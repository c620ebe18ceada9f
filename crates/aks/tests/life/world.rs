//! The world in which the controllers of AKS live, and what a user applies there.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, LazyLock},
};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use slipway_aks::{access::Access, provider};
use slipway_apiserver_sim::{Apiserver, Kinds};
use slipway_azure::{Azure, Cloud, Clouds, Tuning, workload::nodes::Nodes};
use slipway_azure_sim::Settings;
use slipway_kit::{
    azure::{self, Controllers},
    core::kinds::{CORE, INFRASTRUCTURE, beside, of_core},
};
pub use slipway_kit::{
    azure::{CLIENT, NAMESPACE, SUBSCRIPTION, TENANT, api, merge, quick, remove},
    objects::{condition, create, holds},
};

/// Must appear nowhere but in the Secret it stands in.
pub const CLIENT_SECRET: &str = "hunter2-client-secret";

/// Every kind and webhook.
pub fn kinds() -> &'static Kinds {
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| beside(&of_core(), &provider::provider()));
    &KINDS
}

/// The controllers of one process.
pub fn controllers(nodes: Nodes) -> Controllers {
    Arc::new(move |clock, transport| {
        let azure = Azure::over(Cloud::public(), Tuning::default(), clock, transport);
        provider::controllers(&Access::new(Clouds::only(azure)), &nodes)
    })
}

/// Workload clusters that nobody reaches.
pub fn unreachable() -> Nodes {
    Nodes::connecting_by(Arc::new(|_, _| {
        Err(kube::Error::Service(Box::new(std::io::Error::other(
            "no route to host",
        ))))
    }))
}

/// An object of the user's; a rival has objects of the same names.
pub fn find(objects: &[Value], kind: &str, name: &str) -> Option<Value> {
    let mut users = objects.iter().filter(|object| !is_rivals(object));
    let found = users.find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.cloned()
}

/// Whether an object is of the Cluster that names the same resources in Azure.
pub fn is_rivals(object: &Value) -> bool {
    object["metadata"]["namespace"] == super::ownership::OTHER
}

/// What a user applies: a cluster with its pools.
pub fn manifests(plane: &Value, pools: &[(&str, &str, i32)]) -> Vec<Value> {
    let mut spec = json!({
        "version": "v1.33.3", "location": "westus3", "resourceGroupName": "fleet", "subscriptionID": SUBSCRIPTION,
        "identityRef": {"kind": "AzureClusterIdentity", "name": "fleet", "namespace": NAMESPACE},
    });
    json_patch::merge(&mut spec, plane);
    let mut all = vec![
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureClusterIdentity",
            "metadata": {"name": "fleet", "namespace": NAMESPACE},
            "spec": {"type": "ServicePrincipal", "clientID": CLIENT, "tenantID": TENANT, "allowedNamespaces": {},
                "clientSecret": {"name": "fleet-secret", "namespace": NAMESPACE}}}),
        json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "Cluster",
            "metadata": {"name": "fleet", "namespace": NAMESPACE},
            "spec": {"clusterNetwork": {"services": {"cidrBlocks": ["192.168.0.0/16"]}},
                "controlPlaneRef": {"apiGroup": INFRASTRUCTURE, "kind": "AzureManagedControlPlane", "name": "fleet"},
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "AzureManagedCluster", "name": "fleet"}}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureManagedCluster",
            "metadata": {"name": "fleet", "namespace": NAMESPACE}, "spec": {}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureManagedControlPlane",
            "metadata": {"name": "fleet", "namespace": NAMESPACE}, "spec": spec}),
    ];
    for (name, mode, replicas) in pools {
        all.extend(pool_manifests(name, mode, *replicas, &json!({})));
    }
    all
}

pub fn pool_manifests(name: &str, mode: &str, replicas: i32, spec: &Value) -> Vec<Value> {
    let mut class = json!({"mode": mode, "sku": "Standard_D2s_v3", "name": name});
    json_patch::merge(&mut class, spec);
    vec![
        json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "MachinePool",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"clusterName": "fleet", "replicas": replicas, "template": {"spec": {
                "version": "v1.33.3", "clusterName": "fleet", "bootstrap": {"dataSecretName": ""},
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "AzureManagedMachinePool", "name": name}}}}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureManagedMachinePool",
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": class}),
    ]
}

/// Applies what a user applies.
pub async fn apply(server: &Apiserver, manifests: &[Value]) {
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "fleet-secret", "namespace": NAMESPACE}, "stringData": {},
        "data": {"clientSecret": k8s_openapi::ByteString(CLIENT_SECRET.as_bytes().to_vec())},
    }))
    .expect("a secret");
    let _ = Api::<Secret>::namespaced(server.client(), NAMESPACE)
        .create(&PostParams::default(), &secret)
        .await;
    azure::apply(server, manifests).await;
}

pub struct World(azure::World);

impl Deref for World {
    type Target = azure::World;

    fn deref(&self) -> &azure::World {
        &self.0
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut azure::World {
        &mut self.0
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(quick(), unreachable())
    }

    pub fn with(settings: Settings, nodes: Nodes) -> Self {
        Self(azure::World::new(kinds(), settings, controllers(nodes)))
    }

    pub fn object(&self, kind: &str, name: &str) -> Option<Value> {
        find(&self.server.objects(), kind, name)
    }

    pub fn plane(&self) -> Value {
        self.object("AzureManagedControlPlane", "fleet")
            .expect("a control plane")
    }

    pub async fn until(&self, what: &str, reached: impl Fn(&Self) -> bool) {
        self.0.until(what, || reached(self)).await;
    }

    pub async fn until_ready(&self, pools: &[&str]) {
        self.until("ready", |world| {
            let generation =
                |object: &Value| object["status"]["observedGeneration"] == object["metadata"]["generation"];
            world
                .object("AzureManagedControlPlane", "fleet")
                .is_some_and(|plane| holds(&plane, "Ready") && generation(&plane))
                && pools.iter().all(|pool| {
                    world
                        .object("AzureManagedMachinePool", pool)
                        .is_some_and(|pool| holds(&pool, "Ready") && generation(&pool))
                })
        })
        .await;
    }

    pub async fn until_gone(&self) {
        self.until("gone", |world| {
            !world.server.objects().iter().any(|object| {
                matches!(
                    object["kind"].as_str(),
                    Some("Cluster" | "AzureManagedControlPlane" | "AzureManagedMachinePool")
                )
            })
        })
        .await;
    }
}
