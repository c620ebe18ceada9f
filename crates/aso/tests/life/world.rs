//! The world in which the controllers of inline resources live, and what a user applies there.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, LazyLock},
};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use slipway_apiserver_sim::Kinds;
use slipway_aso::{access::Access, provider};
use slipway_azure::{Azure, Cloud, Clouds, Tuning, workload::nodes::Nodes};
use slipway_azure_sim::Settings;
use slipway_kit::{
    azure::{self, CLIENT, Controllers, NAMESPACE, SUBSCRIPTION, TENANT},
    core::kinds::{CORE, INFRASTRUCTURE, beside, of_core},
    objects,
};
pub use slipway_kit::{
    azure::{apply, merge, quick, remove},
    objects::{condition, create, holds},
};

/// Must appear nowhere but in the Secret it stands in.
pub const CLIENT_SECRET: &str = "hunter2-client-secret";
pub const OLD: &str = "v1.33.3";
pub const NEW: &str = "v1.34.1";

/// Every kind.
pub fn kinds() -> &'static Kinds {
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| beside(&of_core(), &provider::provider()));
    &KINDS
}

/// Every kind, and those of Azure Service Operator.
pub fn kinds_with_operator() -> &'static Kinds {
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| {
        let others = [of_core(), super::operator::definitions()].concat();
        beside(&others, &provider::provider())
    });
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

pub fn find(objects: &[Value], kind: &str, name: &str) -> Option<Value> {
    objects::find(objects, kind, name).cloned()
}

/// A credential in the form of Azure Service Operator.
pub fn credential(name: &str) -> Value {
    let data: serde_json::Map<String, Value> = [
        ("AZURE_SUBSCRIPTION_ID", SUBSCRIPTION),
        ("AZURE_TENANT_ID", TENANT),
        ("AZURE_CLIENT_ID", CLIENT),
        ("AZURE_CLIENT_SECRET", CLIENT_SECRET),
    ]
    .map(|(key, value)| (key.to_owned(), json!(ByteString(value.as_bytes().to_vec()))))
    .into_iter()
    .collect();
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data})
}

/// A resource in the form of Azure Service Operator, which signs in with `sign-in`.
pub fn resource(api_version: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "annotations": {"serviceoperator.azure.com/credential-from": "sign-in"}},
        "spec": spec,
    })
}

pub fn group() -> Value {
    resource(
        "resources.azure.com/v1api20200601",
        "ResourceGroup",
        "fleet",
        &json!({"location": "westus3"}),
    )
}

pub const AKS: &str = "containerservice.azure.com/v1api20240901";

pub fn managed_cluster(patch: &Value) -> Value {
    let mut spec = json!({
        "owner": {"name": "fleet"}, "location": "westus3", "dnsPrefix": "fleet",
        "identity": {"type": "SystemAssigned"}, "networkProfile": {"networkPlugin": "azure"},
        "servicePrincipalProfile": {"clientId": "msi"},
    });
    json_patch::merge(&mut spec, patch);
    resource(AKS, "ManagedCluster", "fleet", &spec)
}

pub fn network() -> Value {
    resource(
        "network.azure.com/v1api20240301",
        "VirtualNetwork",
        "fleet",
        &json!({"owner": {"name": "fleet"}, "location": "westus3",
            "addressSpace": {"addressPrefixes": ["10.0.0.0/8"]}}),
    )
}

/// The infrastructure and control plane of a Cluster, with these resources.
pub fn cluster(infrastructure: &[Value], plane: &[Value]) -> Vec<Value> {
    let reference = |kind: &str| json!({"apiGroup": INFRASTRUCTURE, "kind": kind, "name": "fleet"});
    let ours = |kind: &str, spec: Value| {
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": kind,
            "metadata": {"name": "fleet", "namespace": NAMESPACE}, "spec": spec})
    };
    vec![
        credential("sign-in"),
        json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "Cluster",
            "metadata": {"name": "fleet", "namespace": NAMESPACE},
            "spec": {"clusterNetwork": {"services": {"cidrBlocks": ["192.168.0.0/16"]}},
                "controlPlaneRef": reference("AzureASOManagedControlPlane"),
                "infrastructureRef": reference("AzureASOManagedCluster")}}),
        ours("AzureASOManagedCluster", json!({"resources": infrastructure})),
        ours(
            "AzureASOManagedControlPlane",
            json!({"version": OLD, "resources": plane}),
        ),
    ]
}

/// What a user applies: a cluster with its pools.
pub fn manifests(pools: &[(&str, &str, i32)]) -> Vec<Value> {
    let mut all = cluster(&[group()], &[managed_cluster(&json!({}))]);
    for (name, mode, replicas) in pools {
        all.extend(pool_manifests(name, mode, *replicas, &json!({})));
    }
    all
}

pub fn pool_manifests(name: &str, mode: &str, replicas: i32, patch: &Value) -> Vec<Value> {
    let mut spec = json!({
        "azureName": name, "owner": {"name": "fleet"}, "mode": mode, "type": "VirtualMachineScaleSets",
        "vmSize": "Standard_D2s_v3",
    });
    json_patch::merge(&mut spec, patch);
    let pool = resource(AKS, "ManagedClustersAgentPool", &format!("fleet-{name}"), &spec);
    vec![
        json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "MachinePool",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"clusterName": "fleet", "replicas": replicas, "template": {"spec": {
                "version": OLD, "clusterName": "fleet", "bootstrap": {"dataSecretName": ""},
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "AzureASOManagedMachinePool", "name": name}}}}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureASOManagedMachinePool",
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"resources": [pool]}}),
    ]
}

/// Whether an object is ready for what is asked for now.
pub fn is_settled(object: &Value) -> bool {
    holds(object, "Ready")
        && condition(object, "Ready")["observedGeneration"] == object["metadata"]["generation"]
}

/// When the token in the kubeconfig that Cluster API reads ends.
pub fn token_ends(objects: &[Value]) -> Option<Timestamp> {
    let secret = find(objects, "Secret", "fleet-kubeconfig")?;
    let text = STANDARD.decode(secret["data"]["value"].as_str()?).ok()?;
    let config: Value = serde_saphyr::from_str(&String::from_utf8(text).ok()?).ok()?;
    let token = config["users"][0]["user"]["token"].as_str()?;
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    Timestamp::from_second(claims["exp"].as_i64()?).ok()
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

    pub fn of_kinds(kinds: &Kinds) -> Self {
        Self(azure::World::new(kinds, quick(), controllers(unreachable())))
    }

    pub fn with(settings: Settings, nodes: Nodes) -> Self {
        Self(azure::World::new(kinds(), settings, controllers(nodes)))
    }

    /// Requests that change something in Azure, so far.
    pub fn writes(&self) -> usize {
        ["PUT", "PATCH", "DELETE"]
            .map(|method| self.count(method, ""))
            .iter()
            .sum()
    }

    pub fn object(&self, kind: &str, name: &str) -> Option<Value> {
        find(&self.server.objects(), kind, name)
    }

    pub fn plane(&self) -> Value {
        self.object("AzureASOManagedControlPlane", "fleet")
            .expect("a control plane")
    }

    pub fn infrastructure(&self) -> Value {
        self.object("AzureASOManagedCluster", "fleet")
            .expect("infrastructure")
    }

    pub fn pool(&self, name: &str) -> Value {
        self.object("AzureASOManagedMachinePool", name).expect("a pool")
    }

    /// The resources of an object, put in place of those it has.
    pub async fn replace_resources(&self, kind: &str, name: &str, resources: &[Value]) {
        let patch = json!({"spec": {"resources": resources}});
        merge(&self.server, kind, name, patch).await;
    }

    pub async fn until(&self, what: &str, reached: impl Fn(&Self) -> bool) {
        self.0.until(what, || reached(self)).await;
    }

    pub async fn until_ready(&self, pools: &[&str]) {
        self.until("ready", |world| {
            is_settled(&world.plane())
                && is_settled(&world.infrastructure())
                && pools.iter().all(|pool| is_settled(&world.pool(pool)))
        })
        .await;
    }

    pub async fn until_gone(&self) {
        self.until("gone", |world| {
            !world.server.objects().iter().any(|object| {
                let kind = object["kind"].as_str().unwrap_or_default();
                kind == "Cluster" || kind.starts_with("AzureASO")
            })
        })
        .await;
    }
}
