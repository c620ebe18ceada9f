//! Loads the `azure-sim` binary on loopback: 1,000 clusters with 3 pools each, then 500 requests a second for twenty
//! seconds. Prints one JSON object: rates, latencies, and the memory of the process.
//!
//! `cargo build --release -p slipway-azure-sim --bins --examples && target/release/examples/load [AZURE-SIM]`

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use reqwest::{Certificate, Client, Method};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet};

const CLUSTERS: usize = 1_000;
const RATE: u32 = 500;
const SECONDS: u32 = 20;
const GROUP: &str = "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/rg";
const API: &str = "api-version=2025-08-01";

/// Ends the simulator however this program ends.
struct Stop(Child);

impl Drop for Stop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir()?;
    let settings = folder.path().join("settings.json");
    std::fs::write(
        &settings,
        json!({"requireToken": false, "throttling": false, "speed": "instant"}).to_string(),
    )?;
    let program = match std::env::args_os().nth(1) {
        Some(path) => path.into(),
        None => std::env::current_exe()?
            .parent()
            .and_then(|examples| examples.parent())
            .context("the example lies beside the binary")?
            .join("azure-sim"),
    };
    let mut child = Command::new(&program)
        .arg("--settings")
        .arg(&settings)
        .arg("--ca-folder")
        .arg(folder.path().join("ca"))
        .arg("--state")
        .arg(folder.path().join("state.json"))
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}: build it first", program.display()))?;
    let out = child.stdout.take().context("its output")?;
    let simulator = Stop(child);
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    let ready: Value = serde_json::from_str(&line).context("the line that tells the ports")?;
    let authority = std::fs::read(ready["caFile"].as_str().context("a CA")?)?;
    let client = Client::builder()
        .tls_certs_only([Certificate::from_pem(&authority)?])
        .no_proxy()
        .build()?;
    let base = format!("https://{}", ready["https"].as_str().context("a port")?);

    let filled = Instant::now();
    fill(&client, &base).await?;
    let filled = filled.elapsed();
    let after_fill = memory(simulator.0.id());
    let latencies = load(&client, &base).await?;
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1_000.0;
    println!(
        "{}",
        json!({
            "clusters": CLUSTERS,
            "pools": CLUSTERS * 3,
            "fillSeconds": filled.as_secs_f64(),
            "requests": latencies.len(),
            "requestsPerSecond": RATE,
            "p50Milliseconds": at(0.5),
            "p99Milliseconds": at(0.99),
            "maxMilliseconds": at(1.0),
            "residentMegabytesAfterFill": after_fill.0,
            "residentMegabytesAtEnd": memory(simulator.0.id()).0,
            "residentMegabytesPeak": memory(simulator.0.id()).1,
        })
    );
    Ok(())
}

async fn send(client: &Client, method: Method, address: String, body: Option<Value>) -> Result<Duration> {
    let started = Instant::now();
    let mut request = client.request(method, &address);
    if let Some(body) = body {
        request = request
            .header("content-type", "application/json")
            .body(body.to_string());
    }
    let response = request.send().await?.error_for_status().context(address)?;
    response.bytes().await?;
    Ok(started.elapsed())
}

async fn fill(client: &Client, base: &str) -> Result<()> {
    send(
        client,
        Method::PUT,
        format!("{base}{GROUP}?{API}"),
        Some(json!({"location": "westus3"})),
    )
    .await?;
    let slots = Arc::new(Semaphore::new(16));
    let mut tasks = JoinSet::new();
    for number in 0..CLUSTERS {
        let slot = Arc::clone(&slots).acquire_owned().await?;
        let (client, base) = (client.clone(), base.to_owned());
        tasks.spawn(async move {
            let _slot = slot;
            let pools: Vec<Value> = ["p1", "p2", "p3"]
                .iter()
                .map(|name| json!({"name": name, "count": 3, "vmSize": "Standard_DS2_v2", "mode": "System"}))
                .collect();
            let body = json!({
                "location": "westus3",
                "identity": {"type": "SystemAssigned"},
                "properties": {"dnsPrefix": format!("c{number}"), "agentPoolProfiles": pools},
            });
            let path =
                format!("{base}{GROUP}/providers/Microsoft.ContainerService/managedClusters/c{number}?{API}");
            send(&client, Method::PUT, path, Some(body)).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// One request each two milliseconds, whatever came of the ones before.
async fn load(client: &Client, base: &str) -> Result<Vec<Duration>> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let mut tasks = JoinSet::new();
    for number in 0..(RATE * SECONDS) {
        ticks.tick().await;
        let client = client.clone();
        let cluster = format!(
            "{base}{GROUP}/providers/Microsoft.ContainerService/managedClusters/c{}",
            number as usize % CLUSTERS
        );
        let (method, address, body) = match number % 20 {
            0 => (
                Method::GET,
                format!(
                    "{base}/subscriptions/00000000-0000-0000-0000-00000000000a/providers/Microsoft.ContainerService/managedClusters?{API}&$skipToken={:x}",
                    (number as usize * 7) % CLUSTERS / 100 * 100
                ),
                None,
            ),
            1 => (
                Method::PUT,
                format!("{cluster}/agentPools/p2?{API}"),
                Some(
                    json!({"properties": {"count": 1 + number % 5, "mode": "System", "vmSize": "Standard_DS2_v2"}}),
                ),
            ),
            2..=6 => (Method::GET, format!("{cluster}/agentPools/p1?{API}"), None),
            _ => (Method::GET, format!("{cluster}?{API}"), None),
        };
        tasks.spawn(async move { send(&client, method, address, body).await });
    }
    let mut latencies = Vec::new();
    while let Some(done) = tasks.join_next().await {
        latencies.push(done??);
    }
    latencies.sort();
    Ok(latencies)
}

/// Resident memory now and at its highest, in megabytes.
fn memory(process: u32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
            / 1024
    };
    (field("VmRSS:"), field("VmHWM:"))
}
