//! `edge-sim`: a simulated site as a process. It prints one line of JSON when it is ready: where its hosts look for their manager, where the
//! cluster that they run will answer, and the images that they can boot. Its hosts join that manager with tokens that `slipway edge token`
//! makes, as a person would let them, and try until they have.

use std::{collections::BTreeSet, io::Write as _, net::TcpListener, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};
use slipway_agent_api::token::JoinToken;
use slipway_edge_sim::EdgeSite;
use slipway_k3s_sim::{Simulator, Timing};
use tokio::{
    process::Command,
    signal::unix::{SignalKind, signal},
    time::sleep,
};

/// A site of two hosts, `box-1` and `box-2`, that run the simulated K3s.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// The management cluster.
    #[arg(long, value_name = "KUBECONFIG")]
    management: PathBuf,
    /// The program that makes join tokens.
    #[arg(long, value_name = "PROGRAM")]
    slipway: PathBuf,
}

/// What the manager's certificate calls the fleet.
const FLEET: &str = "edge";
const CLUSTER: &str = "demo-edge";
const HOSTS: [&str; 2] = ["box-1", "box-2"];
/// The host that does not come up with the last image, so that an upgrade that goes back can be seen.
const BROKEN: &str = "box-2";
const VERSIONS: [&str; 3] = ["v1.34.3+k3s1", "v1.35.2+k3s1", "v1.36.3+k3s1"];
/// How long a host is away when it reboots.
const AWAY: Duration = Duration::from_secs(2);
/// The manager is started after this program.
const TRY_AGAIN: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let mut terminate = signal(SignalKind::terminate()).context("waiting for signals")?;
    let simulator = Simulator::new(Timing::HURRIED);
    let cluster = simulator.cluster(CLUSTER).await?;
    let endpoint = cluster.endpoint;
    let site = EdgeSite::start(cluster, &VERSIONS, AWAY).await?;
    let manager = format!("127.0.0.1:{}", free_port()?);
    let images: Vec<Value> = VERSIONS
        .iter()
        .filter_map(|version| {
            let (reference, digest) = site.image(version)?;
            Some(json!({"version": version, "reference": reference, "digest": digest}))
        })
        .collect();
    let ready = json!({"manager": manager, "images": images,
        "endpoint": {"host": endpoint.ip().to_string(), "port": endpoint.port()}});
    println!("{ready}");
    std::io::stdout().flush()?;
    tokio::select! {
        () = join(&site, &manager, &arguments) => {}
        _ = terminate.recv() => return Ok(()),
    }
    terminate.recv().await;
    Ok(())
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Ends when every host has joined.
async fn join(site: &EdgeSite, manager: &str, arguments: &Arguments) {
    for name in HOSTS {
        while let Err(error) = join_one(site, name, manager, arguments).await {
            tracing::info!("{name} has not joined yet: {error:#}");
            sleep(TRY_AGAIN).await;
        }
    }
}

async fn join_one(site: &EdgeSite, name: &str, manager: &str, arguments: &Arguments) -> Result<()> {
    let token = token(name, arguments).await?;
    let host = site.add(name, FLEET, manager, &token).await?;
    if name == BROKEN {
        let last = VERSIONS.last().map(|version| (*version).to_owned());
        host.machine.faults.lock().broken_versions = BTreeSet::from_iter(last);
    }
    Ok(())
}

async fn token(name: &str, arguments: &Arguments) -> Result<JoinToken> {
    let made = Command::new(&arguments.slipway)
        .args(["edge", "token", name, "--kubeconfig"])
        .arg(&arguments.management)
        .output()
        .await
        .context("running slipway edge token")?;
    let errors = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "slipway edge token: {}", errors.trim());
    Ok(String::from_utf8_lossy(&made.stdout).trim().parse()?)
}
