//! The agent's engine beside `dd` and casync, over files. What is measured and how is in `benches/slots`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::package::static_build::Builder;

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
    // As it ships: static, with musl's allocator.
    let program = Builder::for_this_machine()?.build(PACKAGE, "slots-bench")?;
    let directory = match &arguments.directory {
        Some(directory) => directory.clone(),
        None => program.with_file_name("slots-bench.files"),
    };
    let output = Command::new(program)
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
