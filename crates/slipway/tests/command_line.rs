//! Bad input through the real binary: one clear message, a code that is not zero, no panic and no hang.

use std::{
    net::TcpListener,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the binary to its end; one that hangs is stopped and fails the test.
fn slipway(arguments: &[&str]) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(arguments)
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let started = Instant::now();
    while child.try_wait().expect("the child can be asked").is_none() {
        if started.elapsed() > Duration::from_mins(1) {
            child.kill().expect("the child can be stopped");
            panic!("slipway {arguments:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().expect("the output can be read");
    let ended = Ended {
        code: status.code(),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    };
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    ended
}

/// A kubeconfig that names a server.
fn kubeconfig(folder: &Path, server: &str) -> String {
    let path = folder.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    server: {server}\ncontexts:\n- name: c\n  \
         context:\n    cluster: c\n    user: u\ncurrent-context: c\nusers:\n- name: u\n  user: {{}}\n"
    );
    std::fs::write(&path, text).expect("the folder can be written");
    path.to_str().expect("temporary paths are text").to_owned()
}

fn refuses(arguments: &[&str], message: &str) {
    let ended = slipway(arguments);
    assert_ne!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
    assert!(ended.code.is_some(), "{arguments:?} was ended by a signal");
    assert!(ended.stderr.contains(message), "{arguments:?}: {}", ended.stderr);
}

#[test]
fn an_unknown_flag_gets_a_suggestion() {
    refuses(
        &["manager", "--watch-filtre=blue"],
        "a similar argument exists: '--watch-filter'",
    );
    refuses(&["managre"], "'manager'");
}

#[test]
fn values_that_make_no_sense_are_named() {
    refuses(&["manager", "--sync-period=often"], "\"often\" is not a duration");
    refuses(
        &["manager", "--providers=nonesuch"],
        "there is no provider or package \"nonesuch\"",
    );
    refuses(
        &["manager", "--feature-gates=Nonesuch=true"],
        "unrecognized feature gate: Nonesuch",
    );
    refuses(
        &[
            "manager",
            "--leader-elect",
            "--leader-election-namespace=n",
            "--leader-elect-lease-duration=5s",
        ],
        "--leader-elect-lease-duration (5s) must be longer than --leader-elect-renew-deadline (10s)",
    );
    refuses(
        &["manager", "--leader-elect"],
        "name one with --leader-election-namespace",
    );
}

#[test]
fn a_broken_kubeconfig_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken");
    std::fs::write(&path, "apiVersion: v1\nclusters: 7\n").unwrap();
    let path = path.to_str().unwrap();
    refuses(
        &["manager", "--kubeconfig", path],
        &format!("cannot use the kubeconfig {path}: "),
    );
    refuses(
        &["manager", "--kubeconfig", "/nowhere/kubeconfig"],
        "cannot use the kubeconfig /nowhere/kubeconfig: ",
    );
    refuses(&["manager"], "found no cluster to work in");
}

/// `slipway manager` on a server, with a certificate of its own and a webhook port nobody else has.
fn manager_refuses(server: &str, flags: &[&str], message: &str) {
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let config = kubeconfig(folder.path(), server);
    let certificates = folder.path().to_str().expect("temporary paths are text");
    let mut arguments = vec!["manager", "--kubeconfig", &config, "--webhook-self-signed"];
    arguments.extend(["--webhook-cert-dir", certificates, "--webhook-host=127.0.0.1"]);
    if !flags.iter().any(|flag| flag.starts_with("--webhook-port")) {
        arguments.push("--webhook-port=0");
    }
    arguments.extend(flags);
    refuses(&arguments, message);
}

const NOWHERE: &str = "https://127.0.0.1:1";

#[test]
fn a_port_in_use_names_the_flag_that_changes_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    manager_refuses(
        NOWHERE,
        &[&format!("--health-addr=127.0.0.1:{port}")],
        &format!(
            "port {port} is in use: stop the process that listens on it, or choose another with --health-addr"
        ),
    );
    manager_refuses(
        NOWHERE,
        &[
            "--health-addr=0",
            &format!("--diagnostics-address=127.0.0.1:{port}"),
        ],
        "choose another with --diagnostics-address",
    );
    manager_refuses(
        NOWHERE,
        &[&format!("--webhook-port={port}")],
        "choose another with --webhook-port",
    );
}

#[test]
fn an_apiserver_that_is_not_there_is_named() {
    manager_refuses(
        NOWHERE,
        &["--health-addr=0", "--diagnostics-address=0"],
        "cannot reach the apiserver at https://127.0.0.1:1/: ",
    );
}

#[test]
fn what_needs_no_cluster_works_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("deploy");
    let ended = slipway(&["manifests", "--out", out.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let ended = slipway(&["manifests", "--check", "--out", out.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let repository = folder.path().join("repository");
    let ended = slipway(&["manifests", "--repository", repository.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let config = std::fs::read_to_string(repository.join("clusterctl.yaml")).unwrap();
    assert!(
        config.contains(&format!("url: {}", repository.display())),
        "clusterctl finds the packages by absolute paths: {config}"
    );
    let ended = slipway(&["version"]);
    assert!(
        ended
            .stdout
            .starts_with(concat!("slipway ", env!("CARGO_PKG_VERSION"))),
        "{}",
        ended.stdout
    );
    let ended = slipway(&["completions", "bash"]);
    assert_eq!(ended.code, Some(0));
    assert!(
        ended.stdout.contains("--watch-filter"),
        "completions know the manager's flags"
    );
    let pages = folder.path().join("man");
    let ended = slipway(&["man", "--out", pages.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let page = std::fs::read_to_string(pages.join("slipway-manager.1")).unwrap();
    assert!(page.contains(".TH slipway-manager 1"), "{page}");
    assert!(
        page.contains("watch\\-filter"),
        "the manual knows the manager's flags: {page}"
    );
    let ended = slipway(&["manager", "--help"]);
    assert!(
        ended.stdout.contains("--leader-elect-renew-deadline"),
        "{}",
        ended.stdout
    );
}
