//! Spread constraints that must hold. A domain that got a pod of a constraint is within the skew of the emptiest domain
//! the pod could have gone to. Only constraints that every newly placed pod they select carries too, with the same say
//! about nodes, can be judged from the end alone: the emptiest domain only fills up.

use std::collections::{BTreeMap, HashSet};

use slipway_packing::model::{Pod, Snapshot, TopologySpreadConstraint};
use slipway_packing::requirement::{Operator, RequirementSpec};

use super::places::NodeLoad;
use super::selection::{HOSTNAME, allows, matches, normal, required_terms, selected, tolerated};

/// One constraint as pods that are alike carry it.
struct Shared<'a> {
    constraint: &'a TopologySpreadConstraint,
    example: &'a Pod,
}

impl Shared<'_> {
    /// Whether the constraint counts the pod: `matchLabelKeys` adds the example's own values to the selector.
    fn counts(&self, pod: &Pod) -> bool {
        let same = |key: &String| match self.example.metadata.labels.get(key) {
            Some(value) => pod.metadata.labels.get(key) == Some(value),
            None => true,
        };
        pod.metadata.namespace == self.example.metadata.namespace
            && matches(self.constraint.label_selector.as_ref(), &pod.metadata.labels)
            && self.constraint.match_label_keys.iter().all(same)
    }

    fn honors_affinity(&self) -> bool {
        self.constraint.node_affinity_policy.as_deref() != Some("Ignore")
    }

    fn honors_taints(&self) -> bool {
        self.constraint.node_taints_policy.as_deref() == Some("Honor")
    }

    /// Whether a place takes part: by default nodes the pod does not select are left out, tainted ones are not.
    fn includes(&self, place: &NodeLoad<'_>) -> bool {
        (!self.honors_affinity() || selected(self.example, &place.labels))
            && (!self.honors_taints() || tolerated(&place.taints, &self.example.spec.tolerations))
    }

    /// Whether another pod carries the constraint and says the same about nodes.
    fn is_carried_alike(&self, pod: &Pod) -> bool {
        pod.spec.topology_spread_constraints.contains(self.constraint)
            && pod.spec.node_selector == self.example.spec.node_selector
            && required_terms(pod) == required_terms(self.example)
            && (!self.honors_taints() || pod.spec.tolerations == self.example.spec.tolerations)
    }

    /// Whether the pod's own words about the key allow a domain.
    fn may_go_to(&self, domain: &str) -> bool {
        let key = self.constraint.topology_key.as_str();
        let by_selector = self
            .example
            .spec
            .node_selector
            .iter()
            .filter(|(own, _)| normal(own) == key)
            .all(|(_, value)| value == domain);
        let of_key = |required: &&RequirementSpec| normal(&required.key) == key;
        let by_term = |term: &&[RequirementSpec]| {
            let mut own = term.iter().filter(of_key);
            own.all(|required| allows(required, Some(domain)))
        };
        by_selector && required_terms(self.example).is_none_or(|terms| terms.iter().any(by_term))
    }
}

pub fn even(snapshot: &Snapshot, places: &[NodeLoad<'_>], problems: &mut Vec<String>) {
    let mut seen: HashSet<String> = HashSet::new();
    for place in places {
        for pod in place.new_pods() {
            for constraint in &pod.spec.topology_spread_constraints {
                if constraint.when_unsatisfiable != "DoNotSchedule" {
                    continue;
                }
                let shared = Shared {
                    constraint,
                    example: pod,
                };
                let text = format!(
                    "{constraint:?} {} {:?} {:?} {:?} {:?}",
                    pod.metadata.namespace,
                    pod.metadata.labels,
                    pod.spec.node_selector,
                    required_terms(pod),
                    pod.spec.tolerations
                );
                if seen.insert(text) {
                    judge(snapshot, places, &shared, problems);
                }
            }
        }
    }
}

fn judge(snapshot: &Snapshot, places: &[NodeLoad<'_>], shared: &Shared<'_>, problems: &mut Vec<String>) {
    let constraint = shared.constraint;
    let new = || places.iter().flat_map(NodeLoad::new_pods);
    // A pod may give up all but the last alternative: which nodes it looked at is not known then.
    let alternatives = required_terms(shared.example).map_or(0, |terms| terms.len());
    if !shared.counts(shared.example)
        || (alternatives > 1 && shared.honors_affinity())
        || !new()
            .filter(|pod| shared.counts(pod))
            .all(|pod| shared.is_carried_alike(pod))
    {
        return;
    }
    let count = |place: &NodeLoad<'_>| place.pods.iter().filter(|pod| shared.counts(pod)).count();
    let got_one = |place: &NodeLoad<'_>| place.new_pods().iter().any(|pod| shared.counts(pod));
    if constraint.topology_key == HOSTNAME {
        if snapshot.options.improvements.hostname_spread_as_kube_scheduler {
            return;
        }
        for place in places.iter().filter(|place| got_one(place)) {
            let here = count(place);
            if here as i32 > constraint.max_skew {
                problems.push(format!("{} with {here} pods of a spread", place.host));
            }
        }
        return;
    }
    let domain_of = |place: &NodeLoad<'_>| -> Option<String> {
        let values = place.labels.get(&constraint.topology_key)?;
        (values.len() == 1).then(|| values.first().cloned()).flatten()
    };
    let mut domains: BTreeMap<String, usize> = offered(snapshot, shared)
        .into_iter()
        .map(|domain| (domain, 0))
        .collect();
    for place in places.iter().filter(|place| shared.includes(place)) {
        let count = count(place);
        // A node on its way out opens no domain, and neither does one that is not there yet.
        if let Some(domain) = domain_of(place)
            && (count > 0 || !place.going)
        {
            *domains.entry(domain).or_default() += count;
        }
    }
    let supported: Vec<usize> = domains
        .iter()
        .filter(|(domain, _)| shared.may_go_to(domain))
        .map(|(_, count)| *count)
        .collect();
    let short = constraint
        .min_domains
        .is_some_and(|required| (supported.len() as i32) < required);
    let least = if short {
        0
    } else {
        supported.iter().copied().min().unwrap_or(0)
    };
    for place in places
        .iter()
        .filter(|place| got_one(place) && shared.includes(place))
    {
        let Some(here) = domain_of(place) else { continue };
        let skew = domains[&here] as i32 - least as i32;
        if skew > constraint.max_skew {
            problems.push(format!("{here} is {skew} ahead: {domains:?} {constraint:?}"));
            return;
        }
    }
}

/// Domains some pool could open a node in. Where taints count, only pools whose taints the pod tolerates.
fn offered(snapshot: &Snapshot, shared: &Shared<'_>) -> Vec<String> {
    let key = &shared.constraint.topology_key;
    let mut offered = Vec::new();
    for pool in &snapshot.node_pools {
        let template = &pool.spec.template;
        if shared.honors_taints() && !tolerated(&template.spec.taints, &shared.example.spec.tolerations) {
            continue;
        }
        let own = || template.spec.requirements.iter().filter(|own| own.key == *key);
        let label = template.metadata.labels.get(key);
        for own in own().filter(|own| own.operator == Operator::In) {
            let values = own.values.iter();
            offered.extend(
                values
                    .filter(|value| label.is_none_or(|own| own == *value))
                    .cloned(),
            );
        }
        let kinds = snapshot.instance_types.get(&pool.metadata.name);
        for kind in kinds.into_iter().flatten() {
            let values = kind.requirements.iter().filter(|own| own.key == *key);
            for value in values.flat_map(|own| &own.values) {
                if own().all(|own| allows(own, Some(value))) && label.is_none_or(|own| own == value) {
                    offered.push(value.clone());
                }
            }
        }
    }
    offered
}
