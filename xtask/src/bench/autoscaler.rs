//! Pods that wait by the thousand, for which our autoscaler and Karpenter's kwok provider make nodes. What is measured and how is in
//! `benches/autoscaler`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::upstream;
use crate::package::static_build;

const PEER: &str = "karpenter-kwok";
const MODULE: &str = "sigs.k8s.io/karpenter";

#[derive(clap::Args)]
pub struct Arguments {
    /// How many pods come at once; each number is a run of its own.
    #[arg(long, value_delimiter = ',', default_value = "1000,5000")]
    pods: Vec<usize>,
    /// How long a side is watched once all pods run.
    #[arg(long, default_value_t = 30)]
    rest_seconds: u64,
    /// A side that gets no further for so long is measured as it is then.
    #[arg(long, default_value_t = 300)]
    timeout_seconds: u64,
    /// The objects of a cluster of so many nodes are converted for planning; none if zero.
    #[arg(long, default_value_t = 5000)]
    snapshot_nodes: usize,
    /// What it is measured beside.
    #[arg(long, value_parser = [PEER, "nothing"], default_value = PEER)]
    against: String,
    /// Measure what it is measured beside, alone.
    #[arg(long)]
    only_peer: bool,
}

pub fn run(arguments: &Arguments, as_json: bool) -> Result<()> {
    let builder = static_build::Builder::for_this_machine()?;
    let driver = builder.build("slipway-bench-autoscaler", "autoscaler-bench-driver")?;
    let pods: Vec<String> = arguments.pods.iter().map(ToString::to_string).collect();
    let mut command = Command::new(driver);
    command
        .args(["--pods", &pods.join(",")])
        .args(["--rest-seconds", &arguments.rest_seconds.to_string()])
        .args(["--timeout-seconds", &arguments.timeout_seconds.to_string()])
        .args(["--snapshot-nodes", &arguments.snapshot_nodes.to_string()]);
    if !arguments.only_peer {
        command.arg("--slipway").arg(builder.build("slipway", "slipway")?);
    }
    if arguments.against == PEER {
        command
            .arg("--karpenter")
            .arg(upstream::build_package(PEER, "sigs.k8s.io/karpenter/kwok")?)
            .arg("--karpenter-module")
            .arg(upstream::module_directory(PEER, MODULE)?);
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
