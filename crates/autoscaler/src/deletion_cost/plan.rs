//! Which pods get which deletion cost: pure. A cost that somebody else wrote is theirs.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use slipway_packing::{
    disrupt::{DeletionOrder, deletion_order},
    labels::{NODE_POOL, OWN_DELETION_COST, POD_DELETION_COST},
    model::Pod,
};

use crate::watched::Observed;

/// Pods of so many nodes are written to at a time, those of nodes that go not counted, as Karpenter has it.
const NODES_AT_A_TIME: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// None takes away what was written here.
    pub cost: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Why nothing is done at all.
    pub waits: Option<String>,
    pub writes: Vec<Write>,
    /// On how many nodes of each NodePool pods are written to.
    pub nodes: BTreeMap<String, usize>,
    /// More is to be written than at a time.
    pub is_cut: bool,
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.waits {
            return writeln!(formatter, "wait: {why}");
        }
        if self.writes.is_empty() {
            writeln!(formatter, "nothing to do")?;
        }
        for Write {
            namespace,
            name,
            cost,
            ..
        } in &self.writes
        {
            match cost {
                Some(cost) => writeln!(formatter, "give Pod {namespace}/{name} the deletion cost {cost}")?,
                None => writeln!(formatter, "take the deletion cost of Pod {namespace}/{name} away")?,
            }
        }
        Ok(())
    }
}

/// With the gate off, what was written is taken away.
pub fn plan(observed: &Observed, is_on: bool, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if let Some(rival) = observed.rival.as_ref().filter(|rival| rival.until > now) {
        plan.waits = Some(rival.to_string());
        return plan;
    }
    let snapshot = &observed.snapshot;
    let order = if is_on {
        deletion_order(snapshot)
    } else {
        DeletionOrder::default()
    };
    let costs = order.costs();
    let mut by_node: BTreeMap<&str, Vec<Write>> = BTreeMap::new();
    for pod in &snapshot.bound_pods {
        let node = pod.spec.node_name.as_str();
        by_node
            .entry(node)
            .or_default()
            .extend(write(pod, costs.get(node).copied()));
    }
    by_node.retain(|_, writes| !writes.is_empty());
    // Those that go first; then in their order, so that what is cut off matters least.
    let rank = |node: &str| costs.get(node).copied().unwrap_or(i32::MAX);
    let mut nodes: Vec<(&str, Vec<Write>)> = by_node.into_iter().collect();
    nodes.sort_by_key(|(node, _)| (rank(node), *node));
    let mut left = NODES_AT_A_TIME;
    for (name, writes) in nodes {
        if !order.going.contains(name) {
            if left == 0 {
                plan.is_cut = true;
                break;
            }
            left -= 1;
        }
        let node = snapshot.nodes.iter().find(|node| node.metadata.name == name);
        let pool = node.and_then(|node| node.metadata.labels.get(NODE_POOL));
        *plan.nodes.entry(pool.cloned().unwrap_or_default()).or_default() += 1;
        plan.writes.extend(writes);
    }
    plan
}

/// What is to be written to a pod. Only ReplicaSets look at it.
fn write(pod: &Pod, cost: Option<i32>) -> Option<Write> {
    let meta = &pod.metadata;
    let annotation = |key: &str| meta.annotations.get(key);
    let (has, own) = (annotation(POD_DELETION_COST), annotation(OWN_DELETION_COST));
    let is_of_a_set = meta
        .controller()
        .is_some_and(|owner| owner.api_version == "apps/v1" && owner.kind == "ReplicaSet");
    let is_somebodys = has.is_some() && has != own;
    let is_news = match cost {
        Some(cost) => is_of_a_set && !is_somebodys && has.is_none_or(|has| *has != cost.to_string()),
        None => own.is_some(),
    };
    (is_news && !pod.is_terminating()).then(|| Write {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        cost,
    })
}
