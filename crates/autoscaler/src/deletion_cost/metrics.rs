//! What is counted of deletion costs, under Karpenter's names.

use std::collections::BTreeMap;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use slipway_runtime::Metrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPool {
    nodepool: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    result: &'static str,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct DeletionCosts {
    nodes: Family<OfPool, Gauge>,
    writes: Family<Ended, Counter>,
}

impl DeletionCosts {
    pub fn register(&self, metrics: &Metrics) {
        metrics.register(
            "karpenter_pod_deletion_cost_nodes_with_pending_annotation_writes",
            "Number of Nodes of a NodePool whose pods were to get another deletion cost when it was last looked at",
            self.nodes.clone(),
        );
        metrics.register(
            "karpenter_pod_deletion_cost_pod_annotation_writes",
            "Number of deletion costs written to pods, by how that ended",
            self.writes.clone(),
        );
    }

    /// On how many Nodes of each NodePool costs are to be written.
    pub fn planned(&self, nodes: &BTreeMap<String, usize>) {
        self.nodes.clear();
        for (nodepool, count) in nodes {
            let labels = OfPool {
                nodepool: nodepool.clone(),
            };
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            self.nodes.get_or_create(&labels).set(count);
        }
    }

    pub fn written(&self, result: &'static str) {
        self.writes.get_or_create(&Ended { result }).inc();
    }
}
