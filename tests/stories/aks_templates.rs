//! Scenarios about templates: our flavors as the real clusterctl renders them from the repository that ships, and those
//! that upstream publishes, read from its module. All become ready.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use http::Method;
use kube::{
    ResourceExt,
    api::{DynamicObject, ListParams},
};
use serde_json::{Value, json};
use slipway_testbed::{install, wait::until};

use crate::{
    aks_manager::BINARY,
    aks_world::{AZURE, CLIENT, CORE, Fleet, NEXT, SUBSCRIPTION, TENANT, VERSION, World, capz, is_ready},
};

/// The repository that `slipway manifests --repository` writes, and a configuration with the variables of the templates.
pub fn repository(binary: &str, folder: &Path, variables: &[(&str, &str)]) -> Result<String> {
    let output = std::process::Command::new(binary)
        .args(["manifests", "--repository"])
        .arg(folder)
        .output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let path = folder.join("clusterctl.yaml");
    let mut config = install::parse(&std::fs::read_to_string(&path)?)?
        .pop()
        .context("a configuration")?;
    let usual = [
        ("AZURE_LOCATION", "westus3"),
        ("AZURE_SUBSCRIPTION_ID", SUBSCRIPTION),
        ("AZURE_TENANT_ID", TENANT),
        ("AZURE_CLIENT_ID_USER_ASSIGNED_IDENTITY", CLIENT),
        ("AZURE_NODE_MACHINE_TYPE", "Standard_D2s_v3"),
        ("CLUSTER_IDENTITY_NAME", "cluster-identity"),
    ];
    for (name, value) in usual.iter().chain(variables) {
        config[*name] = json!(value);
    }
    std::fs::write(&path, config.to_string())?;
    Ok(path.display().to_string())
}

/// What `clusterctl generate cluster` prints.
pub async fn generate(fleet: &Fleet<'_>, config: &str, source: &[&str]) -> Result<Vec<Value>> {
    let mut arguments = vec!["--config", config, "generate", "cluster", &fleet.name];
    arguments.extend(source);
    arguments.extend([
        "--target-namespace",
        &fleet.name,
        "--kubernetes-version",
        VERSION,
        "--worker-machine-count",
        "1",
    ]);
    let text = fleet.world.management.clusterctl(&arguments).await?;
    Ok(install::parse(&text)?)
}

const FLAVOR: [&str; 3] = ["--infrastructure", "azure:v0.1.0", "--flavor"];

/// The name of a cluster's control plane.
async fn plane_of(fleet: &Fleet<'_>) -> Result<String> {
    let name = |cluster: &DynamicObject| {
        let name = cluster.data["spec"]["controlPlaneRef"]["name"].as_str();
        name.map(str::to_owned)
    };
    let cluster = until(
        &fleet.clusters(),
        &fleet.name,
        "refer to a control plane",
        |cluster| name(cluster).is_some(),
    )
    .await?;
    name(&cluster).context("a name")
}

/// Every pool of a cluster is ready, however it is named.
async fn until_all_ready(fleet: &Fleet<'_>, pools: usize) -> Result<()> {
    let plane = plane_of(fleet).await?;
    until(&fleet.planes(), &plane, "be ready", is_ready).await?;
    let of_cluster = ListParams::default().labels(&format!("cluster.x-k8s.io/cluster-name={}", fleet.name));
    let found = fleet.pools().list(&of_cluster).await?.items;
    ensure!(found.len() == pools, "{} pools", found.len());
    for pool in found {
        let name = pool.metadata.name.context("a name")?;
        until(&fleet.pools(), &name, "be ready", is_ready).await?;
    }
    until(&fleet.clusters(), &fleet.name, "be provisioned", |cluster| {
        let done = &cluster.data["status"]["initialization"];
        done["controlPlaneInitialized"] == true && done["infrastructureProvisioned"] == true
    })
    .await?;
    Ok(())
}

/// `--flavor aks`.
pub async fn quick_start(world: &World) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = repository(BINARY, folder.path(), &[])?;
    let fleet = world.fleet("quick").await?;
    let objects = generate(&fleet, &config, &[&FLAVOR[..], &["aks"]].concat()).await?;
    fleet.apply(&objects).await?;
    until_all_ready(&fleet, 2).await?;
    fleet.delete().await
}

/// `--flavor aks-topology` brings its class along; a new version and a changed template roll out.
pub async fn topology(world: &World) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let names = [("SYSTEM_POOL_NAME", "toposys"), ("USER_POOL_NAME", "topowork")];
    let config = repository(BINARY, folder.path(), &names)?;
    let fleet = world.fleet("topology").await?;
    let objects = generate(&fleet, &config, &[&FLAVOR[..], &["aks-topology"]].concat()).await?;
    ensure!(
        objects.iter().any(|object| object["kind"] == "ClusterClass"),
        "clusterctl adds the class"
    );
    let class = generate(&fleet, &config, &[&FLAVOR[..], &["aks-clusterclass"]].concat()).await?;
    ensure!(
        class.iter().all(|object| objects.contains(object)),
        "both are the same class"
    );
    fleet.apply(&objects).await?;
    // Core names the control plane, and it asks the cluster's API server about its pools before it changes them.
    let plane = plane_of(&fleet).await?;
    fleet.back(&plane)?;
    until_all_ready(&fleet, 2).await?;

    // A template that changed rolls out when the cluster is reconciled again.
    let templates = fleet.of(AZURE, "AzureManagedMachinePoolTemplate");
    let mode = json!({"spec": {"template": {"spec": {"scaleDownMode": "Deallocate"}}}});
    fleet.merge(&templates, "aks-user", mode).await?;
    let touched = json!({"metadata": {"annotations": {"look": "again"}}});
    fleet.merge(&fleet.clusters(), "topology", touched).await?;
    let pool = pool_called(&fleet, "topowork").await?;
    until(&fleet.pools(), &pool, "follow its template", |pool| {
        pool.data["spec"]["scaleDownMode"] == "Deallocate" && is_ready(pool)
    })
    .await?;

    let version = json!({"spec": {"topology": {"version": NEXT}}});
    fleet.merge(&fleet.clusters(), "topology", version).await?;
    // The control plane first, then its pools.
    for name in ["toposys", "topowork"] {
        let pool = pool_called(&fleet, name).await?;
        until(
            &fleet.machine_pools(),
            &machine_pool_of(&fleet, &pool).await?,
            "be asked for",
            |pool| pool.data["spec"]["template"]["spec"]["version"] == NEXT,
        )
        .await?;
        let plane = fleet.planes().get(&plane).await?;
        ensure!(
            plane.data["status"]["version"] == NEXT,
            "{name} is upgraded before its control plane: {}",
            plane.data["status"]["version"]
        );
        let below = format!("/managedClusters/{}/agentPools/{name}", plane.name_any());
        let path = format!("{}/providers/Microsoft.ContainerService{below}", fleet.group());
        until(&fleet.pools(), &pool, "run the next version", |pool| {
            let shown = world.ask(Method::GET, &path, None);
            is_ready(pool)
                && shown.is_ok_and(|shown| shown["properties"]["currentOrchestratorVersion"] == NEXT[1..])
        })
        .await?;
    }
    fleet.delete().await
}

/// The MachinePool that a pool belongs to.
async fn machine_pool_of(fleet: &Fleet<'_>, pool: &str) -> Result<String> {
    let pools = fleet.machine_pools().list(&ListParams::default()).await?.items;
    let found = pools
        .into_iter()
        .find(|one| one.data["spec"]["template"]["spec"]["infrastructureRef"]["name"] == pool);
    found
        .and_then(|pool| pool.metadata.name)
        .with_context(|| format!("the MachinePool of {pool}"))
}

/// The object of a pool, whose name core made up.
async fn pool_called(fleet: &Fleet<'_>, name: &str) -> Result<String> {
    let pools = fleet.pools().list(&ListParams::default()).await?.items;
    let found = pools.into_iter().find(|pool| pool.data["spec"]["name"] == name);
    found
        .and_then(|pool| pool.metadata.name)
        .with_context(|| format!("a pool called {name}"))
}

/// CAPZ's `aks`, `aks-clusterclass` and `aks-topology`, as it publishes them.
pub async fn of_upstream(world: &World) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = repository(BINARY, folder.path(), &[("CLUSTER_CLASS_NAME", "theirs")])?;
    let templates = capz()?.join("templates");
    let file = |flavor: &str| {
        let path = templates.join(format!("cluster-template-{flavor}.yaml"));
        path.display().to_string()
    };
    let plain = async {
        let fleet = world.fleet("theirsone").await?;
        let objects = generate(&fleet, &config, &["--from", &file("aks")]).await?;
        fleet.apply(&objects).await?;
        until_all_ready(&fleet, 2).await?;
        fleet.delete().await
    };
    let classy = async {
        let fleet = world.fleet("theirstwo").await?;
        let objects = generate(&fleet, &config, &["--from", &file("aks-clusterclass")]).await?;
        fleet.apply(&objects).await?;
        let objects = generate(&fleet, &config, &["--from", &file("aks-topology")]).await?;
        fleet.apply(&objects).await?;
        until_all_ready(&fleet, 2).await?;
        ensure!(fleet.of(CORE, "ClusterClass").get("theirs").await?.data["spec"].is_object());
        fleet.delete().await
    };
    tokio::try_join!(async { plain.await.context("aks") }, async {
        classy.await.context("aks-clusterclass and aks-topology")
    },)?;
    Ok(())
}
