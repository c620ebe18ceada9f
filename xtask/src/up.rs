//! `cargo xtask up`: builds what `slipway up` starts, and becomes it.

use std::{os::unix::process::CommandExt, path::Path, process::Command, time::Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

#[derive(clap::Args)]
pub struct Arguments {
    /// Stop everything and exit 0 once all is up.
    #[arg(long)]
    exit_when_ready: bool,
    /// Apply no example clusters.
    #[arg(long)]
    no_examples: bool,
}

pub fn run(arguments: &Arguments) -> Result<bool> {
    let started = Instant::now();
    println!("Building slipway and the testbed");
    let output = Command::new(env!("CARGO"))
        .current_dir(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .parent()
                .context("the workspace has a folder")?,
        )
        .args([
            "build",
            "--locked",
            "--package",
            "slipway",
            "--package",
            "slipway-testbed",
            "--package",
            "slipway-azure-sim",
            "--package",
            "slipway-edge-sim",
            "--bins",
        ])
        .arg("--message-format=json-render-diagnostics")
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("running cargo build")?;
    if !output.status.success() {
        bail!("slipway does not build");
    }
    println!("Built in {:.1} s", started.elapsed().as_secs_f64());
    let text = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let program = |name: &str| -> Result<String> {
        let built = messages
            .iter()
            .find(|message| message["target"]["name"] == name && message["executable"].is_string());
        let path = built.and_then(|message| message["executable"].as_str());
        Ok(path
            .with_context(|| format!("cargo built no program called {name}"))?
            .to_owned())
    };
    let mut command = Command::new(program("slipway")?);
    command.arg("up").arg("--testbed").arg(program("testbed")?);
    if arguments.exit_when_ready {
        command.arg("--exit-when-ready");
    }
    if arguments.no_examples {
        command.arg("--no-examples");
    }
    Err(command.exec()).context("starting slipway up")
}
