//! A manager as a real process: started with flags, asked over HTTP, stopped by signals.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use slipway_testbed::installed::Installed;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
};

/// Nothing a story waits for takes this long, unless it never comes.
const HANG_GUARD: Duration = Duration::from_mins(2);

pub const BINARY: &str = env!("CARGO_BIN_EXE_slipway-toy");

/// A running `slipway-toy manager`. Dropping it kills it.
pub struct ManagerProcess {
    child: Child,
    health: SocketAddr,
    metrics: SocketAddr,
    log: PathBuf,
    pub url: String,
}

pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl ManagerProcess {
    pub fn start(name: &str, directory: &Path, kubeconfig: &Path, port: u16) -> Result<Self> {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (health, metrics) = (address(free_port()?), address(free_port()?));
        let log = directory.join(format!("{name}.log"));
        let child = Command::new(BINARY)
            .arg("manager")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--webhook-cert-dir")
            .arg(directory.join("certificates"))
            .arg(format!("--webhook-port={port}"))
            .arg("--webhook-host=127.0.0.1")
            .arg(format!("--health-addr={health}"))
            .arg(format!("--diagnostics-address={metrics}"))
            .args([
                "--insecure-diagnostics",
                "--leader-elect",
                "--leader-election-namespace=capt-system",
            ])
            .args(["--sync-period=10m", "--fleet-concurrency=4", "-v=4"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()
            .context("starting the manager")?;
        Ok(Self {
            child,
            health,
            metrics,
            log,
            url: format!("https://127.0.0.1:{port}"),
        })
    }

    /// Starts a manager as its Deployment says. Where its metrics are is said there too.
    pub fn start_installed(
        name: &str,
        directory: &Path,
        installed: &Installed,
        port: u16,
        metrics: SocketAddr,
    ) -> Result<Self> {
        let health = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let log = directory.join(format!("{name}.log"));
        let child = Command::new(BINARY)
            .args(&installed.arguments)
            .envs(&installed.environment)
            .arg(format!("--health-addr={health}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()
            .context("starting the manager")?;
        Ok(Self {
            child,
            health,
            metrics,
            log,
            url: format!("https://127.0.0.1:{port}"),
        })
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for an answer that is `so`. A process has no watch to offer, so it is asked again and again.
    async fn until(&mut self, address: SocketAddr, path: &str, so: impl Fn(&str) -> bool) -> Result<String> {
        let started = tokio::time::Instant::now();
        loop {
            let answer = get(address, path).await.unwrap_or_default();
            if so(&answer) {
                return Ok(answer);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the manager ended with {status}:\n{}", self.log());
            }
            if started.elapsed() > HANG_GUARD {
                bail!("{path} never became what it should:\n{answer}\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn until_ready(&mut self) -> Result<()> {
        self.until(self.health, "/readyz", |answer| {
            answer.starts_with("HTTP/1.1 200")
        })
        .await?;
        Ok(())
    }

    /// Waits until a metric's value, added up over its labels that contain `labels`, is `so`.
    pub async fn until_metric(&mut self, name: &str, labels: &str, so: impl Fn(f64) -> bool) -> Result<()> {
        self.until(self.metrics, "/metrics", |text| so(value(text, name, labels)))
            .await?;
        Ok(())
    }

    /// What `/metrics` shows now.
    pub async fn metrics(&self) -> Result<String> {
        get(self.metrics, "/metrics").await
    }

    pub async fn until_logged(&mut self, text: &str) -> Result<()> {
        let log = self.log.clone();
        self.until(self.metrics, "/metrics", |_| {
            std::fs::read_to_string(&log).is_ok_and(|log| log.contains(text))
        })
        .await?;
        Ok(())
    }

    /// Waits until each of these controllers has done at least so many reconciles and none has anything left to do. A
    /// manager that has just started begins with every object once, so it has then looked at all of them.
    pub async fn until_idle(&mut self, controllers: &[(&str, usize)]) -> Result<()> {
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

    pub fn kill(&mut self) -> Result<()> {
        self.child.start_kill().context("killing the manager")
    }

    /// SIGTERM, and how the process ended.
    pub async fn terminate(mut self) -> Result<(ExitStatus, String)> {
        let status = self.stop().await?;
        Ok((status, self.log()))
    }

    pub async fn stop(&mut self) -> Result<ExitStatus> {
        let id = self.child.id().context("the manager runs")?;
        let status = std::process::Command::new("kill")
            .arg("-TERM")
            .arg(id.to_string())
            .status()?;
        assert!(status.success());
        let status = tokio::time::timeout(HANG_GUARD, self.child.wait())
            .await
            .context("it does not end")??;
        Ok(status)
    }
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
