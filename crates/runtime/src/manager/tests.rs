//! Flags as people write them. The whole manager is tried by the stories, against real apiservers.

use std::time::Duration;

use super::*;
use crate::{
    PackageKind, controller,
    logs::Format,
    provider::{Gate, Stage},
    queue::Rate,
};

fn providers() -> Vec<Provider> {
    let mut package = Package::new(PackageKind::Infrastructure, "toy");
    package.controllers = vec![controller::Registration {
        name: "fleet",
        run: Arc::new(|_| Box::pin(std::future::pending())),
    }];
    let mut provider = Provider::new("toy");
    provider.packages = vec![package];
    provider.flags = vec![duration_flag("toy-timeout", "5s", "How long the toy waits")];
    provider.gates = vec![Gate {
        name: "Hoist",
        stage: Stage::Alpha,
        enabled_by_default: false,
        help: "hoists",
    }];
    vec![provider]
}

fn read(arguments: &[&str]) -> Result<Options, String> {
    let providers = providers();
    let arguments = normalize(["manager"].iter().chain(arguments).map(std::ffi::OsString::from));
    let matches = command(&providers)
        .try_get_matches_from(arguments)
        .map_err(|error| error.to_string())?;
    Options::read(&matches, &providers).map_err(|error| error.to_string())
}

#[test]
fn the_defaults_are_cluster_apis() {
    let options = read(&[]).unwrap();
    assert!(!options.leader_elect && !options.insecure_diagnostics && !options.self_signed);
    assert_eq!(options.lease_duration, Duration::from_secs(15));
    assert_eq!(options.renew_deadline, Duration::from_secs(10));
    assert_eq!(options.retry_period, Duration::from_secs(2));
    assert_eq!(options.webhook_port, 9443);
    assert_eq!(
        options.certificates.directory.to_str(),
        Some("/tmp/k8s-webhook-server/serving-certs/")
    );
    assert_eq!(options.health_address, ":9440");
    assert_eq!(options.diagnostics_address, ":8443");
    assert_eq!(options.tls_minimum, TlsVersion::Tls12);
    assert_eq!(options.format, Format::Text);
    assert_eq!(options.verbosity, 2);
    assert_eq!(
        options.rate,
        Rate {
            per_second: 100.0,
            burst: 200
        }
    );
    assert_eq!(options.settings.sync_period, Duration::from_mins(10));
    assert_eq!(options.settings.namespace, None);
    assert_eq!(options.settings.concurrency("fleet"), 10);
    assert_eq!(
        options.settings.flags.duration("toy-timeout"),
        Some(Duration::from_secs(5))
    );
}

#[test]
fn arguments_of_existing_manifests_are_read() {
    let options = read(&[
        "--leader-elect",
        "--insecure-diagnostics=false",
        "--diagnostics-address=:8443",
        "--feature-gates=Hoist=true",
        "--sync_period=1h30m",
        "--namespace=fleet-a",
        "--watch-filter=blue",
        "--fleet-concurrency=3",
        "--logging-format=json",
        "-v=4",
        "--tls-min-version=VersionTLS13",
        "--profiler-address=localhost:6060",
        "--providers=toy,infrastructure-toy",
        "--kube-api-qps=20",
        "--toy-timeout=1m",
    ])
    .unwrap();
    assert!(options.leader_elect && !options.insecure_diagnostics);
    assert!(options.settings.gates.enabled("Hoist"));
    assert_eq!(options.settings.sync_period, Duration::from_mins(90));
    assert_eq!(options.settings.namespace.as_deref(), Some("fleet-a"));
    assert_eq!(options.settings.watch_filter.as_deref(), Some("blue"));
    assert_eq!(options.settings.concurrency("fleet"), 3);
    assert_eq!(options.format, Format::Json);
    assert_eq!(options.verbosity, 4);
    assert_eq!(options.tls_minimum, TlsVersion::Tls13);
    assert_eq!(options.providers, ["toy", "infrastructure-toy"]);
    assert_eq!(
        options.settings.flags.duration("toy-timeout"),
        Some(Duration::from_mins(1))
    );
}

#[test]
fn of_a_flag_that_is_given_twice_the_last_one_counts() {
    let options = read(&[
        "--v=2",
        "--leader-elect",
        "--sync-period=1h",
        "--providers=toy",
        "--feature-gates=Hoist=false",
        "--toy-timeout=1s",
        "-v=5",
        "--leader-elect=false",
        "--sync-period=2h",
        "--providers=infrastructure-toy",
        "--feature-gates=AllBeta=true",
        "--feature-gates=Hoist=true",
        "--toy-timeout=2s",
    ])
    .unwrap();
    assert_eq!(options.verbosity, 5);
    assert!(!options.leader_elect);
    assert_eq!(options.settings.sync_period, Duration::from_hours(2));
    assert_eq!(
        options.settings.flags.duration("toy-timeout"),
        Some(Duration::from_secs(2))
    );
    // Lists and gates add up.
    assert_eq!(options.providers, ["toy", "infrastructure-toy"]);
    assert!(options.settings.gates.enabled("Hoist"));
    let options = read(&["--feature-gates=Hoist=true", "--feature-gates=AllBeta=true"]).unwrap();
    assert!(options.settings.gates.enabled("Hoist"));
}

#[test]
fn wrong_flags_say_what_would_be_right() {
    for (argument, message) in [
        ("--nmespace=x", "a similar argument exists: '--namespace'"),
        (
            "--sync-period=soon",
            "\"soon\" is not a duration: write it like 10m, 1h30m or 15s",
        ),
        ("--leader-elect=maybe", "\"maybe\" is neither true nor false"),
        (
            "--feature-gates=Hoits=true",
            "unrecognized feature gate: Hoits; known gates: Hoist",
        ),
        (
            "--tls-min-version=VersionTLS10",
            "is not one of VersionTLS12, VersionTLS13",
        ),
        ("--fleet-concurrency=0", "0 is not in 1..=10000"),
        (
            "--kube-api-qps=-1",
            "--kube-api-qps must be a number that is not negative",
        ),
        ("--webhook-port=70000", "70000 is not in 0..=65535"),
    ] {
        let error = read(&[argument]).unwrap_err();
        assert!(error.contains(message), "{argument}: {error}");
    }
}

#[test]
fn the_command_is_consistent() {
    command(&providers()).debug_assert();
    command(&[]).debug_assert();
}

/// docs/manager.md lists the flags that every manager has, and no other.
#[test]
fn the_page_lists_the_flags_that_exist() {
    let page = include_str!("../../../../docs/manager.md");
    let table = page
        .split("## Flags")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .unwrap();
    let mut listed: Vec<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" | ").next())
        .flat_map(|cell| cell.split('`'))
        .filter_map(|word| word.strip_prefix("--").or_else(|| word.strip_prefix('-')))
        .filter(|name| !name.starts_with("<kind>"))
        .map(|name| name.trim_end_matches([',', ' ']).to_owned())
        .collect();
    let mut known: Vec<String> = command(&[])
        .get_arguments()
        // A hidden flag does nothing and need not be listed: it is taken because other managers have it.
        .filter_map(|argument| Some((argument.is_hide_set(), argument.get_long()?.to_owned())))
        .filter(|(hidden, name)| !hidden || listed.contains(name))
        .map(|(_, name)| name)
        .collect();
    listed.sort();
    known.sort();
    assert_eq!(listed, known);
}
