//! The programs that ship: built static for every architecture, and looked at before anybody ships them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::{
    elf,
    static_build::{self, Target},
    toolchain::Folders,
};
use crate::bench::upstream::root;

/// The manager is to stay small.
const LARGEST: u64 = 40 * 1024 * 1024;

/// A program that was built and found fit to ship.
pub struct Built {
    pub architecture: &'static str,
    pub path: PathBuf,
}

/// Builds for these architectures into `<out>/<architecture>/slipway`.
pub fn build(architectures: &[String], out: &Path) -> Result<Vec<Built>> {
    let targets = static_build::targets(architectures)?;
    let folders = Folders::find()?;
    targets
        .into_iter()
        .map(|target| build_one(target, &folders, out))
        .collect()
}

fn build_one(target: &Target, folders: &Folders, out: &Path) -> Result<Built> {
    let program = static_build::build(target, folders, "slipway", "slipway")?;
    let content = fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
    elf::check_static(&content, target.machine)
        .map_err(|reason| anyhow::anyhow!("{}: {reason}", program.display()))?;
    let size = content.len() as u64;
    if size > LARGEST {
        bail!(
            "{} has {size} bytes, more than the {LARGEST} it may have",
            program.display()
        );
    }
    if let Some(folder) = folders.named_in(&content) {
        bail!(
            "{} names {}, so it would be another program on another machine",
            program.display(),
            folder.display()
        );
    }
    let folder = out.join(target.architecture);
    fs::create_dir_all(&folder)?;
    let path = folder.join("slipway");
    fs::copy(&program, &path)?;
    println!(
        "{}: static, {:.1} MB",
        path.strip_prefix(root()).unwrap_or(&path).display(),
        size as f64 / 1e6
    );
    Ok(Built {
        architecture: target.architecture,
        path,
    })
}
