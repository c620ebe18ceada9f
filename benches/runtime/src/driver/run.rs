//! One manager, one fresh cluster: create, reconcile all, update for a while, rest.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api, CustomResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use slipway_bench_runtime::{Buoy, BuoySpec};
use slipway_testbed::{Cluster, WorkloadCluster, audit::Mark};
use tokio::time::Instant;

use super::{
    Arguments,
    process::Manager,
    report::{Sample, Side},
    watch::Watch,
};

/// Who the manager is, for the audit log.
const USER: &str = "race";
const NAMESPACE: &str = "default";

/// Nothing in a run takes this long, unless it never ends.
const HANG_GUARD: Duration = Duration::from_mins(30);

pub async fn run(arguments: &Arguments, side: Side, objects: usize) -> Result<Sample> {
    let cluster = WorkloadCluster::builder()
        .name("race")
        .audit_everything_of(USER)
        .start()
        .await?;
    let crd = serde_json::to_value(Buoy::crd())?;
    cluster.install(vec![crd], "https://127.0.0.1:1", "").await?;
    let buoys: Api<Buoy> = Api::namespaced(cluster.client(), NAMESPACE);
    create(&buoys, objects).await?;
    let watch = Watch::start(buoys.clone());
    watch.listed().await;

    let directory = &cluster.description().directory;
    let kubeconfig = directory.join("race.kubeconfig");
    std::fs::write(&kubeconfig, cluster.kubeconfig_as(USER, Some("system:masters")))?;
    let program = match side {
        Side::Slipway => &arguments.slipway,
        Side::ControllerRuntime => arguments
            .controller_runtime
            .as_ref()
            .context("there is no other manager")?,
    };
    let log = directory.join("logs/race-manager.log");
    let sample = tokio::time::timeout(
        HANG_GUARD,
        measure(
            arguments,
            &cluster,
            &buoys,
            &watch,
            side,
            objects,
            program,
            &kubeconfig,
            &log,
        ),
    );
    match sample.await {
        Ok(Ok(sample)) => {
            drop(watch);
            cluster.stop();
            Ok(sample)
        }
        Ok(Err(error)) => {
            cluster.keep_logs();
            Err(error.context(format!("the manager's log is {}", log.display())))
        }
        Err(elapsed) => {
            cluster.keep_logs();
            Err(elapsed).with_context(|| format!("it never ends; the manager's log is {}", log.display()))
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "all of one run, used once")]
async fn measure(
    arguments: &Arguments,
    cluster: &Cluster,
    buoys: &Api<Buoy>,
    watch: &Watch,
    side: Side,
    objects: usize,
    program: &Path,
    kubeconfig: &Path,
    log: &Path,
) -> Result<Sample> {
    let mark = cluster.audit().mark()?;
    let started = Instant::now();
    let mut manager = Manager::start(
        side,
        program,
        kubeconfig,
        arguments.concurrency,
        arguments.compressed,
        log,
    )?;
    tokio::select! {
        () = watch.all_ready(objects) => {}
        ended = ends(&mut manager) => ended?,
    }
    let seconds = started.elapsed().as_secs_f64();
    let cpu_seconds = manager.cpu_seconds()?;
    let settled_cpu_seconds = manager.settled().await?;
    let requests = count(cluster, mark)?;
    let peak = manager.memory()?.peak;
    watch.take_latencies();

    update(arguments, buoys, objects).await?;
    tokio::select! {
        () = watch.all_ready(objects) => {}
        ended = ends(&mut manager) => ended?,
    }
    let update_cpu_seconds = manager.settled().await? - settled_cpu_seconds;
    let latencies = watch.take_latencies();

    let mark = cluster.audit().mark()?;
    let before = manager.cpu_seconds()?;
    tokio::time::sleep(Duration::from_secs(arguments.idle_seconds.into())).await;
    manager.check()?;
    let idle_cpu_seconds = manager.cpu_seconds()? - before;
    let idle_requests = count(cluster, mark)?;
    let memory = manager.memory()?;
    let (idle_memory, whole_peak) = (memory.now, memory.peak);
    manager.stop().await?;
    let updates = f64::from(arguments.updates) * f64::from(arguments.updates_seconds);
    Ok(Sample {
        seconds,
        objects_per_second: objects as f64 / seconds,
        objects_per_cpu_second: objects as f64 / cpu_seconds,
        objects_per_settled_cpu_second: objects as f64 / settled_cpu_seconds,
        requests_per_object: requests as f64 / objects as f64,
        rss_mb: whole_peak,
        initial_rss_mb: peak,
        idle_rss_mb: idle_memory,
        p50_ms: percentile(&latencies, 0.50),
        p99_ms: percentile(&latencies, 0.99),
        updates_per_cpu_second: if update_cpu_seconds > 0.0 {
            updates / update_cpu_seconds
        } else {
            0.0
        },
        idle_cpu_percent: 100.0 * idle_cpu_seconds / f64::from(arguments.idle_seconds.max(1)),
        idle_requests: idle_requests as f64,
    })
}

/// Resolves only if the manager ends by itself.
async fn ends(manager: &mut Manager) -> Result<()> {
    loop {
        manager.check()?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn count(cluster: &Cluster, mark: Mark) -> Result<usize> {
    let of_manager = |request: &slipway_testbed::audit::Request| request.username() == USER;
    Ok(cluster.audit().requests(Some(mark), of_manager)?.len())
}

fn name(number: usize) -> String {
    format!("buoy-{number:05}")
}

/// About a kilobyte each, before there is any status.
async fn create(buoys: &Api<Buoy>, objects: usize) -> Result<()> {
    stream::iter(0..objects)
        .map(|number| async move {
            let mut buoy = Buoy::new(
                &name(number),
                BuoySpec {
                    text: format!("buoy {number} marks the fairway; ").repeat(8),
                    revision: 0,
                    lights: (0..4)
                        .map(|light| (format!("sector-{light}"), format!("white, {number} seconds")))
                        .collect(),
                },
            );
            buoy.metadata.labels = Some(
                [
                    ("race.slipway.dev/harbour", "north"),
                    ("app.kubernetes.io/managed-by", "race"),
                ]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            );
            buoys
                .create(&PostParams::default(), &buoy)
                .await
                .with_context(|| format!("creating object {number}"))
        })
        .buffer_unordered(32)
        .try_for_each(|_| async { Ok(()) })
        .await
}

/// Changes objects at an even pace, far enough apart that each is done before it comes again.
async fn update(arguments: &Arguments, buoys: &Api<Buoy>, objects: usize) -> Result<()> {
    let total = arguments.updates * arguments.updates_seconds;
    let pause = Duration::from_secs(1) / arguments.updates.max(1);
    let started = Instant::now();
    stream::iter(0..total)
        .map(|number| async move {
            tokio::time::sleep_until(started + pause * number).await;
            // 7919 is a prime, so every object has its turn.
            let name = name((number as usize * 7919) % objects);
            let patch = Patch::Merge(json!({"spec": {"revision": number + 1}}));
            buoys
                .patch(&name, &PatchParams::default(), &patch)
                .await
                .with_context(|| format!("updating {name}"))
        })
        .buffered(64)
        .try_for_each(|_| async { Ok(()) })
        .await
}

fn percentile(latencies: &[Duration], share: f64) -> f64 {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    let index = (sorted.len() as f64 * share) as usize;
    sorted
        .get(index.min(sorted.len().saturating_sub(1)))
        .map_or(0.0, |latency| latency.as_secs_f64() * 1000.0)
}
