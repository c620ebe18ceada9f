//! Many K3s clusters at once, made by our manager or by cluster-api-k3s, beside a real apiserver, etcd and Cluster API
//! core, on hosts that boot into the simulated K3s. Both sides get a fresh management cluster, the same manifests and
//! are measured from outside: processor time and memory by the kernel, requests to the management cluster by its audit
//! log, requests to the workload clusters by those clusters themselves. Progress goes to standard error; standard
//! output is one JSON object.

mod count;
mod fleet;
mod managers;
mod progress;
mod report;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::json;
use slipway_k3s_sim::{Simulator, Timing};
use slipway_testbed::{
    Cluster, ManagementCluster,
    hosts::{Hosts, SimulatedK3s},
};
use tokio::time::{Instant, sleep};

use count::{Counted, Counter};
use managers::{Managers, Side};
use report::Sample;

#[derive(Parser)]
pub struct Arguments {
    #[arg(long, default_value_t = 100)]
    clusters: usize,
    /// Servers of each.
    #[arg(long, default_value_t = 3)]
    servers: usize,
    /// Workers of each.
    #[arg(long, default_value_t = 3)]
    workers: usize,
    /// How long a side is watched at rest: by default, as long as it takes until every object has been reconciled again.
    #[arg(long, default_value_t = 660)]
    rest_seconds: u64,
    /// A side that gets no further for so long is measured as it is then.
    #[arg(long, default_value_t = 300)]
    timeout_seconds: u64,
    /// Our manager.
    #[arg(long)]
    slipway: Option<PathBuf>,
    /// Measure cluster-api-k3s too.
    #[arg(long)]
    upstream: bool,
}

/// Who the managers are, for the audit log.
const USER: &str = "measured";

/// Servers are promoted and nodes are ready within a second, so that what is waited for are the managers.
const TIMING: Timing = Timing {
    tick: Duration::from_secs(1),
    learner_stall: Duration::from_mins(1),
    heartbeat: Duration::from_mins(5),
    node_grace: Duration::from_secs(10),
    catch_up: Duration::ZERO,
    lease: Duration::from_secs(1),
    annotations: Duration::from_millis(50),
    ..Timing::K3S
};

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the executor")?;
    let mut report = json!({"clusters": arguments.clusters});
    for side in Side::of(&arguments)? {
        let name = side.name();
        let sample = runtime
            .block_on(run(&arguments, &side))
            .with_context(|| format!("measuring {name}"))?;
        eprintln!("{name}: {}", sample.words());
        report[name] = sample.json();
    }
    println!("{report}");
    Ok(())
}

async fn run(arguments: &Arguments, side: &Side) -> Result<Sample> {
    let cluster = ManagementCluster::builder()
        .name("k3s-bench")
        .cluster_api()
        .scheduler(false)
        .audit_everything_of(USER)
        .start()
        .await?;
    let simulator = Simulator::new(TIMING);
    let backend = Arc::new(SimulatedK3s::new(Arc::clone(&simulator)));
    let hosts = Hosts::start_on(&cluster, fleet::NAMESPACE, backend).await?;
    let managers = side.start(&cluster).await?;
    let sample = measure(arguments, &cluster, &simulator, &managers).await;
    drop(hosts);
    match sample {
        Ok(sample) => {
            drop(managers);
            cluster.stop();
            Ok(sample)
        }
        Err(error) => {
            cluster.keep_logs();
            let logs = managers.folder().display().to_string();
            Err(error.context(format!("the managers' logs are in {logs}")))
        }
    }
}

async fn measure(
    arguments: &Arguments,
    cluster: &Cluster,
    simulator: &Simulator,
    managers: &Managers,
) -> Result<Sample> {
    let client = cluster.client();
    let mut counter = Counter::new(cluster, managers, simulator)?;
    let watch = progress::Watch::start(&client, arguments);
    let started = Instant::now();
    fleet::create(&client, arguments).await?;
    let timeout = Duration::from_secs(arguments.timeout_seconds);
    let mut changed = started;
    let mut reached = watch.reached();
    let mut told = started;
    let mut seconds_to_ready = None;
    loop {
        sleep(Duration::from_millis(250)).await;
        managers.check()?;
        let now = watch.reached();
        if now != reached {
            (reached, changed) = (now, Instant::now());
        }
        if reached.is_all(arguments) {
            seconds_to_ready = Some(changed.duration_since(started).as_secs_f64());
            break;
        }
        if told.elapsed() > Duration::from_secs(15) {
            told = Instant::now();
            eprintln!("{:>5.0} s: {reached}", started.elapsed().as_secs_f64());
        }
        if changed.elapsed() > timeout {
            eprintln!("{:>5.0} s: no further", started.elapsed().as_secs_f64());
            break;
        }
    }
    let converging = counter.take()?;
    until_settled(&mut counter, managers).await?;
    eprintln!("watching it at rest for {} s", arguments.rest_seconds);
    counter.take()?;
    sleep(Duration::from_secs(arguments.rest_seconds)).await;
    managers.check()?;
    let at_rest = counter.take()?;
    if simulator.clusters().len() != arguments.clusters {
        bail!("some clusters have no endpoint");
    }
    let unhappy = match seconds_to_ready {
        Some(_) => Vec::new(),
        None => fleet::what_is_missing(&client).await?,
    };
    Ok(Sample {
        clusters: arguments.clusters,
        desired: (
            arguments.clusters * arguments.servers,
            arguments.clusters * arguments.workers,
        ),
        reached,
        seconds_to_ready,
        converging,
        at_rest,
        rest_seconds: arguments.rest_seconds,
        memory: managers.memory()?,
        unhappy,
    })
}

/// What follows from becoming ready is let end: until nothing is written for a while, or never is.
async fn until_settled(counter: &mut Counter<'_>, managers: &Managers) -> Result<()> {
    let mut quiet = 0;
    for _ in 0..20 {
        sleep(Duration::from_secs(5)).await;
        managers.check()?;
        let Counted {
            management_writes, ..
        } = counter.take()?;
        quiet = if management_writes == 0 { quiet + 1 } else { 0 };
        if quiet == 3 {
            break;
        }
    }
    Ok(())
}
