//! From which nodes pods should go first, when somebody wants fewer of them: those that are on their way out, and those that would be
//! given up next. What goes there need not be evicted later.

use std::collections::{BTreeMap, BTreeSet};

use ahash::{AHashMap, AHashSet};

use super::budget::Reason;
use super::candidates::{self, Candidate, Class};
use super::methods::{consolidation_disabled, sort_by_ratio};
use crate::engine::world::World;
use crate::model::{Pod, Snapshot};

/// Pods of this namespace keep no node: their owners make them again.
const SYSTEM: &str = "kube-system";
/// Who makes a pod again somewhere else when it is gone.
const RECREATES: [(&str, &str); 3] = [
    ("apps/v1", "ReplicaSet"),
    ("batch/v1", "Job"),
    ("apps/v1", "DaemonSet"),
];

/// Names of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletionOrder {
    /// They go, whatever happens.
    pub going: BTreeSet<String>,
    /// They could go, as far as budgets allow: the first one next.
    pub next: Vec<String>,
}

impl DeletionOrder {
    /// What a pod has for its deletion cost, by its node: the less, the sooner it goes. None on nodes that stay.
    pub fn costs(&self) -> BTreeMap<&str, i32> {
        let all = i32::try_from(self.next.len()).unwrap_or(i32::MAX);
        let next = self
            .next
            .iter()
            .zip(-all..)
            .map(|(node, cost)| (node.as_str(), cost));
        let going = self.going.iter().map(|node| (node.as_str(), i32::MIN));
        next.chain(going).collect()
    }
}

/// In which order nodes would go: drifted ones first, then what saves most for what it disrupts.
pub fn deletion_order(snapshot: &Snapshot) -> DeletionOrder {
    let world = World::build(snapshot, &AHashSet::new());
    let going: BTreeSet<String> = world
        .all_nodes
        .iter()
        .filter(|(state, ..)| state.claim.is_some())
        .filter_map(|(state, ..)| {
            let node = state.node?;
            (state.deleting() || super::eviction::is_tainted(node)).then(|| node.metadata.name.clone())
        })
        .collect();
    let pinned: AHashSet<&str> = snapshot
        .bound_pods
        .iter()
        .filter(|pod| !is_made_again(pod))
        .map(|pod| pod.spec.node_name.as_str())
        .collect();
    let (mut found, _) = candidates::candidates(&world, &AHashMap::new(), Class::Graceful);
    found.retain(|candidate| {
        !going.contains(candidate.name)
            && !candidate.is_static()
            && candidate.type_index.is_some()
            && !pinned.contains(candidate.name)
    });
    sort_by_ratio(&mut found);
    let (drifted, others): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|candidate| candidate.drifted_since.is_some());
    let mut next = within(&world, drifted.iter(), Reason::Drifted);
    let consolidated = others
        .iter()
        .filter(|candidate| !consolidation_disabled(candidate));
    next.extend(within(&world, consolidated, Reason::Underutilized));
    DeletionOrder { going, next }
}

/// As many of each pool as its budgets let go.
fn within<'c, 'a: 'c>(
    world: &World<'a>,
    candidates: impl Iterator<Item = &'c Candidate<'a>>,
    reason: Reason,
) -> Vec<String> {
    let mut left: BTreeMap<String, usize> = candidates::budgets(world, reason).into_iter().collect();
    let mut may_go = |candidate: &&Candidate<'_>| {
        let left = left.entry(candidate.pool.metadata.name.clone()).or_default();
        let may_go = *left > 0;
        *left = left.saturating_sub(1);
        may_go
    };
    candidates
        .filter(|candidate| may_go(candidate))
        .map(|candidate| candidate.name.to_owned())
        .collect()
}

/// Whether somebody makes it again elsewhere when it is gone.
fn is_made_again(pod: &Pod) -> bool {
    let controller = pod.metadata.controller();
    pod.metadata.namespace == SYSTEM
        || controller.is_some_and(|owner| {
            RECREATES
                .iter()
                .any(|(version, kind)| owner.api_version == *version && owner.kind == *kind)
        })
}
