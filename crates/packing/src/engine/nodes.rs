//! Nodes as they stand: what is free on them, and what they are.

use std::collections::BTreeMap;

use ahash::AHashMap;

use super::intern::{Interner, ReqVec};
use crate::host_ports::{self, HostPort};
use crate::labels;
use crate::model::{Node, NodeClaim, Pod, ResourceList, Snapshot, StringMap, Taint};
use crate::requirements::Requirements;
use crate::resources::{Amounts, ResourceTable, amount, pod_requests};
use crate::storage::{Storage, Volumes};
use crate::taints;
use crate::time;

/// A node, the claim behind it, or both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateNode<'a> {
    pub node: Option<&'a Node>,
    pub claim: Option<&'a NodeClaim>,
    pub marked: bool,
}

impl<'a> StateNode<'a> {
    pub fn registered(&self) -> bool {
        match (self.claim, self.node) {
            (Some(_), node) => node.is_some_and(|node| is_true(&node.metadata.labels, labels::REGISTERED)),
            (None, _) => true,
        }
    }

    pub fn initialized(&self) -> bool {
        match (self.claim, self.node) {
            (Some(_), node) => node.is_some_and(|node| is_true(&node.metadata.labels, labels::INITIALIZED)),
            (None, _) => true,
        }
    }

    /// The node, once it stands for itself.
    fn own_node(&self) -> Option<&'a Node> {
        self.node.filter(|_| self.registered())
    }

    pub fn name(&self) -> &'a str {
        match (self.own_node(), self.claim) {
            (Some(node), _) => &node.metadata.name,
            (None, Some(claim)) => &claim.metadata.name,
            (None, None) => "",
        }
    }

    pub fn labels(&self) -> &'a StringMap {
        static NONE: StringMap = StringMap::new();
        match (self.own_node(), self.claim) {
            (Some(node), _) => &node.metadata.labels,
            (None, Some(claim)) => &claim.metadata.labels,
            (None, None) => &NONE,
        }
    }

    pub fn rebooting(&self) -> bool {
        self.claim.is_some_and(|claim| claim.is_true("Rebooting"))
    }

    pub fn taints(&self) -> Vec<Taint> {
        let taints = match (self.own_node(), self.claim) {
            (Some(node), _) => &node.spec.taints,
            (None, Some(claim)) => &claim.spec.taints,
            (None, None) => return Vec::new(),
        };
        let Some(claim) = self.claim.filter(|_| !self.initialized() || self.rebooting()) else {
            return taints.clone();
        };
        // While a node starts, taints that will go away do not count.
        let startup = |taint: &Taint| {
            claim
                .spec
                .startup_taints
                .iter()
                .any(|own| taints::is_same(own, taint))
        };
        taints
            .iter()
            .filter(|taint| !taints::is_ephemeral(taint) && !startup(taint))
            .cloned()
            .collect()
    }

    fn amounts(
        &self,
        of_node: fn(&Node) -> &ResourceList,
        of_claim: fn(&NodeClaim) -> &ResourceList,
    ) -> ResourceList {
        let mut amounts = self
            .node
            .map_or_else(ResourceList::new, |node| of_node(node).clone());
        if let Some(claim) = self.claim.filter(|_| !self.initialized()) {
            for (name, quantity) in of_claim(claim) {
                let present = amounts.entry(name.clone()).or_default();
                if present.is_zero() {
                    *present = *quantity;
                }
            }
        }
        amounts
    }

    pub fn capacity(&self) -> ResourceList {
        self.amounts(|node| &node.status.capacity, |claim| &claim.status.capacity)
    }

    pub fn allocatable(&self) -> ResourceList {
        self.amounts(|node| &node.status.allocatable, |claim| &claim.status.allocatable)
    }

    pub fn deleting(&self) -> bool {
        self.marked
            || match self.claim {
                Some(claim) => {
                    claim.metadata.deletion_timestamp.is_some() || claim.is_true("InstanceTerminating")
                }
                None => self
                    .node
                    .is_some_and(|node| node.metadata.deletion_timestamp.is_some()),
            }
    }
}

fn is_true(labels: &StringMap, key: &str) -> bool {
    labels.get(key).is_some_and(|value| value == "true")
}

/// Joins nodes and claims; the order is that of `nodes`, then claims without a node.
pub(crate) fn join(snapshot: &Snapshot) -> Vec<StateNode<'_>> {
    let mut by_provider: AHashMap<&str, &NodeClaim> = AHashMap::new();
    let mut by_node: AHashMap<&str, &NodeClaim> = AHashMap::new();
    for claim in &snapshot.node_claims {
        if !claim.status.provider_id.is_empty() {
            by_provider.insert(&claim.status.provider_id, claim);
        }
        if !claim.status.node_name.is_empty() {
            by_node.insert(&claim.status.node_name, claim);
        }
    }
    let mut joined = std::collections::BTreeSet::new();
    let mut result = Vec::with_capacity(snapshot.nodes.len());
    for node in &snapshot.nodes {
        let claim = by_provider
            .get(node.spec.provider_id.as_str())
            .or_else(|| by_node.get(node.metadata.name.as_str()))
            .copied();
        if let Some(claim) = claim {
            joined.insert(claim.metadata.name.as_str());
        }
        result.push(StateNode {
            node: Some(node),
            claim,
            marked: false,
        });
    }
    for claim in &snapshot.node_claims {
        // A claim that has not been launched yet is capacity nobody can count on.
        if !joined.contains(claim.metadata.name.as_str()) {
            result.push(StateNode {
                node: None,
                claim: Some(claim),
                marked: false,
            });
        }
    }
    for state in &mut result {
        let named = |name: &str| snapshot.deleting_nodes.iter().any(|deleting| deleting == name);
        state.marked = state.node.is_some_and(|node| named(&node.metadata.name))
            || state.claim.is_some_and(|claim| named(&claim.metadata.name));
    }
    result
}

/// A node that pods can be placed on.
#[derive(Clone, Debug)]
pub(crate) struct ExistingNode<'a> {
    pub state: StateNode<'a>,
    pub name: &'a str,
    pub hostname: String,
    pub initialized: bool,
    pub pool: Option<usize>,
    pub labels: ReqVec,
    pub taints: Vec<Taint>,
    /// Free after its pods and the daemons that are still to come.
    pub remaining: Amounts,
    pub host_ports: Vec<HostPort>,
    pub volumes: Volumes,
    pub volume_limits: BTreeMap<String, u32>,
    /// Pods came or went less than `consolidateAfter` ago.
    pub lately_busy: bool,
    pub pods: Vec<usize>,
}

impl<'a> ExistingNode<'a> {
    pub fn build(
        state: StateNode<'a>,
        interner: &mut Interner,
        resources: &mut ResourceTable,
        bound: &[(usize, &'a Pod)],
        daemons: &[&Pod],
        storage: &Storage<'a>,
        volume_limits: BTreeMap<String, u32>,
    ) -> Self {
        let labels_of = state.labels();
        let taints = state.taints();
        let allocatable = resources.amounts(&state.allocatable());
        let mut remaining = allocatable.clone();
        let mut running_daemons = Amounts::new();
        let mut node = ExistingNode {
            state,
            name: state.name(),
            hostname: labels_of
                .get(labels::HOSTNAME)
                .filter(|name| !name.is_empty())
                .map_or_else(|| state.name().to_owned(), Clone::clone),
            initialized: state.initialized(),
            pool: None,
            labels: interner.intern(&Requirements::from_labels(labels_of)),
            taints,
            remaining: Amounts::new(),
            host_ports: Vec::new(),
            volumes: Volumes::new(),
            volume_limits,
            lately_busy: false,
            pods: Vec::new(),
        };
        for (index, pod) in bound {
            let requests = requests_with_slot(pod, resources);
            take(&mut remaining, &requests);
            if pod.is_owned_by_daemon_set() {
                crate::resources::add_amounts(&mut running_daemons, &requests);
            }
            node.host_ports.extend(host_ports::of_pod(pod));
            for (driver, names) in storage.volumes(pod) {
                node.volumes.entry(driver).or_default().extend(names);
            }
            node.pods.push(*index);
        }
        let mut expected = Amounts::new();
        let strict_labels = Requirements::from_labels(labels_of);
        for daemon in daemons {
            if daemon_fits_node(daemon, &node.taints, &strict_labels) {
                crate::resources::add_amounts(&mut expected, &requests_with_slot(daemon, resources));
            }
        }
        for (index, required) in expected.iter_mut().enumerate() {
            *required = (*required - amount(&running_daemons, index)).max(0);
        }
        take(&mut remaining, &expected);
        node.remaining = remaining;
        node
    }

    /// Whether this much is free. A node that is over its means takes nothing.
    pub fn fits(&self, requests: &Amounts) -> bool {
        self.remaining.iter().all(|amount| *amount >= 0)
            && requests
                .iter()
                .enumerate()
                .all(|(index, required)| *required <= amount(&self.remaining, index))
    }

    /// Whether `consolidateAfter` still protects it as a destination.
    pub fn note_activity(&mut self, consolidate_after: Option<&str>, now: Option<&str>) {
        let Some((period, claim)) = consolidate_after
            .and_then(time::duration_seconds)
            .zip(self.state.claim)
        else {
            return;
        };
        let Some(initialized) = claim
            .condition("Initialized")
            .filter(|condition| condition.status == "True")
        else {
            return;
        };
        let since = claim
            .status
            .last_pod_event_time
            .as_ref()
            .or(initialized.last_transition_time.as_ref());
        let Some((now, since)) = now
            .and_then(time::epoch_seconds)
            .zip(since.and_then(|since| time::epoch_seconds(since)))
        else {
            return;
        };
        self.lately_busy = period > 0.0 && ((now - since) as f64) < period;
    }
}

fn take(remaining: &mut Amounts, requests: &Amounts) {
    // Only what the node says it has can run out.
    for (index, left) in remaining.iter_mut().enumerate() {
        *left -= amount(requests, index);
    }
}

/// The pod's requests and the pod slot it takes.
pub(crate) fn requests_with_slot(pod: &Pod, resources: &mut ResourceTable) -> Amounts {
    let mut list = pod_requests(pod);
    list.insert(crate::resources::PODS.to_owned(), crate::resources::ONE);
    resources.amounts(&list)
}

fn daemon_fits_node(daemon: &Pod, taints: &[Taint], labels: &Requirements) -> bool {
    // Daemons do not mind taints that only ask to be avoided.
    let mut tolerations = daemon.spec.tolerations.clone();
    tolerations.push(taints::prefer_no_schedule_toleration());
    if taints::untolerated(taints, &tolerations).is_some() {
        return false;
    }
    let mut requirements = Requirements::from_labels(&daemon.spec.node_selector);
    let required = daemon
        .spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| node.required.as_ref());
    if let Some(term) = required.and_then(|required| required.node_selector_terms.first()) {
        requirements.add_all(&Requirements::from_specs(&term.match_expressions));
    }
    labels
        .compatible(&requirements, crate::requirements::Undefined::Denied)
        .is_ok()
}
