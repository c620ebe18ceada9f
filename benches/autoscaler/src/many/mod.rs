//! Many workload clusters that one manager of ours scales from a management cluster. All of them are apiserver simulators in this
//! process, served over HTTP, with a Cluster API, hosts and schedulers that are just enough: a hundred real apiservers would need
//! 150 GB. Our manager is the program that ships, in a process of its own, and the kernel says what it takes.

mod serve;

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use slipway_kit::{
    manager::{free_port, measure},
    objects::of_kind,
    scaled::{CHOSEN, ScaledClusters},
};
use slipway_runtime::Clock;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use self::serve::{Counted, Served};
use super::{Arguments, LOOK, report::rounded};

/// In each cluster, when they come all at once: five nodes.
const PODS: usize = 10;
/// More of them while one cluster is dead: one node.
const MORE: usize = 2;

struct Fleet {
    clusters: ScaledClusters,
    management: Served,
    workloads: BTreeMap<String, Served>,
    manager: Child,
}

/// What a phase took.
struct Phase {
    seconds: f64,
    cpu_seconds: f64,
    memory: f64,
    management: Counted,
    workloads: Counted,
}

impl Phase {
    fn json(&self) -> Value {
        json!({
            "seconds": rounded(self.seconds),
            "cpu_seconds": rounded(self.cpu_seconds),
            "rss_mb": rounded(self.memory),
            "management_requests": self.management.json(),
            "workload_requests": self.workloads.json(),
        })
    }
}

pub async fn measure(program: &Path, arguments: &Arguments) -> Result<Value> {
    let folder = tempdir()?;
    let fleet = Fleet::start(program, &folder, arguments.clusters).await;
    let measured = match fleet {
        Ok(mut fleet) => {
            let phases = fleet.phases(arguments).await;
            let _ = fleet.manager.kill().await;
            phases
        }
        Err(error) => Err(error),
    };
    match measured {
        Ok(measured) => {
            let _ = std::fs::remove_dir_all(&folder);
            Ok(measured)
        }
        Err(error) => Err(error.context(format!("the log is in {}", folder.display()))),
    }
}

fn tempdir() -> Result<std::path::PathBuf> {
    let folder = std::env::temp_dir().join(format!("bench-autoscaler-many-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}

impl Fleet {
    async fn start(program: &Path, folder: &Path, count: usize) -> Result<Fleet> {
        let names = (0..count).map(|number| format!("edge-{number:03}"));
        let clusters = ScaledClusters::new(names, Clock::system());
        let definitions = slipway_autoscaler::provider().packages.remove(0).crds;
        clusters.management.install(&definitions, &[], &[]);
        let management = Served::start(clusters.management.clone()).await?;
        let mut workloads = BTreeMap::new();
        for (name, server) in clusters.workloads.iter() {
            workloads.insert(name.clone(), Served::start(server.clone()).await?);
        }
        let kubeconfig = folder.join("kubeconfig");
        let written = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": management.url()}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        std::fs::write(&kubeconfig, written.to_string())?;
        let log = std::fs::File::create(folder.join("manager.log"))?;
        let manager = Command::new(program)
            .arg("manager")
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg("--providers=autoscaler")
            .arg(format!("--autoscaler-clusters={CHOSEN}"))
            .arg("--autoscaler-install-crds")
            .arg("--leader-elect=false")
            .arg("--health-addr=0")
            .arg(format!("--diagnostics-address=127.0.0.1:{}", free_port()?))
            .arg("--insecure-diagnostics")
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        tokio::spawn(clusters.clone().play());
        Ok(Fleet {
            clusters,
            management,
            workloads,
            manager,
        })
    }

    fn id(&self) -> Result<u32> {
        self.manager.id().context("the manager has ended")
    }

    fn names(&self) -> Vec<String> {
        self.workloads.keys().cloned().collect()
    }

    async fn phases(&mut self, arguments: &Arguments) -> Result<Value> {
        let guard = Duration::from_secs(arguments.timeout_seconds);
        let rest = Duration::from_secs(arguments.rest_seconds);
        let names = self.names();
        let alone = self.phase("without clusters", rest, |_| false).await?;
        for name in &names {
            let address = self.workloads[name].url();
            self.clusters.found_in_management(name, &address, true).await;
        }
        let connected = self
            .phase("connected", guard, |fleet| fleet.count_running() == names.len())
            .await?;
        for name in &names {
            self.clusters.found_in_workload(name).await;
        }
        let idle = self.phase("with NodePools, at rest", rest, |_| false).await?;
        for name in &names {
            self.clusters.pods(name, "web", PODS).await;
        }
        let pods_run = |fleet: &Fleet, of: &[String], expected: usize| {
            of.iter().all(|name| fleet.clusters.running(name) == expected)
        };
        let scaled = self
            .phase("pods run", guard, |fleet| pods_run(fleet, &names, PODS))
            .await?;
        sleep(Duration::from_secs(15)).await;
        let rested = self.phase("at rest", rest, |_| false).await?;
        let (dead, alive) = names.split_first().context("there are clusters")?;
        if let Some(served) = self.workloads.get(dead) {
            served.stop();
        }
        for name in alive {
            self.clusters.pods(name, "more", MORE).await;
        }
        let beside = self
            .phase("pods run beside a dead cluster", guard, |fleet| {
                pods_run(fleet, alive, PODS + MORE)
            })
            .await?;
        Ok(json!({
            "clusters": names.len(),
            "without_clusters": alone.json(),
            "connected": connected.json(),
            "with_node_pools_at_rest": idle.json(),
            "pods_run": scaled.json(),
            "at_rest": rested.json(),
            "beside_a_dead_cluster": beside.json(),
        }))
    }

    /// How many Clusters say that they are scaled.
    fn count_running(&self) -> usize {
        self.clusters.management.look(|all| {
            let is_running = |cluster: &&Value| {
                let conditions = cluster["status"]["conditions"].as_array();
                let mut conditions = conditions.into_iter().flatten();
                conditions.any(|one| one["type"] == "AutoscalerRunning" && one["status"] == "True")
            };
            of_kind(all, "Cluster").filter(is_running).count()
        })
    }

    /// From now on until it is over, or for as long as nothing else is waited for.
    async fn phase(&self, name: &str, at_most: Duration, is_over: impl Fn(&Fleet) -> bool) -> Result<Phase> {
        let (management, workloads) = (self.management.counted(), self.of_workloads());
        let cpu_before = measure::cpu_seconds(self.id()?)?;
        let started = Instant::now();
        let is_waited_for = !name.ends_with("at rest") && !name.starts_with("without");
        while !is_over(self) {
            sleep(LOOK).await;
            if started.elapsed() > at_most {
                if is_waited_for {
                    bail!("{name}: not within {} s", at_most.as_secs());
                }
                break;
            }
        }
        let phase = Phase {
            seconds: started.elapsed().as_secs_f64(),
            cpu_seconds: measure::cpu_seconds(self.id()?)? - cpu_before,
            memory: measure::memory(self.id()?)?.now,
            management: self.management.counted().since(management),
            workloads: self.of_workloads().since(workloads),
        };
        eprintln!("{name}: {}", phase.json());
        Ok(phase)
    }

    fn of_workloads(&self) -> Counted {
        self.workloads
            .values()
            .fold(Counted::default(), |sum, served| sum.and(served.counted()))
    }
}
