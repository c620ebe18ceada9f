//! Azure Service Operator and Cluster API Provider Azure, unmodified, take clusters through create, scale, upgrade and
//! delete on the simulated Azure. What they send and expect is what the simulator has to know.

use std::ops::Deref;

use anyhow::{Context, Result, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use slipway_testbed::{
    Upstream,
    wait::{until, until_gone},
};

use crate::{
    support::is_true,
    upstream_world::{SUBSCRIPTION, UpstreamWorld},
};

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
const CONTAINER_SERVICE: &str = "containerservice.azure.com/v1api20240901";
const RESOURCES: &str = "resources.azure.com/v1api20200601";

/// A world with upstream projects in it, as these stories look at it.
struct World(UpstreamWorld);

impl Deref for World {
    type Target = UpstreamWorld;

    fn deref(&self) -> &UpstreamWorld {
        &self.0
    }
}

impl World {
    async fn start() -> Result<World> {
        Ok(World(UpstreamWorld::start("peers", |builder| builder).await?))
    }

    /// Applies a manifest to a namespace of its own.
    async fn apply_apart(&self, prefix: &str, manifest: &str) -> Result<String> {
        let namespace = self.management.namespace(prefix).await?;
        self.apply(&namespace, manifest).await?;
        Ok(namespace)
    }

    /// What ARM has at this path in the group that is named as the cluster.
    fn in_azure(&self, name: &str, path: &str) -> Option<Value> {
        let id = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{name}{path}");
        let azure = self.azure.simulator().azure();
        let found = azure
            .state()
            .resources
            .iter()
            .find(|resource| resource.id.eq_ignore_ascii_case(&id))
            .map(|resource| resource.properties().clone());
        found.map(Value::Object)
    }

    fn cluster_in_azure(&self, name: &str) -> Option<Value> {
        self.in_azure(
            name,
            &format!("/providers/Microsoft.ContainerService/managedClusters/{name}"),
        )
    }

    fn pool_in_azure(&self, name: &str, pool: &str) -> Option<Value> {
        self.in_azure(
            name,
            &format!("/providers/Microsoft.ContainerService/managedClusters/{name}/agentPools/{pool}"),
        )
    }

    /// Names of the nodes a pool has in the real API server.
    async fn nodes(&self, name: &str, pool: &str) -> Result<Vec<String>> {
        let nodes: Api<Node> = Api::all(self.workload.client());
        let group = format!("MC_{name}_{name}_westus3");
        let selector = format!("kubernetes.azure.com/cluster={group},kubernetes.azure.com/agentpool={pool}");
        let found = nodes.list(&ListParams::default().labels(&selector)).await?;
        Ok(found
            .items
            .into_iter()
            .filter_map(|node| node.metadata.name)
            .collect())
    }

    /// That the kubeconfig in a Secret reaches the API server behind the cluster.
    async fn kubeconfig_works(&self, namespace: &str, secret: &str) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.management.client(), namespace);
        let secret = until(&secrets, secret, "hold a kubeconfig", |secret| {
            secret
                .data
                .as_ref()
                .is_some_and(|data| data.contains_key("value"))
        })
        .await?;
        let data = secret.data.context("data")?;
        let text = String::from_utf8(data["value"].0.clone())?;
        // Some controllers encode what is encoded already.
        let text = match BASE64_STANDARD.decode(text.trim()) {
            Ok(decoded) => String::from_utf8(decoded)?,
            Err(_) => text,
        };
        let kubeconfig = Kubeconfig::from_yaml(&text)?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let nodes: Api<Node> = Api::all(Client::try_from(config)?);
        ensure!(!nodes.list(&ListParams::default()).await?.items.is_empty());
        Ok(())
    }

    /// A figure for the reader: how much was asked of Azure.
    fn report(&self, who: &str) {
        let azure = self.azure.simulator().azure();
        let writes = azure.requests().filter(|request| request.method == "PUT").count();
        println!(
            "report: {who}: {} requests, {writes} of them PUT",
            azure.requests().count()
        );
    }

    fn stop(self) {
        self.0.management.stop();
        self.0.workload.stop();
    }
}

async fn merge(api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<()> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .with_context(|| format!("changing {name}"))?;
    Ok(())
}

/// Ready, and for what the user asks for now.
fn is_current(object: &DynamicObject) -> bool {
    let conditions = object.data["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| {
        condition["type"] == "Ready"
            && condition["status"] == "True"
            && condition["observedGeneration"].as_i64() == object.metadata.generation
    })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "outside CI: builds Azure Service Operator; docs/azure-sim.md has the command"]
async fn azure_service_operator_runs_unmodified() -> Result<()> {
    let world = World::start().await?;
    let operator = world.upstream(Upstream::Aso).await?;
    operator_alone(&world).await?;
    world.report("Azure Service Operator for one cluster");
    operator.stop();
    world.stop();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "outside CI: builds Azure Service Operator and Cluster API Provider Azure; docs/azure-sim.md has the command"]
async fn cluster_api_provider_azure_runs_unmodified() -> Result<()> {
    let world = World::start().await?;
    let operator = world.upstream(Upstream::Aso).await?;
    let provider = world.upstream(Upstream::Capz).await?;
    tokio::try_join!(
        async { managed(&world).await.context("AzureManaged kinds") },
        async { aso_managed(&world).await.context("AzureASOManaged kinds") },
    )?;
    world.report("Cluster API Provider Azure with Azure Service Operator for two clusters");
    provider.stop();
    operator.stop();
    world.stop();
    Ok(())
}

async fn operator_alone(world: &World) -> Result<()> {
    let name = &world
        .apply_apart("aso", include_str!("../manifests/aso.yaml"))
        .await?;
    let groups = world.objects(name, RESOURCES, "ResourceGroup");
    let clusters = world.objects(name, CONTAINER_SERVICE, "ManagedCluster");
    let pools = world.objects(name, CONTAINER_SERVICE, "ManagedClustersAgentPool");
    let pool = format!("{name}-user");
    until(&groups, name, "become ready", is_current).await?;
    until(&clusters, name, "become ready", is_current).await?;
    until(&pools, &pool, "become ready", is_current).await?;
    ensure!(world.nodes(name, "system").await?.len() == 1 && world.nodes(name, "user").await?.len() == 1);
    world
        .kubeconfig_works(name, &format!("{name}-kubeconfig"))
        .await?;

    merge(&pools, &pool, json!({"spec": {"count": 3}})).await?;
    until(&pools, &pool, "have three nodes", |pool| {
        is_current(pool) && pool.data["status"]["count"] == 3
    })
    .await?;
    ensure!(world.nodes(name, "user").await?.len() == 3);

    merge(&clusters, name, json!({"spec": {"kubernetesVersion": "1.34.1"}})).await?;
    until(&clusters, name, "run 1.34.1", |cluster| {
        is_current(cluster) && cluster.data["status"]["currentKubernetesVersion"] == "1.34.1"
    })
    .await?;
    merge(&pools, &pool, json!({"spec": {"orchestratorVersion": "1.34.1"}})).await?;
    until(&pools, &pool, "run 1.34.1", |pool| {
        is_current(pool) && pool.data["status"]["currentOrchestratorVersion"] == "1.34.1"
    })
    .await?;

    pools.delete(&pool, &DeleteParams::default()).await?;
    until_gone(&pools, &pool).await?;
    ensure!(world.pool_in_azure(name, "user").is_none());
    groups.delete(name, &DeleteParams::default()).await?;
    until_gone(&groups, name).await?;
    // The group owns it.
    until_gone(&clusters, name).await?;
    nothing_is_left(world, name).await
}

async fn managed(world: &World) -> Result<()> {
    let name = &world
        .apply_apart("managed", include_str!("../manifests/aks-managed.yaml"))
        .await?;
    let control_planes = world.objects(name, INFRASTRUCTURE, "AzureManagedControlPlane");
    until(&control_planes, name, "become ready", |plane| {
        plane.data["status"]["ready"] == true
    })
    .await?;
    world
        .kubeconfig_works(name, &format!("{name}-kubeconfig"))
        .await?;
    through_cluster_api(world, name).await?;
    merge(&control_planes, name, json!({"spec": {"version": "v1.34.1"}})).await?;
    finish(world, name).await
}

async fn aso_managed(world: &World) -> Result<()> {
    let name = &world
        .apply_apart("aso-managed", include_str!("../manifests/aks-aso.yaml"))
        .await?;
    let control_planes = world.objects(name, INFRASTRUCTURE, "AzureASOManagedControlPlane");
    until(&control_planes, name, "become ready", |plane| {
        plane.data["status"]["ready"] == true
    })
    .await?;
    world
        .kubeconfig_works(name, &format!("{name}-kubeconfig"))
        .await?;
    through_cluster_api(world, name).await?;
    merge(&control_planes, name, json!({"spec": {"version": "v1.34.1"}})).await?;
    finish(world, name).await
}

/// Both pools run, and one is scaled.
async fn through_cluster_api(world: &World, name: &str) -> Result<()> {
    let pools = world.objects(name, CORE, "MachinePool");
    let clusters = world.objects(name, CORE, "Cluster");
    for pool in ["system", "user"] {
        until(&pools, &format!("{name}-{pool}"), "run one node", |pool| {
            pool.data["status"]["phase"] == "Running" && pool.data["status"]["readyReplicas"] == 1
        })
        .await?;
    }
    until(&clusters, name, "have a control plane", |cluster| {
        is_true(cluster, "ControlPlaneInitialized") && is_true(cluster, "InfrastructureReady")
    })
    .await?;
    let user = format!("{name}-user");
    merge(&pools, &user, json!({"spec": {"replicas": 3}})).await?;
    until(&pools, &user, "run three nodes", |pool| {
        pool.data["status"]["readyReplicas"] == 3
            && pool.data["spec"]["providerIDList"].as_array().map(Vec::len) == Some(3)
    })
    .await?;
    ensure!(world.nodes(name, "user").await?.len() == 3);
    merge(&pools, &user, json!({"spec": {"replicas": 2}})).await?;
    until(&pools, &user, "run two nodes", |pool| {
        pool.data["status"]["readyReplicas"] == 2
    })
    .await?;
    Ok(())
}

/// The control plane was asked for 1.34.1: it gets there, the pools follow, and the cluster is deleted.
async fn finish(world: &World, name: &str) -> Result<()> {
    let managed = world.objects(name, CONTAINER_SERVICE, "ManagedCluster");
    until(&managed, name, "run 1.34.1", |cluster| {
        cluster.data["status"]["currentKubernetesVersion"] == "1.34.1"
    })
    .await?;
    let pools = world.objects(name, CORE, "MachinePool");
    let agent_pools = world.objects(name, CONTAINER_SERVICE, "ManagedClustersAgentPool");
    for pool in ["system", "user"] {
        let pool_name = format!("{name}-{pool}");
        merge(
            &pools,
            &pool_name,
            json!({"spec": {"template": {"spec": {"version": "v1.34.1"}}}}),
        )
        .await?;
        until(&agent_pools, &pool_name, "run 1.34.1", |pool| {
            pool.data["status"]["currentOrchestratorVersion"] == "1.34.1"
        })
        .await?;
        let in_azure = world.pool_in_azure(name, pool).context("the pool is in Azure")?;
        ensure!(in_azure["currentOrchestratorVersion"] == "1.34.1", "{in_azure}");
    }
    let clusters = world.objects(name, CORE, "Cluster");
    clusters.delete(name, &DeleteParams::default()).await?;
    until_gone(&clusters, name).await?;
    nothing_is_left(world, name).await
}

async fn nothing_is_left(world: &World, name: &str) -> Result<()> {
    ensure!(
        world.cluster_in_azure(name).is_none(),
        "the cluster is still in Azure"
    );
    ensure!(world.in_azure(name, "").is_none(), "the group is still in Azure");
    for pool in ["system", "user"] {
        ensure!(
            world.nodes(name, pool).await?.is_empty(),
            "nodes of {pool} are left"
        );
    }
    Ok(())
}
