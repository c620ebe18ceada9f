//! `testbed`: builds the real parts and runs one cluster until it is told to stop.

use std::{io::Read, process::ExitCode, sync::Arc, time::Instant};

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use slipway_k3s_sim::{Simulator, Timing};
use slipway_testbed::{
    Builder, Cluster, ManagementCluster, Part, Parts, WorkloadCluster,
    hosts::{Hosts, SimulatedK3s},
    inventory, parts,
    tools::Tools,
};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Parser)]
#[command(name = "testbed", about, version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the real parts, or one of them, into the cache.
    Parts {
        /// One part; all unless told.
        name: Option<String>,
    },
    /// Run a cluster until stdin closes or a signal comes; prints its description, one line of JSON.
    Run(RunArguments),
}

#[derive(clap::Args)]
struct RunArguments {
    /// Names the cluster in messages and paths.
    #[arg(long, default_value = "testbed")]
    name: String,
    /// What runs beside etcd and kube-apiserver.
    #[arg(long, value_delimiter = ',')]
    with: Vec<With>,
    /// The API server's port; a free one unless told.
    #[arg(long)]
    port: Option<u16>,
    /// Where the cluster's directory is made; the system's temporary directory unless told.
    #[arg(long)]
    directory: Option<std::path::PathBuf>,
    /// Stop once everything is ready.
    #[arg(long)]
    exit_when_ready: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum With {
    ControllerManager,
    Scheduler,
    /// Cluster API's core manager, with the controller-manager.
    Capi,
    /// The kubeadm bootstrap and control plane managers, with Cluster API.
    Kubeadm,
    Kwok,
    /// Test hosts in namespace `default` that boot into simulated K3s clusters, with Cluster API.
    K3s,
    /// kubectl and clusterctl in a folder for a PATH, and clusterctl's inventory of the Cluster API that runs.
    Tools,
    /// A second API server, with kwok, for clusters that somebody simulates.
    Workload,
}

/// Where the test hosts are served: Machines of these Clusters become simulated K3s nodes.
const HOSTS_NAMESPACE: &str = "default";

/// Hosts that run the simulated K3s, as long as this value lives.
struct K3s {
    admin: String,
    _hosts: Hosts,
    _simulator: Arc<Simulator>,
}

async fn start_k3s(cluster: &Cluster) -> Result<K3s> {
    let simulator = Simulator::new(Timing::SHOWN);
    let backend = Arc::new(SimulatedK3s::new(Arc::clone(&simulator)));
    Ok(K3s {
        admin: format!("http://{}", simulator.serve_admin().await?),
        _hosts: Hosts::start_on(cluster, HOSTS_NAMESPACE, backend).await?,
        _simulator: simulator,
    })
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Parts { name } => build_parts(name.as_deref()),
        Command::Run(arguments) => run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn build_parts(name: Option<&str>) -> Result<()> {
    let desired = match name {
        Some(name) => vec![Part::named(name)?],
        None => Part::ALL.to_vec(),
    };
    let parts = parts::Builder::new()?.build(&desired)?;
    println!("{}", parts.directory().display());
    Ok(())
}

/// The cluster behind simulated ones.
fn workload(arguments: &RunArguments, parts: Parts) -> Builder {
    let builder = WorkloadCluster::builder()
        .name(format!("{}-workload", arguments.name))
        .parts(parts)
        .kwok();
    match &arguments.directory {
        Some(directory) => builder.directory(directory),
        None => builder,
    }
}

#[tokio::main]
async fn run(arguments: &RunArguments) -> Result<()> {
    let parts = Parts::ready()?;
    let with = |part| arguments.with.contains(&part);
    let cluster_api = with(With::Capi) || with(With::Kubeadm) || with(With::K3s);
    let mut builder = if cluster_api || with(With::ControllerManager) {
        ManagementCluster::builder().scheduler(with(With::Scheduler))
    } else {
        WorkloadCluster::builder().scheduler(with(With::Scheduler))
    };
    builder = builder.name(&arguments.name).parts(parts.clone());
    if cluster_api {
        builder = builder.cluster_api();
    }
    if with(With::Kubeadm) {
        builder = builder.kubeadm();
    }
    if with(With::Kwok) {
        builder = builder.kwok();
    }
    if let Some(port) = arguments.port {
        builder = builder.api_port(port);
    }
    if let Some(directory) = &arguments.directory {
        builder = builder.directory(directory);
    }

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (closed, stdin_closed) = tokio::sync::oneshot::channel();
    // Reading blocks until whoever started this closes the pipe, so it gets a thread that nothing waits for.
    std::thread::spawn(move || {
        let mut ignored = [0; 512];
        while std::io::stdin().read(&mut ignored).is_ok_and(|count| count > 0) {}
        let _ = closed.send(());
    });
    let ends_by_itself = arguments.exit_when_ready;
    let mut stop = std::pin::pin!(async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = stdin_closed, if !ends_by_itself => {}
        }
    });
    let started = Instant::now();
    let starting = async {
        let workload = async {
            Ok(if with(With::Workload) {
                Some(workload(arguments, parts.clone()).start().await?)
            } else {
                None
            })
        };
        tokio::try_join!(builder.start(), workload)
    };
    let (cluster, workload) = tokio::select! {
        clusters = starting => clusters?,
        () = &mut stop => return Ok(()),
    };
    let k3s = if with(With::K3s) {
        Some(start_k3s(&cluster).await?)
    } else {
        None
    };
    let path = cluster.describe()?;
    eprintln!(
        "cluster {} is ready after {:.1} s; kubeconfig: {}; description: {}",
        cluster.name(),
        started.elapsed().as_secs_f64(),
        cluster.kubeconfig().display(),
        path.display(),
    );
    let mut description = serde_json::to_value(cluster.description())?;
    if let Some(k3s) = &k3s {
        description["k3s"] = serde_json::json!(k3s.admin);
    }
    if let Some(workload) = &workload {
        description["workload"] = serde_json::json!(workload.kubeconfig());
    }
    if with(With::Tools) {
        let tools = Tools::write(cluster.parts(), &cluster.description().directory)?;
        description["tools"] = serde_json::json!(tools.directory);
        description["clusterctlConfig"] = serde_json::json!(tools.clusterctl_config);
        if cluster_api {
            inventory::install(&cluster, &[]).await?;
        }
    }
    println!("{description}");
    if !arguments.exit_when_ready {
        stop.await;
    }
    let stopping = Instant::now();
    drop(k3s);
    if let Some(workload) = workload {
        workload.stop();
    }
    cluster.stop();
    eprintln!("stopped in {:.1} s", stopping.elapsed().as_secs_f64());
    Ok(())
}
