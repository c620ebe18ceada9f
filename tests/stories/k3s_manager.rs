//! The K3s manager as a process of its own, under the roles it declares. The stories that share a cluster share it.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use slipway_render::{Bundle, Release};
use slipway_testbed::{Cluster, Process, Program, install, shared};
use tokio::sync::OnceCell;

use crate::manager_process::{free_port, get, value};

pub const BINARY: &str = env!("CARGO_BIN_EXE_slipway-k3s");
pub const USER: &str = "slipway-k3s";
/// Nothing a story waits for takes this long, unless it never comes.
const HANG_GUARD: Duration = Duration::from_mins(2);

/// A running manager. Dropping it kills it; it never outlives the test program.
pub struct K3sManager {
    pub cluster: Arc<Cluster>,
    process: Process,
    health: SocketAddr,
    metrics: SocketAddr,
    webhooks: u16,
    folder: PathBuf,
}

/// The roles, and the namespaces they are in, as they are declared.
pub fn declared_roles() -> Result<Vec<Value>> {
    let release = Release {
        version: "v0.1.0".into(),
        image: "none".into(),
    };
    let kinds = [
        "Namespace",
        "Role",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
    ];
    let bundles = Bundle::join(&slipway_k3s::provider().packages)?;
    Ok(bundles
        .iter()
        .flat_map(|bundle| bundle.objects(&release))
        .filter(|object| kinds.contains(&object["kind"].as_str().unwrap_or_default()))
        .collect())
}

/// The manager of the cluster that stories share; started by whoever comes first.
pub async fn of_shared_cluster() -> Result<&'static K3sManager> {
    static MANAGER: OnceCell<K3sManager> = OnceCell::const_new();
    MANAGER
        .get_or_try_init(|| async {
            let cluster = shared("capi").await?;
            K3sManager::start(cluster).await
        })
        .await
}

impl K3sManager {
    /// Installs roles, CRDs and webhooks, and starts a manager under those roles.
    pub async fn start(cluster: Arc<Cluster>) -> Result<K3sManager> {
        let folder = cluster.description().directory.join("k3s-manager");
        std::fs::create_dir_all(&folder)?;
        let mut roles = declared_roles()?;
        for object in &mut roles {
            if object.get("subjects").is_some() {
                object["subjects"] =
                    json!([{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}]);
            }
        }
        install::install(&cluster.client(), &roles).await?;
        std::fs::write(folder.join("kubeconfig"), cluster.kubeconfig_as(USER, None))?;
        let webhooks = free_port()?;
        install_for(&cluster, &folder, webhooks).await?;
        let (process, health, metrics) = spawn(&cluster, &folder, webhooks, "first")?;
        let manager = K3sManager {
            cluster,
            process,
            health,
            metrics,
            webhooks,
            folder,
        };
        manager.until_ready().await?;
        Ok(manager)
    }

    /// Ends it and starts another in its place.
    pub async fn replace(&mut self, name: &str) -> Result<()> {
        self.process.kill();
        let (process, health, metrics) = spawn(&self.cluster, &self.folder, self.webhooks, name)?;
        (self.process, self.health, self.metrics) = (process, health, metrics);
        self.until_ready().await
    }

    pub fn kill(&self) {
        self.process.kill();
    }

    async fn until_ready(&self) -> Result<()> {
        self.until(self.health, "/readyz", |answer| {
            answer.starts_with("HTTP/1.1 200")
        })
        .await?;
        Ok(())
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
        .await?;
        Ok(())
    }

    pub async fn metrics(&self) -> Result<String> {
        get(self.metrics, "/metrics").await
    }

    /// What every manager of this folder wrote to its log.
    pub fn logs(&self) -> Result<BTreeMap<PathBuf, String>> {
        let mut logs = BTreeMap::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                logs.insert(path.clone(), std::fs::read_to_string(&path)?);
            }
        }
        Ok(logs)
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
            if started.elapsed() > HANG_GUARD {
                bail!(
                    "{path} never became what it should:\n{answer}\n{}",
                    self.process.tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Installs CRDs and webhooks as the command line renders them for a manager at this port.
async fn install_for(cluster: &Cluster, folder: &Path, port: u16) -> Result<()> {
    let output = tokio::process::Command::new(BINARY)
        .args(["manifests", "--local", &format!("https://127.0.0.1:{port}")])
        .arg("--cert-dir")
        .arg(folder.join("certificates"))
        .output()
        .await
        .context("rendering manifests")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    let rendered = install::parse(&String::from_utf8(output.stdout)?)?;
    install::install(&cluster.client(), &rendered).await?;
    Ok(())
}

fn spawn(
    cluster: &Cluster,
    folder: &Path,
    webhooks: u16,
    name: &str,
) -> Result<(Process, SocketAddr, SocketAddr)> {
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let (health, metrics) = (address(free_port()?), address(free_port()?));
    let path = |name: &str| folder.join(name).display().to_string();
    let program = Program {
        name: name.to_owned(),
        path: BINARY.into(),
        arguments: vec![
            "manager".into(),
            format!("--kubeconfig={}", path("kubeconfig")),
            format!("--webhook-cert-dir={}", path("certificates")),
            format!("--webhook-port={webhooks}"),
            "--webhook-host=127.0.0.1".into(),
            format!("--health-addr={health}"),
            format!("--diagnostics-address={metrics}"),
            "--insecure-diagnostics".into(),
            "-v=4".into(),
        ],
        environment: BTreeMap::new(),
    };
    let launcher = cluster.description().parts.join("bin/launch");
    let process = Process::start(&launcher, folder, program)?;
    Ok((process, health, metrics))
}
