//! The manager's flags, with Cluster API's names and defaults, and what they come to.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::PathBuf,
    time::Duration,
};

use clap::{Arg, ArgAction, ArgMatches, Command, builder::ValueParser, parser::ValueSource, value_parser};

use super::ManagerError;
use crate::{
    Provider, Settings,
    certificates::CertificateFiles,
    duration,
    logs::{self, Format},
    provider::{ForeignFlag, Gate},
    queue::Rate,
    server::ClientCa,
    settings::{DEFAULT_CONCURRENCY, Flags, Gates, parse_boolean},
};

/// What the manager itself is told; [`Settings`] is what it tells its controllers.
#[derive(Clone, Debug)]
pub struct Options {
    /// Providers or packages to run; all if empty.
    pub providers: Vec<String>,
    pub kubeconfig: Option<PathBuf>,
    pub rate: Rate,
    pub leader_elect: bool,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    pub leader_election_namespace: Option<String>,
    pub webhook_host: String,
    pub webhook_port: u16,
    pub certificates: CertificateFiles,
    pub self_signed: bool,
    /// The CA of those who may call hooks; anybody who reaches the port if absent.
    pub hook_clients: Option<ClientCa>,
    pub health_address: String,
    pub diagnostics_address: String,
    pub insecure_diagnostics: bool,
    pub tls_minimum: TlsVersion,
    pub cipher_suites: Vec<String>,
    pub profiler_address: Option<String>,
    pub format: Format,
    pub verbosity: u32,
    pub settings: Settings,
    /// What was given for another project's manager and means nothing to this one, each with the reason.
    pub ignored: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    Tls12,
    Tls13,
}

impl TlsVersion {
    pub fn versions(self) -> Vec<&'static rustls::SupportedProtocolVersion> {
        match self {
            Self::Tls12 => vec![&rustls::version::TLS13, &rustls::version::TLS12],
            Self::Tls13 => vec![&rustls::version::TLS13],
        }
    }
}

const CONTROLLER: &str = "Controllers";
const LEADERSHIP: &str = "Leadership";
const SERVING: &str = "Serving";
const CLUSTER: &str = "Cluster";
const LOGGING: &str = "Logging";

/// A flag with a value.
fn flag(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// A flag that Go's tools switch by `--name`, `--name=true` or `--name=false`.
pub fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .help(help)
        .value_name("BOOL")
        .num_args(0..=1)
        .require_equals(true)
        .default_value("false")
        .default_missing_value("true")
        .value_parser(ValueParser::new(|text: &str| {
            parse_boolean(text).ok_or_else(|| format!("{text:?} is neither true nor false"))
        }))
}

/// A flag whose value is a duration as Go writes it.
pub fn duration_flag(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    flag(name, "DURATION", help)
        .default_value(default)
        .value_parser(ValueParser::new(duration::parse))
}

fn parse_tls(text: &str) -> Result<TlsVersion, String> {
    match text {
        "VersionTLS12" => Ok(TlsVersion::Tls12),
        "VersionTLS13" => Ok(TlsVersion::Tls13),
        _ => Err(format!("{text:?} is not one of VersionTLS12, VersionTLS13")),
    }
}

/// Every flag of `slipway manager`, those of the providers included.
pub fn command(providers: &[Provider]) -> Command {
    let mut names: Vec<String> = providers
        .iter()
        .map(|provider| provider.name.to_owned())
        .collect();
    names.extend(packages(providers).map(crate::Package::identity));
    names.sort();
    names.dedup();
    let mut command = Command::new("manager")
        .about("Run the controllers, webhooks and hooks of the providers")
        // Packages set some flags and people add their own: as in Go's managers, the last one counts.
        .args_override_self(true)
        .after_help("Durations are written like 10m, 1h30m or 15s. docs/manager.md has every flag with its background.")
        .next_help_heading(CONTROLLER)
        .arg(
            flag("providers", "NAMES", "Providers or packages to run, separated by commas; all if absent")
                .long_help(format!(
                    "Providers or packages to run, separated by commas; all if absent. Known: {}",
                    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
                ))
                .value_delimiter(',')
                .action(ArgAction::Append),
        )
        .arg(flag("namespace", "NAMESPACE", "Only objects of this namespace; all namespaces if absent"))
        .arg(flag(
            "watch-filter",
            "VALUE",
            "Only objects whose label cluster.x-k8s.io/watch-filter has this value",
        ))
        .arg(duration_flag("sync-period", "10m", "Every object is reconciled at least this often"))
        .arg(
            flag("feature-gates", "NAME=BOOL,...", "Features to switch on or off")
                .long_help(gates_help(providers))
                .env("FEATURE_GATES")
                .action(ArgAction::Append),
        );
    let mut controllers: Vec<&'static str> = packages(providers)
        .flat_map(|package| package.controllers.iter().map(|controller| controller.name))
        .collect();
    controllers.sort_unstable();
    controllers.dedup();
    for controller in controllers {
        command = command.arg(
            Arg::new(format!("{controller}-concurrency"))
                .long(format!("{controller}-concurrency"))
                .value_name("NUMBER")
                .help(format!(
                    "Number of objects the {controller} controller works on at the same time"
                ))
                .value_parser(value_parser!(u32).range(1..=10_000))
                .default_value(DEFAULT_CONCURRENCY.to_string()),
        );
    }
    command = logging_flags(cluster_flags(serving_flags(leadership_flags(command))));
    for provider in providers {
        if !provider.flags.is_empty() {
            command = command
                .next_help_heading(format!("Provider {}", provider.name))
                .args(provider.flags.iter().cloned());
        }
    }
    let known: BTreeSet<String> = command
        .get_arguments()
        .filter_map(|argument| argument.get_long().map(str::to_owned))
        .collect();
    let foreign = foreign_flags(providers).filter(|flag| !known.contains(flag.name));
    command.args(foreign.map(ForeignFlag::argument))
}

/// klog's flags, which every manager written in Go takes, under their normalized names.
const KLOG: &[ForeignFlag] = &[
    ForeignFlag::switch("add-dir-header"),
    ForeignFlag::switch("alsologtostderr"),
    ForeignFlag::value("log-backtrace-at"),
    ForeignFlag::value("log-dir"),
    ForeignFlag::value("log-file"),
    ForeignFlag::value("log-file-max-size"),
    ForeignFlag::value("log-flush-frequency"),
    ForeignFlag::switch("logtostderr"),
    ForeignFlag::switch("one-output"),
    ForeignFlag::switch("skip-headers"),
    ForeignFlag::switch("skip-log-headers"),
    ForeignFlag::value("stderrthreshold"),
    ForeignFlag::value("vmodule"),
];

/// What other projects' managers take, each once.
fn foreign_flags(providers: &[Provider]) -> impl Iterator<Item = ForeignFlag> {
    let all = providers
        .iter()
        .flat_map(|provider| provider.foreign_flags)
        .chain(KLOG);
    let by_name: BTreeMap<&str, ForeignFlag> = all.map(|flag| (flag.name, *flag)).collect();
    by_name.into_values()
}

/// What was given of those, each with what to do.
fn ignored_flags(matches: &ArgMatches, providers: &[Provider]) -> Vec<String> {
    foreign_flags(providers)
        .filter(|flag| {
            matches.try_contains_id(flag.name).is_ok_and(|present| {
                present && matches.value_source(flag.name) == Some(ValueSource::CommandLine)
            })
        })
        .map(|flag| {
            let instead = flag.instead.map_or_else(
                || "it means nothing here".to_owned(),
                |flag| format!("use --{flag}"),
            );
            format!("--{}: {instead}", flag.name)
        })
        .collect()
}

/// Who leads.
fn leadership_flags(command: Command) -> Command {
    command
        .next_help_heading(LEADERSHIP)
        .arg(
            switch(
                "leader-elect",
                "Elect one leader among the replicas; only it runs controllers",
            )
            // What older Cluster API managers, cluster-api-k3s among them, call it.
            .alias("enable-leader-election"),
        )
        .arg(duration_flag(
            "leader-elect-lease-duration",
            "15s",
            "How long others wait after the leader's last sign of life",
        ))
        .arg(duration_flag(
            "leader-elect-renew-deadline",
            "10s",
            "How long the leader tries to renew before it stops",
        ))
        .arg(duration_flag(
            "leader-elect-retry-period",
            "2s",
            "The pause between tries",
        ))
        .arg(flag(
            "leader-election-namespace",
            "NAMESPACE",
            "Where the lease is kept; the pod's own namespace if absent",
        ))
}

/// What is served, and how.
fn serving_flags(command: Command) -> Command {
    command
        .next_help_heading(SERVING)
        .arg(
            flag(
                "webhook-host",
                "ADDRESS",
                "Address of the webhook server; every interface if empty",
            )
            .default_value("")
            .hide_default_value(true),
        )
        .arg(
            flag(
                "webhook-port",
                "PORT",
                "Port of the webhook server; 0 picks a free one",
            )
            .default_value("9443")
            .value_parser(value_parser!(u16)),
        )
        .arg(
            flag(
                "webhook-cert-dir",
                "DIRECTORY",
                "Folder of the webhook server's certificate and key",
            )
            .default_value("/tmp/k8s-webhook-server/serving-certs/")
            .value_parser(value_parser!(PathBuf)),
        )
        .arg(flag("webhook-cert-name", "FILE", "Certificate file in that folder").default_value("tls.crt"))
        .arg(flag("webhook-key-name", "FILE", "Key file in that folder").default_value("tls.key"))
        .arg(switch(
            "webhook-self-signed",
            "For local runs: make a certificate (and its ca.crt) in that folder if there is none",
        ))
        .arg(
            flag(
                "hook-client-ca-file",
                "FILE",
                "CA certificates (PEM) of those who may call runtime hooks, read at the start; everybody if absent",
            )
            .value_parser(value_parser!(PathBuf)),
        )
        .arg(flag("health-addr", "ADDRESS", "Address of /healthz and /readyz").default_value(":9440"))
        .arg(
            flag(
                "diagnostics-address",
                "ADDRESS",
                "Address of /metrics and /debug; 0 turns it off",
            )
            .default_value(":8443"),
        )
        .arg(switch(
            "insecure-diagnostics",
            "Serve metrics by plain HTTP, without authentication and without /debug",
        ))
        .arg(
            flag("tls-min-version", "VERSION", "VersionTLS12 or VersionTLS13")
                .default_value("VersionTLS12")
                .value_parser(ValueParser::new(parse_tls)),
        )
        .arg(
            flag(
                "tls-cipher-suites",
                "NAMES",
                "Cipher suites for TLS 1.2, separated by commas; all safe ones if absent",
            )
            .value_delimiter(',')
            .action(ArgAction::Append),
        )
        .arg(flag(
            "profiler-address",
            "ADDRESS",
            "Accepted for compatibility; profiles are taken from outside the process",
        ))
        .arg(switch("contention-profiling", "Accepted for compatibility").hide(true))
}

/// The cluster that is worked in.
fn cluster_flags(command: Command) -> Command {
    command
        .next_help_heading(CLUSTER)
        .arg(
            flag(
                "kubeconfig",
                "FILE",
                "The cluster to work in; the pod's own, or $KUBECONFIG, if absent",
            )
            .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            flag(
                "kube-api-qps",
                "NUMBER",
                "Requests a second to the apiserver; 0 for no limit",
            )
            .default_value("100")
            .value_parser(value_parser!(f64)),
        )
        .arg(
            flag(
                "kube-api-burst",
                "NUMBER",
                "Requests to the apiserver that may be sent at once",
            )
            .default_value("200")
            .value_parser(value_parser!(u32)),
        )
}

/// What is logged.
fn logging_flags(command: Command) -> Command {
    command
        .next_help_heading(LOGGING)
        .arg(
            flag(
                "v",
                "LEVEL",
                "Verbosity: 0 to 3 normal, 4 debug, 5 trace, 8 and more also libraries",
            )
            .short('v')
            .default_value(logs::DEFAULT_VERBOSITY.to_string())
            .value_parser(value_parser!(u32)),
        )
        .arg(
            flag("logging-format", "FORMAT", "text or json")
                .default_value("text")
                .value_parser(value_parser!(Format)),
        )
}

/// Go's flags read `_` as `-`: the same arguments, so written. Values are left alone.
pub fn normalize(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    arguments
        .into_iter()
        .map(
            |argument| match argument.to_str().and_then(|text| text.strip_prefix("--")) {
                Some(text) => {
                    let (name, rest) = text.split_at(text.find('=').unwrap_or(text.len()));
                    format!("--{}{rest}", name.replace('_', "-")).into()
                }
                None => argument,
            },
        )
        .collect()
}

fn packages(providers: &[Provider]) -> impl Iterator<Item = &crate::Package> {
    providers.iter().flat_map(|provider| &provider.packages)
}

fn gates(providers: &[Provider]) -> Vec<Gate> {
    providers
        .iter()
        .flat_map(|provider| provider.gates.iter().copied())
        .collect()
}

fn gates_help(providers: &[Provider]) -> String {
    let mut help = "Features to switch on or off, as Name=true,Other=false.".to_owned();
    for gate in gates(providers) {
        let _ = write!(
            help,
            "\n{} ({:?}, {}): {}",
            gate.name,
            gate.stage,
            if gate.enabled_by_default { "on" } else { "off" },
            gate.help
        );
    }
    help
}

/// The gates of `--feature-gates`, and those of other managers that have no meaning here.
fn read_gates(text: &str, providers: &[Provider]) -> Result<(Gates, Vec<String>), ManagerError> {
    let foreign: Vec<&str> = providers
        .iter()
        .flat_map(|provider| provider.foreign_gates.iter().copied())
        .collect();
    Gates::parse_among(text, &gates(providers), &foreign)
        .map_err(|error| ManagerError::Flag(format!("--feature-gates: {error}")))
}

fn read_rate(matches: &ArgMatches) -> Result<Rate, ManagerError> {
    let per_second = matches
        .get_one::<f64>("kube-api-qps")
        .copied()
        .unwrap_or_default();
    if !per_second.is_finite() || per_second < 0.0 {
        return Err(ManagerError::Flag(
            "--kube-api-qps must be a number that is not negative".to_owned(),
        ));
    }
    Ok(Rate {
        per_second,
        burst: matches
            .get_one::<u32>("kube-api-burst")
            .copied()
            .unwrap_or_default(),
    })
}

impl Options {
    /// Reads what [`command`] parsed.
    pub fn read(matches: &ArgMatches, providers: &[Provider]) -> Result<Self, ManagerError> {
        let text = |name: &str| {
            matches
                .get_one::<String>(name)
                .filter(|text| !text.is_empty())
                .cloned()
        };
        let boolean = |name: &str| matches.get_one::<bool>(name).copied().unwrap_or(false);
        let time = |name: &str| matches.get_one::<Duration>(name).copied().unwrap_or_default();
        let list = |name: &str| -> Vec<String> {
            matches
                .get_many::<String>(name)
                .into_iter()
                .flatten()
                .filter(|text| !text.is_empty())
                .cloned()
                .collect()
        };
        let (gates, foreign) = read_gates(&list("feature-gates").join(","), providers)?;
        let mut ignored = ignored_flags(matches, providers);
        ignored.extend(
            foreign
                .iter()
                .map(|gate| format!("feature gate {gate}: there is no such switch here")),
        );
        let hook_clients = matches
            .get_one::<PathBuf>("hook-client-ca-file")
            .map(|path| ClientCa::read(path))
            .transpose()
            .map_err(|reason| ManagerError::Flag(format!("--hook-client-ca-file: {reason}")))?;
        let concurrency = packages(providers)
            .flat_map(|package| &package.controllers)
            .filter_map(|controller| {
                let number = matches.get_one::<u32>(&format!("{}-concurrency", controller.name))?;
                Some((controller.name.to_owned(), *number as usize))
            })
            .collect();
        let flags: Vec<Arg> = providers
            .iter()
            .flat_map(|provider| provider.flags.clone())
            .collect();
        Ok(Self {
            providers: list("providers"),
            kubeconfig: matches.get_one::<PathBuf>("kubeconfig").cloned(),
            rate: read_rate(matches)?,
            leader_elect: boolean("leader-elect"),
            lease_duration: time("leader-elect-lease-duration"),
            renew_deadline: time("leader-elect-renew-deadline"),
            retry_period: time("leader-elect-retry-period"),
            leader_election_namespace: text("leader-election-namespace"),
            webhook_host: text("webhook-host").unwrap_or_default(),
            webhook_port: matches
                .get_one::<u16>("webhook-port")
                .copied()
                .unwrap_or_default(),
            certificates: CertificateFiles {
                directory: matches
                    .get_one::<PathBuf>("webhook-cert-dir")
                    .cloned()
                    .unwrap_or_default(),
                certificate: text("webhook-cert-name").unwrap_or_default(),
                key: text("webhook-key-name").unwrap_or_default(),
            },
            self_signed: boolean("webhook-self-signed"),
            hook_clients,
            health_address: text("health-addr").unwrap_or_default(),
            diagnostics_address: text("diagnostics-address").unwrap_or_default(),
            insecure_diagnostics: boolean("insecure-diagnostics"),
            tls_minimum: matches
                .get_one::<TlsVersion>("tls-min-version")
                .copied()
                .unwrap_or(TlsVersion::Tls12),
            cipher_suites: list("tls-cipher-suites"),
            profiler_address: text("profiler-address"),
            format: matches
                .get_one::<Format>("logging-format")
                .copied()
                .unwrap_or(Format::Text),
            verbosity: matches
                .get_one::<u32>("v")
                .copied()
                .unwrap_or(logs::DEFAULT_VERBOSITY),
            settings: Settings {
                namespace: text("namespace"),
                watch_filter: text("watch-filter"),
                sync_period: time("sync-period"),
                concurrency,
                gates,
                flags: Flags::read(matches, &flags),
            },
            ignored,
        })
    }
}
