//! Required pod affinity and anti-affinity.

use std::collections::{BTreeSet, HashMap, HashSet};

use slipway_packing::model::{Pod, PodAffinityTerm, Snapshot};

use super::places::NodeLoad;
use super::selection::{HOSTNAME, matches, namespaces, required_terms};
use super::{named, share};

/// A term as some pods carry it.
struct Carried<'a> {
    term: &'a PodAffinityTerm,
    namespaces: BTreeSet<String>,
    /// NodeLoad and pod.
    by: Vec<(usize, usize)>,
}

impl Carried<'_> {
    fn selects(&self, pod: &Pod) -> bool {
        self.namespaces.contains(&pod.metadata.namespace)
            && matches(self.term.label_selector.as_ref(), &pod.metadata.labels)
    }
}

/// Terms that are the same, once.
fn carried<'a>(
    snapshot: &Snapshot,
    places: &[NodeLoad<'a>],
    terms_of: impl Fn(&'a Pod) -> &'a [PodAffinityTerm],
) -> Vec<Carried<'a>> {
    let mut known: HashMap<(&PodAffinityTerm, &str), usize> = HashMap::new();
    let mut all: Vec<Carried<'a>> = Vec::new();
    for (place, at) in places.iter().enumerate() {
        for (position, pod) in at.pods.iter().enumerate() {
            for term in terms_of(pod) {
                let own = pod.metadata.namespace.as_str();
                let index = *known.entry((term, own)).or_insert_with(|| {
                    all.push(Carried {
                        term,
                        namespaces: namespaces(snapshot, term, own),
                        by: Vec::new(),
                    });
                    all.len() - 1
                });
                all[index].by.push((place, position));
            }
        }
    }
    all
}

/// Where a term finds pods: their place and position.
fn found(carried: &Carried<'_>, places: &[NodeLoad<'_>]) -> Vec<Vec<usize>> {
    let of = |place: &NodeLoad<'_>| {
        let pods = place.pods.iter().enumerate();
        pods.filter(|(_, pod)| carried.selects(pod))
            .map(|(position, _)| position)
            .collect()
    };
    places.iter().map(of).collect()
}

/// No pod shares a domain with a pod that it, or that pod, keeps away from.
pub fn apart(snapshot: &Snapshot, places: &[NodeLoad<'_>], problems: &mut Vec<String>) {
    for carried in carried(snapshot, places, anti_affinity_of) {
        let found = found(&carried, places);
        let key = &carried.term.topology_key;
        let occupied: Vec<usize> = (0..places.len())
            .filter(|place| !found[*place].is_empty())
            .collect();
        for (place, position) in &carried.by {
            let at = &places[*place];
            let near = |other: &usize| {
                if key == HOSTNAME {
                    *other == *place || places[*other].host == at.host
                } else {
                    share(at, &places[*other], key)
                }
            };
            let alone = [*place];
            let candidates: &[usize] = if key == HOSTNAME { &alone } else { &occupied };
            for other in candidates.iter().copied().filter(near) {
                for met in &found[other] {
                    let both_before = *position < at.before && *met < places[other].before;
                    let itself = other == *place && met == position;
                    if !itself && !both_before {
                        problems.push(format!(
                            "{} and {} share a {key}",
                            named(at.pods[*position]),
                            named(places[other].pods[*met])
                        ));
                    }
                }
            }
        }
    }
}

/// Every new pod that wants company has it.
pub fn together(snapshot: &Snapshot, places: &[NodeLoad<'_>], problems: &mut Vec<String>) {
    for carried in carried(snapshot, places, affinity_of) {
        let found = found(&carried, places);
        let key = &carried.term.topology_key;
        let mut domains: HashSet<&str> = HashSet::new();
        for (place, found) in places.iter().zip(&found) {
            if found.is_empty() {
                continue;
            }
            if key == HOSTNAME {
                domains.insert(&place.host);
            } else if let Some(values) = place.labels.get(key) {
                domains.extend(values.iter().map(String::as_str));
            }
        }
        for (place, position) in &carried.by {
            let at = &places[*place];
            if *position < at.before {
                continue;
            }
            let company = if key == HOSTNAME {
                domains.contains(at.host.as_str())
            } else {
                let mut values = at.labels.get(key).into_iter().flatten();
                values.any(|value| domains.contains(value.as_str()))
            };
            if !company {
                problems.push(format!("{} is alone in its {key}", named(at.pods[*position])));
            }
        }
        started_once(&carried, &found, places, problems);
    }
}

/// A pod that selects itself may be the first of its kind, but only where there is nobody to join: of pods that could go
/// anywhere, all end up where pods were before, or where the one first pod went.
fn started_once(
    carried: &Carried<'_>,
    found: &[Vec<usize>],
    places: &[NodeLoad<'_>],
    problems: &mut Vec<String>,
) {
    let key = &carried.term.topology_key;
    let domain_of = |place: &NodeLoad<'_>| -> Option<String> {
        if key == HOSTNAME {
            return Some(place.host.clone());
        }
        let values = place.labels.get(key)?;
        (values.len() == 1).then(|| values.first().cloned()).flatten()
    };
    let mut joinable: HashSet<String> = HashSet::new();
    let mut met_before = false;
    for (place, found) in places.iter().zip(found) {
        let Some(domain) = domain_of(place) else {
            // Who waits there for a domain may have been joined before it was decided.
            if !found.is_empty() {
                return;
            }
            continue;
        };
        let brought_by = |position: &usize| {
            let carries = |own: &PodAffinityTerm| own == carried.term;
            affinity_of(place.pods[*position]).iter().any(carries)
        };
        met_before |= found.iter().any(|position| *position < place.before);
        // Pods that do not carry the term go where they like, and may be joined.
        if found
            .iter()
            .any(|position| *position < place.before || !brought_by(position))
        {
            joinable.insert(domain);
        }
    }
    let mut started: BTreeSet<String> = BTreeSet::new();
    for (place, position) in &carried.by {
        let at = &places[*place];
        let pod = at.pods[*position];
        if *position < at.before {
            continue;
        }
        let anywhere = pod.spec.node_selector.is_empty()
            && pod.spec.volumes.is_empty()
            && required_terms(pod).is_none_or(|terms| terms.is_empty());
        if !anywhere {
            return;
        }
        started.extend(domain_of(at).filter(|domain| !joinable.contains(domain)));
    }
    if started.len() > usize::from(!met_before) {
        problems.push(format!("pods that belong together started again in {started:?}"));
    }
}

fn anti_affinity_of(pod: &Pod) -> &[PodAffinityTerm] {
    let affinity = pod.spec.affinity.as_ref();
    let anti = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    anti.map_or(&[], |anti| anti.required.as_slice())
}

fn affinity_of(pod: &Pod) -> &[PodAffinityTerm] {
    let affinity = pod.spec.affinity.as_ref();
    let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    near.map_or(&[], |near| near.required.as_slice())
}
