//! What a user can get wrong about where a cluster runs: each gets one clear message, and nothing hangs.

use std::{
    net::TcpListener,
    path::Path,
    process::{Command, Output, Stdio},
};

use slipway_testbed::{Parts, StartError, WorkloadCluster};

#[tokio::test]
async fn a_port_in_use_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let result = WorkloadCluster::builder().api_port(port).start().await;
    let error = result.err().expect("the port is taken");
    assert!(matches!(error, StartError::PortInUse { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains(&port.to_string()) && text.contains("choose another port"),
        "{text}"
    );
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_named() {
    let base = tempfile::tempdir().unwrap();
    let missing = base.path().join("missing");
    let result = WorkloadCluster::builder().directory(&missing).start().await;
    let error = result.err().expect("there is no such directory").to_string();
    assert!(
        error.contains(missing.to_str().unwrap()) && error.contains("--directory"),
        "{error}"
    );
}

#[tokio::test]
async fn an_unknown_shared_cluster_is_answered_with_those_there_are() {
    let error = slipway_testbed::shared("nope").await.err().unwrap().to_string();
    assert!(error.contains("plain, capi, workload"), "{error}");
}

/// Runs `testbed run` in a directory that is a tmpfs mounted with `options`, in a mount namespace of its own.
fn run_on_tmpfs(directory: &Path, options: &str) -> Option<Output> {
    // Building parts would need the real cache, and has its own messages.
    Parts::ready().unwrap();
    let mount = |options: &str| format!("mount -t tmpfs -o {options} tmpfs {}", directory.display());
    let script = |then: &str| format!("{} && {then}", mount(options));
    let probe = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script("true")])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("report: skipped: this machine lets no test mount a tmpfs, so {options} is not tried");
        return None;
    }
    let testbed = format!(
        "exec {} run --exit-when-ready --directory {}",
        env!("CARGO_BIN_EXE_testbed"),
        directory.display()
    );
    let mut child = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script(&testbed)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Held open, so that only the failure ends it.
    let stdin = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    Some(output)
}

#[test]
fn a_read_only_data_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let Some(output) = run_on_tmpfs(directory.path(), "ro") else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        said.contains("error: cannot write to the data directory") && said.contains("Choose a directory"),
        "{said}"
    );
}

#[test]
fn a_full_data_directory_is_named() {
    for size in ["8k", "2m"] {
        let directory = tempfile::tempdir().unwrap();
        let Some(output) = run_on_tmpfs(directory.path(), &format!("size={size}")) else {
            return;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(
            said.contains("error: the disk that holds the data directory") && said.contains("is full"),
            "{size}: {said}"
        );
    }
}
