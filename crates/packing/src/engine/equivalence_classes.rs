//! Sorting pods into classes, and classes into the topology groups they own, are counted by or are kept away by.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::equivalence_class::{ClassId, ClassKey, EquivalenceClass, GroupId, Variant};
use super::group::{Group, GroupKind, GroupSpec, NodeFilter};
use super::intern::ReqVec;
use super::relax::{Relaxed, required_anti_affinity};
use super::world::World;
use crate::bits::{BitSet, WideSet};
use crate::host_ports;
use crate::model::{
    LabelSelector, Pod, PodAffinityTerm, PreferencePolicy, SelectorOperator, SelectorRequirement, Toleration,
    TopologySpreadConstraint,
};
use crate::resources::{PODS, pod_requests};
use crate::taints;

const HONOR: &str = "Honor";
const IGNORE: &str = "Ignore";

impl<'a> World<'a> {
    /// Notes the labels that selectors of these pods mention: other labels do not tell classes apart.
    pub fn note_selectors(&mut self, pod: &'a Pod, spread: &'a [TopologySpreadConstraint]) {
        let mut selectors: Vec<&'a LabelSelector> = Vec::new();
        for constraint in spread {
            selectors.extend(&constraint.label_selector);
            self.selector_keys
                .extend(constraint.match_label_keys.iter().map(String::as_str));
        }
        if let Some(affinity) = &pod.spec.affinity {
            for pods in [&affinity.pod_affinity, &affinity.pod_anti_affinity]
                .into_iter()
                .flatten()
            {
                selectors.extend(
                    pods.required
                        .iter()
                        .filter_map(|term| term.label_selector.as_ref()),
                );
                selectors.extend(
                    pods.preferred
                        .iter()
                        .filter_map(|term| term.pod_affinity_term.label_selector.as_ref()),
                );
            }
        }
        for selector in selectors {
            self.selector_keys
                .extend(selector.match_labels.keys().map(String::as_str));
            self.selector_keys.extend(
                selector
                    .match_expressions
                    .iter()
                    .map(|expression| expression.key.as_str()),
            );
        }
    }

    /// Indexes running pods by label, so that a group counts only pods it could select.
    pub fn index_bound_pods(&mut self) {
        for (index, bound) in self.bound.iter().enumerate() {
            if bound.pod.is_terminating() {
                continue;
            }
            for (key, value) in &bound.pod.metadata.labels {
                self.bound_by_label
                    .entry((key, value))
                    .or_default()
                    .push(index as u32);
            }
        }
    }

    /// Anti-affinity of pods that run already keeps others away from where they run.
    pub fn add_running_anti_affinity(&mut self) {
        for index in 0..self.bound.len() {
            let bound = self.bound[index];
            for term in required_anti_affinity(bound.pod) {
                let group = self.inverse_group(bound.pod, term);
                if let Some(domain) = self.domain_of_node(self.groups[group].spec.key, bound.node) {
                    self.groups[group].change(domain, 1);
                }
            }
        }
    }

    /// Where a node is: its host, or its domain of another key.
    pub fn domain_of_node(&mut self, key: super::intern::Key, node: usize) -> Option<usize> {
        if key == self.interner.hostname {
            return Some(self.host_of[node]);
        }
        self.domains(key).of_node[node]
    }

    pub fn class(&mut self, pod: &'a Pod, spread: &'a [TopologySpreadConstraint], waits: bool) -> ClassId {
        let mut request_list = pod_requests(pod);
        request_list.insert(PODS.to_owned(), crate::resources::ONE);
        let requests = self.resources.amounts(&request_list);
        let has_volumes = pod
            .spec
            .volumes
            .iter()
            .any(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
        let volumes = if has_volumes {
            self.storage.volumes(pod)
        } else {
            crate::storage::Volumes::new()
        };
        let key = ClassKey {
            namespace: &pod.metadata.namespace,
            labels: pod
                .metadata
                .labels
                .iter()
                .filter(|(key, _)| self.selector_keys.contains(key.as_str()))
                .map(|(key, value)| (key.as_str(), value.as_str()))
                .collect::<SmallVec<_>>(),
            node_selector: &pod.spec.node_selector,
            affinity: pod.spec.affinity.as_ref(),
            tolerations: &pod.spec.tolerations,
            spread,
            requests: requests.clone(),
            host_ports: host_ports::of_pod(pod),
            volumes: if has_volumes {
                vec![pod.metadata.reference()]
            } else {
                Vec::new()
            },
            waits,
        };
        if let Some(class) = self.shape_ids.get(&key) {
            return *class;
        }
        let id = self.classes.len();
        self.shape_ids.insert(key, id);
        let volume_places = if has_volumes {
            self.storage.alternatives(pod)
        } else {
            Vec::new()
        };
        let volume_places = volume_places
            .iter()
            .map(|place| self.interner.intern(place))
            .collect();
        let keeps_away = required_anti_affinity(pod)
            .iter()
            .map(|term| self.inverse_group(pod, term))
            .collect();
        let variants = self.variants(pod, spread);
        self.classes.push(EquivalenceClass {
            example: pod,
            requests,
            host_ports: host_ports::of_pod(pod),
            volumes,
            volume_places,
            variants,
            counted_by: Vec::new(),
            kept_away_by: Vec::new(),
            keeps_away,
            waits,
            failed_at: None,
        });
        id
    }

    fn variants(&mut self, pod: &'a Pod, spread: &'a [TopologySpreadConstraint]) -> Vec<Variant> {
        let policy = self.options.preference_policy;
        let mut state = Relaxed::new(pod, spread);
        let mut variants: Vec<Variant> = Vec::new();
        loop {
            let variant = self.variant(pod, &state, policy);
            let same = |last: &Variant| {
                last.requirements == variant.requirements
                    && last.strict == variant.strict
                    && last.groups == variant.groups
                    && last.tolerations == variant.tolerations
            };
            if !variants.last().is_some_and(same) {
                variants.push(variant);
            }
            if !state.relax(self.tolerate_preferences) {
                // Most classes have one; there are many classes.
                variants.shrink_to_fit();
                return variants;
            }
        }
    }

    fn variant(&mut self, pod: &Pod, state: &Relaxed<'_>, policy: PreferencePolicy) -> Variant {
        let requirements = self.interner.intern(&state.requirements(policy));
        let strict = self.interner.intern(&state.strict_requirements());
        let mut groups = Vec::new();
        for constraint in &state.spread {
            if policy == PreferencePolicy::Ignore && constraint.when_unsatisfiable != "DoNotSchedule" {
                continue;
            }
            groups.push(self.spread_group(pod, state, constraint));
        }
        for term in state.affinity_terms(policy) {
            groups.push(self.affinity_group(pod, term, GroupKind::Affinity));
        }
        for term in state.anti_affinity_terms(policy) {
            groups.push(self.affinity_group(pod, term, GroupKind::AntiAffinity));
        }
        // In the pod's own order, each once: ties are settled by the constraint that comes first.
        let mut known = BitSet::default();
        groups.retain(|group| {
            let fresh = !known.contains(*group);
            known.insert(*group);
            fresh
        });
        groups.shrink_to_fit();
        Variant {
            requirements,
            strict,
            tolerations: state.tolerations.clone(),
            groups,
            dead_nodes: WideSet::default(),
            dead_nodes_now: WideSet::default(),
            dead_claims: WideSet::default(),
            pools: vec![None; self.pools.len()],
        }
    }

    fn spread_group(
        &mut self,
        pod: &Pod,
        state: &Relaxed<'_>,
        constraint: &TopologySpreadConstraint,
    ) -> GroupId {
        let mut selector = constraint.label_selector.clone();
        if let Some(selector) = &mut selector {
            for key in &constraint.match_label_keys {
                if let Some(value) = pod.metadata.labels.get(key) {
                    selector.match_expressions.push(SelectorRequirement {
                        key: key.clone(),
                        operator: SelectorOperator::In,
                        values: vec![value.clone()],
                    });
                }
            }
        }
        let honor_taints = constraint.node_taints_policy.as_deref().unwrap_or(IGNORE) == HONOR;
        let honor_affinity = constraint.node_affinity_policy.as_deref().unwrap_or(HONOR) == HONOR;
        let mut alternatives = if honor_affinity {
            state.filter_alternatives(&mut self.interner)
        } else {
            Vec::new()
        };
        if alternatives.iter().any(ReqVec::is_empty) {
            alternatives.clear();
        }
        let mut tolerations: Vec<Toleration> = if honor_taints {
            state.tolerations.clone()
        } else {
            Vec::new()
        };
        tolerations.sort();
        let spec = GroupSpec {
            kind: GroupKind::Spread,
            key: self.interner.key(&constraint.topology_key),
            namespaces: BTreeSet::from([pod.metadata.namespace.clone()]),
            selector: selector.map(normalized),
            max_skew: constraint.max_skew,
            min_domains: constraint.min_domains,
            filter: NodeFilter {
                alternatives,
                honor_affinity,
                honor_taints,
                tolerations,
            },
        };
        self.group(spec, false)
    }

    fn affinity_spec(&mut self, pod: &Pod, term: &PodAffinityTerm, kind: GroupKind) -> GroupSpec {
        let mut namespaces: BTreeSet<String> = term.namespaces.iter().cloned().collect();
        match &term.namespace_selector {
            None if namespaces.is_empty() => {
                namespaces.insert(pod.metadata.namespace.clone());
            }
            None => {}
            Some(selector) => namespaces.extend(
                self.snapshot
                    .namespaces
                    .iter()
                    .filter(|namespace| selector.matches(&namespace.metadata.labels))
                    .map(|namespace| namespace.metadata.name.clone()),
            ),
        }
        GroupSpec {
            kind,
            key: self.interner.key(&term.topology_key),
            namespaces,
            selector: term.label_selector.clone().map(normalized),
            max_skew: i32::MAX,
            min_domains: None,
            filter: NodeFilter::default(),
        }
    }

    fn affinity_group(&mut self, pod: &Pod, term: &PodAffinityTerm, kind: GroupKind) -> GroupId {
        let spec = self.affinity_spec(pod, term, kind);
        self.group(spec, false)
    }

    fn inverse_group(&mut self, pod: &Pod, term: &PodAffinityTerm) -> GroupId {
        let spec = self.affinity_spec(pod, term, GroupKind::AntiAffinity);
        self.group(spec, true)
    }

    fn group(&mut self, spec: GroupSpec, inverse: bool) -> GroupId {
        if let Some(id) = self.group_ids.get(&(inverse, spec.clone())) {
            return *id;
        }
        let id = self.groups.len();
        self.group_ids.insert((inverse, spec.clone()), id);
        let mut group = Group::new(spec);
        if group.spec.key != self.interner.hostname {
            self.register_domains(&mut group);
        }
        if !inverse {
            self.count_running(&mut group);
        }
        self.groups.push(group);
        id
    }

    fn register_domains(&mut self, group: &mut Group) {
        let key = group.spec.key;
        self.domains(key);
        let domains = &self.domains[&key];
        let filter = &group.spec.filter;
        let tolerated = |pool: usize| {
            !filter.honor_taints
                || taints::untolerated(&self.pools[pool].taints, &filter.tolerations).is_none()
        };
        let offered: Vec<usize> = (0..domains.len())
            .filter(|domain| domains.pools[*domain].iter().any(tolerated))
            .collect();
        let of_node = domains.of_node.clone();
        for domain in offered {
            group.register(domain);
        }
        for (node, (state, labels, taints)) in self.all_nodes.iter().enumerate() {
            // Capacity on its way and nodes that are going away open no domain.
            if let Some(domain) = of_node[node].filter(|_| state.node.is_some() && !state.deleting())
                && World::filter_matches(&mut self.interner, &group.spec.filter, labels, taints)
            {
                group.register(domain);
            }
        }
    }

    fn count_running(&mut self, group: &mut Group) {
        let Some(selector) = &group.spec.selector else {
            return;
        };
        let rarest = anchors(selector)
            .map(|(key, value)| {
                self.bound_by_label
                    .get(&(key, value))
                    .map_or(&[][..], Vec::as_slice)
            })
            .min_by_key(|pods| pods.len());
        let candidates: Vec<usize> = match rarest {
            Some(pods) => pods.iter().map(|index| *index as usize).collect(),
            None => (0..self.bound.len()).collect(),
        };
        for index in candidates {
            let bound = self.bound[index];
            if !bound.pod.is_terminating()
                && group
                    .spec
                    .selects(&bound.pod.metadata.namespace, &bound.pod.metadata.labels)
            {
                self.count_bound(group, index, 1);
            }
        }
    }

    /// Counts a running pod in a group that selects it, if its node takes part.
    fn count_bound(&mut self, group: &mut Group, bound: usize, by: i32) {
        let node = self.bound[bound].node;
        let Some(domain) = self.domain_of_node(group.spec.key, node) else {
            return;
        };
        let (_, labels, taints) = &self.all_nodes[node];
        if group.spec.filter.is_trivial()
            || World::filter_matches(&mut self.interner, &group.spec.filter, labels, taints)
        {
            group.change(domain, by);
        }
    }

    /// Links every class to the groups that select its pods. Called once all groups are known.
    pub fn link_classes(&mut self) {
        // All pods have their class: what told classes apart is no longer needed.
        self.shape_ids = ahash::AHashMap::new();
        let mut by_label: ahash::AHashMap<(&str, &str), Vec<GroupId>> = ahash::AHashMap::new();
        let mut unanchored = Vec::new();
        for (id, group) in self.groups.iter().enumerate() {
            let Some(selector) = &group.spec.selector else {
                continue;
            };
            match anchors(selector).next() {
                Some(pair) => by_label.entry(pair).or_default().push(id),
                None => unanchored.push(id),
            }
        }
        let inverse: BitSet = self
            .group_ids
            .iter()
            .filter(|((inverse, _), _)| *inverse)
            .map(|(_, id)| *id)
            .collect();
        for class in &mut self.classes {
            let metadata = &class.example.metadata;
            let anchored = metadata
                .labels
                .iter()
                .filter_map(|(key, value)| by_label.get(&(key.as_str(), value.as_str())))
                .flatten();
            let mut selecting: Vec<GroupId> = anchored
                .chain(&unanchored)
                .copied()
                .filter(|id| {
                    self.groups[*id]
                        .spec
                        .selects(&metadata.namespace, &metadata.labels)
                })
                .collect();
            selecting.sort_unstable();
            (class.kept_away_by, class.counted_by) =
                selecting.into_iter().partition(|id| inverse.contains(*id));
        }
    }
}

/// Selectors that mean the same are the same.
fn normalized(mut selector: LabelSelector) -> LabelSelector {
    for expression in &mut selector.match_expressions {
        expression.values.sort();
        expression.values.dedup();
    }
    selector.match_expressions.sort();
    selector.match_expressions.dedup();
    selector
}

/// Label pairs that every selected pod has.
fn anchors(selector: &LabelSelector) -> impl Iterator<Item = (&str, &str)> {
    let equal = selector
        .match_labels
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()));
    let single = selector
        .match_expressions
        .iter()
        .filter(|expression| expression.operator == SelectorOperator::In && expression.values.len() == 1)
        .map(|expression| (expression.key.as_str(), expression.values[0].as_str()));
    equal.chain(single)
}
