//! Bad input through the real binary: one clear message, a code that is not zero, no panic and no hang.

#[path = "command_line/tools.rs"]
mod tools;

use std::{
    io::Read,
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    thread::JoinHandle,
    time::{Duration, Instant},
};

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn reading(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    let mut pipe = pipe.expect("it is piped");
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("the output can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    })
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
    // A pipe holds less than a completion script, so both are read while it runs.
    let stdout = reading(child.stdout.take());
    let stderr = reading(child.stderr.take());
    let started = Instant::now();
    while child.try_wait().expect("the child can be asked").is_none() {
        if started.elapsed() > Duration::from_mins(1) {
            child.kill().expect("the child can be stopped");
            panic!("slipway {arguments:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = child.wait().expect("the child can be asked");
    let ended = Ended {
        code: status.code(),
        stdout: stdout.join().expect("the output can be read"),
        stderr: stderr.join().expect("the output can be read"),
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
    let ended = slipway(&["version", "-o", "json"]);
    let version: serde_json::Value = serde_json::from_str(&ended.stdout).expect("one JSON object");
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    // A build by hand knows no commit, and says so.
    assert_eq!(
        version["commit"],
        serde_json::json!(option_env!("SLIPWAY_COMMIT"))
    );
    assert_eq!(
        version["providers"],
        serde_json::json!(["aks", "aso", "k3s", "autoscaler", "edge"])
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
    assert!(pages.join("slipway-autoscaler-explain.1").exists());
    let ended = slipway(&["manager", "--help"]);
    assert!(
        ended.stdout.contains("--leader-elect-renew-deadline"),
        "{}",
        ended.stdout
    );
}

/// What the Deployments of the managers we replace pass, and every further flag and gate those managers know: CAPZ v1.21
/// and cluster-api-k3s v0.2.1.
const UPSTREAM: &[(&[&str], usize)] = &[
    // The Deployments.
    (
        &[
            "--leader-elect",
            "--diagnostics-address=:8443",
            "--insecure-diagnostics=false",
            "--feature-gates=MachinePool=true,AKSResourceHealth=false,EdgeZone=false,ASOAPI=true,APIServerILB=false",
            "--v=0",
        ],
        4,
    ),
    (&["--metrics-addr=127.0.0.1:8080", "--enable-leader-election"], 1),
    // CAPZ's own.
    (&["--azurecluster-concurrency=10"], 1),
    (&["--azuremachine-concurrency", "10"], 1),
    (&["--azuremachinepool-concurrency=10"], 1),
    (&["--azuremachinepoolmachine-concurrency=10"], 1),
    (&["--debouncing-timer=10s"], 1),
    (&["--reconcile-timeout=90m"], 1),
    (&["--service-reconcile-timeout=12s"], 1),
    (&["--api-call-timeout=2s"], 1),
    (&["--reconciler-requeue=15s"], 1),
    (&["--enable-tracing"], 1),
    (&["--enable-tracing=false"], 1),
    (
        &["--bootstrap-config-gvk=KThreesConfig.v1beta1.bootstrap.cluster.x-k8s.io"],
        1,
    ),
    (
        &["--disable-controllers-or-webhooks=DisableASOSecretController,DisableAzureJSONMachineController"],
        1,
    ),
    (
        &["--feature-gates=AKS=true,ClusterTopology=true,RuntimeSDK=false"],
        3,
    ),
    // Those that all Cluster API managers share.
    (
        &[
            "--leader-election-namespace=capz-system",
            "--leader-elect-lease-duration=15s",
            "--leader-elect-renew-deadline=10s",
            "--leader-elect-retry-period=2s",
            "--namespace=fleet",
            "--watch-filter=azure",
            "--sync-period=10m",
            "--health-addr=:9440",
            "--webhook-port=9443",
            "--webhook-cert-dir=/tmp/certs",
            "--tls-min-version=VersionTLS12",
            "--tls-cipher-suites=TLS_AES_128_GCM_SHA256",
            "--profiler-address=localhost:6060",
            "--kubeconfig=/tmp/kubeconfig",
        ],
        0,
    ),
    // klog's, as Go writes them.
    (
        &[
            "--logtostderr",
            "--vmodule=a=1",
            "--stderrthreshold=2",
            "--skip_headers=true",
        ],
        4,
    ),
    // cluster-api-k3s' own.
    (&["--etcd-dial-timeout-duration=10s"], 1),
    (&["--etcd-call-timeout-duration=15s"], 1),
];

#[test]
fn the_flags_and_gates_of_the_managers_we_replace_are_taken_and_named() {
    let providers = [
        slipway_aks::provider::provider(),
        slipway_aso::provider::provider(),
        slipway_k3s::provider(),
    ];
    let read = |arguments: &[&str]| {
        let all = ["slipway", "manager"]
            .iter()
            .chain(arguments)
            .map(std::ffi::OsString::from);
        let matches = slipway::command(&providers)
            .try_get_matches_from(slipway_runtime::manager::normalize(all))
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        let (_, matches) = matches.subcommand().expect("manager");
        slipway_runtime::manager::Options::read(matches, &providers)
    };
    for (arguments, ignored) in UPSTREAM {
        let options = read(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        assert_eq!(
            options.ignored.len(),
            *ignored,
            "{arguments:?}: {:?}",
            options.ignored
        );
    }
    let options = read(UPSTREAM[1].0).expect("options");
    assert!(options.leader_elect);
    assert_eq!(options.ignored, ["--metrics-addr: use --diagnostics-address"]);
    // A typing mistake is still one.
    let error = read(&["--feature-gates=MachinePol=true"]).expect_err("nobody's gate");
    assert!(
        error
            .to_string()
            .contains("unrecognized feature gate: MachinePol"),
        "{error}"
    );
}
