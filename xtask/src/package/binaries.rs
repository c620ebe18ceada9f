//! Static programs: built against musl for both architectures, and looked at before anybody ships them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::elf;
use crate::bench::peers::{build_release_for, root};

/// The manager is to stay small.
const LARGEST: u64 = 40 * 1024 * 1024;

pub struct Target {
    /// In the words of OCI, Go and Debian.
    pub architecture: &'static str,
    pub triple: &'static str,
    machine: elf::Machine,
    /// C compilers that make objects which link with musl, in order of preference. The first that is there is taken; the
    /// C in our dependencies asks little of the C library.
    compilers: &'static [&'static str],
    /// What to install where none is there.
    package: &'static str,
}

const TARGETS: [Target; 2] = [
    Target {
        architecture: "amd64",
        triple: "x86_64-unknown-linux-musl",
        machine: elf::Machine::X86_64,
        compilers: &["x86_64-linux-musl-gcc", "musl-gcc"],
        package: "musl-tools",
    },
    Target {
        architecture: "arm64",
        triple: "aarch64-unknown-linux-musl",
        machine: elf::Machine::Aarch64,
        compilers: &["aarch64-linux-musl-gcc", "aarch64-linux-gnu-gcc"],
        package: "gcc-aarch64-linux-gnu",
    },
];

/// A program that was built and found fit to ship.
pub struct Built {
    pub architecture: &'static str,
    pub path: PathBuf,
}

/// Builds for every target into `<out>/<architecture>/slipway`.
pub fn build(out: &Path) -> Result<Vec<Built>> {
    TARGETS.iter().map(|target| build_one(target, out)).collect()
}

fn build_one(target: &Target, out: &Path) -> Result<Built> {
    let compiler = compiler(target)?;
    let name = target.triple.replace('-', "_");
    let mut environment = Vec::new();
    if env::var_os(format!("CC_{name}")).is_none() {
        environment.push((format!("CC_{name}"), compiler));
    }
    // Rust brings musl and a linker; the C compiler is not asked to link, as it may know another C library.
    environment.push((
        format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()),
        "rust-lld".to_owned(),
    ));
    // Debian's compilers add calls that only glibc answers.
    environment.push((format!("CFLAGS_{name}"), "-U_FORTIFY_SOURCE".to_owned()));
    let program = build_release_for(
        &[
            "--package",
            "slipway",
            "--bin",
            "slipway",
            "--target",
            target.triple,
        ],
        "slipway",
        &environment,
    )
    .with_context(|| {
        format!(
            "building for {0}; is the target installed? (rustup target add {0})",
            target.triple
        )
    })?;
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

fn compiler(target: &Target) -> Result<String> {
    let is_there = |name: &str| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    target
        .compilers
        .iter()
        .find(|name| is_there(name))
        .map(|name| (*name).to_owned())
        .with_context(|| {
            format!(
                "there is no C compiler for {} (looked for {}); install one (Debian: {}) or name it in CC_{}",
                target.triple,
                target.compilers.join(", "),
                target.package,
                target.triple.replace('-', "_")
            )
        })
}
