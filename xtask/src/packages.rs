//! Debian's packages that tests need: machines in qemu, boot loaders' own tools, a registry. `cargo xtask test` has them installed
//! while the tests are built, where that can be done.

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// The script that knows which they are; a second run with the same versions does nothing.
const SCRIPT: &str = "crates/agent/tests/machine/install.sh";

/// Whose tests use them.
const USER: &str = "slipway-agent";

/// Whether tests of these packages, all if there are none, need what the script installs.
pub fn are_needed(packages: &[String]) -> bool {
    packages.is_empty() || packages.iter().any(|package| package == USER)
}

/// Installs what is missing. The error says why that was not possible; tests that lack something say so themselves.
pub fn install() -> Result<(), String> {
    let by_hand = |reason: &str| format!("{reason}; as root on Debian `{SCRIPT}` installs them");
    if !is_root() {
        return Err(by_hand("this user is not root"));
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err(by_hand("this machine has no apt-get"));
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(SCRIPT);
    let output = Command::new(script)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{SCRIPT} does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{SCRIPT} ended with {}: {}",
        output.status,
        last_lines(&errors, 3)
    ))
}

/// Whether this process may install: its effective user is 0.
fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| effective_user(&status) == Some(0))
}

fn effective_user(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_of_the_agent_need_them() {
        assert!(are_needed(&[]));
        assert!(are_needed(&["slipway-slots".to_owned(), USER.to_owned()]));
        assert!(!are_needed(&["slipway-aks".to_owned()]));
    }

    #[test]
    fn the_effective_user_counts() {
        let status = "Name:\tsudo\nUid:\t1000\t0\t0\t0\nGid:\t1000\t1000\t1000\t1000\n";
        assert_eq!(effective_user(status), Some(0));
        assert_eq!(effective_user("Uid:\t0\t1000\t0\t0\n"), Some(1000));
        assert_eq!(effective_user("Name:\tsh\n"), None);
    }

    #[test]
    fn a_failure_is_told_by_its_last_lines() {
        assert_eq!(
            last_lines("Get:1\n\nErr:2\nE: no network\n", 2),
            "Err:2 / E: no network"
        );
        assert_eq!(last_lines("", 2), "");
    }
}
