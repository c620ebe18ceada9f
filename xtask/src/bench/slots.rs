//! The agent's engine beside `dd` and casync, over files. What is measured and how is in `benches/slots`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

const PACKAGE: &str = "slipway-bench-slots";

#[derive(clap::Args)]
pub struct Arguments {
    /// The size of the image that is written and verified.
    #[arg(long, default_value_t = 1024)]
    image_mib: u64,
    /// The size of the ext4 image that is updated.
    #[arg(long, default_value_t = 384)]
    delta_image_mib: u64,
    /// How often writing is measured; the median counts.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Where images and slots are made: on the disk that is to be measured.
    #[arg(long)]
    directory: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, as_json: bool) -> Result<()> {
    let status = Command::new("cargo")
        .args(["build", "--release", "--locked", "--package", PACKAGE])
        .status()
        .context("building the bench")?;
    if !status.success() {
        bail!("the bench does not build; the message is above");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
        PathBuf::from,
    );
    let directory = arguments
        .directory
        .clone()
        .unwrap_or_else(|| target.join("slots-bench"));
    let output = Command::new(target.join("release/slots-bench"))
        .arg("run")
        .arg("--directory")
        .arg(&directory)
        .args(["--image-mib", &arguments.image_mib.to_string()])
        .args(["--delta-image-mib", &arguments.delta_image_mib.to_string()])
        .args(["--repeat", &arguments.repeat.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("running the bench")?;
    if !output.status.success() {
        bail!("the bench was not finished; the message is above");
    }
    let text = String::from_utf8(output.stdout)?;
    if as_json {
        print!("{text}");
    } else {
        let result: serde_json::Value = serde_json::from_str(&text)?;
        println!("{result:#}");
    }
    Ok(())
}
