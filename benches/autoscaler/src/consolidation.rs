//! After the pods have come: every second one goes, nodes may be given up, and what is evicted comes again, as a ReplicaSet would make
//! it. Measured is what is left once nothing changes any more, and what it took.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use slipway_testbed::Cluster;
use tokio::time::{Instant, sleep};

use super::{
    LOOK, asked,
    report::{Asked, Milestone},
    sides::Autoscaler,
    watch::{Reached, Watch},
    workload::{self, POOL},
};

/// How many pods are deleted at a time.
const AT_ONCE: usize = 32;

/// What came of it.
pub struct Consolidated {
    /// Pods that are to run.
    pub pods: usize,
    /// Before and after.
    pub nodes: [usize; 2],
    pub price: [f64; 2],
    /// The last change of nodes or pods.
    pub last: Milestone,
    pub evictions: usize,
    /// Claims that were made meanwhile.
    pub made: usize,
    pub reached: Reached,
    pub asked: Asked,
}

/// The pods that are to be there, by their numbers. One that was there and is not any more was evicted.
struct Replicas {
    alive: BTreeSet<usize>,
    seen: BTreeSet<usize>,
    next: usize,
    evictions: usize,
}

impl Replicas {
    /// Makes another pod of the same size for each that was evicted.
    async fn replace(&mut self, client: &Client, watch: &Watch) -> Result<()> {
        let there = watch.pod_numbers();
        self.seen.extend(there.iter().copied());
        let is_gone = |number: &&usize| self.seen.contains(*number) && !there.contains(*number);
        let gone: Vec<usize> = self.alive.iter().filter(is_gone).copied().collect();
        for number in gone {
            self.alive.remove(&number);
            self.evictions += 1;
            self.next = workload::of_same_size(number, self.next);
            self.alive.insert(self.next);
            workload::create_one(client, self.next).await?;
            self.next += 1;
        }
        Ok(())
    }
}

pub async fn measure(
    cluster: &Cluster,
    autoscaler: &Autoscaler,
    watch: &Watch,
    pods: usize,
    settle: Duration,
) -> Result<Consolidated> {
    let client = cluster.client();
    let (before, price_before) = (watch.reached(), watch.price());
    let made_before = watch.claims_ever();
    let mut mark = cluster.audit().mark()?;
    let cpu_before = autoscaler.cpu_seconds()?;
    let started = Instant::now();
    let (going, staying): (Vec<usize>, Vec<usize>) = (0..pods).partition(|number| number % 2 == 1);
    let mut replicas = Replicas {
        alive: staying.iter().copied().collect(),
        seen: BTreeSet::new(),
        next: pods,
        evictions: 0,
    };
    delete(&client, going).await?;
    let pools = workload::api(&client, "karpenter.sh/v1", "NodePool");
    let disruption = json!({"spec": {"disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized",
        "consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}}});
    pools
        .patch(POOL, &PatchParams::default(), &Patch::Merge(&disruption))
        .await
        .context("letting nodes be given up")?;
    let expected = staying.len();
    let (mut reached, mut changed) = (watch.reached(), Instant::now());
    let mut last = Milestone::default();
    let mut told = Instant::now();
    while changed.elapsed() < settle {
        sleep(LOOK).await;
        autoscaler.check()?;
        replicas.replace(&client, watch).await?;
        let seen = watch.reached();
        if seen != reached {
            (reached, changed) = (seen, Instant::now());
            last = Milestone {
                seconds: started.elapsed().as_secs_f64(),
                cpu_seconds: autoscaler.cpu_seconds()? - cpu_before,
            };
        }
        if told.elapsed() > Duration::from_secs(15) {
            told = Instant::now();
            eprintln!(
                "{:>5.0} s: {reached}, {} evicted, {expected} expected",
                started.elapsed().as_secs_f64(),
                replicas.evictions
            );
        }
    }
    Ok(Consolidated {
        pods: expected,
        nodes: [before.nodes, reached.nodes],
        price: [price_before, watch.price()],
        last,
        evictions: replicas.evictions,
        made: watch.claims_ever() - made_before,
        reached,
        asked: asked(cluster, &mut mark)?,
    })
}

async fn delete(client: &Client, numbers: Vec<usize>) -> Result<()> {
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let now = DeleteParams::default().grace_period(0);
    stream::iter(numbers)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |number| {
            let (api, now) = (&api, &now);
            async move {
                let deleted = api.delete(&workload::name(number), now).await;
                deleted.map(|_| ()).context("deleting a pod")
            }
        })
        .await
}
