//! What stands already, as the checker sees it: nodes, nodes that are still starting, and claims without a node.

use std::collections::{BTreeMap, BTreeSet};

use slipway_packing::model::{Node, NodeClaim, ObjectMeta, ResourceList, Snapshot, Taint};

pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// Taints that come off a node while it starts.
const EPHEMERAL: [(&str, &str); 5] = [
    ("node.kubernetes.io/not-ready", "NoSchedule"),
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoSchedule"),
    ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule"),
    ("karpenter.sh/unregistered", "NoExecute"),
];

/// A node, or a claim whose node has not come yet.
pub struct Host<'a> {
    pub name: &'a str,
    pub hostname: String,
    pub labels: BTreeMap<String, BTreeSet<String>>,
    pub taints: Vec<Taint>,
    pub allocatable: ResourceList,
}

pub fn hosts(snapshot: &Snapshot) -> Vec<Host<'_>> {
    let joined = |claim: &&NodeClaim, node: &Node| node.spec.provider_id == claim.status.provider_id;
    let mut hosts: Vec<Host<'_>> = snapshot
        .nodes
        .iter()
        .map(|node| {
            let claim = snapshot.node_claims.iter().find(|claim| joined(claim, node));
            let up = node
                .metadata
                .labels
                .get("karpenter.sh/initialized")
                .is_some_and(|value| value == "true");
            let mut host = host(&node.metadata, &node.spec.taints, &node.status.allocatable);
            if let Some(claim) = claim.filter(|_| !up) {
                host.taints.retain(|taint| {
                    let passing = EPHEMERAL.contains(&(taint.key.as_str(), taint.effect.as_str()));
                    let startup = claim.spec.startup_taints.iter();
                    let mut startup =
                        startup.filter(|own| own.key == taint.key && own.effect == taint.effect);
                    !passing && startup.next().is_none()
                });
                // What the kubelet has not reported yet is as promised.
                for (resource, amount) in &claim.status.allocatable {
                    let own = host.allocatable.entry(resource.clone()).or_default();
                    if own.is_zero() {
                        *own = *amount;
                    }
                }
            }
            host
        })
        .collect();
    let on_the_way = snapshot
        .node_claims
        .iter()
        .filter(|claim| !snapshot.nodes.iter().any(|node| joined(claim, node)));
    hosts
        .extend(on_the_way.map(|claim| host(&claim.metadata, &claim.spec.taints, &claim.status.allocatable)));
    hosts
}

fn host<'a>(metadata: &'a ObjectMeta, taints: &[Taint], allocatable: &ResourceList) -> Host<'a> {
    Host {
        name: &metadata.name,
        hostname: metadata.labels.get(HOSTNAME).unwrap_or(&metadata.name).clone(),
        labels: metadata
            .labels
            .iter()
            .map(|(key, value)| (key.clone(), BTreeSet::from([value.clone()])))
            .collect(),
        taints: taints.to_vec(),
        allocatable: allocatable.clone(),
    }
}
