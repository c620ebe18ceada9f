//! A thousand clusters on the command line and on the page. What is measured and how is in `benches/experience`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::package::static_build;

#[derive(clap::Args)]
pub struct Arguments {
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
}

pub fn run(arguments: &Arguments, as_json: bool) -> Result<()> {
    let builder = static_build::Builder::for_this_machine()?;
    let driver = builder.build("slipway-bench-experience", "experience-bench-driver")?;
    let output = Command::new(driver)
        .args(["--clusters", &arguments.clusters.to_string()])
        .args(["--repeat", &arguments.repeat.to_string()])
        .args(["--paints", &arguments.paints.to_string()])
        .args(["--updates", &arguments.updates.to_string()])
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
