//! A manager under measurement, as the kernel sees it.

use std::{fs, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use slipway_kit::manager::measure::{self, Memory};
use tokio::process::{Child, Command};

use super::report::Side;

/// Dropping it kills it.
pub struct Manager {
    child: Child,
    id: u32,
}

impl Manager {
    pub fn start(
        side: Side,
        program: &Path,
        kubeconfig: &Path,
        concurrency: usize,
        compressed: bool,
        log: &Path,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("--kubeconfig").arg(kubeconfig);
        match side {
            Side::Slipway => command.args([
                format!("--buoy-concurrency={concurrency}"),
                "--kube-api-qps=100000".to_owned(),
                "--kube-api-burst=100000".to_owned(),
                "--health-addr=0".to_owned(),
                "--diagnostics-address=0".to_owned(),
            ]),
            Side::ControllerRuntime => command.arg(format!("--concurrency={concurrency}")),
        };
        if compressed && side == Side::Slipway {
            command.arg("--compressed");
        }
        let log = fs::File::create(log).context("making a log file")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let id = child.id().context("it has just been started")?;
        Ok(Self { child, id })
    }

    /// A manager that has ended has nothing to measure.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the manager ended by itself with {status}");
        }
        Ok(())
    }

    /// Seconds of processor time so far, in user and kernel mode.
    pub fn cpu_seconds(&self) -> Result<f64> {
        measure::cpu_seconds(self.id)
    }

    pub fn memory(&self) -> Result<Memory> {
        measure::memory(self.id)
    }

    /// Waits until it does next to nothing, and says how much processor time it had used by then.
    pub async fn settled(&mut self) -> Result<f64> {
        let mut before = self.cpu_seconds()?;
        for _ in 0..120 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.check()?;
            let now = self.cpu_seconds()?;
            if now - before <= 0.02 {
                return Ok(now);
            }
            before = now;
        }
        bail!("the manager never comes to rest");
    }

    pub async fn stop(mut self) -> Result<()> {
        self.child.kill().await.context("killing the manager")
    }
}
