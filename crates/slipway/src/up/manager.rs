//! The manager of `slipway up`: this same program as a process, which is started again whenever it dies.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use super::{cluster::Cluster, free_port, own_program, packages::Webhooks, terminate};

/// A hang guard: a manager is ready within seconds.
const READY_DEADLINE: Duration = Duration::from_mins(2);

/// The pause before a manager that died is started again, and what it grows to while it goes on dying.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What every start of it has in common.
struct Setup {
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    health: u16,
    metrics: u16,
}

pub struct Manager {
    setup: Setup,
    process: Child,
    pub log: PathBuf,
}

impl Manager {
    pub fn start(
        cluster: &Cluster,
        webhooks: &Webhooks,
        environment: Vec<(&'static str, String)>,
        flags: &[String],
    ) -> Result<Self, String> {
        let (health, metrics) = (free_port()?, free_port()?);
        let mut arguments = vec![
            "manager".to_owned(),
            format!("--kubeconfig={}", cluster.kubeconfig.display()),
            "--webhook-host=127.0.0.1".to_owned(),
            format!("--webhook-port={}", webhooks.port),
            format!("--webhook-cert-dir={}", webhooks.certificates.display()),
            format!("--health-addr=127.0.0.1:{health}"),
            format!("--diagnostics-address=127.0.0.1:{metrics}"),
            // On loopback, for whoever has this machine.
            "--insecure-diagnostics".to_owned(),
        ];
        arguments.extend_from_slice(flags);
        let setup = Setup {
            arguments,
            environment,
            health,
            metrics,
        };
        let log = cluster.logs.join("slipway.log");
        let process = spawn(cluster, &setup, &log)?;
        Ok(Self { setup, process, log })
    }

    pub fn health_address(&self) -> String {
        format!("http://127.0.0.1:{}/readyz", self.setup.health)
    }

    pub fn metrics_address(&self) -> String {
        format!("http://127.0.0.1:{}/metrics", self.setup.metrics)
    }

    /// Asks `/readyz` until it says yes. One that ends instead will not get further the next time either.
    pub async fn until_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + READY_DEADLINE;
        loop {
            if let Some(status) = self.ended() {
                return Err(format!("the manager ended ({status}):\n{}", self.last_words()));
            }
            if is_ready(self.setup.health).await {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "the manager is not ready after two minutes:\n{}",
                    self.last_words()
                ));
            }
            // A poll, because a health endpoint has nothing to watch.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Starts it again whenever it has ended; returns only if that is not possible. Its log goes on in the same file, which
    /// stays when everything is stopped.
    pub async fn keep_running(&mut self, cluster: &Cluster) -> String {
        let mut pause = FIRST_PAUSE;
        let mut started = Instant::now();
        loop {
            // A poll, because a child started through the standard library is not awaited.
            tokio::time::sleep(Duration::from_millis(500)).await;
            let Some(status) = self.ended() else { continue };
            cluster.keep_logs();
            if started.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            println!(
                "\nThe manager ended ({status}); {} says why. It is started again in {} s.",
                self.log.display(),
                pause.as_secs()
            );
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            match spawn(cluster, &self.setup, &self.log) {
                Ok(process) => self.process = process,
                Err(message) => return message,
            }
            started = Instant::now();
            if self.until_ready().await.is_ok() {
                println!(
                    "The manager is ready again after {:.1} s.",
                    started.elapsed().as_secs_f64()
                );
            }
        }
    }

    /// In order: the manager gives up its lease before the cluster goes.
    pub fn stop(&mut self) {
        if self.ended().is_none() {
            terminate(&mut self.process);
        }
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// What the log ends with, for a message.
    fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

impl Drop for Manager {
    /// Whatever ended the work early: no process stays.
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(cluster: &Cluster, setup: &Setup, log: &Path) -> Result<Child, String> {
    let wrong = |error| format!("cannot write {}: {error}", log.display());
    let output = File::options()
        .create(true)
        .append(true)
        .open(log)
        .map_err(wrong)?;
    let errors = output.try_clone().map_err(wrong)?;
    cluster
        .launch(&own_program()?)
        .args(&setup.arguments)
        .envs(setup.environment.iter().map(|(name, value)| (name, value)))
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("cannot start the manager: {error}"))
}

async fn is_ready(port: u16) -> bool {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        answer.starts_with(b"HTTP/1.1 200").then_some(())
    };
    tokio::time::timeout(Duration::from_secs(2), ask)
        .await
        .is_ok_and(|answer| answer.is_some())
}
