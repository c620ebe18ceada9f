//! Many K3s clusters at once, made by our manager and by cluster-api-k3s. What is measured and how is in `benches/k3s`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::package::static_build;

const UPSTREAM: &str = "cluster-api-k3s";

#[derive(clap::Args)]
pub struct Arguments {
    #[arg(long, default_value_t = 100)]
    clusters: usize,
    /// Servers of each.
    #[arg(long, default_value_t = 3)]
    servers: usize,
    /// Workers of each.
    #[arg(long, default_value_t = 3)]
    workers: usize,
    /// How long a side is watched at rest: by default a little longer than the ten minutes after which every object is
    /// looked at again.
    #[arg(long, default_value_t = 660)]
    rest_seconds: u64,
    /// A side that gets no further for so long is measured as it is then.
    #[arg(long, default_value_t = 300)]
    timeout_seconds: u64,
    /// What it is measured beside.
    #[arg(long, value_parser = [UPSTREAM, "nothing"], default_value = UPSTREAM)]
    against: String,
    /// Measure what it is measured beside, alone.
    #[arg(long)]
    only_peer: bool,
}

pub fn run(arguments: &Arguments, as_json: bool) -> Result<()> {
    let builder = static_build::Builder::for_this_machine()?;
    let driver = builder.build("slipway-bench-k3s", "k3s-bench-driver")?;
    let mut command = Command::new(driver);
    command
        .args(["--clusters", &arguments.clusters.to_string()])
        .args(["--servers", &arguments.servers.to_string()])
        .args(["--workers", &arguments.workers.to_string()])
        .args(["--rest-seconds", &arguments.rest_seconds.to_string()])
        .args(["--timeout-seconds", &arguments.timeout_seconds.to_string()]);
    if !arguments.only_peer {
        command.arg("--slipway").arg(builder.build("slipway", "slipway")?);
    }
    if arguments.against == UPSTREAM {
        command.arg("--upstream");
    }
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("running the driver")?;
    if !output.status.success() {
        bail!("the measurement was not finished; the message is above");
    }
    if as_json {
        print!("{}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}
