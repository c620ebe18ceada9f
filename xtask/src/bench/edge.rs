//! Edge hosts by the thousand that take one upgrade. What is measured and how is in `benches/edge`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::package::static_build;

#[derive(clap::Args)]
pub struct Arguments {
    #[arg(long, default_value_t = 1000)]
    hosts: usize,
    /// How many of them are disturbed at once, as a number or a share.
    #[arg(long, default_value = "25%")]
    concurrent: String,
    /// How long a host is away when it reboots.
    #[arg(long, default_value_t = 5)]
    away_seconds: u64,
    /// An upgrade that takes longer is given up.
    #[arg(long, default_value_t = 1800)]
    timeout_seconds: u64,
}

pub fn run(arguments: &Arguments, as_json: bool) -> Result<()> {
    let builder = static_build::Builder::for_this_machine()?;
    let driver = builder.build("slipway-bench-edge", "edge-bench-driver")?;
    let output = Command::new(driver)
        .args(["--hosts", &arguments.hosts.to_string()])
        .args(["--concurrent", &arguments.concurrent])
        .args(["--away-seconds", &arguments.away_seconds.to_string()])
        .args(["--timeout-seconds", &arguments.timeout_seconds.to_string()])
        .arg("--slipway")
        .arg(builder.build("slipway", "slipway")?)
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
