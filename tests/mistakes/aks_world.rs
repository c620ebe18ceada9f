//! The controllers of AKS on the apiserver simulator, with the simulated Azure behind them, in virtual time.

use std::{
    ops::Deref,
    sync::{Arc, LazyLock},
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_aks::{access::Access, provider};
use slipway_apiserver_sim::{Apiserver, Kinds};
use slipway_azure::{Azure, Cloud, Clouds, Tuning, workload::nodes::Nodes};
use slipway_azure_sim::{Settings, Speed};
pub use slipway_kit::azure::NAMESPACE;
use slipway_kit::{
    azure::{self, CLIENT, Controllers, SUBSCRIPTION, TENANT},
    core::kinds::{CORE, INFRASTRUCTURE, beside, of_core},
    objects::{condition, create, find, holds},
};
use slipway_runtime::Clock;

use crate::why::{self, Expected};

pub const INFRASTRUCTURE_VERSION: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
pub const PLANE: &str = "AzureManagedControlPlane";
pub const POOL: &str = "AzureManagedMachinePool";

fn kinds() -> &'static Kinds {
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| beside(&of_core(), &provider::provider()));
    &KINDS
}

/// The kinds and webhooks without controllers, and a Cluster whose service range is 192.168.0.0/16.
pub async fn bare_server() -> Apiserver {
    let server = Apiserver::new(Clock::starting_at(
        "2026-01-01T00:00:00Z".parse().expect("a time"),
    ));
    server.install_kinds(kinds());
    create(&server, &cluster()).await;
    server
}

fn cluster() -> Value {
    json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "Cluster",
        "metadata": {"name": "fleet", "namespace": NAMESPACE},
        "spec": {"clusterNetwork": {"services": {"cidrBlocks": ["192.168.0.0/16"]}},
            "controlPlaneRef": {"apiGroup": INFRASTRUCTURE, "kind": PLANE, "name": "fleet"},
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "AzureManagedCluster", "name": "fleet"}}})
}

pub fn identity() -> Value {
    json!({"apiVersion": INFRASTRUCTURE_VERSION, "kind": "AzureClusterIdentity",
        "metadata": {"name": "fleet", "namespace": NAMESPACE},
        "spec": {"type": "ServicePrincipal", "clientID": CLIENT, "tenantID": TENANT, "allowedNamespaces": {},
            "clientSecret": {"name": "fleet-secret", "namespace": NAMESPACE}}})
}

pub fn pool(name: &str, mode: &str, replicas: i32, spec: &Value) -> Vec<Value> {
    let mut class = json!({"mode": mode, "sku": "Standard_D2s_v3", "name": name});
    json_patch::merge(&mut class, spec);
    vec![
        json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "MachinePool",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"clusterName": "fleet", "replicas": replicas, "template": {"spec": {
                "version": "v1.33.3", "clusterName": "fleet", "bootstrap": {"dataSecretName": ""},
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": POOL, "name": name}}}}}),
        json!({"apiVersion": INFRASTRUCTURE_VERSION, "kind": POOL,
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": class}),
    ]
}

/// What a user applies, without the identity: a cluster with a system pool.
pub fn manifests(plane: &Value, system_pool: &Value) -> Vec<Value> {
    let mut spec = json!({
        "version": "v1.33.3", "location": "westus3", "resourceGroupName": "fleet", "subscriptionID": SUBSCRIPTION,
        "identityRef": {"kind": "AzureClusterIdentity", "name": "fleet", "namespace": NAMESPACE},
    });
    json_patch::merge(&mut spec, plane);
    let mut all = vec![
        cluster(),
        json!({"apiVersion": INFRASTRUCTURE_VERSION, "kind": "AzureManagedCluster",
            "metadata": {"name": "fleet", "namespace": NAMESPACE}, "spec": {}}),
        json!({"apiVersion": INFRASTRUCTURE_VERSION, "kind": PLANE,
            "metadata": {"name": "fleet", "namespace": NAMESPACE}, "spec": spec}),
    ];
    all.extend(pool("system", "System", 1, system_pool));
    all
}

pub struct World(azure::World);

impl Deref for World {
    type Target = azure::World;

    fn deref(&self) -> &azure::World {
        &self.0
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(Settings {
            speed: Speed::Times(20.0),
            ..Settings::default()
        })
    }

    pub fn with(settings: Settings) -> Self {
        let controllers: Controllers = Arc::new(|clock, transport| {
            let azure = Azure::over(Cloud::public(), Tuning::default(), clock, transport);
            let unreachable = Nodes::connecting_by(Arc::new(|_, _| {
                Err(kube::Error::Service(Box::new(std::io::Error::other(
                    "no route to host",
                ))))
            }));
            provider::controllers(&Access::new(Clouds::only(azure)), &unreachable)
        });
        Self(azure::World::new(kinds(), settings, controllers))
    }

    /// A cluster that is ready.
    pub async fn standing() -> Self {
        let world = Self::new();
        world.apply_secret("right").await;
        world.apply(&[identity()]).await;
        world.apply(&manifests(&json!({}), &json!({}))).await;
        world.until_ready().await;
        world
    }

    pub async fn apply(&self, manifests: &[Value]) {
        azure::apply(&self.server, manifests).await;
    }

    /// The client secret of the identity, in place of an older one.
    pub async fn apply_secret(&self, value: &str) {
        let secrets: Api<Secret> = Api::namespaced(self.server.client(), NAMESPACE);
        let _ = secrets.delete("fleet-secret", &DeleteParams::default()).await;
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "fleet-secret", "namespace": NAMESPACE},
            "data": {"clientSecret": k8s_openapi::ByteString(value.as_bytes().to_vec())},
        }))
        .expect("a secret");
        secrets
            .create(&PostParams::default(), &secret)
            .await
            .expect("a secret");
    }

    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        azure::api(&self.server, kind)
    }

    pub async fn merge(&self, kind: &str, name: &str, patch: Value) -> Result<(), kube::Error> {
        self.api(kind)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(|_| ())
    }

    pub async fn must_merge(&self, kind: &str, name: &str, patch: Value) {
        self.merge(kind, name, patch)
            .await
            .unwrap_or_else(|error| panic!("patching {kind} {name}: {error}"));
    }

    pub async fn delete(&self, kind: &str, name: &str) -> Result<(), kube::Error> {
        self.api(kind)
            .delete(name, &DeleteParams::default())
            .await
            .map(|_| ())
    }

    pub fn object(&self, kind: &str, name: &str) -> Option<Value> {
        find(&self.server.objects(), kind, name).cloned()
    }

    /// Reason and message of a condition once it is False and has settled: the same for five minutes.
    pub async fn seen(&self, kind: &str, name: &str, type_: &str) -> String {
        let said = || {
            let object = self.object(kind, name)?;
            let condition = condition(&object, type_);
            (condition["status"] == "False").then(|| {
                format!(
                    "`{type_}` False, `{}`: {}",
                    condition["reason"].as_str().unwrap_or_default(),
                    condition["message"].as_str().unwrap_or_default()
                )
            })
        };
        let (mut last, mut since) = (None, 0);
        for _ in 0..2000 {
            let now = said();
            since = if now.is_some() && now == last {
                since + 1
            } else {
                0
            };
            last = now;
            if let (Some(text), true) = (&last, since >= 150) {
                return text.clone();
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        panic!(
            "{kind} {name} never settles with {type_} False: {:?}",
            self.object(kind, name)
        );
    }

    /// What `slipway why` says of the Cluster.
    pub fn why(&self, expected: &Expected) -> String {
        why::of_cluster(&self.server, self.clock, "fleet", expected)
    }

    pub async fn until(&self, what: &str, reached: impl Fn(&Self) -> bool) {
        self.0.until(what, || reached(self)).await;
    }

    pub async fn until_ready(&self) {
        self.until("ready", |world| {
            [(PLANE, "fleet"), (POOL, "system")].iter().all(|(kind, name)| {
                world.object(kind, name).is_some_and(|object| {
                    holds(&object, "Ready")
                        && object["status"]["observedGeneration"] == object["metadata"]["generation"]
                })
            })
        })
        .await;
    }

    /// Everything is gone, here and in Azure.
    pub async fn until_gone(&self) {
        self.until("gone", |world| {
            world.object("Cluster", "fleet").is_none() && world.object(PLANE, "fleet").is_none()
        })
        .await;
    }
}
