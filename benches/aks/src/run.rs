//! One fleet, one side, everything else fresh: make it, wait until all of it is ready, then watch it rest.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, api::ListParams};
use slipway_azure_sim::{Ca, Options, Server, Settings, Simulator, Speed};
use slipway_kit::manager::measure;
use slipway_testbed::{Cluster, ManagementCluster, Upstream, WorkloadCluster, audit::Mark};
use tokio::time::Instant;

use super::{
    Arguments, fleet,
    measured::{self, Measured},
    report::{Apiserver, Counts, Rest, Sample, Side},
    watch::Watch,
};

/// Nothing in a run takes this long, unless it never ends.
const HANG_GUARD: Duration = Duration::from_hours(1);
/// How long nothing may become ready before we say what the managers' logs are for.
const STUCK: Duration = Duration::from_mins(10);

/// How long kube-apiserver publishes what was installed.
const APISERVER_SETTLES: Duration = Duration::from_secs(20);

pub async fn run(arguments: &Arguments, side: Side, clusters: usize) -> Result<Sample> {
    eprintln!(
        "{clusters:>5} clusters {}: starting Kubernetes, Cluster API and Azure",
        side.name()
    );
    let simulator = Simulator::new(Settings {
        tenant: fleet::TENANT.to_owned(),
        subscriptions: vec![fleet::SUBSCRIPTION.to_owned()],
        speed: Speed::Instant,
        throttling: false,
        requests_kept: 10_000_000,
        ..Settings::default()
    });
    let builder = ManagementCluster::builder()
        .name("bench-aks")
        .audit_everything_of(measured::USER)
        .audit_everything_of(Upstream::Aso.name())
        .audit_everything_of(Upstream::Capz.name());
    let cluster = match side {
        Side::Slipway | Side::Machines => builder.cluster_api().start().await?,
        // It watches kubeadm's bootstrap kinds too.
        Side::Capz => builder.kubeadm().start().await?,
    };
    // CAPZ is not ready before it has written into the cluster that AKS gave it, so there is one behind all of
    // them when both are compared.
    let workload = if arguments.capz {
        let workload = WorkloadCluster::builder()
            .name("bench-aks-workload")
            .start()
            .await?;
        simulator
            .azure()
            .back_all_clusters(&std::fs::read_to_string(workload.kubeconfig())?);
        Some(workload)
    } else {
        None
    };
    let azure = Server::start(simulator, Ca::new()?, Options::default()).await?;
    let folder = tempfile::tempdir()?;
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, azure.ca.certificate_pem())?;
    let mut apiserver = Apiserver {
        before: settled_apiserver(&cluster).await?,
        ..Apiserver::default()
    };
    let mut processes = match side {
        Side::Slipway => measured::slipway(arguments, &cluster, &azure, &ca, false).await?,
        Side::Machines => measured::slipway(arguments, &cluster, &azure, &ca, true).await?,
        Side::Capz => measured::capz(arguments, &cluster, &azure, &ca).await?,
    };
    apiserver.installed = settled_apiserver(&cluster).await?;
    apiserver.kinds = custom_kinds(&cluster).await?;
    let measured = tokio::time::timeout(
        HANG_GUARD,
        measure(arguments, side, &cluster, &azure, &mut processes, clusters),
    )
    .await;
    processes.stop();
    let sample = match measured {
        Ok(Ok(sample)) => {
            apiserver.at_rest = apiserver_memory(&cluster)?;
            Sample { apiserver, ..sample }
        }
        Ok(Err(error)) => {
            cluster.keep_logs();
            return Err(error.context(format!(
                "the logs are in {}",
                cluster.description().logs.display()
            )));
        }
        Err(elapsed) => {
            cluster.keep_logs();
            return Err(elapsed).with_context(|| {
                format!(
                    "it never ends; the logs are in {}",
                    cluster.description().logs.display()
                )
            });
        }
    };
    azure.stop().await;
    cluster.stop();
    if let Some(workload) = workload {
        workload.stop();
    }
    Ok(sample)
}

async fn measure(
    arguments: &Arguments,
    side: Side,
    cluster: &Cluster,
    azure: &Server,
    measured: &mut Measured,
    clusters: usize,
) -> Result<Sample> {
    let client = cluster.client();
    let planes = Watch::start(fleet::api(&client, arguments.form.plane()));
    let pools = Watch::start(fleet::api(&client, arguments.form.pool()));
    // Each pool has one node.
    let machines =
        (side == Side::Machines).then(|| Watch::start(fleet::api(&client, arguments.form.machine())));
    let mark = cluster.audit().mark()?;
    let cpu_before = cpu_seconds(measured)?;
    azure.simulator().azure().forget_requests();
    let started = Instant::now();
    let desired = clusters * arguments.pools;
    let ready = async {
        planes.all_ready(clusters).await;
        pools.all_ready(desired).await;
        if let Some(machines) = &machines {
            machines.all_ready(desired).await;
        }
    };
    let created = fleet::create(&client, arguments.form, clusters, arguments.pools);
    tokio::select! {
        ended = async { created.await?; ready.await; Ok::<(), anyhow::Error>(()) } => ended?,
        ended = watched(measured, &planes, &pools, clusters) => ended?,
    }
    let seconds_to_ready = started.elapsed().as_secs_f64();
    let cpu = cpu_seconds(measured)? - cpu_before;
    let users = measured.users();
    let kube_requests = by_verb(cluster, mark, &users)?;
    let arm_requests = arm(azure).by_method;
    let at_rest = rest(arguments, cluster, azure, measured).await?;
    let mut rss_mb = 0.0;
    for id in measured.ids() {
        rss_mb += measure::memory(id)?.peak;
    }
    if planes.count() < clusters || pools.count() < desired {
        bail!("not everything stayed ready");
    }
    Ok(Sample {
        seconds_to_ready,
        cpu_seconds: cpu,
        rss_mb,
        arm_requests,
        kube_requests,
        at_rest,
        apiserver: Apiserver::default(),
    })
}

fn apiserver_memory(cluster: &Cluster) -> Result<f64> {
    let process = cluster.process("kube-apiserver").context("kube-apiserver runs")?;
    Ok(measure::memory(process.id())?.now)
}

/// What kube-apiserver holds once it has published what was installed: it does so in the background.
async fn settled_apiserver(cluster: &Cluster) -> Result<f64> {
    tokio::time::sleep(APISERVER_SETTLES).await;
    apiserver_memory(cluster)
}

async fn custom_kinds(cluster: &Cluster) -> Result<usize> {
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let found = api.list_metadata(&ListParams::default()).await?;
    Ok(found.items.len())
}

/// Says how far it is, and ends only if somebody has ended or nothing moves any more.
async fn watched(measured: &mut Measured, planes: &Watch, pools: &Watch, clusters: usize) -> Result<()> {
    let (mut before, mut since) = (0, Instant::now());
    let mut said = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        measured.check()?;
        let now = planes.count() + pools.count();
        if now != before {
            (before, since) = (now, Instant::now());
        }
        if said.elapsed() > Duration::from_secs(15) {
            eprintln!(
                "{clusters:>5} clusters: {} and {} pools ready",
                planes.count(),
                pools.count()
            );
            said = Instant::now();
        }
        if since.elapsed() > STUCK {
            bail!(
                "nothing moves any more: {} control planes and {} pools are ready",
                planes.count(),
                pools.count()
            );
        }
    }
}

/// Watches one period of doing nothing. It begins a tenth of a period after a list was read, so that exactly one list of
/// each type falls into it, however many objects there are.
async fn rest(
    arguments: &Arguments,
    cluster: &Cluster,
    azure: &Server,
    measured: &mut Measured,
) -> Result<Rest> {
    let period = Duration::from_secs(arguments.period);
    // What follows readiness (nodes, a last reconcile) is over by then.
    tokio::time::sleep(period).await;
    if matches!(measured, Measured::Slipway(_)) {
        let lists = || {
            let azure = azure.simulator().azure();
            azure
                .requests()
                .filter(|request| {
                    request.method == "GET" && request.path.to_lowercase().ends_with("/managedclusters")
                })
                .count()
        };
        let before = lists();
        let guard = Instant::now();
        while lists() == before {
            if guard.elapsed() > period * 3 {
                bail!("no list was read in three periods");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(period / 10).await;
    }
    measured.check()?;
    let mark = cluster.audit().mark()?;
    let cpu_before = cpu_seconds(measured)?;
    azure.simulator().azure().forget_requests();
    tokio::time::sleep(period).await;
    measured.check()?;
    let cpu = cpu_seconds(measured)? - cpu_before;
    let asked = arm(azure);
    let users = measured.users();
    let mut kube_writes = 0;
    for user in &users {
        let writes = cluster.audit().writes_at_rest(user, mark)?;
        for write in writes.iter().take(5) {
            eprintln!("        written at rest: {write}");
        }
        kube_writes += writes.len();
    }
    let mut rss_mb = 0.0;
    for id in measured.ids() {
        rss_mb += measure::memory(id)?.now;
    }
    Ok(Rest {
        seconds: arguments.period,
        arm_writes: asked.writes,
        arm_reads: asked.reads,
        arm_single_reads: asked.single_reads,
        arm_list_pages: asked.pages,
        arm_by_method: asked.by_method,
        kube_writes,
        kube_by_method: by_verb(cluster, mark, &users)?,
        cpu_seconds: cpu,
        rss_mb,
    })
}

fn cpu_seconds(measured: &Measured) -> Result<f64> {
    measured.ids().into_iter().map(measure::cpu_seconds).sum()
}

fn by_verb(cluster: &Cluster, mark: Mark, users: &[String]) -> Result<Counts> {
    let mut counts = Counts::new();
    let theirs = cluster.audit().requests(Some(mark), |request| {
        users.iter().any(|user| user == request.username())
    })?;
    for request in theirs {
        *counts.entry(request.verb).or_default() += 1;
    }
    Ok(counts)
}

/// What Azure was asked since it last forgot. Signing in is not counted.
#[derive(Default)]
struct Asked {
    by_method: Counts,
    writes: usize,
    reads: usize,
    /// Those of them that are of one resource.
    single_reads: usize,
    /// Pages after the first of a list.
    pages: usize,
}

fn arm(azure: &Server) -> Asked {
    let azure = azure.simulator().azure();
    let mut asked = Asked::default();
    for request in azure
        .requests()
        .filter(|request| !request.path.contains("/oauth2/"))
    {
        *asked.by_method.entry(request.method.clone()).or_default() += 1;
        match request.method.as_str() {
            "GET" | "HEAD" if request.query.to_lowercase().contains("skiptoken") => asked.pages += 1,
            "GET" | "HEAD" => {
                asked.reads += 1;
                asked.single_reads += usize::from(!is_list(&request.path));
            }
            _ => asked.writes += 1,
        }
    }
    asked
}

/// Whether a path ends with a type, and not with the name of a resource.
fn is_list(path: &str) -> bool {
    let path = path.to_lowercase();
    match path.rsplit_once("/providers/") {
        Some((_, below)) => below.trim_matches('/').split('/').count() % 2 == 0,
        None => path.trim_matches('/').split('/').count() % 2 == 1,
    }
}
