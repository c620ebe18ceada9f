//! The manager that ships, as `cargo xtask package binaries` built it, with every provider it has: it starts on a cluster
//! with Cluster API's core, becomes ready, and is small when there is nothing to do. Release builds take minutes, so it is
//! run only where a program is named.

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use slipway_testbed::{Cluster, ManagementCluster, install};
use tokio::{process::Command, time::Instant};

use crate::manager_process::{free_port, get};

/// In kilobytes, as the kernel counts.
const LARGEST_AT_REST: u64 = 30 * 1024;
/// Long enough for the first lists and for what follows from them.
const REST: Duration = Duration::from_secs(20);
/// Nothing here takes this long, unless it never comes.
const HANG_GUARD: Duration = Duration::from_mins(2);

#[tokio::test]
async fn packaged_manager_is_small_at_rest() -> Result<()> {
    let Some(program) = env::var_os("SLIPWAY_PROGRAM").map(PathBuf::from) else {
        println!("report: no packaged manager was run; docs/guides/release.md says how");
        return Ok(());
    };
    let cluster = ManagementCluster::builder()
        .name("packaged")
        .cluster_api()
        .start()
        .await?;
    let folder = tempfile::tempdir()?;
    let port = free_port()?;
    install_for(&cluster, &program, folder.path(), port).await?;

    let health = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let log = folder.path().join("manager.log");
    let mut manager = Command::new(&program)
        .arg("manager")
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig())
        .arg("--webhook-cert-dir")
        .arg(folder.path().join("certificates"))
        .args(["--webhook-host=127.0.0.1", "--diagnostics-address=0"])
        .arg(format!("--webhook-port={port}"))
        .arg(format!("--health-addr={health}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log)?)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let started = Instant::now();
    while !get(health, "/readyz")
        .await
        .is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    {
        ensure!(
            manager.try_wait()?.is_none() && started.elapsed() < HANG_GUARD,
            "the manager never becomes ready:\n{}",
            fs::read_to_string(&log)?
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // What is measured is a manager that has been left alone.
    tokio::time::sleep(REST).await;
    let id = manager.id().context("the manager runs")?;
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let memory = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.map(|line| line.trim().trim_end_matches(" kB"));
        Ok(number.context("the kernel tells memory")?.parse()?)
    };
    let at_rest = memory("VmRSS:")?;
    println!(
        "report: the packaged manager at rest: {:.1} MB resident ({:.1} MB of it the program), {:.1} MB at most",
        at_rest as f64 / 1024.0,
        memory("RssFile:")? as f64 / 1024.0,
        memory("VmHWM:")? as f64 / 1024.0
    );
    assert!(at_rest < LARGEST_AT_REST, "{at_rest} kB");
    manager.kill().await?;
    cluster.stop();
    Ok(())
}

/// Installs CRDs and webhooks as the program itself renders them.
async fn install_for(cluster: &Cluster, program: &Path, folder: &Path, port: u16) -> Result<()> {
    let output = Command::new(program)
        .args(["manifests", "--local", &format!("https://127.0.0.1:{port}")])
        .arg("--cert-dir")
        .arg(folder.join("certificates"))
        .output()
        .await
        .with_context(|| format!("running {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let rendered = install::parse(&String::from_utf8(output.stdout)?)?;
    install::install(&cluster.client(), &rendered).await?;
    Ok(())
}
