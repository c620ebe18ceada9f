//! What stories of inline resources share beside the AKS world: the manager, the manifests, and what is ready.

use anyhow::{Result, ensure};
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};
use serde_json::{Value, json};
use slipway_azure_sim::Server;
use slipway_kit::manager::Manager;
use slipway_testbed::{Cluster, install, wait::until};

use crate::{
    aks_manager::{Program, start_program},
    aks_world::{AZURE, CLIENT, CORE, Fleet, SUBSCRIPTION, TENANT, VERSION, World, condition},
};

pub const BINARY: &str = env!("CARGO_BIN_EXE_slipway-aso");
const GROUP: &str = "infrastructure.cluster.x-k8s.io";
pub const AKS: &str = "containerservice.azure.com/v1api20240901";
pub const NETWORK: &str = "network.azure.com/v1api20240301";
pub const PLANE: &str = "AzureASOManagedControlPlane";
pub const INFRASTRUCTURE: &str = "AzureASOManagedCluster";
pub const POOL: &str = "AzureASOManagedMachinePool";
/// The Secret that resources sign in with.
pub const CREDENTIAL: &str = "sign-in";

pub const PROGRAM: Program = Program {
    binary: BINARY,
    packages: || slipway_aso::provider::provider().packages,
};

pub async fn start_manager(cluster: &Cluster, azure: &Server) -> Result<Manager> {
    start_program(&PROGRAM, cluster, azure, &[]).await
}

pub async fn start(secret: String) -> Result<World> {
    World::managed_by(secret, "aso", start_manager).await
}

/// Ready for what the user asks for now.
pub fn is_settled(object: &DynamicObject) -> bool {
    let ready = condition(object, "Ready");
    object.data["status"]["ready"] == true
        && ready["status"] == "True"
        && ready["observedGeneration"] == json!(object.metadata.generation)
}

pub fn planes(fleet: &Fleet<'_>) -> Api<DynamicObject> {
    fleet.of(AZURE, PLANE)
}

pub fn pools(fleet: &Fleet<'_>) -> Api<DynamicObject> {
    fleet.of(AZURE, POOL)
}

/// A credential that goes along in `clusterctl move`.
pub fn credential(fleet: &Fleet<'_>, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "labels": {"clusterctl.cluster.x-k8s.io/move": "true"}},
        "stringData": {"AZURE_SUBSCRIPTION_ID": SUBSCRIPTION, "AZURE_TENANT_ID": TENANT, "AZURE_CLIENT_ID": CLIENT,
            "AZURE_CLIENT_SECRET": fleet.world.secret}})
}

/// A resource that signs in with the credential.
pub fn resource(api_version: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "annotations": {"serviceoperator.azure.com/credential-from": CREDENTIAL}},
        "spec": spec})
}

/// A Cluster with what is around it and its control plane.
pub fn cluster(name: &str, infrastructure: &[Value], plane: &[Value]) -> Vec<Value> {
    let reference = |kind: &str| json!({"apiGroup": GROUP, "kind": kind, "name": name});
    vec![
        json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": name},
            "spec": {"clusterNetwork": {"services": {"cidrBlocks": ["192.168.0.0/16"]}},
                "controlPlaneRef": reference(PLANE), "infrastructureRef": reference(INFRASTRUCTURE)}}),
        json!({"apiVersion": AZURE, "kind": INFRASTRUCTURE, "metadata": {"name": name},
            "spec": {"resources": infrastructure}}),
        json!({"apiVersion": AZURE, "kind": PLANE, "metadata": {"name": name},
            "spec": {"version": VERSION, "resources": plane}}),
    ]
}

pub fn resource_group(name: &str) -> Value {
    let group = "resources.azure.com/v1api20200601";
    resource(group, "ResourceGroup", name, &json!({"location": "westus3"}))
}

pub fn managed_cluster(name: &str) -> Value {
    resource(
        AKS,
        "ManagedCluster",
        name,
        &json!({"owner": {"name": name}, "location": "westus3", "dnsPrefix": name,
            "identity": {"type": "SystemAssigned"}, "networkProfile": {"networkPlugin": "azure"},
            "oidcIssuerProfile": {"enabled": true},
            "operatorSpec": {"configMaps": {"oidcIssuerProfile": {"name": "issuer", "key": "url"}}}}),
    )
}

/// A pool's resource, by its name in Azure, which is that of its object too.
pub fn pool_resource(cluster: &str, name: &str, mode: &str, patch: &Value) -> Value {
    let mut spec = json!({"azureName": name, "owner": {"name": cluster}, "mode": mode,
        "type": "VirtualMachineScaleSets", "vmSize": "Standard_D2s_v3"});
    json_patch::merge(&mut spec, patch);
    resource(
        AKS,
        "ManagedClustersAgentPool",
        &format!("{cluster}-{name}"),
        &spec,
    )
}

pub fn pool(cluster: &str, name: &str, mode: &str, replicas: i32) -> Vec<Value> {
    vec![
        json!({"apiVersion": CORE, "kind": "MachinePool", "metadata": {"name": name},
            "spec": {"clusterName": cluster, "replicas": replicas, "template": {"spec": {
                "clusterName": cluster, "version": VERSION, "bootstrap": {"dataSecretName": ""},
                "infrastructureRef": {"apiGroup": GROUP, "kind": POOL, "name": name}}}}}),
        json!({"apiVersion": AZURE, "kind": POOL, "metadata": {"name": name},
            "spec": {"resources": [pool_resource(cluster, name, mode, &json!({}))]}}),
    ]
}

/// Everything of a Cluster is ready, and core sees it so.
pub async fn until_settled(fleet: &Fleet<'_>, cluster: &str, count: usize) -> Result<()> {
    let named = |kind: &'static str, field: &'static str| async move {
        let api = fleet.clusters();
        let found = until(&api, cluster, "name its parts", |cluster| {
            cluster.data["spec"][field]["name"].is_string()
        })
        .await?;
        let name = found.data["spec"][field]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        until(&fleet.of(AZURE, kind), &name, "be ready", is_settled).await?;
        Ok::<_, anyhow::Error>(())
    };
    named(PLANE, "controlPlaneRef").await?;
    named(INFRASTRUCTURE, "infrastructureRef").await?;
    let of_cluster = ListParams::default().labels(&format!("cluster.x-k8s.io/cluster-name={cluster}"));
    let found = pools(fleet).list(&of_cluster).await?.items;
    ensure!(found.len() == count, "{} pools", found.len());
    for pool in found {
        let name = pool.metadata.name.unwrap_or_default();
        until(&pools(fleet), &name, "be ready", is_settled).await?;
    }
    until(&fleet.clusters(), cluster, "be provisioned", |cluster| {
        let done = &cluster.data["status"]["initialization"];
        done["controlPlaneInitialized"] == true && done["infrastructureProvisioned"] == true
    })
    .await?;
    Ok(())
}

/// The resources of an object, put in place of those it has.
pub async fn replace(fleet: &Fleet<'_>, kind: &str, name: &str, resources: &[Value]) -> Result<()> {
    let patch = json!({"spec": {"resources": resources}});
    fleet.merge(&fleet.of(AZURE, kind), name, patch).await
}

/// Every YAML example of a page of the book of Cluster API Provider Azure.
pub fn examples(page: &str, cluster: &str) -> Result<Vec<Value>> {
    let path = crate::aks_world::capz()?.join("docs/book/src/managed").join(page);
    let text = std::fs::read_to_string(path)?.replace("${CLUSTER_NAME}", cluster);
    let mut found = Vec::new();
    for part in text.split("\n```yaml\n").skip(1) {
        let example = part.split("```").next().unwrap_or_default();
        found.extend(install::parse(example)?);
    }
    Ok(found)
}
