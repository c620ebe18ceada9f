//! Pods that wait by the thousand, for which our autoscaler or Karpenter's kwok provider makes nodes, on a real apiserver, etcd and
//! kube-scheduler. Both sides get a fresh cluster, the same pods and machines of the same sizes and prices, and are measured
//! from outside: processor time and memory by the kernel, requests by the audit log, progress by the driver's own watches.
//! Progress goes to standard error; standard output is one JSON object.

mod conversion;
mod report;
mod sides;
mod watch;
mod workload;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};
use slipway_testbed::{
    Cluster, ManagementCluster,
    audit::{Mark, Request},
};
use tokio::time::{Instant, sleep};

use report::{Asked, Milestone, Rest, Sample};
use sides::{Autoscaler, Side};
use watch::{Reached, Watch};

#[derive(Parser)]
pub struct Arguments {
    /// How many pods come at once; each number is a run of its own.
    #[arg(long, value_delimiter = ',', default_value = "1000,5000")]
    pods: Vec<usize>,
    /// How long a side is watched once all pods run.
    #[arg(long, default_value_t = 30)]
    rest_seconds: u64,
    /// A side that gets no further for so long is measured as it is then.
    #[arg(long, default_value_t = 300)]
    timeout_seconds: u64,
    /// The objects of a cluster of so many nodes are converted for planning; none if zero.
    #[arg(long, default_value_t = 5000)]
    snapshot_nodes: usize,
    /// Our manager.
    #[arg(long)]
    slipway: Option<PathBuf>,
    /// Karpenter's kwok provider.
    #[arg(long, requires = "karpenter_module")]
    karpenter: Option<PathBuf>,
    /// The Go module it was built from, which has its definitions.
    #[arg(long)]
    karpenter_module: Option<PathBuf>,
}

/// Who the autoscalers are, for the audit log.
const USER: &str = "measured";

/// How often it is looked how far a side has come.
const LOOK: Duration = Duration::from_millis(100);

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the executor")?;
    let snapshot = match arguments.snapshot_nodes {
        0 => Value::Null,
        nodes => conversion::measure(nodes)?,
    };
    eprintln!("conversion for planning: {snapshot}");
    let mut runs = Vec::new();
    for &pods in &arguments.pods {
        let mut run = json!({"pods": pods});
        for side in Side::of(&arguments)? {
            let name = side.name();
            eprintln!("{pods} pods: {name}");
            let sample = runtime
                .block_on(measure_side(&arguments, &side, pods))
                .with_context(|| format!("measuring {name} with {pods} pods"))?;
            eprintln!("{pods} pods: {name}: {}", sample.words());
            run[name] = sample.json();
        }
        runs.push(run);
    }
    println!("{}", json!({"snapshot": snapshot, "runs": runs}));
    Ok(())
}

async fn measure_side(arguments: &Arguments, side: &Side, pods: usize) -> Result<Sample> {
    let mut builder = ManagementCluster::builder()
        .name("bench-autoscaler")
        .kwok()
        .audit_everything_of(USER)
        // By default it binds fifty pods a second, and that would be what is measured.
        .scheduler_argument("--kube-api-qps=2000")
        .scheduler_argument("--kube-api-burst=4000");
    if side.needs_cluster_api() {
        builder = builder.cluster_api();
    }
    let cluster = builder.start().await?;
    let sample = async {
        let autoscaler = side.start(&cluster).await?;
        measure(arguments, &cluster, &autoscaler, pods).await
    }
    .await;
    match sample {
        Ok(sample) => {
            cluster.stop();
            Ok(sample)
        }
        Err(error) => {
            cluster.keep_logs();
            let logs = cluster.description().logs.display().to_string();
            Err(error.context(format!("the logs are in {logs}")))
        }
    }
}

async fn measure(
    arguments: &Arguments,
    cluster: &Cluster,
    autoscaler: &Autoscaler,
    pods: usize,
) -> Result<Sample> {
    let client = cluster.client();
    let watch = Watch::start(&client);
    let mut mark = cluster.audit().mark()?;
    let cpu_before = autoscaler.cpu_seconds()?;
    let started = Instant::now();
    let now = || -> Result<Milestone> {
        Ok(Milestone {
            seconds: started.elapsed().as_secs_f64(),
            cpu_seconds: autoscaler.cpu_seconds()? - cpu_before,
        })
    };
    let coming = tokio::spawn(workload::create(client.clone(), pods));
    let timeout = Duration::from_secs(arguments.timeout_seconds);
    let (mut reached, mut changed, mut told) = (Reached::default(), started, started);
    let (mut decided, mut ready, mut running) =
        (Milestone::default(), Milestone::default(), Milestone::default());
    let mut first_claim = None;
    loop {
        sleep(LOOK).await;
        autoscaler.check()?;
        let seen = watch.reached();
        if seen != reached {
            let moment = now()?;
            if seen.claims != reached.claims {
                decided = moment;
                first_claim.get_or_insert(moment);
            }
            if seen.nodes != reached.nodes {
                ready = moment;
            }
            if seen.running != reached.running {
                running = moment;
            }
            (reached, changed) = (seen, Instant::now());
        }
        if reached.running == pods && reached.nodes == reached.claims {
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
    coming.await.context("the pods were not made")??;
    let asked = asked(cluster, &mut mark)?;
    let cpu_before = autoscaler.cpu_seconds()?;
    let memory = autoscaler.memory()?;
    sleep(Duration::from_secs(arguments.rest_seconds)).await;
    let rest = Rest {
        seconds: arguments.rest_seconds,
        cpu_seconds: autoscaler.cpu_seconds()? - cpu_before,
        asked: self::asked(cluster, &mut mark)?,
    };
    Ok(Sample {
        pods,
        reached,
        first_claim: first_claim.unwrap_or_default(),
        decided,
        ready,
        running,
        asked,
        memory,
        price: watch.price(),
        rest,
    })
}

/// What the autoscaler asked for since the last time.
fn asked(cluster: &Cluster, mark: &mut Mark) -> Result<Asked> {
    let end = cluster.audit().mark()?;
    // A lease is written all the time by whoever leads.
    let its = |request: &Request| request.username() == USER && request.object.resource != "leases";
    let mut asked = Asked::default();
    for request in cluster.audit().requests(Some(*mark), its)? {
        let what = format!("{} {}", request.verb.to_uppercase(), request.resource());
        *asked.by_kind.entry(what).or_default() += 1;
        asked.requests += 1;
        asked.writes += usize::from(request.is_write());
    }
    *mark = end;
    Ok(asked)
}
