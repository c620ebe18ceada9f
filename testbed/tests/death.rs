//! Nothing outlives the process that started it, however that ends.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use slipway_testbed::Description;

/// A hang guard; death takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(30);

fn run(arguments: &[&str], base: &Path) -> (Child, Description) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_testbed"))
        .arg("run")
        .args(arguments)
        .env("TMPDIR", base)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let description = serde_json::from_str(&line).unwrap();
    (child, description)
}

/// Whether a process still runs: one that nobody has waited for yet does not.
pub fn runs(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().starts_with(" Z"))
}

/// Waits until all are gone. Processes of others cannot be watched, only looked for.
pub fn wait_until_gone(processes: impl Iterator<Item = u32> + Clone) {
    let started = Instant::now();
    while processes.clone().any(runs) {
        assert!(
            started.elapsed() < DEADLINE,
            "still running: {:?}",
            processes.filter(|process| runs(*process)).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn clusters_in(base: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(base)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("pki").exists())
        .collect()
}

#[test]
fn kill_9_of_the_parent_leaves_no_process_and_the_next_start_sweeps_its_directory() {
    let base = tempfile::tempdir().unwrap();
    let (mut child, description) = run(&["--with", "controller-manager,kwok"], base.path());
    assert_eq!(description.processes.len(), 4);
    assert!(description.processes.values().copied().all(runs));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until_gone(description.processes.values().copied());

    assert_eq!(
        clusters_in(base.path()),
        std::slice::from_ref(&description.directory)
    );
    let (mut second, next) = run(&[], base.path());
    assert_eq!(clusters_in(base.path()), std::slice::from_ref(&next.directory));
    drop(second.stdin.take());
    assert!(second.wait().unwrap().success());
}

#[test]
fn closing_stdin_stops_everything_and_leaves_nothing() {
    let base = tempfile::tempdir().unwrap();
    let (mut child, description) = run(&[], base.path());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    wait_until_gone(description.processes.values().copied());
    assert!(clusters_in(base.path()).is_empty());
}
