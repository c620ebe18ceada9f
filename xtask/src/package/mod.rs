//! `cargo xtask package`: everything a release consists of, into one folder. Release builds take minutes, so none of
//! this runs in CI; the writers have fast tests of their own.

mod binaries;
mod chart;
mod deb;
mod elf;
mod image;
mod oci;
mod sbom;
pub mod static_build;
mod tar;
pub mod toolchain;

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};

use crate::bench::upstream::root;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    /// Where everything goes.
    #[arg(long, global = true, default_value = "target/package")]
    out: PathBuf,
    /// Where the image is pulled from, without its tag: what Deployments and the chart name. `slipway manifests` knows
    /// the default.
    #[arg(
        long,
        global = true,
        env = "SLIPWAY_IMAGE_REPOSITORY",
        value_name = "REGISTRY/NAME"
    )]
    image_repository: Option<String>,
    /// The architectures to build for.
    #[arg(
        long,
        global = true,
        value_delimiter = ',',
        value_parser = static_build::ARCHITECTURES,
        default_values = static_build::ARCHITECTURES
    )]
    architecture: Vec<String>,
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
    /// The node agent as a Debian package for both.
    Deb,
    /// The manual pages.
    Man,
    /// The Helm chart as an archive, compared by the real Helm with what clusterctl installs, and installed.
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
        What::Deb,
        What::Man,
        What::Chart,
    ];
    let one = arguments.what.map(|what| [what]);
    for what in one.as_ref().map_or(&all[..], |one| &one[..]) {
        match what {
            What::Binaries => {
                binaries::build(&arguments.architecture, &out)?;
            }
            What::Image => {
                let programs = binaries::build(&arguments.architecture, &out)?;
                image::write(&programs, &out.join("image"))?;
            }
            What::Repository => {
                let folder = out.join("repository");
                let mut command = slipway("manifests");
                command.arg("--repository").arg(&folder);
                finish(name_image(&mut command, arguments))?;
                println!("{}", folder.display());
            }
            What::Deb => deb::build(&arguments.architecture, &out)?,
            What::Sbom => sbom::write(&out.join("slipway.cdx.json"))?,
            What::Man => {
                let folder = out.join("man");
                finish(slipway("man").arg("--out").arg(&folder))?;
                println!("{}", folder.display());
            }
            What::Chart => {
                let manifests = out.join("manifests");
                let mut command = slipway("manifests");
                command.arg("--out").arg(&manifests);
                finish(name_image(&mut command, arguments))?;
                chart::pack_and_install(&manifests, &out)?;
            }
        }
    }
    Ok(true)
}

/// One of our own program's commands.
fn slipway(name: &str) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).args([
        "run",
        "--quiet",
        "--locked",
        "--package",
        "slipway",
        "--bin",
        "slipway",
        "--",
        name,
    ]);
    command
}

fn name_image<'a>(command: &'a mut Command, arguments: &Arguments) -> &'a mut Command {
    if let Some(repository) = &arguments.image_repository {
        command.arg("--image-repository").arg(repository);
    }
    command
}

fn finish(command: &mut Command) -> Result<()> {
    let status = command.status().context("running slipway")?;
    if !status.success() {
        bail!("slipway failed; its message is above");
    }
    Ok(())
}
