//! Taints that a node carries only while it starts: the kubelet's and Cluster API's, those that Cluster Autoscaler's users mark by their
//! key, and those that the flag names. Somebody else adds and takes them away: until then the node is on its way, pods are planned
//! onto it as if they were gone, and it is not initialized.

use slipway_packing::{
    labels::{INITIALIZED, NODE_POOL},
    model::{Snapshot, Taint},
    taints::is_ephemeral,
};

/// How such a taint's key begins for Cluster Autoscaler, under its present and its first name.
const MARKED: [&str; 2] = [
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
];

/// Which taints these are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartupTaints {
    named: Vec<String>,
}

impl StartupTaints {
    /// Those that everybody knows, and those of these keys.
    pub fn named<'a>(keys: impl IntoIterator<Item = &'a str>) -> Self {
        let keys = keys.into_iter().map(str::trim).filter(|key| !key.is_empty());
        Self {
            named: keys.map(str::to_owned).collect(),
        }
    }

    pub fn covers(&self, taint: &Taint) -> bool {
        is_ephemeral(taint)
            || taint.key == slipway_capi::names::taint::NODE_UNINITIALIZED
            || MARKED.iter().any(|prefix| taint.key.starts_with(prefix))
            || self.named.contains(&taint.key)
    }

    /// Takes them off nodes of NodePools that are not initialized yet. One that comes back later counts: nobody knows when it goes.
    pub fn forget(&self, snapshot: &mut Snapshot) {
        let is_starting = |labels: &slipway_packing::model::StringMap| {
            labels.contains_key(NODE_POOL) && !labels.contains_key(INITIALIZED)
        };
        for node in &mut snapshot.nodes {
            if is_starting(&node.metadata.labels) {
                node.spec.taints.retain(|taint| !self.covers(taint));
            }
        }
    }
}
