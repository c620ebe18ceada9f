//! How well the cluster is packed, which nobody else counts: what its nodes cost beside the least that nodes for its pods could,
//! what giving nodes up saves beside the pods it moves, and how long pods wait. Only reads, and changes no decision.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};
use slipway_packing::{
    disrupt::Command,
    model::{self, Snapshot},
    optimum,
};
use slipway_runtime::{Context, Metrics, controller::Registration, informer::Delta};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::{
    api::names::label,
    cluster_api::Reader,
    memory::Memory,
    metrics::reason,
    options::Options,
    watched::{Changed, Watched, observe},
};

/// How often it is worked out at most: the least cost of many pods takes seconds of a processor.
const PERIOD: Duration = Duration::from_mins(5);
/// With nothing changed, nothing is worked out.
const IDLE: Duration = Duration::from_hours(24);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPool {
    nodepool: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    reason: &'static str,
}

type Money = Gauge<f64, AtomicU64>;

/// What is counted. Clones count together.
#[derive(Clone, Debug)]
pub struct Quality {
    cost: Family<OfPool, Money>,
    /// NodePools that were told of, and are told as nothing once they are gone.
    pools: Arc<Mutex<BTreeSet<String>>>,
    bound: Money,
    saved: Family<OfReason, Counter<f64, AtomicU64>>,
    evicted: Family<OfReason, Counter>,
    waited: Histogram,
}

impl Default for Quality {
    fn default() -> Self {
        Quality {
            cost: Family::default(),
            pools: Arc::default(),
            bound: Money::default(),
            saved: Family::default(),
            evicted: Family::default(),
            waited: Histogram::new([
                1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1800.0,
            ]),
        }
    }
}

impl Quality {
    pub fn register(&self, metrics: &Metrics) {
        metrics.register(
            "slipway_autoscaler_nodes_cost_per_hour",
            "What the nodes of a NodePool cost in an hour",
            self.cost.clone(),
        );
        metrics.register(
            "slipway_autoscaler_lower_bound_per_hour",
            "What nodes for the pods that run on nodes of NodePools cost in an hour at least, however they are packed",
            self.bound.clone(),
        );
        metrics.register(
            "slipway_autoscaler_disruption_saved_per_hour",
            "What disruptions that began save in an hour, added up",
            self.saved.clone(),
        );
        metrics.register(
            "slipway_autoscaler_disruption_evictions",
            "Number of pods that disruptions which began move",
            self.evicted.clone(),
        );
        metrics.register(
            "slipway_autoscaler_pods_waited_seconds",
            "Time from kube-scheduler giving up on a pod until it is bound to a node",
            self.waited.clone(),
        );
    }

    /// A disruption begins.
    pub fn began(&self, command: &Command, snapshot: &Snapshot) {
        let labels = OfReason {
            reason: reason(command.reason),
        };
        // What is replaced for another reason may cost more afterwards: nothing is saved then.
        let saved = self.saved.get_or_create_owned(&labels);
        saved.inc_by(command.savings.max(0.0));
        let evicted = self.evicted.get_or_create_owned(&labels);
        let going: BTreeSet<&str> = command.nodes.iter().map(String::as_str).collect();
        let moves = |pod: &&model::Pod| {
            going.contains(pod.spec.node_name.as_str())
                && pod.is_reschedulable()
                && !pod.is_owned_by_daemon_set()
        };
        let moved = snapshot.bound_pods.iter().filter(moves).count();
        evicted.inc_by(u64::try_from(moved).unwrap_or(u64::MAX));
    }

    fn tell(&self, costs: &BTreeMap<String, f64>, bound: f64) {
        let mut pools = self.pools.lock();
        pools.extend(costs.keys().cloned());
        for nodepool in pools.iter() {
            let labels = OfPool {
                nodepool: nodepool.clone(),
            };
            let cost = costs.get(nodepool).copied().unwrap_or_default();
            self.cost.get_or_create(&labels).set(cost);
        }
        self.bound.set(bound);
    }

    /// Notes how long a pod has waited, once it is bound.
    fn note(&self, delta: &Delta<Pod>) {
        let old = delta.old.as_deref().and_then(given_up_at);
        if let (Some(since), Some(until)) = (old, delta.new.as_deref().and_then(bound_at)) {
            self.waited
                .observe(until.duration_since(since).as_secs_f64().max(0.0));
        }
    }
}

/// Since when `PodScheduled` says this.
fn scheduled_since(pod: &Pod, status: &str) -> Option<jiff::Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|one| one.type_ == "PodScheduled" && one.status == status)?;
    found.last_transition_time.as_ref().map(|time| time.0)
}

/// When kube-scheduler gave up on a pod that still waits.
fn given_up_at(pod: &Pod) -> Option<jiff::Timestamp> {
    let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    scheduled_since(pod, "False").filter(|_| !is_bound)
}

fn bound_at(pod: &Pod) -> Option<jiff::Timestamp> {
    let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    scheduled_since(pod, "True").filter(|_| is_bound)
}

/// What nodes cost now, by NodePool, and what nodes for the same pods cost at least.
pub fn measure(snapshot: Snapshot) -> (BTreeMap<String, f64>, f64) {
    let mut costs: BTreeMap<String, f64> = BTreeMap::new();
    let mut ours: BTreeSet<String> = BTreeSet::new();
    for claim in &snapshot.node_claims {
        let price = snapshot
            .offerings
            .get(&claim.metadata.name)
            .and_then(|one| one.price);
        if let Some(pool) = claim.metadata.labels.get(label::NODE_POOL) {
            *costs.entry(pool.clone()).or_default() += price.unwrap_or_default();
        }
        ours.insert(claim.status.node_name.clone());
    }
    let moves = |pod: &model::Pod| ours.contains(&pod.spec.node_name) && !pod.is_owned_by_daemon_set();
    let (mut pods, _): (Vec<_>, Vec<_>) = snapshot.bound_pods.into_iter().partition(moves);
    for pod in &mut pods {
        pod.spec.node_name.clear();
    }
    let empty = Snapshot {
        nodes: Vec::new(),
        node_claims: Vec::new(),
        bound_pods: Vec::new(),
        offerings: BTreeMap::new(),
        ..snapshot
    };
    let bound = optimum::lower_bound(&empty, &pods);
    (costs, bound)
}

pub fn registration(memory: &Arc<Memory>) -> Registration {
    let memory = Arc::clone(memory);
    Registration {
        name: "quality",
        run: Arc::new(move |context: Context| {
            let memory = Arc::clone(&memory);
            async move {
                run(&memory, &context).await;
                Ok(())
            }
            .boxed()
        }),
    }
}

async fn run(memory: &Arc<Memory>, context: &Context) {
    let watched = Watched::start(context, memory);
    let stopped = context.shutdown.clone();
    tokio::select! {
        () = stopped.cancelled() => return,
        () = watched.synced() => {}
    }
    let stop = stopped.child_token();
    let _listening = stop.clone().drop_guard();
    listen(&watched, memory, &stop);
    let changed = Changed::listen(&watched);
    let mut next = Instant::now();
    let mut known = None;
    loop {
        tokio::select! {
            () = stopped.cancelled() => return,
            () = sleep_until(next) => {}
        }
        let changes = watched.changes();
        if known != Some(changes) {
            known = Some(changes);
            let (reader, options) = (Reader::new(context, memory), Options::of(&context.settings));
            let observed = observe(&watched, &reader, memory, &options, context).await;
            let measured = tokio::task::spawn_blocking(move || measure(observed.snapshot)).await;
            if let Ok((costs, bound)) = measured {
                memory.quality.tell(&costs, bound);
            }
        }
        let soon = Instant::now() + PERIOD;
        tokio::select! {
            () = stopped.cancelled() => return,
            () = changed.notified() => next = soon,
            () = sleep_until(Instant::now() + IDLE) => next = soon,
        }
    }
}

/// Follows pods until they are bound.
fn listen(watched: &Watched, memory: &Arc<Memory>, stop: &CancellationToken) {
    let mut subscription = watched.pods.subscribe();
    let (quality, stop) = (memory.quality.clone(), stop.clone());
    tokio::spawn(async move {
        loop {
            let delta = tokio::select! {
                () = stop.cancelled() => return,
                delta = subscription.next() => delta,
            };
            let Some(delta) = delta else { return };
            quality.note(&delta);
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use slipway_packing::{
        disrupt::{Decision, Method},
        model::Workload,
    };
    use slipway_runtime::ObjectKey;

    use super::*;

    /// Two nodes of four cores at 0.2, one of them managed by nobody; a type of two cores is to be had at 0.1.
    fn snapshot() -> Snapshot {
        let kind = |name: &str, cores: &str, price: f64| {
            json!({"name": name, "capacity": {"cpu": cores, "memory": "8Gi", "pods": "110"},
                "requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [name]}],
                "offerings": [{"price": price, "available": true, "requirements": [
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
                    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]}]})
        };
        let pod = |name: &str, node: &str| {
            json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "status": {"phase": "Running"},
                "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}})
        };
        let workload: Workload = serde_json::from_value(json!({
            "pods": [],
            "nodePools": [{"metadata": {"name": "general"}, "spec": {}}],
            "instanceTypes": {"general": [kind("two", "2", 0.1), kind("four", "4", 0.2)]},
            "nodeClaims": [{"metadata": {"name": "general-1", "labels": {"karpenter.sh/nodepool": "general"}},
                "status": {"nodeName": "n1", "providerID": "x://1"}}],
            "offerings": {"general-1": {"instanceType": "four", "zone": "a", "capacityType": "on-demand", "price": 0.2}},
            "boundPods": [pod("web-1", "n1"), pod("web-2", "n1"), pod("other", "n2")],
        }))
        .expect("a workload");
        workload.snapshot
    }

    #[test]
    fn nodes_cost_what_their_offerings_do_and_their_pods_less() {
        let (costs, bound) = measure(snapshot());
        assert_eq!(costs, BTreeMap::from([("general".to_owned(), 0.2)]));
        assert!((bound - 0.1).abs() < 1e-4, "two cores are enough: {bound}");
    }

    #[test]
    fn what_is_saved_stands_beside_what_is_moved() {
        let (quality, metrics) = (Quality::default(), Metrics::new());
        quality.register(&metrics);
        let command = Command {
            method: Method::SingleNodeConsolidation,
            reason: slipway_packing::disrupt::Reason::Underutilized,
            decision: Decision::Replace,
            nodes: vec!["n1".to_owned()],
            replacements: Vec::new(),
            existing: Vec::new(),
            savings: 0.1,
            terminate_first: None,
            termination_grace_seconds: None,
            unhealthy: None,
        };
        quality.began(&command, &snapshot());
        quality.began(
            &Command {
                savings: -1.0,
                ..command
            },
            &snapshot(),
        );
        quality.tell(&BTreeMap::from([("general".to_owned(), 0.2)]), 0.1);
        quality.tell(&BTreeMap::new(), 0.0);
        let pod = |node: Option<&str>, status: &str, at: &str| {
            let conditions = json!([{"type": "PodScheduled", "status": status, "lastTransitionTime": at}]);
            let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [], "nodeName": node},
                "status": {"conditions": conditions}});
            Some(Arc::new(serde_json::from_value::<Pod>(pod).expect("a pod")))
        };
        let waits = || pod(None, "False", "2026-01-01T00:00:00Z");
        let runs = || pod(Some("n1"), "True", "2026-01-01T00:00:42Z");
        for (old, new) in [
            (None, waits()),
            (waits(), waits()),
            (waits(), runs()),
            (runs(), runs()),
            (runs(), None),
        ] {
            quality.note(&Delta {
                key: ObjectKey::namespaced("default", "web"),
                old,
                new,
                last: None,
                origin: slipway_runtime::informer::Origin::Live,
            });
        }
        let text = metrics.encode();
        for line in [
            r#"slipway_autoscaler_disruption_saved_per_hour_total{reason="underutilized"} 0.1"#,
            r#"slipway_autoscaler_disruption_evictions_total{reason="underutilized"} 4"#,
            r#"slipway_autoscaler_nodes_cost_per_hour{nodepool="general"} 0"#,
            "slipway_autoscaler_lower_bound_per_hour 0.0",
            "slipway_autoscaler_pods_waited_seconds_sum 42",
            "slipway_autoscaler_pods_waited_seconds_count 1",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }
}
