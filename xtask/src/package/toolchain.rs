//! What this machine builds with, and how its folders are kept out of what is built: the same source gives the same
//! program wherever it lies.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::upstream::root;

/// Where the toolchain of this workspace lies.
pub fn sysroot() -> Result<PathBuf> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .current_dir(root())
        .args(["--print", "sysroot"])
        .output()
        .context("running rustc")?;
    if !output.status.success() {
        bail!(
            "rustc does not say where it lies: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

/// Whether Rust's standard library for this target is installed.
pub fn has_library(sysroot: &Path, triple: &str) -> bool {
    sysroot.join("lib/rustlib").join(triple).join("lib").is_dir()
}

/// Folders of this machine that compilers would write into a program, each with the name it gets instead.
pub struct Folders(Vec<(PathBuf, &'static str)>);

impl Folders {
    pub fn find() -> Result<Self> {
        let cargo_home = env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(|| env::home_dir().map(|home| home.join(".cargo")))
            .context("neither CARGO_HOME nor HOME says where cargo keeps its sources")?;
        // The last that fits wins, so that a target folder inside the workspace gets its own name.
        Ok(Self(vec![
            (cargo_home, "/cargo"),
            (root().to_owned(), "/slipway"),
            (target_folder()?, "/target"),
        ]))
    }

    /// For rustc, separated as cargo wants it.
    pub fn rust_flags(&self) -> String {
        let flags: Vec<String> = self
            .0
            .iter()
            .map(|(folder, name)| format!("--remap-path-prefix={}={name}", folder.display()))
            .collect();
        flags.join("\u{1f}")
    }

    /// For a C compiler.
    pub fn c_flags(&self) -> String {
        let flags: Vec<String> = self
            .0
            .iter()
            .map(|(folder, name)| format!("-ffile-prefix-map={}={name}", folder.display()))
            .collect();
        flags.join(" ")
    }

    /// The first of them that a program names nevertheless.
    pub fn named_in(&self, program: &[u8]) -> Option<&Path> {
        let folders = self.0.iter().map(|(folder, _)| folder.as_path());
        folders.into_iter().find(|folder| {
            let name = folder.as_os_str().as_encoded_bytes();
            program.windows(name.len()).any(|part| part == name)
        })
    }
}

fn target_folder() -> Result<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["metadata", "--locked", "--no-deps", "--format-version=1"])
        .output()
        .context("running cargo metadata")?;
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)))?;
    let folder = metadata["target_directory"].as_str();
    Ok(folder.context("cargo metadata names its target folder")?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders() -> Folders {
        Folders(vec![
            ("/home/me/.cargo".into(), "/cargo"),
            ("/src".into(), "/slipway"),
        ])
    }

    #[test]
    fn folders_are_named_anew() {
        assert_eq!(
            folders().rust_flags(),
            "--remap-path-prefix=/home/me/.cargo=/cargo\u{1f}--remap-path-prefix=/src=/slipway"
        );
        assert_eq!(
            folders().c_flags(),
            "-ffile-prefix-map=/home/me/.cargo=/cargo -ffile-prefix-map=/src=/slipway"
        );
    }

    #[test]
    fn a_program_that_names_a_folder_is_found_out() {
        let folders = folders();
        assert_eq!(folders.named_in(b"panicked at /cargo/registry/kube.rs"), None);
        assert_eq!(
            folders.named_in(b"panicked at /home/me/.cargo/registry/kube.rs"),
            Some(Path::new("/home/me/.cargo"))
        );
    }

    #[test]
    fn the_library_of_this_machine_is_installed_and_a_made_up_one_is_not() {
        let sysroot = sysroot().expect("rustc is there");
        assert!(has_library(&sysroot, "x86_64-unknown-linux-gnu") || !cfg!(target_arch = "x86_64"));
        assert!(!has_library(&sysroot, "pdp11-unknown-none"));
    }
}
