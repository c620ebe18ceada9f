//! `cargo xtask manifests`: lets the `slipway` binary render itself into deploy/ and docs/reference/.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};

#[derive(clap::Args)]
pub struct Arguments {
    /// Fail if what is rendered differs from what is there.
    #[arg(long)]
    check: bool,
}

pub fn run(arguments: &Arguments) -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace has a folder")?;
    let mut command = Command::new(env!("CARGO"));
    command
        .current_dir(root)
        .args([
            "run",
            "--quiet",
            "--locked",
            "--package",
            "slipway",
            "--bin",
            "slipway",
            "--",
        ])
        .args(["manifests", "--out", "deploy", "--reference", "docs/reference"]);
    if arguments.check {
        command.arg("--check");
    }
    let status = command.status().context("running slipway manifests")?;
    Ok(status.success())
}
