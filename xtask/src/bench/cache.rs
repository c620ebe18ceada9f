//! An image for many hosts, with and without the hosts beside them. What is measured and how is in `benches/cache`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::package::static_build::Builder;

#[derive(clap::Args)]
pub struct Arguments {
    /// How many hosts get the image.
    #[arg(long, default_value_t = 50)]
    hosts: usize,
    /// The image's size, in millions of bytes.
    #[arg(long, default_value_t = 100)]
    image_mb: usize,
    /// What all hosts together get from upstream, in millions of bits a second.
    #[arg(long, default_value_t = 200)]
    upstream_mbit: u64,
    /// What one host gives to the others, in millions of bits a second.
    #[arg(long, default_value_t = 400)]
    host_mbit: u64,
    /// Where the hosts' files are: as many images as there are hosts must have room.
    #[arg(long)]
    directory: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, as_json: bool) -> Result<()> {
    // As they ship: static, with musl's allocator.
    let builder = Builder::for_this_machine()?;
    let agent = builder.build("slipway-agent", "slipway-agent")?;
    let program = builder.build("slipway-bench-cache", "cache-bench")?;
    let directory = match &arguments.directory {
        Some(directory) => directory.clone(),
        None => program.with_file_name("cache-bench.files"),
    };
    std::fs::create_dir_all(&directory)?;
    let output = Command::new(program)
        .arg("--agent")
        .arg(agent)
        .args(["--hosts", &arguments.hosts.to_string()])
        .args(["--image-mb", &arguments.image_mb.to_string()])
        .args(["--upstream-mbit", &arguments.upstream_mbit.to_string()])
        .args(["--host-mbit", &arguments.host_mbit.to_string()])
        .env("TMPDIR", &directory)
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
