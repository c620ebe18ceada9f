//! Edge hosts by the thousand that take one upgrade. The hosts are real agents over files, all in this process, that connect to the manager;
//! the manager is a process of its own, beside a real apiserver and etcd for the management cluster and another for the cluster that is
//! upgraded. This program plays Cluster API's core: it makes the machines, calls `UpdateMachine` as core would, with ten callers that come
//! back when they are told to, and measures each answer. The manager is measured from outside: processor time and memory by the kernel,
//! requests by the audit logs of both clusters. Progress goes to standard error; standard output is one JSON object.

mod calls;
mod report;
mod site;
mod world;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use slipway_kit::manager::{Manager, Setup, free_port, measure};
use slipway_testbed::{Cluster, ManagementCluster, WorkloadCluster};
use tokio::time::Instant;

use calls::Extension;
use report::Sample;
use site::Site;

#[derive(Parser)]
pub struct Arguments {
    #[arg(long, default_value_t = 1000)]
    hosts: usize,
    /// How many of them are disturbed at once, as the policy has it.
    #[arg(long, default_value = "25%")]
    concurrent: String,
    /// How long a host is away when it reboots.
    #[arg(long, default_value_t = 5)]
    away_seconds: u64,
    /// An upgrade that takes longer is given up.
    #[arg(long, default_value_t = 1800)]
    timeout_seconds: u64,
    /// Our manager.
    #[arg(long)]
    slipway: PathBuf,
}

/// Who the manager is, for the audit logs.
pub const USER: &str = "measured";

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the executor")?;
    let sample = runtime.block_on(run(&arguments))?;
    eprintln!("{}", sample.words());
    println!("{}", sample.json());
    Ok(())
}

async fn run(arguments: &Arguments) -> Result<Sample> {
    let cluster = ManagementCluster::builder()
        .name("edge-bench")
        .scheduler(false)
        .controller_manager(false)
        .audit_everything_of(USER)
        .start()
        .await?;
    let workload = WorkloadCluster::builder()
        .name("edge-bench-workload")
        .audit_everything_of(USER)
        .start()
        .await?;
    let folder = cluster.description().directory.join("manager");
    let address = format!("127.0.0.1:{}", free_port()?);
    world::install_core(&cluster).await?;
    // Its rights are not what is measured.
    let setup = Setup::new(
        &cluster,
        &arguments.slipway,
        &folder,
        USER,
        Some("system:masters"),
    )?
    .with(["--providers=edge".to_owned(), format!("--edge-address={address}")]);
    setup.install(&cluster).await?;
    let manager = setup.start("manager").await?;
    let measured = measure(arguments, &cluster, &workload, &setup, &manager, &address).await;
    match measured {
        Ok(sample) => {
            drop(manager);
            workload.stop();
            cluster.stop();
            Ok(sample)
        }
        Err(error) => {
            cluster.keep_logs();
            Err(error.context(format!("the manager's log is in {}", folder.display())))
        }
    }
}

async fn measure(
    arguments: &Arguments,
    cluster: &Cluster,
    workload: &Cluster,
    setup: &Setup,
    manager: &Manager,
    address: &str,
) -> Result<Sample> {
    let client = cluster.client();
    let began = Instant::now();
    let away = Duration::from_secs(arguments.away_seconds);
    let site = Arc::new(Site::start(workload.client(), client.clone(), away).await?);
    world::create(&client, workload, &site, arguments).await?;
    site.join(&client, address, arguments.hosts).await?;
    world::until_ready(&client, arguments.hosts).await?;
    let seconds = began.elapsed().as_secs_f64();
    eprintln!("{} hosts have joined after {seconds:.0} s", arguments.hosts);

    let extension = Extension::new(setup)?;
    let (marks, before) = (
        (cluster.audit().mark()?, workload.audit().mark()?),
        measure::cpu_seconds(manager.id())?,
    );
    let began = Instant::now();
    let timeout = Duration::from_secs(arguments.timeout_seconds);
    let upgrading = calls::upgrade_all(&extension, &site, arguments.hosts);
    let calls = tokio::time::timeout(timeout, upgrading)
        .await
        .context("the upgrade did not end in time")??;
    let seconds = began.elapsed().as_secs_f64();
    manager.check()?;
    let cpu_seconds = measure::cpu_seconds(manager.id())? - before;
    let ours = |request: &slipway_testbed::audit::Request| {
        request.username() == USER && request.object.resource != "leases"
    };
    let management = cluster.audit().requests(Some(marks.0), ours)?;
    Ok(Sample {
        hosts: arguments.hosts,
        concurrent: arguments.concurrent.clone(),
        seconds,
        cpu_seconds,
        memory: measure::memory(manager.id())?,
        management_requests: management.len(),
        management_writes: management.iter().filter(|request| request.is_write()).count(),
        workload_requests: workload.audit().requests(Some(marks.1), ours)?.len(),
        calls,
        boots: site.boots(),
    })
}
