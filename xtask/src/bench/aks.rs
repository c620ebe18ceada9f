//! AKS clusters by the hundred on the simulated Azure, in either API. What is measured and how is in `benches/aks`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::package::static_build;

#[derive(clap::Args)]
pub struct Arguments {
    /// How many clusters, as a list.
    #[arg(long, default_value = "200")]
    clusters: String,
    /// Node pools of each; the first is the system pool.
    #[arg(long, default_value_t = 3)]
    pools: usize,
    /// Seconds of the sync period, which is also how long rest is watched; half of it is the read age. Both are ten
    /// minutes by default in production.
    #[arg(long, default_value_t = 60)]
    period: u64,
    /// The same fleet with every node as a Machine, beside the one without.
    #[arg(long)]
    machines: bool,
    /// What it is measured beside: Cluster API Provider Azure v1.21.0 with Azure Service Operator v2.13.0, from the same simulator and
    /// manifests. `cargo xtask parts aso` and `cargo xtask parts capz` build them; choose a size they can hold.
    #[arg(long, value_parser = ["capz", "nothing"], default_value = "nothing")]
    against: String,
}

/// `form`: the API that the fleet is written in, by the driver's word.
pub fn run(arguments: &Arguments, form: &str, as_json: bool) -> Result<()> {
    let builder = static_build::Builder::for_this_machine()?;
    let driver = builder.build("slipway-bench-aks", "aks-driver")?;
    let ours = builder.build("slipway", "slipway")?;
    let mut command = Command::new(driver);
    command
        .arg("--slipway")
        .arg(ours)
        .args(["--form", form])
        .args(["--clusters", &arguments.clusters])
        .args(["--pools", &arguments.pools.to_string()])
        .args(["--period", &arguments.period.to_string()]);
    if arguments.machines {
        command.arg("--machines");
    }
    if arguments.against == "capz" {
        command.arg("--capz");
    }
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("running the fleet")?;
    if !output.status.success() {
        bail!("the fleet was not measured to its end; the message is above");
    }
    if as_json {
        print!("{}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}
