//! Volumes: whose driver counts them, how many a node takes, and where they can be reached.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use slipway_packing::model::{
    CsiNode, Node, PersistentVolume, PersistentVolumeClaim, Pod, Snapshot, StorageClass,
};
use slipway_packing::requirement::{Operator, RequirementSpec};

use super::selection::{HOSTNAME, Labels, all_hold};

pub struct Attached<'a> {
    snapshot: &'a Snapshot,
    claims: HashMap<String, &'a PersistentVolumeClaim>,
    volumes: HashMap<&'a str, &'a PersistentVolume>,
    classes: HashMap<&'a str, &'a StorageClass>,
    published: HashMap<&'a str, &'a CsiNode>,
}

impl<'a> Attached<'a> {
    pub fn new(snapshot: &'a Snapshot) -> Self {
        Attached {
            snapshot,
            claims: snapshot
                .persistent_volume_claims
                .iter()
                .map(|claim| (claim.metadata.reference(), claim))
                .collect(),
            volumes: snapshot
                .persistent_volumes
                .iter()
                .map(|volume| (volume.metadata.name.as_str(), volume))
                .collect(),
            classes: snapshot
                .storage_classes
                .iter()
                .map(|class| (class.metadata.name.as_str(), class))
                .collect(),
            published: snapshot
                .csi_nodes
                .iter()
                .map(|node| (node.metadata.name.as_str(), node))
                .collect(),
        }
    }

    fn claims_of(&self, pod: &Pod) -> Vec<&'a PersistentVolumeClaim> {
        let names = pod.spec.volumes.iter().filter_map(|volume| {
            let own = || {
                volume
                    .ephemeral
                    .as_ref()
                    .map(|_| format!("{}-{}", pod.metadata.name, volume.name))
            };
            let named = volume.persistent_volume_claim.as_ref();
            named.map(|named| named.claim_name.clone()).or_else(own)
        });
        names
            .filter_map(|name| {
                let name = format!("{}/{name}", pod.metadata.namespace);
                self.claims.get(&name).copied()
            })
            .collect()
    }

    fn driver(&self, claim: &PersistentVolumeClaim) -> Option<&'a str> {
        if let Some(volume) = self.volumes.get(claim.spec.volume_name.as_str()) {
            return volume.spec.csi.as_ref().map(|csi| csi.driver.as_str());
        }
        let class = claim.spec.storage_class_name.as_deref()?;
        self.classes.get(class).map(|class| class.provisioner.as_str())
    }

    /// Volumes by driver, each once however many pods use it.
    pub fn of(&self, pods: &[&Pod]) -> BTreeMap<String, BTreeSet<String>> {
        let mut attached: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| !pod.spec.volumes.is_empty()) {
            for claim in self.claims_of(pod) {
                if let Some(driver) = self.driver(claim) {
                    attached
                        .entry(driver.to_owned())
                        .or_default()
                        .insert(claim.metadata.reference());
                }
            }
        }
        attached
    }

    /// What the node's drivers have published, else what its type is known to take.
    pub fn limits_of_node(&self, node: &Node) -> BTreeMap<String, u32> {
        let label = |key: &str| node.metadata.labels.get(key).map_or("", String::as_str);
        let kinds = self.snapshot.instance_types.get(label("karpenter.sh/nodepool"));
        let kind = kinds.and_then(|kinds| {
            let own = label("node.kubernetes.io/instance-type");
            kinds.iter().find(|kind| kind.name == own)
        });
        let mut limits = kind.map_or_else(BTreeMap::new, |kind| kind.volume_attachment_limits.clone());
        let published = self.published.get(node.metadata.name.as_str());
        for driver in published.iter().flat_map(|node| &node.spec.drivers) {
            match driver.allocatable.as_ref().and_then(|own| own.count) {
                Some(count) => limits.insert(driver.name.clone(), count),
                None => limits.remove(&driver.name),
            };
        }
        limits
    }

    /// Whether every volume of the pod can be reached from a node with these labels.
    pub fn reachable(&self, pod: &Pod, labels: &Labels) -> bool {
        pod.spec.volumes.is_empty()
            || self.claims_of(pod).iter().all(|claim| {
                let terms = self.places(claim);
                terms.is_empty() || terms.iter().any(|term| all_hold(term, labels))
            })
    }

    fn places(&self, claim: &PersistentVolumeClaim) -> Vec<Vec<RequirementSpec>> {
        if let Some(volume) = self.volumes.get(claim.spec.volume_name.as_str()) {
            let local = volume.spec.local.is_some() || volume.spec.host_path.is_some();
            let affinity = volume.spec.node_affinity.as_ref();
            let terms = affinity
                .and_then(|affinity| affinity.required.as_ref())
                .map_or(&[][..], |required| required.node_selector_terms.as_slice());
            return terms
                .iter()
                .map(|term| {
                    // A local volume stays behind when its pod moves.
                    let kept = |spec: &&RequirementSpec| !(local && spec.key == HOSTNAME);
                    term.match_expressions.iter().filter(kept).cloned().collect()
                })
                .collect();
        }
        let class = claim.spec.storage_class_name.as_deref();
        let class = class.and_then(|name| self.classes.get(name));
        let terms = class.map_or(&[][..], |class| class.allowed_topologies.as_slice());
        terms
            .iter()
            .map(|term| {
                term.match_label_expressions
                    .iter()
                    .map(|own| RequirementSpec {
                        key: own.key.clone(),
                        operator: Operator::In,
                        values: own.values.clone(),
                        min_values: None,
                    })
                    .collect()
            })
            .collect()
    }
}
