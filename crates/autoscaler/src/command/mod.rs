//! `slipway autoscaler`: what would happen to a pod that waits, or to pods that are not there yet, why, and what it costs. It reads
//! the cluster once, as the provisioner does, and writes nothing.

mod pods;
mod report;

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Arg, ArgMatches, Command, value_parser};
use kube::Client;
use slipway_packing::model::Pod;
use slipway_runtime::{
    Context, Events, Metrics, Settings, certificates, provider::Subcommand, settings::Flags, workload::Access,
};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster_api::Reader,
    memory::Memory,
    options::{self, Options},
    provisioner,
    watched::{Observed, Watched, observe},
};

/// Every watch has its first list by then, or something is missing.
const FIRST_LISTS: Duration = Duration::from_mins(1);

pub fn subcommand() -> Subcommand {
    let kubeconfig = Arg::new("kubeconfig")
        .long("kubeconfig")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("The cluster that is scaled; the pod's own, or $KUBECONFIG, if absent");
    let explain = Command::new("explain")
        .about("Say what the autoscaler does for a pod, why, and what it costs")
        .arg(
            Arg::new("pod")
                .value_name("POD")
                .required(true)
                .help("Its name, or namespace/name"),
        )
        .arg(
            Arg::new("namespace")
                .long("namespace")
                .short('n')
                .value_name("NAMESPACE")
                .default_value("default")
                .help("Its namespace"),
        );
    let simulate = Command::new("simulate")
        .about("Say what the autoscaler would do if these pods waited too, why, and what it would cost")
        .arg(
            Arg::new("file")
                .long("filename")
                .short('f')
                .value_name("FILE")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help(
                    "YAML with Pods, or with what makes them: Deployments, StatefulSets, ReplicaSets, Jobs",
                ),
        );
    let with_cluster = |command: Command| command.arg(kubeconfig.clone()).args(options::flags());
    Subcommand {
        command: Command::new("autoscaler")
            .about("Ask the autoscaler what it would do; nothing is written")
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommand(with_cluster(explain))
            .subcommand(with_cluster(simulate)),
        run: |matches| {
            certificates::install_crypto_provider();
            match run(answer(matches)) {
                Ok(text) => {
                    print!("{text}");
                    ExitCode::SUCCESS
                }
                Err(message) => {
                    eprintln!("error: {message}");
                    ExitCode::FAILURE
                }
            }
        },
    }
}

/// What a command line of `slipway autoscaler` is answered with.
pub async fn answer(matches: &ArgMatches) -> Result<String, String> {
    match matches.subcommand() {
        Some(("explain", matches)) => explain_pod(matches).await,
        Some(("simulate", matches)) => simulate_pods(matches).await,
        _ => Err("there is explain, and there is simulate".to_owned()),
    }
}

fn run(answer: impl Future<Output = Result<String, String>>) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the executor: {error}"))?;
    let answer = runtime.block_on(answer);
    runtime.shutdown_background();
    answer
}

async fn explain_pod(matches: &ArgMatches) -> Result<String, String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let (namespace, name) = match text("pod").split_once('/') {
        Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
        None => (text("namespace"), text("pod")),
    };
    let key = format!("{namespace}/{name}");
    let (mut observed, watched) = read(matches).await?;
    let found = watched.pod(&namespace, &name).ok_or_else(|| {
        format!("there is no pod {key}: check its name, and its namespace with --namespace")
    })?;
    if let Some(node) = found.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) {
        return Ok(format!("{key} has a node: {node}\n"));
    }
    let waits = observed
        .pods
        .iter()
        .any(|pod| pod.metadata.namespace == namespace && pod.metadata.name == name);
    if !waits {
        let pod = serde_json::to_value(found.as_ref()).and_then(serde_json::from_value::<Pod>);
        observed
            .pods
            .push(pod.map_err(|error| format!("cannot read pod {key}: {error}"))?);
    }
    let rival = observed.rival.take();
    let plan = provisioner::plan::plan(&observed, jiff::Timestamp::now());
    Ok(report::explain(&key, waits, rival.as_ref(), &plan))
}

async fn simulate_pods(matches: &ArgMatches) -> Result<String, String> {
    let path = matches.get_one::<PathBuf>("file").cloned().unwrap_or_default();
    let text =
        fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let pods = pods::pods(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let (mut observed, _watched) = read(matches).await?;
    let already = observed.pods.len();
    let asked: Vec<String> = pods.iter().map(pods::key).collect();
    observed.pods.extend(pods);
    let rival = observed.rival.take();
    let (plan, priced) = tokio::task::spawn_blocking(move || {
        let plan = provisioner::plan::plan(&observed, jiff::Timestamp::now());
        let priced = report::Priced::of(&observed.snapshot, &observed.pods);
        (plan, priced)
    })
    .await
    .map_err(|error| format!("planning failed: {error}"))?;
    let mut text = report::simulate(&asked, already, rival.as_ref(), &plan);
    text.push_str(&priced.to_string());
    Ok(text)
}

/// The cluster as the provisioner sees it, once.
async fn read(matches: &ArgMatches) -> Result<(Observed, Watched), String> {
    let client = match matches.get_one::<PathBuf>("kubeconfig") {
        Some(path) => {
            let access = Access::from_file(path).await.map_err(|error| error.to_string())?;
            Client::try_from(access.into_config())
        }
        None => Client::try_default().await,
    };
    let client = client.map_err(|error| format!("cannot connect to the cluster: {error}"))?;
    let settings = Settings {
        flags: Flags::read(matches, &options::flags()),
        ..Settings::default()
    };
    let mut context = Context::new(client, settings, Metrics::new(), CancellationToken::new());
    context.events = Events::in_memory();
    let memory = Memory::default();
    let context = memory
        .management
        .context(context)
        .await
        .map_err(|error| error.to_string())?;
    let watched = Watched::start(&context, &memory);
    tokio::time::timeout(FIRST_LISTS, watched.synced())
        .await
        .map_err(|_| {
            let missing = context.informers.unsynced().join(", ");
            format!(
                "the cluster did not answer with {missing} within {} s: check that they are installed and may be listed",
                FIRST_LISTS.as_secs()
            )
        })?;
    let options = Options::of(&context.settings);
    let reader = Reader::new(&context, &memory);
    let observed = observe(&watched, &reader, &memory, &options, &context).await;
    Ok((observed, watched))
}
