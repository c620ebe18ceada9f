//! Programs of Debian that tests meet as real parts. On Debian and as root they are installed before the tests run; elsewhere the
//! tests that need them say so and count as skipped.

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// By the package that has them, each with a program by which it is known to be there.
const PACKAGES: [(&str, &str); 4] = [
    // The image cache pulls from it,
    ("docker-registry", "docker-registry"),
    // its images run here,
    ("containerd", "containerd"),
    ("runc", "runc"),
    // and bundles share their bytes with it on a file system that can do that.
    ("btrfs-progs", "mkfs.btrfs"),
];

/// Installs what is missing; failing to is no failure, since whoever needs it says that it was skipped.
pub fn install() {
    let missing: Vec<_> = PACKAGES
        .iter()
        .filter(|(_, program)| !is_there(program))
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        return;
    }
    let list = missing.join(" ");
    if !Path::new("/etc/debian_version").exists() || !is_root() {
        println!("not installed, so what needs it is skipped: {list}");
        return;
    }
    println!("installing from Debian: {list}");
    let installed =
        apt(&["update"]) && apt(&[&["install", "-y", "--no-install-recommends"], &missing[..]].concat());
    if !installed {
        println!("Debian's packages could not be installed, so what needs them is skipped: {list}");
    }
}

fn is_there(program: &str) -> bool {
    let places = std::env::var_os("PATH").unwrap_or_default();
    // Where a user's PATH may not look.
    std::env::split_paths(&places)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|place| place.join(program).exists())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

fn apt(arguments: &[&str]) -> bool {
    Command::new("apt-get")
        .args([
            "-q",
            "-o",
            "DPkg::Lock::Timeout=120",
            "-o",
            "Acquire::http::Timeout=20",
        ])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_wherever_it_is() {
        assert!(is_there("sh"));
        assert!(!is_there("no-such-program-anywhere"));
    }
}
