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

use crate::{
    aks_manager, edge_world,
    guides::{Guide, Shell},
    k3s_manager,
    toy_provider::BINARY,
};

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

/// What a running `up` has said so far, and says from now on.
struct Said {
    lines: tokio::sync::mpsc::UnboundedReceiver<String>,
    text: String,
}

impl Said {
    fn of(child: &mut Child) -> Result<Self> {
        let output = child.stdout.take().context("its output is piped")?;
        let (sender, lines) = tokio::sync::mpsc::unbounded_channel();
        let mut from = BufReader::new(output).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = from.next_line().await {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            lines,
            text: String::new(),
        })
    }

    /// Reads on until a line contains these words.
    async fn until(&mut self, words: &str) -> Result<()> {
        let reading = async {
            while let Some(line) = self.lines.recv().await {
                self.text.push_str(&line);
                self.text.push('\n');
                if line.contains(words) {
                    return true;
                }
            }
            false
        };
        let found = tokio::time::timeout(HANG_GUARD, reading).await;
        ensure!(
            matches!(found, Ok(true)),
            "it did not say {words:?}:\n{}",
            self.text
        );
        Ok(())
    }

    /// What a line of the summary says of something.
    fn of_summary(&self, what: &str) -> Result<String> {
        let mut lines = self.text.lines();
        let said = lines.find_map(|line| line.trim().strip_prefix(what)?.strip_prefix("  "));
        Ok(said
            .with_context(|| format!("it does not say {what}:\n{}", self.text))?
            .trim()
            .to_owned())
    }

    /// The line to paste into another terminal.
    fn to_paste(&self) -> Result<String> {
        let line = self
            .text
            .lines()
            .find(|line| line.trim().starts_with("export PATH="));
        Ok(line.context("a line to paste")?.trim().to_owned())
    }

    fn kubeconfig(&self) -> Result<PathBuf> {
        Ok(PathBuf::from(self.of_summary("kubeconfig")?))
    }
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
    for expected in [
        "[1/4] ",
        "[3/4] Starting the manager",
        "Fleet regatta is Ready",
        "Ready after",
        "providers        toy",
        "export PATH=",
    ] {
        ensure!(text.contains(expected), "it does not say {expected:?}:\n{text}");
    }
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("kubeconfig  "));
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
    for expected in [
        "Ready after",
        "providers        k3s",
        "[4/4] Applying examples",
        "A K3s cluster of three servers and a worker",
        "KThreesControlPlane edge is Available",
        "MachineDeployment edge-workers is Available",
        "Cluster edge is Available",
    ] {
        let at = rest.find(expected);
        rest = &rest[at.with_context(|| format!("it does not say {expected:?}:\n{text}"))?..];
    }
    let took = text.lines().find(|line| line.starts_with("Ready after"));
    println!("report: up with K3s: {}", took.unwrap_or_default());
    for line in text.lines().filter(|line| line.contains(" is Available")) {
        println!("report: up with K3s: {}", line.trim());
    }
    Ok(())
}

/// The example of edge hosts: two join, K3s runs on them, they are upgraded in place, and one of them goes back from the next image.
#[tokio::test]
async fn up_shows_edge_hosts_upgraded_and_one_that_goes_back() -> Result<()> {
    program("slipway-edge-sim", "edge-sim")?;
    let mut command = up(edge_world::BINARY)?;
    let output = tokio::time::timeout(HANG_GUARD, command.arg("--exit-when-ready").output()).await??;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{text}");
    let mut rest = text.as_ref();
    for expected in [
        "providers        k3s, edge",
        "edge hosts join",
        "A K3s cluster on two edge hosts",
        "KThreesControlPlane demo-edge is Available",
        "EdgeHost box-2 is Claimed",
        "MachineDeployment demo-edge-workers is MachinesReady",
        "Its hosts are upgraded in place to the next minor version",
        ": fetching the image",
        "ClusterUpgrade demo-edge: the workers roll out",
        "ClusterUpgrade demo-edge is Ready",
        "An image that one of the hosts does not boot",
        " did not come up in 3 tries",
        "ClusterUpgrade demo-edge is Halted",
    ] {
        let at = rest.find(expected);
        rest = &rest[at.with_context(|| format!("it does not say {expected:?}:\n{text}"))?..];
    }
    for line in text.lines().filter(|line| line.contains("demo-edge is ")) {
        println!("report: up with edge hosts: {}", line.trim());
    }
    Ok(())
}

/// The example of AKS: a cluster on the simulated Azure, which `up` starts, with a line for what it waits for. A manager that
/// dies meanwhile is started again, with its log kept; and what the summary names is there.
#[tokio::test]
async fn up_shows_an_aks_cluster_and_survives_its_manager() -> Result<()> {
    program("slipway-azure-sim", "azure-sim")?;
    let mut child = up(aks_manager::BINARY)?.spawn()?;
    let mut said = Said::of(&mut child)?;
    for expected in [
        "Ready after",
        "providers        aks",
        "An AKS cluster with two node pools, on the simulated Azure",
        "demo-aks: waiting · AzureManagedControlPlane/demo-aks",
        "AzureManagedControlPlane demo-aks is Ready",
        "AzureManagedCluster demo-aks is Ready",
        "AzureManagedMachinePool demo-aks-system is Ready",
        "AzureManagedMachinePool demo-aks-work is Ready",
        "Cluster demo-aks is Available",
        "Ctrl-C stops everything",
    ] {
        said.until(expected).await?;
    }
    for line in said
        .text
        .lines()
        .filter(|line| line.contains(" is Ready") || line.contains(" is Available"))
    {
        println!("report: up with AKS: {}", line.trim());
    }

    for (what, expected) in [
        ("manager health", ""),
        ("manager metrics", "controller_runtime_reconcile_total"),
        ("Azure, health", "true"),
        ("Azure, admin", "ok"),
    ] {
        let address = said.of_summary(what)?;
        let address = address.split_whitespace().next().unwrap_or_default();
        let (host, path) = address
            .strip_prefix("http://")
            .and_then(|rest| rest.split_once('/'))
            .with_context(|| format!("{what}: {address}"))?;
        let answer = slipway_kit::manager::get(host.parse()?, &format!("/{path}")).await?;
        ensure!(
            answer.starts_with("HTTP/1.1 200") && answer.contains(expected),
            "{what}: {answer}"
        );
    }

    let log = PathBuf::from(said.of_summary("manager log")?);
    let before = std::fs::read_to_string(&log)?;
    let health = said.of_summary("manager health")?;
    kill_the_one_with(&format!(
        "--health-addr={}",
        health.trim_start_matches("http://").trim_end_matches("/readyz")
    ))?;
    said.until("The manager ended (signal: 9 (SIGKILL))").await?;
    said.until("The manager is ready again").await?;
    let after = std::fs::read_to_string(&log)?;
    ensure!(
        after.starts_with(&before) && after.len() > before.len(),
        "the log goes on"
    );

    terminate(&child)?;
    let status = tokio::time::timeout(HANG_GUARD, child.wait()).await??;
    ensure!(status.success(), "{status}");
    let kubeconfig = said.kubeconfig()?;
    ensure!(!kubeconfig.exists(), "{} was left behind", kubeconfig.display());
    ensure!(
        std::fs::read_to_string(&log)?.starts_with(&before),
        "the log of a manager that died is kept"
    );
    std::fs::remove_dir_all(kubeconfig.parent().context("a directory")?)?;
    Ok(())
}

/// The guides for a first cluster, followed literally in an `up` without examples.
async fn first_cluster(slipway: &str, guide: &str) -> Result<String> {
    let mut child = up(slipway)?.arg("--no-examples").spawn()?;
    let mut said = Said::of(&mut child)?;
    said.until("Ctrl-C stops everything").await?;
    ensure!(
        !said.text.contains("Applying examples"),
        "no examples:\n{}",
        said.text
    );
    let home = tempfile::tempdir()?;
    let shell = Shell {
        home: home.path().to_owned(),
        prelude: said.to_paste()?,
    };
    let followed = shell.run(&Guide::read(guide)?.all()).await;
    let conditions = match &followed {
        Ok(_) => String::new(),
        Err(_) => {
            let show = "kubectl get clusters,machines,machinepools,events --output=wide";
            shell.run(show).await.unwrap_or_else(|error| format!("{error:#}"))
        }
    };
    let followed = followed.with_context(|| conditions)?;
    terminate(&child)?;
    let status = tokio::time::timeout(HANG_GUARD, child.wait()).await??;
    ensure!(status.success(), "{status}");
    Ok(followed)
}

#[tokio::test]
async fn the_guide_to_a_first_aks_cluster_is_followed_literally() -> Result<()> {
    program("slipway-azure-sim", "azure-sim")?;
    let said = first_cluster(aks_manager::BINARY, "first-aks.md").await?;
    for expected in ["cluster.cluster.x-k8s.io/first condition met", "aks-user-"] {
        ensure!(said.contains(expected), "it does not say {expected:?}:\n{said}");
    }
    Ok(())
}

#[tokio::test]
async fn the_guide_to_a_first_k3s_cluster_is_followed_literally() -> Result<()> {
    let said = first_cluster(k3s_manager::BINARY, "first-k3s.md").await?;
    ensure!(
        said.contains("cluster.cluster.x-k8s.io/first condition met"),
        "{said}"
    );
    Ok(())
}

/// Kills the process with this argument, as the kernel does when memory is short.
fn kill_the_one_with(argument: &str) -> Result<()> {
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path().join("cmdline");
        let arguments = std::fs::read(&path).unwrap_or_default();
        if arguments
            .split(|byte| *byte == 0)
            .any(|one| one == argument.as_bytes())
        {
            let id = path.parent().and_then(Path::file_name).context("an id")?;
            let status = std::process::Command::new("kill").arg("-KILL").arg(id).status()?;
            ensure!(status.success(), "it runs");
            return Ok(());
        }
    }
    anyhow::bail!("no process has {argument}")
}

/// As Ctrl-C does, for a process without a terminal.
fn terminate(child: &Child) -> Result<()> {
    let id = child.id().context("it runs")?.to_string();
    let status = std::process::Command::new("kill").args(["-TERM", &id]).status()?;
    ensure!(status.success(), "it runs");
    Ok(())
}

#[tokio::test]
async fn killing_up_leaves_no_process() -> Result<()> {
    let mut child = up(BINARY)?.spawn()?;
    let mut said = Said::of(&mut child)?;
    said.until("Ctrl-C stops everything").await?;
    let kubeconfig = said.kubeconfig()?;
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
