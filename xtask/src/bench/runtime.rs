//! The same job on our runtime and on controller-runtime, in front of the same real apiserver. What is measured and
//! how is in `benches/runtime`.

use std::{
    ffi::OsString,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::upstream;
use crate::package::static_build;

const PACKAGE: &str = "slipway-bench-runtime";

#[derive(clap::Args)]
pub struct Arguments {
    /// How many objects, as a list.
    #[arg(long, default_value = "1000,10000,50000")]
    objects: String,
    /// How often each is run; the median counts.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Once all is reconciled, 100 objects a second are changed for this long.
    #[arg(long, default_value_t = 120)]
    updates_seconds: u32,
    /// How long the managers are watched doing nothing.
    #[arg(long, default_value_t = 30)]
    idle_seconds: u32,
    /// Our manager keeps its caches as text.
    #[arg(long)]
    compressed: bool,
    /// What it is measured beside.
    #[arg(long, value_parser = ["controller-runtime", "nothing"], default_value = "controller-runtime")]
    against: String,
}

pub fn run(arguments: &Arguments, as_json: bool) -> Result<()> {
    let builder = static_build::Builder::for_this_machine()?;
    let driver = builder.build(PACKAGE, "race-driver")?;
    let ours = builder.build(PACKAGE, "race-manager")?;
    let mut command = Command::new(driver);
    command
        .arg("--slipway")
        .arg(ours)
        .args(["--objects", &arguments.objects])
        .args(["--repeat", &arguments.repeat.to_string()])
        .args(["--updates-seconds", &arguments.updates_seconds.to_string()])
        .args(["--idle-seconds", &arguments.idle_seconds.to_string()]);
    if arguments.compressed {
        command.arg("--compressed");
    }
    if arguments.against == "controller-runtime" {
        let theirs: OsString = upstream::build("runtime")?.into();
        command.arg("--controller-runtime").arg(theirs);
    }
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("running the race")?;
    if !output.status.success() {
        bail!("the race was not finished; the message is above");
    }
    if as_json {
        print!("{}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}
