//! What the nodes of each NodePool cost, and the least that any nodes for the same pods would cost: answered while the manager leads, to
//! whoever asks. It reads what planning reads, and decides nothing.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::FutureExt;
use serde::{Deserialize, Serialize};
use serde_json::json;
use slipway_packing::{
    model::{Pod, Snapshot},
    optimum,
};
use slipway_runtime::{Context, answers::Answerer};
use tokio::time::{Instant, timeout};

use crate::{
    api::names::label,
    cluster_api::Reader,
    memory::Memory,
    options::Options,
    watched::{Watched, observe},
};

/// How it is asked for.
pub const QUESTION: &str = "nodepools";
/// A better bound is not looked for any longer.
const PATIENCE: Duration = Duration::from_secs(20);
/// With more pods than this the bound is not worth the time of a processor.
const MOST: usize = 20_000;
const READING: Duration = Duration::from_secs(30);

/// Per hour, in whatever the prices are in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    pub pools: Vec<PoolCost>,
    pub per_hour: f64,
    /// No nodes of these NodePools that hold the same pods cost less.
    pub bound: Option<f64>,
    /// Pods on those nodes, without those of DaemonSets.
    pub pods: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolCost {
    pub name: String,
    pub nodes: usize,
    pub per_hour: f64,
    /// Nodes of which no price is known.
    pub without_price: usize,
}

/// Answers from now on.
pub fn answer(memory: &Arc<Memory>, context: &Context) {
    context
        .answers
        .register(QUESTION, answerer(Arc::clone(memory), context.reading()));
}

fn answerer(memory: Arc<Memory>, context: Context) -> Answerer {
    Arc::new(move |_| {
        let (memory, context) = (Arc::clone(&memory), context.clone());
        async move {
            let watched = Watched::start(&context, &memory);
            timeout(READING, watched.synced())
                .await
                .map_err(|_| "the cluster does not answer in time".to_owned())?;
            let options = Options::of(&context.settings);
            let reader = Reader::new(&context, &memory);
            let observed = observe(&watched, &reader, &memory, &options, &context).await;
            let cost = tokio::task::spawn_blocking(move || of(observed.snapshot))
                .await
                .map_err(|error| format!("it was not reckoned: {error}"))?;
            Ok(json!(cost))
        }
        .boxed()
    })
}

/// Of a cluster as planning sees it.
pub fn of(mut snapshot: Snapshot) -> Cost {
    let mut pools: BTreeMap<String, PoolCost> = snapshot
        .node_pools
        .iter()
        .map(|pool| (pool.metadata.name.clone(), PoolCost::default()))
        .collect();
    for claim in &snapshot.node_claims {
        let Some(name) = claim.metadata.labels.get(label::NODE_POOL) else {
            continue;
        };
        let pool = pools.entry(name.clone()).or_default();
        pool.nodes += 1;
        let offering = snapshot.offerings.get(&claim.metadata.name);
        match offering.and_then(|offering| offering.price) {
            Some(price) => pool.per_hour += price,
            None => pool.without_price += 1,
        }
    }
    let pools: Vec<PoolCost> = pools
        .into_iter()
        .map(|(name, pool)| PoolCost { name, ..pool })
        .collect();
    let per_hour = pools.iter().map(|pool| pool.per_hour).sum();
    let is_whole = pools.iter().all(|pool| pool.without_price == 0);
    let pods = taken_off(&mut snapshot);
    let began = Instant::now();
    let bound = (is_whole && pods.len() <= MOST)
        .then(|| {
            optimum::plan_within(&snapshot, &pods, optimum::STEPS, &mut || {
                began.elapsed() < PATIENCE
            })
        })
        .filter(|outcome| outcome.plan.unschedulable.is_empty())
        .map(|outcome| outcome.bound);
    Cost {
        per_hour,
        bound,
        pods: pods.len(),
        pools,
    }
}

/// Takes the nodes of NodePools away, and answers with the pods that need new ones then.
fn taken_off(snapshot: &mut Snapshot) -> Vec<Pod> {
    let (ours, rest) = std::mem::take(&mut snapshot.nodes)
        .into_iter()
        .partition(|node| node.metadata.labels.get(label::NODE_POOL).is_some());
    let ours: Vec<slipway_packing::model::Node> = ours;
    snapshot.nodes = rest;
    snapshot.node_claims.clear();
    snapshot.deleting_nodes.clear();
    let is_on_ours = |pod: &Pod| ours.iter().any(|node| node.metadata.name == pod.spec.node_name);
    let (mut pods, rest): (Vec<Pod>, Vec<Pod>) = std::mem::take(&mut snapshot.bound_pods)
        .into_iter()
        .partition(is_on_ours);
    // Templates of DaemonSets are told by live pods of theirs.
    let is_daemon = |pod: &Pod| pod.metadata.is_owned_by("apps/v1", "DaemonSet");
    snapshot.bound_pods = rest;
    pods.retain(|pod| !is_daemon(pod) && pod.metadata.deletion_timestamp.is_none());
    for pod in &mut pods {
        pod.spec.node_name.clear();
    }
    pods
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let offering = |price: f64| {
            json!({"price": price, "available": true, "requirements": [
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z1"]},
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]})
        };
        let kind = |name: &str, cpu: &str, price: f64| {
            json!({"name": name, "capacity": {"cpu": cpu, "memory": "16Gi", "pods": "110"}, "offerings": [offering(price)],
                "requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [name]}]})
        };
        let labels = |node: &str| json!({"karpenter.sh/nodepool": "general", "kubernetes.io/hostname": node});
        serde_json::from_value(json!({
            "nodePools": [{"metadata": {"name": "general"}}, {"metadata": {"name": "unused"}}],
            "instanceTypes": {"general": [kind("small", "2", 0.1), kind("large", "8", 0.4)], "unused": []},
            "nodes": [
                {"metadata": {"name": "a", "labels": labels("a")}, "status": {"capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"},
                    "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}}},
                {"metadata": {"name": "others"}},
            ],
            "nodeClaims": [{"metadata": {"name": "a-claim", "labels": labels("a")}}],
            "offerings": {"a-claim": {"instanceType": "large", "zone": "z1", "capacityType": "on-demand", "price": 0.4}},
            "boundPods": [
                {"metadata": {"name": "web", "namespace": "shop"}, "spec": {"nodeName": "a",
                    "containers": [{"name": "web", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}},
                {"metadata": {"name": "log", "namespace": "shop", "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "log"}]}, "spec": {"nodeName": "a"}},
                {"metadata": {"name": "elsewhere", "namespace": "shop"}, "spec": {"nodeName": "others"}},
            ],
        }))
        .expect("a snapshot")
    }

    #[test]
    fn what_nodes_cost_stands_beside_the_least_that_their_pods_need() {
        let cost = of(snapshot());
        let named: Vec<(&str, usize, f64)> = cost
            .pools
            .iter()
            .map(|pool| (pool.name.as_str(), pool.nodes, pool.per_hour))
            .collect();
        assert_eq!(named, [("general", 1, 0.4), ("unused", 0, 0.0)]);
        assert_eq!((cost.per_hour, cost.pods), (0.4, 1));
        let bound = cost.bound.expect("a bound");
        assert!(bound > 0.0 && bound <= 0.1 + 1e-9, "{bound}");
    }

    #[test]
    fn without_every_price_there_is_no_bound() {
        let mut without = snapshot();
        without.offerings.clear();
        let cost = of(without);
        assert_eq!((cost.pools[0].without_price, cost.bound), (1, None));
    }
}
