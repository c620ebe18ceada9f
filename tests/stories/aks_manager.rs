//! The AKS manager as a process of its own at one management cluster, under the roles it declares, with the simulated
//! Azure behind it.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_azure_sim::Server;
use slipway_render::{Bundle, Release};
use slipway_testbed::{Cluster, Manifest, Process, Program, install, installed};

use crate::manager_process::{free_port, get, value};

pub const BINARY: &str = env!("CARGO_BIN_EXE_slipway-aks");
pub const USER: &str = "slipway-aks";
/// Nothing a story waits for takes this long, unless it never comes.
const HANG_GUARD: Duration = Duration::from_mins(10);
const PROVIDER: &str = "infrastructure-azure";
pub const NAMESPACE: &str = "capz-system";
/// Whom a manager that clusterctl installed is.
pub const ACCOUNT: &str = "system:serviceaccount:capz-system:capz-manager";

/// A manager that runs. Dropping it kills it; it never outlives the test program.
pub struct AksManager {
    process: Process,
    health: SocketAddr,
    metrics: SocketAddr,
    folder: PathBuf,
}

/// The roles, and the namespaces they are in, as they are declared.
pub fn declared_roles() -> Result<Vec<Value>> {
    let release = Release {
        version: "v0.1.0".into(),
        image: "none".into(),
    };
    let bundles = Bundle::join(&slipway_aks::provider::provider().packages)?;
    Ok(bundles
        .iter()
        .flat_map(|bundle| bundle.objects(&release))
        .filter(|object| {
            let kind = object["kind"].as_str().unwrap_or_default();
            kind == "Namespace" || kind.contains("Role")
        })
        .collect())
}

impl AksManager {
    /// Installs roles, CRDs, webhooks and what clusterctl keeps of them, and starts a manager under those roles.
    pub async fn start(cluster: &Cluster, azure: &Server) -> Result<Self> {
        let folder = cluster.description().directory.join("aks-manager");
        std::fs::create_dir_all(&folder)?;
        let mut roles = declared_roles()?;
        for object in &mut roles {
            if object["subjects"][0]["kind"] == "ServiceAccount" {
                object["subjects"] =
                    json!([{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}]);
            }
        }
        install::install(&cluster.client(), &roles).await?;
        std::fs::write(folder.join("kubeconfig"), cluster.kubeconfig_as(USER, None))?;
        let webhooks = free_port()?;
        install_for(cluster, &folder, webhooks).await?;
        install_inventory(cluster).await?;
        let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let path = |name: &str| folder.join(name).display().to_string();
        let arguments = vec![
            "manager".into(),
            format!("--kubeconfig={}", path("kubeconfig")),
            format!("--webhook-cert-dir={}", path("certificates")),
            format!("--webhook-port={webhooks}"),
            "--webhook-host=127.0.0.1".into(),
            format!("--diagnostics-address={metrics}"),
            "--insecure-diagnostics".into(),
        ];
        Self::launch(cluster, azure, folder, metrics, arguments, BTreeMap::new()).await
    }

    /// Starts the manager that clusterctl installed: as its Deployment says, under the roles that came with it.
    pub async fn start_installed(cluster: &Cluster, azure: &Server, metrics: SocketAddr) -> Result<Self> {
        let folder = cluster.description().directory.join("installed-manager");
        std::fs::create_dir_all(&folder)?;
        let installed = installed::prepare(cluster, NAMESPACE, &folder, free_port()?).await?;
        Self::launch(
            cluster,
            azure,
            folder,
            metrics,
            installed.arguments,
            installed.environment,
        )
        .await
    }

    /// `arguments` say how Kubernetes is found; this adds how Azure is.
    async fn launch(
        cluster: &Cluster,
        azure: &Server,
        folder: PathBuf,
        metrics: SocketAddr,
        mut arguments: Vec<String>,
        mut environment: BTreeMap<String, String>,
    ) -> Result<Self> {
        let (authority, token) = (folder.join("azure.pem"), folder.join("token"));
        std::fs::write(&authority, azure.authority.certificate_pem())?;
        // What a service account's projected token would be.
        std::fs::write(&token, "a.projected.token")?;
        let health = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let endpoint = format!("https://{}/", azure.ports.https);
        arguments.extend([
            format!("--health-addr={health}"),
            format!("--azure-resource-manager-endpoint={endpoint}"),
            format!("--azure-authority-host={endpoint}"),
            format!("--azure-certificate-authorities={}", authority.display()),
            // The simulated Azure is sixty times as fast as the recorded one, so it is looked at as much sooner.
            "--reconciler-requeue=500ms".into(),
            "-v=4".into(),
        ]);
        environment.insert(
            "AZURE_FEDERATED_TOKEN_FILE".to_owned(),
            token.display().to_string(),
        );
        let program = Program {
            name: "manager".to_owned(),
            path: BINARY.into(),
            arguments,
            environment,
        };
        let launcher = cluster.description().parts.join("bin/launch");
        let process = Process::start(&launcher, &folder, program)?;
        let manager = Self {
            process,
            health,
            metrics,
            folder,
        };
        manager.until_ready().await?;
        Ok(manager)
    }

    async fn until_ready(&self) -> Result<()> {
        self.until(self.health, "/readyz", |answer| {
            answer.starts_with("HTTP/1.1 200")
        })
        .await
    }

    /// Killed and started again: it begins with every object once.
    pub async fn restart(&self) -> Result<()> {
        self.process.restart()?;
        self.until_ready().await
    }

    pub fn kill(&self) {
        self.process.kill();
    }

    /// Waits until each controller has looked at so many objects and has nothing left to do.
    pub async fn until_idle(&self, controllers: &[(&str, usize)]) -> Result<()> {
        self.until(self.metrics, "/metrics", |page| {
            controllers.iter().all(|(controller, objects)| {
                let of = |name| value(page, name, &format!("controller=\"{controller}\""));
                of("controller_runtime_reconcile_total") >= *objects as f64
                    && of("workqueue_depth") < 0.5
                    && of("controller_runtime_active_workers") < 0.5
            })
        })
        .await
    }

    pub async fn metrics(&self) -> Result<String> {
        get(self.metrics, "/metrics").await
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("manager.log")).unwrap_or_default()
    }

    /// A process has no watch to offer, so it is asked again and again.
    async fn until(&self, address: SocketAddr, path: &str, so: impl Fn(&str) -> bool) -> Result<()> {
        let started = tokio::time::Instant::now();
        loop {
            let answer = get(address, path).await.unwrap_or_default();
            if so(&answer) {
                return Ok(());
            }
            if let Some(status) = self.process.ended() {
                bail!("the manager ended with {status}:\n{}", self.process.tail());
            }
            ensure!(
                started.elapsed() < HANG_GUARD,
                "{path} never became what it should:\n{answer}\n{}",
                self.process.tail()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Installs CRDs and webhooks as the command line renders them for a manager at this port, marked as
/// `clusterctl init` marks them.
async fn install_for(cluster: &Cluster, folder: &Path, port: u16) -> Result<()> {
    let output = tokio::process::Command::new(BINARY)
        .args(["manifests", "--local", &format!("https://127.0.0.1:{port}")])
        .arg("--cert-dir")
        .arg(folder.join("certificates"))
        .output()
        .await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut rendered = install::parse(&String::from_utf8(output.stdout)?)?;
    for object in &mut rendered {
        if object["kind"] == "CustomResourceDefinition" {
            object["metadata"]["labels"]["cluster.x-k8s.io/provider"] = json!(PROVIDER);
        }
    }
    install::install(&cluster.client(), &rendered).await?;
    // `clusterctl init` marks the definitions whose objects it moves, core's too.
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let mark = Patch::Merge(json!({"metadata": {"labels": {"clusterctl.cluster.x-k8s.io": ""}}}));
    let of_providers = ListParams::default().labels("cluster.x-k8s.io/provider");
    for definition in definitions.list(&of_providers).await? {
        definitions
            .patch(&definition.name_any(), &PatchParams::default(), &mark)
            .await?;
    }
    Ok(())
}

/// What clusterctl has to know is installed before it moves anything.
async fn install_inventory(cluster: &Cluster) -> Result<()> {
    let definitions = cluster.parts().manifest(Manifest::Clusterctl)?;
    install::install(&cluster.client(), &definitions).await?;
    let provider = |name: &str, kind: &str, version: &str| {
        json!({"apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Provider",
            "metadata": {"name": name, "namespace": NAMESPACE,
                "labels": {"clusterctl.cluster.x-k8s.io": "", "cluster.x-k8s.io/provider": name}},
            "providerName": name.trim_start_matches("infrastructure-"), "type": kind, "version": version})
    };
    let inventory = [
        provider("cluster-api", "CoreProvider", "v1.14.2"),
        provider(PROVIDER, "InfrastructureProvider", "v0.1.0"),
    ];
    install::install(&cluster.client(), &inventory).await?;
    Ok(())
}
