//! `slipway up`: everything comes up with its examples, and everything goes, however it is stopped.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::{aks_manager, k3s_manager, toy_provider::BINARY};

/// Nothing a story waits for takes this long, unless it never comes.
const HANG_GUARD: Duration = Duration::from_mins(10);

/// A program that `up` starts; built where a run of this package alone has not built it.
fn program(package: &str, name: &str) -> Result<PathBuf> {
    let beside = Path::new(BINARY).with_file_name(name);
    if !beside.is_file() {
        let status = std::process::Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--locked",
                "--package",
                package,
                "--bin",
                name,
            ])
            .status()?;
        ensure!(status.success(), "{name} does not build");
    }
    Ok(beside)
}

fn up(slipway: &str) -> Result<Command> {
    let mut command = Command::new(slipway);
    command
        .arg("up")
        .arg("--testbed")
        .arg(program("slipway-testbed", "testbed")?);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    Ok(command)
}

/// Reads what it prints until all is up; answers with the kubeconfig's path.
async fn until_ready(child: &mut Child) -> Result<PathBuf> {
    let output = child.stdout.take().context("its output is piped")?;
    let mut lines = BufReader::new(output).lines();
    let mut kubeconfig = None;
    while let Some(line) = lines.next_line().await? {
        if let Some(path) = line.trim().strip_prefix("kubeconfig ") {
            kubeconfig = Some(PathBuf::from(path.trim()));
        }
        if line.contains("Ctrl-C stops everything") {
            // Whoever goes on printing must not meet a closed pipe.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return kubeconfig.context("it says where the kubeconfig is");
        }
    }
    anyhow::bail!("it ended before it was ready")
}

fn is_alive(process: u64) -> bool {
    // A zombie has ended; only its parent has not looked yet.
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .trim_start()
            .starts_with('Z')
    })
}

#[tokio::test]
async fn up_comes_up_and_goes_by_itself() -> Result<()> {
    let output = tokio::time::timeout(HANG_GUARD, up(BINARY)?.arg("--exit-when-ready").output()).await??;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{text}");
    for wanted in [
        "[1/4] ",
        "[3/4] Starting the manager",
        "Fleet regatta is Ready",
        "Ready after",
        "providers    toy",
        "export KUBECONFIG=",
    ] {
        ensure!(text.contains(wanted), "it does not say {wanted:?}:\n{text}");
    }
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("kubeconfig "));
    let kubeconfig = PathBuf::from(line.context("it names the kubeconfig")?.trim());
    ensure!(!kubeconfig.exists(), "{} was left behind", kubeconfig.display());
    Ok(())
}

/// The example of K3s: a cluster on test hosts, shown as it becomes available.
#[tokio::test]
async fn up_shows_a_k3s_cluster() -> Result<()> {
    let mut command = up(k3s_manager::BINARY)?;
    let output = tokio::time::timeout(HANG_GUARD, command.arg("--exit-when-ready").output()).await??;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{text}");
    let mut rest = text.as_ref();
    // In this order: what a user waits for is there before the examples are.
    for wanted in [
        "Ready after",
        "providers    k3s",
        "[4/4] Applying examples",
        "A K3s cluster of three servers and a worker",
        "KThreesControlPlane edge is Available",
        "MachineDeployment edge-workers is Available",
        "Cluster edge is Available",
    ] {
        let at = rest.find(wanted);
        rest = &rest[at.with_context(|| format!("it does not say {wanted:?}:\n{text}"))?..];
    }
    let took = text.lines().find(|line| line.starts_with("Ready after"));
    println!("report: up with K3s: {}", took.unwrap_or_default());
    for line in text.lines().filter(|line| line.contains(" is Available")) {
        println!("report: up with K3s: {}", line.trim());
    }
    Ok(())
}

/// The example of AKS: a cluster on the simulated Azure, which `up` starts, with a line for each resource.
#[tokio::test]
async fn up_shows_an_aks_cluster() -> Result<()> {
    program("slipway-azure-sim", "azure-sim")?;
    let mut command = up(aks_manager::BINARY)?;
    let output = tokio::time::timeout(HANG_GUARD, command.arg("--exit-when-ready").output()).await??;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{text}");
    let mut rest = text.as_ref();
    for wanted in [
        "Ready after",
        "providers    aks",
        "An AKS cluster with two node pools, on the simulated Azure",
        "AzureManagedControlPlane demo-aks: ResourceGroupReady is so",
        "AzureManagedControlPlane demo-aks: VNetReady is so",
        "AzureManagedControlPlane demo-aks: SubnetsReady is so",
        "AzureManagedControlPlane demo-aks: ManagedClusterRunning is so",
        "AzureManagedControlPlane demo-aks is Ready",
        "AzureManagedCluster demo-aks is Ready",
        "AzureManagedMachinePool demo-aks-system is Ready",
        "AzureManagedMachinePool demo-aks-work is Ready",
    ] {
        let at = rest.find(wanted);
        rest = &rest[at.with_context(|| format!("it does not say {wanted:?}:\n{text}"))?..];
    }
    for line in text.lines().filter(|line| line.contains(" is Ready")) {
        println!("report: up with AKS: {}", line.trim());
    }
    Ok(())
}

#[tokio::test]
async fn killing_up_leaves_no_process() -> Result<()> {
    let mut child = up(BINARY)?.spawn()?;
    let kubeconfig = tokio::time::timeout(HANG_GUARD, until_ready(&mut child)).await??;
    let description = kubeconfig.with_file_name("description.json");
    let description: Value = serde_json::from_slice(&std::fs::read(description)?)?;
    let processes: Vec<u64> = description["processes"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(_, id)| id.as_u64())
        .collect();
    ensure!(
        processes.len() >= 4 && processes.iter().all(|id| is_alive(*id)),
        "{description}"
    );
    child.start_kill()?;
    child.wait().await?;
    // The kernel ends them one after the other; there is nothing to watch but /proc.
    let gone = async {
        while processes.iter().any(|id| is_alive(*id)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(HANG_GUARD, gone)
        .await
        .context("processes outlive the one that started them")?;
    Ok(())
}
