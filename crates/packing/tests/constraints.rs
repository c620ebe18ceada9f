//! Short ways to write a pod's constraints.

use slipway_packing::model::{
    Affinity, ContainerPort, LabelSelector, NodeAffinity, NodeSelector, NodeSelectorTerm, Pod, PodAffinity,
    PodAffinityTerm, PreferredSchedulingTerm, Toleration, TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use slipway_packing::requirement::RequirementSpec;

pub fn selector(pairs: &[(&str, &str)]) -> Option<LabelSelector> {
    Some(LabelSelector {
        match_labels: pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        ..LabelSelector::default()
    })
}

pub fn spread(key: &str, max_skew: i32, selected: &[(&str, &str)]) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        max_skew,
        topology_key: key.to_owned(),
        when_unsatisfiable: "DoNotSchedule".to_owned(),
        label_selector: selector(selected),
        ..TopologySpreadConstraint::default()
    }
}

pub fn term(key: &str, selected: &[(&str, &str)]) -> PodAffinityTerm {
    PodAffinityTerm {
        label_selector: selector(selected),
        topology_key: key.to_owned(),
        ..PodAffinityTerm::default()
    }
}

pub fn node_term(requirements: Vec<RequirementSpec>) -> NodeSelectorTerm {
    NodeSelectorTerm {
        match_expressions: requirements,
        ..NodeSelectorTerm::default()
    }
}

/// Builders that read in the order a manifest does.
pub trait With: Sized {
    fn selecting(self, key: &str, value: &str) -> Self;
    fn requiring(self, terms: Vec<NodeSelectorTerm>) -> Self;
    fn preferring(self, weight: i32, requirements: Vec<RequirementSpec>) -> Self;
    fn near(self, term: PodAffinityTerm) -> Self;
    fn preferably_near(self, weight: i32, term: PodAffinityTerm) -> Self;
    fn apart(self, term: PodAffinityTerm) -> Self;
    fn preferably_apart(self, weight: i32, term: PodAffinityTerm) -> Self;
    fn spread(self, constraint: TopologySpreadConstraint) -> Self;
    fn tolerating(self, key: &str, operator: &str, value: &str, effect: &str) -> Self;
    fn host_port(self, port: i32) -> Self;
}

fn affinity(pod: &mut Pod) -> &mut Affinity {
    pod.spec.affinity.get_or_insert_default()
}

fn node_affinity(pod: &mut Pod) -> &mut NodeAffinity {
    affinity(pod).node_affinity.get_or_insert_default()
}

fn pods(pod: &mut Pod) -> &mut PodAffinity {
    affinity(pod).pod_affinity.get_or_insert_default()
}

fn anti(pod: &mut Pod) -> &mut PodAffinity {
    affinity(pod).pod_anti_affinity.get_or_insert_default()
}

impl With for Pod {
    fn selecting(mut self, key: &str, value: &str) -> Self {
        self.spec.node_selector.insert(key.to_owned(), value.to_owned());
        self
    }

    fn requiring(mut self, terms: Vec<NodeSelectorTerm>) -> Self {
        node_affinity(&mut self).required = Some(NodeSelector {
            node_selector_terms: terms,
        });
        self
    }

    fn preferring(mut self, weight: i32, requirements: Vec<RequirementSpec>) -> Self {
        node_affinity(&mut self).preferred.push(PreferredSchedulingTerm {
            weight,
            preference: node_term(requirements),
        });
        self
    }

    fn near(mut self, term: PodAffinityTerm) -> Self {
        pods(&mut self).required.push(term);
        self
    }

    fn preferably_near(mut self, weight: i32, term: PodAffinityTerm) -> Self {
        pods(&mut self).preferred.push(WeightedPodAffinityTerm {
            weight,
            pod_affinity_term: term,
        });
        self
    }

    fn apart(mut self, term: PodAffinityTerm) -> Self {
        anti(&mut self).required.push(term);
        self
    }

    fn preferably_apart(mut self, weight: i32, term: PodAffinityTerm) -> Self {
        anti(&mut self).preferred.push(WeightedPodAffinityTerm {
            weight,
            pod_affinity_term: term,
        });
        self
    }

    fn spread(mut self, constraint: TopologySpreadConstraint) -> Self {
        self.spec.topology_spread_constraints.push(constraint);
        self
    }

    fn tolerating(mut self, key: &str, operator: &str, value: &str, effect: &str) -> Self {
        self.spec.tolerations.push(Toleration {
            key: key.to_owned(),
            operator: operator.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
            toleration_seconds: None,
        });
        self
    }

    fn host_port(mut self, port: i32) -> Self {
        self.spec.containers[0].ports.push(ContainerPort {
            host_port: port,
            ..ContainerPort::default()
        });
        self
    }
}
