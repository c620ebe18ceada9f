//! Preferences are treated as required at first and given up one at a time; this is the order in which.

use super::intern::{Interner, ReqVec};
use crate::model::{
    NodeSelectorTerm, Pod, PodAffinityTerm, PreferencePolicy, PreferredSchedulingTerm, Toleration,
    TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use crate::requirement::Requirement;
use crate::requirements::Requirements;
use crate::taints;

/// What is left of a pod's constraints after some preferences were given up.
#[derive(Clone, Debug)]
pub(crate) struct Relaxed<'a> {
    pod: &'a Pod,
    required_terms: Vec<&'a NodeSelectorTerm>,
    preferred_terms: Vec<&'a PreferredSchedulingTerm>,
    preferred_affinity: Vec<&'a WeightedPodAffinityTerm>,
    preferred_anti_affinity: Vec<&'a WeightedPodAffinityTerm>,
    pub spread: Vec<&'a TopologySpreadConstraint>,
    pub tolerations: Vec<Toleration>,
}

impl<'a> Relaxed<'a> {
    pub fn new(pod: &'a Pod, spread: &'a [TopologySpreadConstraint]) -> Self {
        let affinity = pod.spec.affinity.as_ref();
        let node = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let heaviest_first = |terms: &'a [WeightedPodAffinityTerm]| {
            let mut terms: Vec<&WeightedPodAffinityTerm> = terms.iter().collect();
            terms.sort_by_key(|term| std::cmp::Reverse(term.weight));
            terms
        };
        let mut preferred_terms: Vec<&PreferredSchedulingTerm> =
            node.map_or_else(Vec::new, |node| node.preferred.iter().collect());
        preferred_terms.sort_by_key(|term| std::cmp::Reverse(term.weight));
        let pods = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let anti = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        Relaxed {
            pod,
            required_terms: node
                .and_then(|node| node.required.as_ref())
                .map_or_else(Vec::new, |required| required.node_selector_terms.iter().collect()),
            preferred_terms,
            preferred_affinity: pods.map_or_else(Vec::new, |pods| heaviest_first(&pods.preferred)),
            preferred_anti_affinity: anti.map_or_else(Vec::new, |anti| heaviest_first(&anti.preferred)),
            spread: spread.iter().collect(),
            tolerations: pod.spec.tolerations.clone(),
        }
    }

    /// Gives up one thing: an alternative of the required node affinity, then the heaviest preference by kind, then a
    /// soft spread constraint, last the taints that only ask to be avoided.
    pub fn relax(&mut self, tolerate_preferences: bool) -> bool {
        if self.required_terms.len() > 1 {
            self.required_terms.remove(0);
            return true;
        }
        for terms in [&mut self.preferred_affinity, &mut self.preferred_anti_affinity] {
            if !terms.is_empty() {
                terms.remove(0);
                return true;
            }
        }
        if !self.preferred_terms.is_empty() {
            self.preferred_terms.remove(0);
            return true;
        }
        if let Some(soft) = self
            .spread
            .iter()
            .position(|constraint| constraint.when_unsatisfiable == "ScheduleAnyway")
        {
            self.spread.swap_remove(soft);
            return true;
        }
        let toleration = taints::prefer_no_schedule_toleration();
        if tolerate_preferences && !self.tolerations.contains(&toleration) {
            self.tolerations.push(toleration);
            return true;
        }
        false
    }

    /// Only what is truly required of the node.
    pub fn strict_requirements(&self) -> Requirements {
        let mut requirements = Requirements::from_labels(&self.pod.spec.node_selector);
        if let Some(term) = self.required_terms.first() {
            requirements.add_all(&Requirements::from_specs(&term.match_expressions));
        }
        requirements
    }

    /// Including the heaviest preference that is left.
    pub fn requirements(&self, policy: PreferencePolicy) -> Requirements {
        let mut requirements = self.strict_requirements();
        if policy == PreferencePolicy::Respect
            && let Some(term) = self.preferred_terms.first()
        {
            for spec in &term.preference.match_expressions {
                requirements.add(Requirement::from(spec));
            }
        }
        requirements
    }

    /// The nodes a spread constraint of this pod looks at: any alternative of the required node affinity.
    pub fn filter_alternatives(&self, interner: &mut Interner) -> Vec<ReqVec> {
        let selector = Requirements::from_labels(&self.pod.spec.node_selector);
        if self.required_terms.is_empty() {
            return vec![interner.intern(&selector)];
        }
        self.required_terms
            .iter()
            .map(|term| {
                let mut requirements = selector.clone();
                requirements.add_all(&Requirements::from_specs(&term.match_expressions));
                interner.intern(&requirements)
            })
            .collect()
    }

    pub fn affinity_terms(&self, policy: PreferencePolicy) -> Vec<&'a PodAffinityTerm> {
        let required = self
            .pod
            .spec
            .affinity
            .as_ref()
            .and_then(|affinity| affinity.pod_affinity.as_ref());
        terms(
            required.map(|pods| pods.required.as_slice()),
            &self.preferred_affinity,
            policy,
        )
    }

    pub fn anti_affinity_terms(&self, policy: PreferencePolicy) -> Vec<&'a PodAffinityTerm> {
        let required = self
            .pod
            .spec
            .affinity
            .as_ref()
            .and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        terms(
            required.map(|pods| pods.required.as_slice()),
            &self.preferred_anti_affinity,
            policy,
        )
    }
}

fn terms<'a>(
    required: Option<&'a [PodAffinityTerm]>,
    preferred: &[&'a WeightedPodAffinityTerm],
    policy: PreferencePolicy,
) -> Vec<&'a PodAffinityTerm> {
    let mut result: Vec<&PodAffinityTerm> = required.unwrap_or_default().iter().collect();
    if policy == PreferencePolicy::Respect {
        result.extend(preferred.iter().map(|term| &term.pod_affinity_term));
    }
    result
}

/// The terms by which a pod keeps others away.
pub(crate) fn required_anti_affinity(pod: &Pod) -> &[PodAffinityTerm] {
    pod.spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
        .map_or(&[], |anti| anti.required.as_slice())
}
