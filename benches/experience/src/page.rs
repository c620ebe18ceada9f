//! The page in Chromium: opened, and then looked at while one cluster changes.

use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use slipway_kit::manager::measure;
use slipway_testbed::Cluster;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::{sleep, timeout},
};

use crate::{Measured, fleet};

/// A hang guard.
const HANG: Duration = Duration::from_mins(3);

pub async fn look(
    cluster: &Cluster,
    slipway: &Path,
    kubeconfig: &Path,
    paints: usize,
    updates: usize,
) -> Result<Measured> {
    let (server, address) = serve(slipway, kubeconfig).await?;
    let id = server.id().context("it runs")?;
    let folder = browser()?;
    let mut watcher = Command::new("node")
        .arg("measure.mjs")
        .current_dir(folder.path())
        .env("BENCH", json!({"address": address, "paints": paints}).to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(watcher.stdout.take().context("its output is piped")?).lines();
    let (mut first_paints, mut rows) = (Vec::new(), Vec::new());
    loop {
        let line = next(&mut lines).await?;
        if line["watching"] == true {
            break;
        }
        first_paints.push(
            line["firstPaint"]
                .as_f64()
                .context("the browser tells its first paint")?,
        );
        rows.push(
            line["rows"]
                .as_f64()
                .context("the browser tells when rows came")?,
        );
    }
    let client = cluster.client();
    let mut taken = Vec::new();
    for number in 0..updates {
        let began = milliseconds()?;
        fleet::change(&client, number).await?;
        loop {
            let line = next(&mut lines).await?;
            if line["tick"].as_u64() == u64::try_from(number).ok() {
                taken.push(line["at"].as_f64().context("the browser tells when")? - began);
                break;
            }
        }
        // Not in step with what the server and the page gather changes by.
        sleep(Duration::from_millis(50 + (number as u64 * 97) % 600)).await;
    }
    Ok(Measured {
        first_paints,
        rows,
        updates: taken,
        memory: measure::memory(id)?,
        cpu_seconds: measure::cpu_seconds(id)?,
    })
}

async fn serve(slipway: &Path, kubeconfig: &Path) -> Result<(Child, String)> {
    let mut child = Command::new(slipway)
        .arg("ui")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--open=false")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = child.stdout.take().context("its output is piped")?;
    let address = BufReader::new(output)
        .lines()
        .next_line()
        .await?
        .context("it prints its address")?;
    Ok((child, address))
}

/// The script with what it needs of npm.
fn browser() -> Result<tempfile::TempDir> {
    ensure!(
        Path::new("/usr/bin/chromium").exists(),
        "the page is measured in Chromium: `apt-get install chromium nodejs npm` as root"
    );
    let folder = tempfile::tempdir()?;
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/page");
    for file in ["package.json", "package-lock.json"] {
        fs::copy(from.join(file), folder.path().join(file))?;
    }
    fs::write(folder.path().join("measure.mjs"), include_str!("measure.mjs"))?;
    let installed = std::process::Command::new("npm")
        .args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()?;
    ensure!(
        installed.status.success(),
        "npm ci failed: {}",
        String::from_utf8_lossy(&installed.stderr)
    );
    Ok(folder)
}

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> Result<Value> {
    let line = timeout(HANG, lines.next_line())
        .await
        .context("the browser has said nothing for long")??;
    Ok(serde_json::from_str(&line.context("the browser has ended")?)?)
}

fn milliseconds() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1000.0)
}
