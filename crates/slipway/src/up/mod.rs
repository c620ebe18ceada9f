//! `slipway up`: a real management cluster on this machine, with Slipway in it, until Ctrl-C. It starts the `testbed`
//! program, the simulators and the manager as processes of their own and links none of them.

mod cluster;
mod examples;
mod live;
mod manager;
mod packages;
mod simulators;

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    time::Instant,
};

use clap::{Arg, ArgAction, ArgMatches};
use serde_json::Value;
use slipway_runtime::Provider;
use tokio::signal::unix::{SignalKind, signal};

use self::{cluster::Cluster, manager::Manager, simulators::Simulators};

pub fn command() -> clap::Command {
    clap::Command::new("up")
        .about("Run a management cluster on this machine with Slipway in it, until Ctrl-C")
        .arg(
            Arg::new("exit-when-ready")
                .long("exit-when-ready")
                .action(ArgAction::SetTrue)
                .help("Stop everything and exit 0 once all is up"),
        )
        .arg(
            Arg::new("no-examples")
                .long("no-examples")
                .action(ArgAction::SetTrue)
                .help("Apply no example clusters"),
        )
        .arg(
            Arg::new("testbed")
                .long("testbed")
                .value_name("PATH")
                .env("SLIPWAY_TESTBED_PROGRAM")
                .value_parser(clap::value_parser!(PathBuf))
                .help("The testbed program; looked for beside this one if absent"),
        )
}

/// Says which step of how many begins.
struct Steps {
    total: usize,
    done: usize,
    started: Instant,
}

impl Steps {
    fn next(&mut self, what: &str) {
        self.done += 1;
        println!("[{}/{}] {what}", self.done, self.total);
    }
}

#[tokio::main(flavor = "current_thread")]
pub async fn run(providers: &[Provider], matches: &ArgMatches) -> Result<(), String> {
    let has_examples = providers.iter().any(|provider| !provider.examples.is_empty());
    let shows_examples = has_examples && !matches.get_flag("no-examples");
    let mut steps = Steps {
        total: 3 + usize::from(shows_examples),
        done: 0,
        started: Instant::now(),
    };
    let testbed = cluster::program(matches.get_one::<PathBuf>("testbed"))?;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| format!("cannot handle signals: {error}"))?;

    steps.next("Starting Kubernetes and Cluster API");
    let with_workload = providers.iter().any(|provider| {
        let simulator = provider.simulator.as_ref();
        simulator.is_some_and(|simulator| simulator.needs_workload)
    });
    let mut cluster = Cluster::start(&testbed, with_workload)?;
    let result = tokio::select! {
        result = work(providers, matches, &cluster, &mut steps) => result,
        _ = tokio::signal::ctrl_c() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    if result.is_err() {
        cluster.keep_logs();
    }
    println!("Stopping");
    cluster.stop();
    result
}

async fn work(
    providers: &[Provider],
    matches: &ArgMatches,
    cluster: &Cluster,
    steps: &mut Steps,
) -> Result<(), String> {
    steps.next("Installing Slipway's CRDs and webhooks");
    let client = cluster.client().await?;
    let names = packages::to_run(providers)?;
    let webhooks = packages::install(providers, &names, cluster, &client).await?;

    let simulators = Simulators::start(providers, cluster)?;
    steps.next("Starting the manager");
    let mut flags = simulators.flags.clone();
    if !names.is_empty() {
        flags.push(format!("--providers={}", names.join(",")));
    }
    let mut manager = Manager::start(cluster, &webhooks, simulators.environment.clone(), &flags)?;
    manager.until_ready().await?;
    print_summary(providers, &names, cluster, &manager, &simulators, steps);
    let result = show(
        providers,
        matches,
        cluster,
        &mut manager,
        steps,
        &client,
        &simulators,
    )
    .await;
    manager.stop();
    result
}

/// Shows the examples, and stays. An example is a cluster of its own and takes as long as clusters do; nobody has to wait
/// for it. Whenever the manager dies it is started again.
async fn show(
    providers: &[Provider],
    matches: &ArgMatches,
    cluster: &Cluster,
    manager: &mut Manager,
    steps: &mut Steps,
    client: &kube::Client,
    simulators: &Simulators,
) -> Result<(), String> {
    let catalogue = slipway_runtime::provider::catalogue(providers);
    let examples = async {
        if steps.total > steps.done {
            steps.next("Applying examples");
            for provider in providers {
                if simulators.missing.contains(&provider.name) {
                    println!("  {} has no examples without its simulator", provider.name);
                    continue;
                }
                for example in &provider.examples {
                    let said = simulators.said.get(provider.name).unwrap_or(&Value::Null);
                    examples::show(client, &catalogue, example, said).await?;
                }
            }
            println!("The examples are up.");
        }
        println!("\nCtrl-C stops everything.");
        if matches.get_flag("exit-when-ready") {
            Ok(())
        } else {
            std::future::pending().await
        }
    };
    tokio::select! {
        result = examples => result,
        failed = manager.keep_running(cluster) => Err(failed),
    }
}

fn free_port() -> Result<u16, String> {
    let listener =
        TcpListener::bind("127.0.0.1:0").map_err(|error| format!("there is no free port: {error}"))?;
    Ok(listener.local_addr().map_err(|error| error.to_string())?.port())
}

fn own_program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))
}

/// Tells a process to end, and waits until it has.
fn terminate(process: &mut std::process::Child) {
    let id = i32::try_from(process.id()).unwrap_or_default();
    if let Some(id) = rustix::process::Pid::from_raw(id) {
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }
    let _ = process.wait();
}

fn print_summary(
    providers: &[Provider],
    running: &[String],
    cluster: &Cluster,
    manager: &Manager,
    simulators: &Simulators,
    steps: &Steps,
) {
    let line = |what: &str, text: &str| println!("  {what:<16} {text}");
    let path = |path: &Path| path.display().to_string();
    let runs = |provider: &&Provider| {
        let mut packages = provider.packages.iter();
        packages.any(|package| running.contains(&package.identity()))
    };
    let names: Vec<&str> = providers
        .iter()
        .filter(runs)
        .map(|provider| provider.name)
        .collect();
    println!("\nReady after {:.1} s.\n", steps.started.elapsed().as_secs_f64());
    line(
        "providers",
        &if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        },
    );
    line("kubeconfig", &path(&cluster.kubeconfig));
    line("manager log", &path(&manager.log));
    line("manager health", &manager.health_address());
    line("manager metrics", &manager.metrics_address());
    line("test hosts", &format!("{}/clusters", cluster.k3s));
    for (what, address) in &simulators.addresses {
        line(what, address);
    }
    println!("\nIn another terminal:\n");
    println!(
        "  export PATH={}:$PATH KUBECONFIG={}",
        cluster.tools.display(),
        cluster.kubeconfig.display()
    );
    println!("  kubectl get clusters --watch");
    let shown = if steps.total > steps.done { providers } else { &[] };
    for name in shown
        .iter()
        .flat_map(|provider| &provider.examples)
        .filter_map(|example| {
            let cluster = example
                .objects
                .iter()
                .find(|object| object["kind"] == "Cluster")?;
            cluster["metadata"]["name"].as_str()
        })
    {
        println!("  slipway describe {name}");
    }
    println!();
}
