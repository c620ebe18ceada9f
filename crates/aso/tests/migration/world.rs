//! A classic cluster with the controllers of both AKS APIs, on the apiserver simulator, with the simulated Azure behind them.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, LazyLock},
    time::Duration,
};

use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_apiserver_sim::Kinds;
use slipway_aso::{
    command::objects::Objects,
    migrate::{command::migrate, plan::Goal},
};
use slipway_azure::{Azure, Cloud, Clouds, Tuning, session::Sessions, workload::nodes::Nodes};
use slipway_azure_sim::{Settings, Speed};
use slipway_kit::{
    asker::asker,
    azure::{self, CLIENT, Controllers, NAMESPACE, SUBSCRIPTION, TENANT},
    core::kinds::{CORE, INFRASTRUCTURE, beside, of_core},
    objects::{find, holds},
};
use slipway_runtime::ObjectKey;

fn kinds() -> &'static Kinds {
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| {
        let classic = beside(&of_core(), &slipway_aks::provider::provider());
        classic.and(beside(&[], &slipway_aso::provider::provider()))
    });
    &KINDS
}

fn identity() -> Value {
    json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureClusterIdentity",
        "metadata": {"name": "fleet", "namespace": NAMESPACE},
        "spec": {"type": "ServicePrincipal", "clientID": CLIENT, "tenantID": TENANT, "allowedNamespaces": {},
            "clientSecret": {"name": "fleet-secret", "namespace": NAMESPACE}}})
}

fn pool(name: &str, mode: &str, replicas: i32) -> Vec<Value> {
    let kind = "AzureManagedMachinePool";
    vec![
        json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "MachinePool",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"clusterName": "fleet", "replicas": replicas, "template": {"spec": {
                "version": "v1.33.3", "clusterName": "fleet", "bootstrap": {"dataSecretName": ""},
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": kind, "name": name}}}}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"mode": mode, "sku": "Standard_D2s_v3", "name": name, "nodeLabels": {"a": "b"}}}),
    ]
}

/// A classic cluster with a system and a user pool.
fn manifests() -> Vec<Value> {
    let reference = |kind: &str| json!({"apiGroup": INFRASTRUCTURE, "kind": kind, "name": "fleet"});
    let ours = |kind: &str, spec: Value| {
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": kind,
            "metadata": {"name": "fleet", "namespace": NAMESPACE}, "spec": spec})
    };
    let mut all = vec![
        json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "Cluster",
            "metadata": {"name": "fleet", "namespace": NAMESPACE},
            "spec": {"clusterNetwork": {"services": {"cidrBlocks": ["192.168.0.0/16"]}},
                "controlPlaneRef": reference("AzureManagedControlPlane"),
                "infrastructureRef": reference("AzureManagedCluster")}}),
        ours("AzureManagedCluster", json!({})),
        ours(
            "AzureManagedControlPlane",
            json!({"version": "v1.33.3", "location": "westus3", "resourceGroupName": "fleet", "subscriptionID": SUBSCRIPTION,
                "identityRef": {"kind": "AzureClusterIdentity", "name": "fleet", "namespace": NAMESPACE}}),
        ),
    ];
    all.extend(pool("system", "System", 1));
    all.extend(pool("user", "User", 2));
    all
}

fn unreachable() -> Nodes {
    Nodes::connecting_by(Arc::new(|_, _| {
        Err(kube::Error::Service(Box::new(std::io::Error::other(
            "no route to host",
        ))))
    }))
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

pub fn key() -> ObjectKey {
    ObjectKey::namespaced(NAMESPACE, "fleet")
}

impl World {
    /// A classic cluster with two pools that is ready. What was asked of Azure so far is forgotten.
    pub async fn standing() -> Self {
        let controllers: Controllers = Arc::new(|clock, transport| {
            let azure = Azure::over(Cloud::public(), Tuning::default(), clock, transport);
            let sessions = Sessions::new(Clouds::only(azure));
            let classic = slipway_aks::access::Access::sharing(sessions.clone());
            let inline = slipway_aso::access::Access::sharing(sessions);
            let mut all = slipway_aks::provider::controllers(&classic, &unreachable());
            all.extend(slipway_aso::provider::controllers(&inline, &unreachable()));
            all
        });
        let settings = Settings {
            speed: Speed::Times(20.0),
            ..Settings::default()
        };
        let world = Self(azure::World::new(kinds(), settings, controllers));
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fleet-secret", "namespace": NAMESPACE},
            "data": {"clientSecret": k8s_openapi::ByteString(b"right".to_vec())}});
        azure::apply(&world.server, &[secret, identity()]).await;
        azure::apply(&world.server, &manifests()).await;
        world
            .until("ready", |world| {
                let ready = |kind: &str, name: &str| {
                    world.object(kind, name).is_some_and(|object| is_settled(&object))
                };
                ready("AzureManagedControlPlane", "fleet")
                    && ready("AzureManagedMachinePool", "system")
                    && ready("AzureManagedMachinePool", "user")
            })
            .await;
        tokio::time::sleep(Duration::from_mins(20)).await;
        world.simulator.azure().forget_requests();
        world
    }

    pub async fn until(&self, what: &str, reached: impl Fn(&Self) -> bool) {
        self.0.until(what, || reached(self)).await;
    }

    pub fn object(&self, kind: &str, name: &str) -> Option<Value> {
        find(&self.server.objects(), kind, name).cloned()
    }

    /// Names of all objects of these kinds.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let objects = self.server.objects();
        let of_kind = objects.iter().filter(|object| {
            object["kind"]
                .as_str()
                .is_some_and(|kind| kind.starts_with(prefix))
        });
        let mut names: Vec<String> = of_kind
            .map(|object| {
                format!(
                    "{} {}",
                    object["kind"].as_str().unwrap_or_default(),
                    object["metadata"]["name"].as_str().unwrap_or_default()
                )
            })
            .collect();
        names.sort();
        names
    }

    /// Requests that change something in Azure.
    pub fn writes(&self) -> Vec<String> {
        let azure = self.simulator.azure();
        azure
            .requests()
            .filter(|request| ["PUT", "PATCH", "DELETE"].contains(&request.method.as_str()))
            .map(|request| format!("{} {}", request.method, request.path))
            .collect()
    }

    /// `slipway migrate`, over a client of its own.
    pub async fn migrate_over(&self, client: Client, goal: Goal) -> Result<Vec<String>, String> {
        let objects = Objects::discover(&client).await?;
        let mut told = Vec::new();
        let asker = asker(self.context());
        migrate(&objects, &asker, &key(), goal, &mut |line| {
            told.push(line.to_owned());
        })
        .await?;
        Ok(told)
    }

    pub async fn migrate(&self, goal: Goal) -> Result<Vec<String>, String> {
        self.migrate_over(self.server.client(), goal).await
    }

    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        azure::api(&self.server, kind)
    }

    pub async fn merge(&self, kind: &str, name: &str, patch: Value) {
        let done = self
            .api(kind)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        done.unwrap_or_else(|error| panic!("patching {kind} {name}: {error}"));
    }

    pub async fn delete(&self, kind: &str, name: &str) {
        let _ = self.api(kind).delete(name, &DeleteParams::default()).await;
    }

    /// Every inline object is there and settled.
    pub async fn until_inline_ready(&self) {
        self.until("inline and ready", |world| {
            let ready =
                |kind: &str, name: &str| world.object(kind, name).is_some_and(|object| is_settled(&object));
            ready("AzureASOManagedCluster", "fleet")
                && ready("AzureASOManagedControlPlane", "fleet")
                && ready("AzureASOManagedMachinePool", "system")
                && ready("AzureASOManagedMachinePool", "user")
        })
        .await;
    }
}

pub fn is_settled(object: &Value) -> bool {
    let generation = &object["metadata"]["generation"];
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let newer = object["status"]["v1beta2"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let mut ready = conditions
        .chain(newer)
        .filter(|one| one["type"] == "Ready" && !one["observedGeneration"].is_null());
    holds(object, "Ready") && ready.all(|one| one["observedGeneration"] == *generation)
}
