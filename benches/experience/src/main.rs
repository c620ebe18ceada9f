//! A fleet on the command line and on the page: how long `slipway describe` and `clusterctl describe` take for one cluster of many, how
//! soon the page is there, how soon a change is on the screen, and what the page's server needs. The API server is real and has nobody
//! behind it, so that nothing else happens. Progress goes to standard error; standard output is one JSON object.

mod fleet;
mod page;

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::json;
use slipway_kit::manager::measure;
use slipway_testbed::{Cluster, ManagementCluster, audit::Request};
use tokio::process::Command;

#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 1000)]
    clusters: usize,
    /// How often each command is run.
    #[arg(long, default_value_t = 11)]
    repeat: usize,
    /// How often the page is opened.
    #[arg(long, default_value_t = 7)]
    paints: usize,
    /// How many changes are followed to the screen.
    #[arg(long, default_value_t = 200)]
    updates: usize,
    /// The program that is measured.
    #[arg(long)]
    slipway: PathBuf,
}

/// Who asks, for the audit log.
const DESCRIBE: &str = "bench-describe";
const CLUSTERCTL: &str = "bench-clusterctl";
const PAGE: &str = "bench-page";

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the executor")?;
    println!("{}", runtime.block_on(run(&arguments))?);
    Ok(())
}

/// The median, and the lowest and highest.
fn spread(mut values: Vec<f64>) -> (f64, [f64; 2]) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], [values[0], values[values.len() - 1]])
}

fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * percent / 100).min(values.len() - 1)]
}

async fn run(arguments: &Arguments) -> Result<serde_json::Value> {
    let cluster = ManagementCluster::builder()
        .name("experience-bench")
        .scheduler(false)
        .controller_manager(false)
        .audit_everything_of(DESCRIBE)
        .audit_everything_of(CLUSTERCTL)
        .audit_everything_of(PAGE)
        .start()
        .await?;
    fleet::install(&cluster, &arguments.slipway).await?;
    fleet::create(&cluster.client(), arguments.clusters).await?;
    eprintln!(
        "{} clusters of {} objects each stand",
        arguments.clusters,
        fleet::OBJECTS
    );
    let asked = |user: &'static str| -> Result<usize> {
        let is_of = |request: &Request| request.username() == user;
        Ok(cluster.audit().requests(None, is_of)?.len())
    };
    let name = fleet::name(arguments.clusters / 2);
    let as_user = |user: &str| kubeconfig(&cluster, user);

    let kubeconfig = as_user(DESCRIBE)?;
    let ours = ["describe", name.as_str(), "--namespace", fleet::NAMESPACE];
    let describe = || command(&arguments.slipway, &ours, &kubeconfig);
    describe().await?;
    let describe_requests = asked(DESCRIBE)?;
    let (describe_ms, describe_spread) = spread(fleet::timed(arguments.repeat, describe).await?);
    let all = ["describe", "--namespace", fleet::NAMESPACE];
    let whole = || command(&arguments.slipway, &all, &kubeconfig);
    let (fleet_ms, fleet_spread) = spread(fleet::timed(arguments.repeat.min(5), whole).await?);
    eprintln!("slipway describe: {describe_ms:.0} ms, of all clusters {fleet_ms:.0} ms");

    let kubeconfig = as_user(CLUSTERCTL)?;
    let path = kubeconfig.to_string_lossy().into_owned();
    let theirs = [
        "describe",
        "cluster",
        name.as_str(),
        "--namespace",
        fleet::NAMESPACE,
        "--kubeconfig",
        path.as_str(),
    ];
    let describe = || async {
        cluster.clusterctl(&theirs).await?;
        Ok::<_, anyhow::Error>(())
    };
    describe().await?;
    let clusterctl_requests = asked(CLUSTERCTL)?;
    let (clusterctl_ms, clusterctl_spread) = spread(fleet::timed(arguments.repeat, describe).await?);
    eprintln!("clusterctl describe: {clusterctl_ms:.0} ms");

    let seen = page::look(
        &cluster,
        &arguments.slipway,
        &as_user(PAGE)?,
        arguments.paints,
        arguments.updates,
    )
    .await?;
    let page_requests = asked(PAGE)?;
    let (first_paint_ms, paint_spread) = spread(seen.first_paints);
    let (rows_ms, rows_spread) = spread(seen.rows);
    let update_p50_ms = percentile(seen.updates.clone(), 50);
    let update_p99_ms = percentile(seen.updates, 99);
    eprintln!(
        "the page: first paint {first_paint_ms:.0} ms, rows {rows_ms:.0} ms, update p99 {update_p99_ms:.0} ms, {:.0} MB",
        seen.memory.now
    );
    cluster.stop();
    Ok(json!({
        "clusters": arguments.clusters,
        "objects": arguments.clusters * fleet::OBJECTS,
        "describe_ms": describe_ms,
        "describe_spread_ms": describe_spread,
        "describe_requests": describe_requests,
        "describe_fleet_ms": fleet_ms,
        "describe_fleet_spread_ms": fleet_spread,
        "clusterctl_describe_ms": clusterctl_ms,
        "clusterctl_describe_spread_ms": clusterctl_spread,
        "clusterctl_describe_requests": clusterctl_requests,
        "first_paint_ms": first_paint_ms,
        "first_paint_spread_ms": paint_spread,
        "rows_ms": rows_ms,
        "rows_spread_ms": rows_spread,
        "update_p50_ms": update_p50_ms,
        "update_p99_ms": update_p99_ms,
        "ui_rss_mb": seen.memory.now,
        "ui_peak_mb": seen.memory.peak,
        "ui_cpu_seconds": seen.cpu_seconds,
        "ui_requests": page_requests,
    }))
}

/// A kubeconfig of a user with every right: rights are not what is measured.
fn kubeconfig(cluster: &Cluster, user: &str) -> Result<PathBuf> {
    let path = cluster.description().directory.join(format!("{user}.kubeconfig"));
    std::fs::write(&path, cluster.kubeconfig_as(user, Some("system:masters")))?;
    Ok(path)
}

async fn command(program: &Path, arguments: &[&str], kubeconfig: &Path) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(
        matches!(output.status.code(), Some(0 | 3 | 4)),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// What a look at the page came to.
struct Measured {
    first_paints: Vec<f64>,
    rows: Vec<f64>,
    updates: Vec<f64>,
    memory: measure::Memory,
    cpu_seconds: f64,
}
