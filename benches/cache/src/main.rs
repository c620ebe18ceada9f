//! Measures how an image gets to many hosts: the time and the bytes from upstream, when every host asks upstream and when hosts
//! ask each other. Hosts are real agents, each a process; upstream is a real registry behind a link of limited bandwidth.

mod registry;
mod site;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use serde_json::json;
use slipway_agent_api::peers::Scope;

use registry::Registry;
use site::{Measurement, Site};

#[derive(Parser)]
pub struct Arguments {
    /// The agent's program.
    #[arg(long)]
    agent: PathBuf,
    #[arg(long, default_value_t = 50)]
    hosts: usize,
    /// The image's size, in millions of bytes.
    #[arg(long, default_value_t = 100)]
    image_mb: usize,
    /// What all hosts together get from upstream, in millions of bits a second.
    #[arg(long, default_value_t = 200)]
    upstream_mbit: u64,
    /// What one host gives to the others, in millions of bits a second.
    #[arg(long, default_value_t = 400)]
    host_mbit: u64,
    /// How many hosts ask one that has the image at the same time.
    #[arg(long, default_value_t = 2)]
    fan_out: usize,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(measure(&arguments))
}

async fn round(arguments: &Arguments, scope: Scope) -> Result<Measurement> {
    let registry = Registry::start(arguments.upstream_mbit * 1_000_000 / 8).await?;
    let image = registry.push(arguments.image_mb * 1_000_000).await?;
    let site = Site::start(arguments, &registry).await?;
    let round = site
        .distribute(&image, &registry, scope, arguments.fan_out)
        .await?;
    eprintln!(
        "{scope:?}: {} hosts after {:.1} s, {} MB from upstream, {} MB from hosts",
        arguments.hosts,
        round.seconds,
        round.upstream_bytes / 1_000_000,
        round.peer_bytes / 1_000_000
    );
    Ok(round)
}

async fn measure(arguments: &Arguments) -> Result<()> {
    let alone = round(arguments, Scope::None).await?;
    let together = round(arguments, Scope::Hosts).await?;
    let result = json!({
        "hosts": arguments.hosts,
        "upstream_bytes_fraction": together.upstream_bytes as f64 / alone.upstream_bytes as f64,
        "seconds": together.seconds,
        "seconds_alone": alone.seconds,
        "agent_rss_mb": together.rss_mb,
        "agent_rss_mb_alone": alone.rss_mb,
        "upstream_bytes": together.upstream_bytes,
        "upstream_bytes_alone": alone.upstream_bytes,
        "peer_bytes": together.peer_bytes,
        "agents_busy_seconds": together.busy_seconds,
        "agents_busy_seconds_alone": alone.busy_seconds,
        "image_mb": arguments.image_mb,
        "upstream_mbit": arguments.upstream_mbit,
        "host_mbit": arguments.host_mbit,
        "fan_out": arguments.fan_out,
    });
    println!("{result}");
    Ok(())
}
