//! A manager as a real process at one cluster: installed, started with flags, asked over HTTP, measured and stopped by
//! signals. Stories and benches start every manager of ours through this.

pub mod measure;
pub mod roles;

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use slipway_testbed::{Cluster, Part, Process, Program, install, installed::Installed};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

/// Nothing a test waits for takes this long, however starved the machine is, unless it never comes.
pub const HANG_GUARD: Duration = Duration::from_mins(10);

pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn free_address() -> Result<SocketAddr> {
    Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)))
}

/// How a manager is started: the program, the folder with its kubeconfig, certificates and logs, and what it is told.
#[derive(Clone, Debug)]
pub struct Setup {
    launcher: PathBuf,
    binary: PathBuf,
    pub folder: PathBuf,
    /// Where webhooks are called.
    pub port: u16,
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    /// Where metrics are, if the arguments say so already.
    metrics: Option<SocketAddr>,
}

impl Setup {
    /// A manager that is `user`, in a group where it needs no roles of its own.
    pub fn new(
        cluster: &Cluster,
        binary: &Path,
        folder: &Path,
        user: &str,
        group: Option<&str>,
    ) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let kubeconfig = folder.join("kubeconfig");
        std::fs::write(&kubeconfig, cluster.kubeconfig_as(user, group))?;
        let certificates = folder.join("certificates");
        let port = free_port()?;
        Ok(Self {
            launcher: cluster.parts().binary(Part::Launch),
            binary: binary.to_owned(),
            folder: folder.to_owned(),
            port,
            arguments: vec![
                "manager".into(),
                format!("--kubeconfig={}", kubeconfig.display()),
                format!("--webhook-cert-dir={}", certificates.display()),
                "--webhook-host=127.0.0.1".into(),
            ],
            environment: BTreeMap::new(),
            metrics: None,
        })
    }

    /// A manager as its Deployment says. Where its metrics are is said there too.
    pub fn installed(
        cluster: &Cluster,
        binary: &Path,
        folder: &Path,
        installed: Installed,
        metrics: SocketAddr,
    ) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self {
            launcher: cluster.parts().binary(Part::Launch),
            binary: binary.to_owned(),
            folder: folder.to_owned(),
            port: 0,
            arguments: installed.arguments,
            environment: installed.environment,
            metrics: Some(metrics),
        })
    }

    /// The same with more arguments.
    pub fn with<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The same for a second manager beside the first.
    pub fn at_another_port(&self) -> Result<Self> {
        Ok(Self {
            port: free_port()?,
            ..self.clone()
        })
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// CRDs and webhooks as the command line renders them for this manager, whose certificate is made on the way.
    pub async fn rendered(&self) -> Result<Vec<Value>> {
        let output = tokio::process::Command::new(&self.binary)
            .args(["manifests", "--local", &self.url(), "--cert-dir"])
            .arg(self.folder.join("certificates"))
            .output()
            .await
            .with_context(|| format!("rendering manifests by {}", self.binary.display()))?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(install::parse(&String::from_utf8(output.stdout)?)?)
    }

    pub async fn install(&self, cluster: &Cluster) -> Result<()> {
        install::install(&cluster.client(), &self.rendered().await?).await?;
        Ok(())
    }

    /// Starts it and waits until it is ready.
    pub async fn start(&self, name: &str) -> Result<Manager> {
        let manager = self.launch(name)?;
        manager.until_ready().await?;
        Ok(manager)
    }

    /// Starts it; its log has this name.
    pub fn launch(&self, name: &str) -> Result<Manager> {
        let health = free_address()?;
        let mut arguments = self.arguments.clone();
        arguments.push(format!("--health-addr={health}"));
        let metrics = match self.metrics {
            Some(metrics) => metrics,
            None => {
                let metrics = free_address()?;
                arguments.extend([
                    format!("--webhook-port={}", self.port),
                    format!("--diagnostics-address={metrics}"),
                    "--insecure-diagnostics".into(),
                ]);
                metrics
            }
        };
        let program = Program {
            name: name.to_owned(),
            path: self.binary.clone(),
            arguments,
            environment: self.environment.clone(),
        };
        let process = Process::start(&self.launcher, &self.folder, program)
            .with_context(|| format!("starting {}", self.binary.display()))?;
        Ok(Manager {
            process,
            health,
            metrics,
            folder: self.folder.clone(),
        })
    }
}

/// A manager that runs. Dropping it kills it; it never outlives the test program.
pub struct Manager {
    process: Process,
    health: SocketAddr,
    metrics: SocketAddr,
    folder: PathBuf,
}

impl Manager {
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A manager that has ended by itself is an error.
    pub fn check(&self) -> Result<()> {
        match self.process.ended() {
            None => Ok(()),
            Some(status) => bail!(
                "{} ended with {status}:\n{}",
                self.process.name(),
                self.process.tail()
            ),
        }
    }

    pub async fn until_ready(&self) -> Result<()> {
        self.until(self.health, "/readyz", |answer| {
            answer.starts_with("HTTP/1.1 200")
        })
        .await
    }

    /// Waits until a metric's value, added up over its labels that contain `labels`, is `so`.
    pub async fn until_metric(&self, name: &str, labels: &str, so: impl Fn(f64) -> bool) -> Result<()> {
        self.until(self.metrics, "/metrics", |page| so(value(page, name, labels)))
            .await
    }

    pub async fn until_logged(&self, text: &str) -> Result<()> {
        self.until(self.metrics, "/metrics", |_| self.process.says(text))
            .await
    }

    /// Waits until each of these controllers has done at least so many reconciles and none has anything left to do. A
    /// manager that has just started begins with every object once, so it has then reconciled all of them.
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

    /// What `/metrics` shows now.
    pub async fn metrics(&self) -> Result<String> {
        get(self.metrics, "/metrics").await
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.process.log()).unwrap_or_default()
    }

    /// What every manager of this folder wrote to its log.
    pub fn logs(&self) -> Result<BTreeMap<PathBuf, String>> {
        logs(&self.folder)
    }

    /// Killed and started again: it begins with every object once.
    pub async fn restart(&self) -> Result<()> {
        self.process.restart()?;
        self.until_ready().await
    }

    pub fn kill(&self) {
        self.process.kill();
    }

    /// SIGTERM, and how the process ended.
    pub async fn stop(&self) -> Result<ExitStatus> {
        let status = std::process::Command::new("kill")
            .arg("-TERM")
            .arg(self.id().to_string())
            .status()?;
        ensure!(status.success(), "the manager runs");
        let started = Instant::now();
        loop {
            if let Some(status) = self.process.ended() {
                return Ok(status);
            }
            ensure!(
                started.elapsed() < HANG_GUARD,
                "it does not end:\n{}",
                self.process.tail()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A process has no watch to offer, so it is asked again and again.
    async fn until(&self, address: SocketAddr, path: &str, so: impl Fn(&str) -> bool) -> Result<()> {
        let started = Instant::now();
        loop {
            let answer = get(address, path).await.unwrap_or_default();
            if so(&answer) {
                return Ok(());
            }
            self.check()?;
            ensure!(
                started.elapsed() < HANG_GUARD,
                "{path} never became what it should:\n{answer}\n{}",
                self.process.tail()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The logs in a folder, by path.
pub fn logs(folder: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut logs = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            logs.insert(path.clone(), std::fs::read_to_string(&path)?);
        }
    }
    Ok(logs)
}

/// The sum of a metric over the lines whose labels contain `labels`.
pub fn value(text: &str, name: &str, labels: &str) -> f64 {
    text.lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (found, number) = rest.rsplit_once(' ')?;
            let exact = found.is_empty() || found.starts_with('{');
            (exact && found.contains(labels))
                .then(|| number.parse::<f64>().ok())
                .flatten()
        })
        .sum()
}

pub async fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await??;
    Ok(answer)
}
