//! `cargo xtask package`: everything a release consists of, into one folder. Release builds take minutes, so none of
//! this runs in CI; the writers have fast tests of their own.

mod binaries;
mod chart;
mod elf;
mod image;
mod oci;
mod sbom;
mod tar;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::bench::peers::root;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    /// Where everything goes.
    #[arg(long, global = true, default_value = "target/package")]
    out: PathBuf,
}

#[derive(Clone, Copy, clap::Subcommand)]
enum What {
    /// Static programs for x86-64 and arm64.
    Binaries,
    /// The manager's image as an OCI image layout, for both (builds the programs).
    Image,
    /// A folder that clusterctl installs from.
    Repository,
    /// What the manager is made of, as a CycloneDX bill of materials.
    Sbom,
    /// The manual pages.
    Man,
    /// Render the chart with the real Helm and compare it with what clusterctl installs.
    Chart,
}

pub fn run(arguments: &Arguments) -> Result<bool> {
    let out = root().join(&arguments.out);
    std::fs::create_dir_all(&out).with_context(|| format!("making {}", out.display()))?;
    let all = [
        What::Binaries,
        What::Image,
        What::Repository,
        What::Sbom,
        What::Man,
        What::Chart,
    ];
    let one = arguments.what.map(|what| [what]);
    for what in one.as_ref().map_or(&all[..], |one| &one[..]) {
        match what {
            What::Binaries => {
                binaries::build(&out)?;
            }
            What::Image => {
                let programs = binaries::build(&out)?;
                image::write(&programs, &out.join("image"))?;
            }
            What::Repository => slipway(&["manifests", "--repository"], &out.join("repository"))?,
            What::Sbom => sbom::write(&out.join("slipway.cdx.json"))?,
            What::Man => slipway(&["man", "--out"], &out.join("man"))?,
            What::Chart => chart::compare()?,
        }
    }
    Ok(true)
}

/// Runs our own program with a folder as its last argument.
fn slipway(arguments: &[&str], directory: &Path) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .current_dir(root())
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
        .args(arguments)
        .arg(directory)
        .status()
        .context("running slipway")?;
    if !status.success() {
        bail!("slipway {} failed", arguments.join(" "));
    }
    println!("{}", directory.display());
    Ok(())
}
