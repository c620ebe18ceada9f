//! Programs that need nothing at run time: how they are built against musl for each architecture, and what a machine has
//! to have for it.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::{
    elf,
    toolchain::{self, Folders},
};
use crate::bench::upstream::build_release_for;

pub struct Target {
    /// In the words of OCI, Go and Debian.
    pub architecture: &'static str,
    pub triple: &'static str,
    pub machine: elf::Machine,
    /// C compilers that make objects which link with musl, in order of preference. The first that is there is taken; the
    /// C in our dependencies (the cryptography, and what grows the stack under deep YAML) asks little of the C library.
    compilers: &'static [&'static str],
    /// What to install where none is there.
    package: &'static str,
}

pub const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

pub const TARGETS: [Target; 2] = [
    Target {
        architecture: ARCHITECTURES[0],
        triple: "x86_64-unknown-linux-musl",
        machine: elf::Machine::X86_64,
        compilers: &["x86_64-linux-musl-gcc", "musl-gcc"],
        package: "musl-tools",
    },
    Target {
        architecture: ARCHITECTURES[1],
        triple: "aarch64-unknown-linux-musl",
        machine: elf::Machine::Aarch64,
        compilers: &["aarch64-linux-musl-gcc", "aarch64-linux-gnu-gcc"],
        package: "gcc-aarch64-linux-gnu",
    },
];

/// The targets of these architectures, if this machine can build for all of them. Says all that is missing at once.
pub fn targets(architectures: &[String]) -> Result<Vec<&'static Target>> {
    let targets: Vec<&Target> = TARGETS
        .iter()
        .filter(|target| architectures.iter().any(|name| name == target.architecture))
        .collect();
    let sysroot = toolchain::sysroot()?;
    let missing: Vec<String> = targets
        .iter()
        .flat_map(|target| {
            let has_library = toolchain::has_library(&sysroot, target.triple);
            missing(target, has_library, compiler(target).is_some())
        })
        .collect();
    if !missing.is_empty() {
        bail!(
            "this machine cannot build static programs for {} yet:\n  {}",
            architectures.join(" and "),
            missing.join("\n  ")
        );
    }
    Ok(targets)
}

/// The architecture this machine runs.
fn own_architecture() -> String {
    ARCHITECTURES[usize::from(cfg!(target_arch = "aarch64"))].to_owned()
}

/// Builds what is measured as what ships is built, so that memory and time are those of what ships.
pub struct Builder {
    target: &'static Target,
    folders: Folders,
}

impl Builder {
    pub fn for_this_machine() -> Result<Self> {
        Ok(Self {
            target: targets(&[own_architecture()])?[0],
            folders: Folders::find()?,
        })
    }

    pub fn build(&self, package: &str, program: &str) -> Result<PathBuf> {
        build(self.target, &self.folders, package, program)
    }
}

/// What `slipway version` says of the commit; nothing outside a repository.
fn commit() -> Vec<(String, String)> {
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
    };
    [
        ("SLIPWAY_COMMIT", git(&["rev-parse", "HEAD"])),
        ("SLIPWAY_COMMIT_DATE", git(&["log", "-1", "--format=%cI"])),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value?)))
    .collect()
}

/// Builds one program of one package for a target, with no folder of this machine in it.
pub fn build(target: &Target, folders: &Folders, package: &str, program: &str) -> Result<PathBuf> {
    let name = target.triple.replace('-', "_");
    let mut environment = vec![
        (compiler_variable(target), compiler(target).unwrap_or_default()),
        // Rust brings musl and a linker; the C compiler is not asked to link, as it may know another C library.
        (
            format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()),
            "rust-lld".to_owned(),
        ),
        // Debian's compilers add calls that only glibc answers.
        (
            format!("CFLAGS_{name}"),
            format!("-U_FORTIFY_SOURCE {}", folders.c_flags()),
        ),
        ("CARGO_ENCODED_RUSTFLAGS".to_owned(), folders.rust_flags()),
    ];
    environment.extend(commit());
    let arguments = ["--package", package, "--bin", program, "--target", target.triple];
    build_release_for(&arguments, program, &environment)
        .with_context(|| format!("building for {}", target.triple))
}

/// What has to be installed before there can be a program for this target.
fn missing(target: &Target, has_library: bool, has_compiler: bool) -> Vec<String> {
    let triple = target.triple;
    let mut missing = Vec::new();
    if !has_library {
        missing.push(format!(
            "{triple}: Rust's standard library is not installed; run `rustup target add {triple}`"
        ));
    }
    if !has_compiler {
        missing.push(format!(
            "{triple}: there is no C compiler (looked for {}); run `apt-get install {}`, or name one in {}",
            target.compilers.join(", "),
            target.package,
            compiler_variable(target)
        ));
    }
    missing
}

fn compiler_variable(target: &Target) -> String {
    format!("CC_{}", target.triple.replace('-', "_"))
}

/// The compiler the environment names, or else the first of ours that is there.
fn compiler(target: &Target) -> Option<String> {
    let is_there = |name: &str| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    env::var(compiler_variable(target)).ok().or_else(|| {
        let found = target.compilers.iter().find(|name| is_there(name));
        found.map(|name| (*name).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_missing_is_said_with_the_command_that_brings_it() {
        let arm = &TARGETS[1];
        assert!(missing(arm, true, true).is_empty());
        let both = missing(arm, false, false);
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(
            both[0].contains("rustup target add aarch64-unknown-linux-musl"),
            "{both:?}"
        );
        for desired in [
            "apt-get install gcc-aarch64-linux-gnu",
            "CC_aarch64_unknown_linux_musl",
        ] {
            assert!(both[1].contains(desired), "{both:?}");
        }
    }
}
