//! The AKS manager as a process of its own at one management cluster, under the roles it declares, with the simulated
//! Azure behind it.

use std::{net::SocketAddr, path::Path};

use anyhow::Result;
use serde_json::{Value, json};
use slipway_azure_sim::Server;
use slipway_kit::manager::{Manager, Setup, free_port, roles};
use slipway_runtime::Package;
use slipway_testbed::{
    Cluster, install, installed,
    inventory::{self, Entry},
};

pub const BINARY: &str = env!("CARGO_BIN_EXE_slipway-aks");
pub const USER: &str = "slipway-aks";
const PROVIDER: &str = "infrastructure-azure";
pub const NAMESPACE: &str = "capz-system";
/// Whom a manager that clusterctl installed is.
pub const ACCOUNT: &str = "system:serviceaccount:capz-system:capz-manager";

/// A manager: its program, and the packages it brings.
pub struct Program {
    pub binary: &'static str,
    pub packages: fn() -> Vec<Package>,
}

/// AKS alone.
const AKS: Program = Program {
    binary: BINARY,
    packages: || slipway_aks::provider::provider().packages,
};

/// The roles, and the namespaces they are in, as they are declared.
pub fn declared_roles() -> Result<Vec<Value>> {
    roles::declared(&slipway_aks::provider::provider().packages)
}

/// Installs roles, CRDs, webhooks and what clusterctl keeps of them, and starts a manager under those roles.
pub async fn start(cluster: &Cluster, azure: &Server) -> Result<Manager> {
    start_with(cluster, azure, &[]).await
}

/// The same with arguments of its own.
pub async fn start_with(cluster: &Cluster, azure: &Server, arguments: &[&str]) -> Result<Manager> {
    start_program(&AKS, cluster, azure, arguments).await
}

/// The same for another program.
pub async fn start_program(
    program: &Program,
    cluster: &Cluster,
    azure: &Server,
    arguments: &[&str],
) -> Result<Manager> {
    let folder = cluster.description().directory.join("aks-manager");
    roles::install(cluster, &(program.packages)(), USER).await?;
    let setup = Setup::new(cluster, Path::new(program.binary), &folder, USER, None)?;
    let mut rendered = setup.rendered().await?;
    for object in &mut rendered {
        if object["kind"] == "CustomResourceDefinition" {
            object["metadata"]["labels"]["cluster.x-k8s.io/provider"] = json!(PROVIDER);
        }
    }
    install::install(&cluster.client(), &rendered).await?;
    let entry = Entry {
        namespace: NAMESPACE,
        identity: PROVIDER,
        version: "v0.1.0",
    };
    inventory::install(cluster, &[entry]).await?;
    let token = setup.folder.join("token");
    // What a service account's projected token would be.
    std::fs::write(&token, "a.projected.token")?;
    reaching(azure, setup)?
        .with(["-v=4"])
        .with(arguments.iter().copied())
        .environment("AZURE_FEDERATED_TOKEN_FILE", &token.display().to_string())
        .start("manager")
        .await
}

/// Starts the manager that clusterctl installed: as its Deployment says, under the roles that came with it.
pub async fn start_installed(cluster: &Cluster, azure: &Server, metrics: SocketAddr) -> Result<Manager> {
    let folder = cluster.description().directory.join("installed-manager");
    std::fs::create_dir_all(&folder)?;
    let installed = installed::prepare(cluster, NAMESPACE, &folder, free_port()?).await?;
    let setup = Setup::installed(cluster, Path::new(BINARY), &folder, installed, metrics)?;
    reaching(azure, setup)?.start("manager").await
}

/// The manager is told how Kubernetes is found; this adds how Azure is.
fn reaching(azure: &Server, setup: Setup) -> Result<Setup> {
    let ca = setup.folder.join("azure.pem");
    std::fs::write(&ca, azure.ca.certificate_pem())?;
    let endpoint = format!("https://{}/", azure.ports.https);
    Ok(setup.with([
        format!("--azure-resource-manager-endpoint={endpoint}"),
        format!("--azure-authority-host={endpoint}"),
        format!("--azure-certificate-authorities={}", ca.display()),
        // The simulated Azure is sixty times as fast as the recorded one, so it is read as much sooner, and as often.
        "--reconciler-requeue=500ms".into(),
        "--azure-request-budget=60".into(),
    ]))
}
