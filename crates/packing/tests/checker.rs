//! Says whether a plan keeps Kubernetes' rules. Written from those rules over plain strings; it shares no scheduling
//! code with the crate, only the data model and quantities.

use std::collections::{BTreeMap, BTreeSet};

use slipway_packing::model::{
    InstanceType, LabelSelector, NewClaim, Plan, Pod, PodAffinityTerm, SelectorOperator, Snapshot, Taint,
    Toleration,
};
use slipway_packing::quantity::Quantity;
use slipway_packing::requirement::{Operator, RequirementSpec};

use crate::checker_amounts::{add, total};
use crate::checker_hosts::{HOSTNAME, Host, hosts};

/// A place pods were put: a node, or one (claim, instance type, offering) the cloud may choose.
struct Place {
    host: String,
    /// Possible values by label; a label that is missing is not on the node.
    labels: BTreeMap<String, BTreeSet<String>>,
    pods: Vec<Pod>,
    /// Pods that were there before.
    before: usize,
}

pub fn check(snapshot: &Snapshot, pods: &[Pod], plan: &Plan) {
    let by_name: BTreeMap<String, &Pod> = pods.iter().map(|pod| (pod.metadata.reference(), pod)).collect();
    every_pod_once(pods, plan);
    let mut places = Vec::new();
    let moving: BTreeSet<&str> = pods.iter().map(|pod| pod.metadata.uid.as_str()).collect();
    for host in hosts(snapshot) {
        let mut here: Vec<Pod> = snapshot
            .bound_pods
            .iter()
            .filter(|pod| pod.spec.node_name == host.name)
            .filter(|pod| !matches!(pod.status.phase.as_str(), "Failed" | "Succeeded"))
            .filter(|pod| !moving.contains(pod.metadata.uid.as_str()))
            .cloned()
            .collect();
        let before = here.len();
        let assigned = plan
            .existing
            .iter()
            .filter(|assignment| assignment.node == host.name);
        here.extend(
            assigned
                .flat_map(|assignment| &assignment.pods)
                .map(|name| by_name[name].clone()),
        );
        if here.len() > before {
            check_host(&host, &here, before);
        }
        places.push(Place {
            host: host.hostname,
            labels: host.labels,
            pods: here,
            before,
        });
    }
    for (index, claim) in plan.new_claims.iter().enumerate() {
        places.push(check_claim(snapshot, claim, index, &by_name));
    }
    limits(snapshot, plan);
    anti_affinity(&places);
    affinity(&places);
    spread(snapshot, &places);
}

fn check_host(host: &Host<'_>, here: &[Pod], before: usize) {
    let name = host.name;
    for pod in &here[before..] {
        let reference = pod.metadata.reference();
        assert!(
            tolerated(&host.taints, &pod.spec.tolerations),
            "{reference} on {name}: taint"
        );
        assert!(
            selected(pod, &host.labels),
            "{reference} on {name}: node selection"
        );
    }
    for (resource, wanted) in &total(here) {
        let has = host.allocatable.get(resource).copied().unwrap_or(Quantity::ZERO);
        assert!(
            *wanted <= has,
            "{name}: {wanted} of {resource} wanted, {has} there"
        );
    }
    ports_apart(here, name);
}

fn every_pod_once(pods: &[Pod], plan: &Plan) {
    let mut seen: Vec<&String> = plan.new_claims.iter().flat_map(|claim| &claim.pods).collect();
    seen.extend(plan.existing.iter().flat_map(|assignment| &assignment.pods));
    seen.extend(plan.unschedulable.iter().map(|refusal| &refusal.pod));
    let mut seen: Vec<String> = seen.into_iter().cloned().collect();
    let mut wanted: Vec<String> = pods.iter().map(|pod| pod.metadata.reference()).collect();
    seen.sort();
    wanted.sort();
    assert_eq!(seen, wanted, "every pod is decided once");
    for refusal in &plan.unschedulable {
        assert!(
            !refusal.message.is_empty(),
            "{} is refused without a reason",
            refusal.pod
        );
    }
}

fn check_claim(
    snapshot: &Snapshot,
    claim: &NewClaim,
    index: usize,
    by_name: &BTreeMap<String, &Pod>,
) -> Place {
    let pods: Vec<Pod> = claim.pods.iter().map(|name| by_name[name].clone()).collect();
    assert!(
        !claim.instance_types.is_empty() && !pods.is_empty(),
        "claim {index} is empty"
    );
    let pool = snapshot
        .node_pools
        .iter()
        .find(|pool| pool.metadata.name == claim.node_pool)
        .expect("a known pool");
    let taints = &pool.spec.template.spec.taints;
    for pod in &pods {
        let mut tolerations = pod.spec.tolerations.clone();
        // A preference may be ignored.
        tolerations.push(Toleration {
            operator: "Exists".to_owned(),
            effect: "PreferNoSchedule".to_owned(),
            ..Toleration::default()
        });
        assert!(
            tolerated(taints, &tolerations),
            "{} on claim {index}: taint",
            pod.metadata.reference()
        );
    }
    ports_apart(&pods, &format!("claim {index}"));
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for type_name in &claim.instance_types {
        let kind = snapshot.instance_types[&claim.node_pool]
            .iter()
            .find(|kind| kind.name == *type_name)
            .expect("a listed type exists");
        let own = labels_of(claim, kind);
        for pod in &pods {
            assert!(
                selected(pod, &own),
                "{} on claim {index} as {type_name}: node selection {own:?}",
                pod.metadata.reference()
            );
        }
        let mut requests = total(&pods);
        for daemon in &snapshot.daemon_sets {
            let template = &daemon.spec.template;
            // Admission may have changed what its pods ask for.
            let live = snapshot.bound_pods.iter().find(|pod| {
                let owner = |own: &slipway_packing::model::OwnerReference| {
                    own.kind == "DaemonSet" && own.name == daemon.metadata.name
                };
                pod.metadata.owner_references.iter().any(owner)
            });
            let ignored = snapshot.options.ignore_dynamic_resources && template.has_dynamic_resources();
            if !ignored && tolerated(taints, &template.spec.tolerations) && selected(template, &own) {
                add(
                    &mut requests,
                    &total(std::slice::from_ref(live.unwrap_or(template))),
                );
            }
        }
        let offered = kind.offerings.iter().any(|offering| {
            let mut allocatable = kind.capacity.clone();
            allocatable.extend(offering.capacity_override.clone());
            let mut overhead = kind.overhead.total();
            overhead.extend(
                offering
                    .overhead_override
                    .iter()
                    .flat_map(slipway_packing::model::Overhead::total),
            );
            for (resource, kept) in overhead {
                *allocatable.entry(resource).or_default() -= kept;
            }
            let fits = requests.iter().all(|(resource, wanted)| {
                *wanted <= allocatable.get(resource).copied().unwrap_or(Quantity::ZERO)
            });
            let allowed = offering.requirements.iter().all(|own| {
                claim
                    .requirements
                    .iter()
                    .filter(|wanted| wanted.key == own.key)
                    .all(|wanted| own.values.iter().any(|value| allows(wanted, Some(value))))
            });
            offering.available && fits && allowed
        });
        assert!(
            offered,
            "claim {index} as {type_name}: nothing on offer holds {requests:?}"
        );
        for (key, values) in own {
            labels.entry(key).or_default().extend(values);
        }
    }
    Place {
        host: format!("claim {index}"),
        labels,
        pods,
        before: 0,
    }
}

/// The labels a node of this type could have under the claim's requirements.
fn labels_of(claim: &NewClaim, kind: &InstanceType) -> BTreeMap<String, BTreeSet<String>> {
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for own in kind
        .requirements
        .iter()
        .filter(|own| own.operator == Operator::In)
    {
        labels.insert(own.key.clone(), own.values.iter().cloned().collect());
    }
    for wanted in &claim.requirements {
        match labels.get_mut(&wanted.key) {
            Some(values) => values.retain(|value| allows(wanted, Some(value))),
            None if wanted.operator == Operator::In => {
                labels.insert(wanted.key.clone(), wanted.values.iter().cloned().collect());
            }
            // A label of which only some values are excluded is given another one.
            None if matches!(wanted.operator, Operator::NotIn | Operator::Exists) => {
                labels.insert(wanted.key.clone(), BTreeSet::from(["given".to_owned()]));
            }
            None => {}
        }
    }
    labels
}

fn tolerated(taints: &[Taint], tolerations: &[Toleration]) -> bool {
    taints
        .iter()
        .filter(|taint| taint.effect != "PreferNoSchedule")
        .all(|taint| {
            tolerations.iter().any(|toleration| {
                (toleration.effect.is_empty() || toleration.effect == taint.effect)
                    && (toleration.key.is_empty() || toleration.key == taint.key)
                    && (toleration.operator == "Exists" || toleration.value == taint.value)
            })
        })
}

fn allows(wanted: &RequirementSpec, value: Option<&str>) -> bool {
    let listed = |value: &str| wanted.values.iter().any(|own| own == value);
    let number = || {
        Some((
            value?.parse::<i64>().ok()?,
            wanted.values.first()?.parse::<i64>().ok()?,
        ))
    };
    match wanted.operator {
        Operator::In => value.is_some_and(listed),
        Operator::NotIn => !value.is_some_and(listed),
        Operator::Exists => value.is_some(),
        Operator::DoesNotExist => value.is_none(),
        Operator::Gt => number().is_some_and(|(value, bound)| value > bound),
        Operator::Gte => number().is_some_and(|(value, bound)| value >= bound),
        Operator::Lt => number().is_some_and(|(value, bound)| value < bound),
        Operator::Lte => number().is_some_and(|(value, bound)| value <= bound),
    }
}

/// Whether the pod's selector and one of its required terms can hold on a node with these labels.
fn selected(pod: &Pod, labels: &BTreeMap<String, BTreeSet<String>>) -> bool {
    let normal = |key: &str| {
        match key {
            "failure-domain.beta.kubernetes.io/zone" => "topology.kubernetes.io/zone",
            "failure-domain.beta.kubernetes.io/region" => "topology.kubernetes.io/region",
            "beta.kubernetes.io/arch" => "kubernetes.io/arch",
            "beta.kubernetes.io/os" => "kubernetes.io/os",
            "beta.kubernetes.io/instance-type" => "node.kubernetes.io/instance-type",
            other => other,
        }
        .to_owned()
    };
    let holds = |wanted: &RequirementSpec| match labels.get(&normal(&wanted.key)) {
        Some(values) => values.iter().any(|value| allows(wanted, Some(value))),
        None => allows(wanted, None),
    };
    let by_selector = pod.spec.node_selector.iter().all(|(key, value)| {
        labels
            .get(&normal(key))
            .is_some_and(|values| values.contains(value))
    });
    let required = pod
        .spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| node.required.as_ref());
    by_selector
        && required.is_none_or(|required| {
            required
                .node_selector_terms
                .iter()
                .any(|term| term.match_expressions.iter().all(holds))
        })
}

fn ports_apart(pods: &[Pod], place: &str) {
    let mut taken: Vec<(String, i32, String)> = Vec::new();
    for pod in pods {
        for port in pod.spec.containers.iter().flat_map(|container| &container.ports) {
            if port.host_port == 0 {
                continue;
            }
            let any = |address: &str| matches!(address, "" | "0.0.0.0" | "::");
            let protocol = if port.protocol.is_empty() {
                "TCP"
            } else {
                &port.protocol
            };
            let clash = taken.iter().any(|(address, number, own)| {
                *number == port.host_port
                    && own == protocol
                    && (*address == port.host_ip || any(address) || any(&port.host_ip))
            });
            assert!(!clash, "{place}: host port {} is taken twice", port.host_port);
            taken.push((port.host_ip.clone(), port.host_port, protocol.to_owned()));
        }
    }
}

/// What every claim could cost at most stays inside the pool's limits, as long as the pool was inside before.
fn limits(snapshot: &Snapshot, plan: &Plan) {
    for pool in &snapshot.node_pools {
        for (resource, limit) in pool
            .spec
            .limits
            .iter()
            .filter(|(resource, _)| *resource != "nodes")
        {
            let mut used: Quantity = snapshot
                .nodes
                .iter()
                .filter(|node| node.metadata.labels.get("karpenter.sh/nodepool") == Some(&pool.metadata.name))
                .filter_map(|node| node.status.capacity.get(resource).copied())
                .sum();
            let own: Vec<&NewClaim> = plan
                .new_claims
                .iter()
                .filter(|claim| claim.node_pool == pool.metadata.name)
                .collect();
            for claim in &own {
                let most = snapshot.instance_types[&pool.metadata.name]
                    .iter()
                    .filter(|kind| claim.instance_types.contains(&kind.name))
                    .filter_map(|kind| kind.capacity.get(resource).copied())
                    .max();
                used += most.unwrap_or(Quantity::ZERO);
            }
            assert!(
                own.is_empty() || used <= *limit,
                "{}: {used} of {resource} against {limit}",
                pool.metadata.name
            );
        }
    }
}

fn matches(selector: Option<&LabelSelector>, pod: &Pod) -> bool {
    let Some(selector) = selector else { return false };
    let labels = &pod.metadata.labels;
    selector
        .match_labels
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && selector.match_expressions.iter().all(|expression| {
            let value = labels.get(&expression.key);
            match expression.operator {
                SelectorOperator::In => value.is_some_and(|value| expression.values.contains(value)),
                SelectorOperator::NotIn => !value.is_some_and(|value| expression.values.contains(value)),
                SelectorOperator::Exists => value.is_some(),
                SelectorOperator::DoesNotExist => value.is_none(),
            }
        })
}

fn term_selects(term: &PodAffinityTerm, owner: &Pod, pod: &Pod) -> bool {
    let namespaces_match = if term.namespaces.is_empty() {
        owner.metadata.namespace == pod.metadata.namespace
    } else {
        term.namespaces.contains(&pod.metadata.namespace)
    };
    term.namespace_selector.is_none() && namespaces_match && matches(term.label_selector.as_ref(), pod)
}

/// Whether two places could be in one domain.
fn share(one: &Place, other: &Place, key: &str) -> bool {
    if key == HOSTNAME {
        return one.host == other.host;
    }
    match (one.labels.get(key), other.labels.get(key)) {
        (Some(left), Some(right)) => left.intersection(right).next().is_some(),
        _ => false,
    }
}

fn anti_affinity(places: &[Place]) {
    for place in places {
        for (index, pod) in place.pods.iter().enumerate() {
            let anti = pod
                .spec
                .affinity
                .as_ref()
                .and_then(|affinity| affinity.pod_anti_affinity.as_ref());
            for term in anti.iter().flat_map(|anti| &anti.required) {
                for other in places {
                    if !share(place, other, &term.topology_key) {
                        continue;
                    }
                    for (position, near) in other.pods.iter().enumerate() {
                        let both_before = index < place.before && position < other.before;
                        let itself = near.metadata.uid == pod.metadata.uid;
                        assert!(
                            itself || both_before || !term_selects(term, pod, near),
                            "{} and {} share a {}",
                            pod.metadata.reference(),
                            near.metadata.reference(),
                            term.topology_key
                        );
                    }
                }
            }
        }
    }
}

fn affinity(places: &[Place]) {
    for place in places {
        for pod in &place.pods[place.before..] {
            let affinity = pod
                .spec
                .affinity
                .as_ref()
                .and_then(|affinity| affinity.pod_affinity.as_ref());
            for term in affinity.iter().flat_map(|affinity| &affinity.required) {
                if term.namespace_selector.is_some() {
                    continue;
                }
                let near = places
                    .iter()
                    .filter(|other| share(place, other, &term.topology_key));
                let company = near
                    .flat_map(|other| &other.pods)
                    .any(|other| term_selects(term, pod, other));
                assert!(
                    company,
                    "{} is alone in its {}",
                    pod.metadata.reference(),
                    term.topology_key
                );
            }
        }
    }
}

/// A domain that got a pod of a constraint is within the skew of the emptiest domain the pod could have gone to. Only
/// constraints that every newly placed pod they select carries itself can be judged from the end alone.
fn spread(snapshot: &Snapshot, places: &[Place]) {
    for place in places {
        for pod in &place.pods[place.before..] {
            for constraint in &pod.spec.topology_spread_constraints {
                let plain = constraint.node_affinity_policy.is_none()
                    && constraint.node_taints_policy.is_none()
                    && constraint.match_label_keys.is_empty()
                    && pod.spec.node_selector.is_empty()
                    && pod.spec.affinity.is_none();
                if constraint.when_unsatisfiable != "DoNotSchedule" || !plain {
                    continue;
                }
                let selects = |other: &Pod| {
                    other.metadata.namespace == pod.metadata.namespace
                        && matches(constraint.label_selector.as_ref(), other)
                };
                let new = places.iter().flat_map(|place| &place.pods[place.before..]);
                let shared = |other: &Pod| {
                    other.spec.topology_spread_constraints.contains(constraint)
                        && other.spec.node_selector.is_empty()
                        && other.spec.affinity.is_none()
                };
                if !selects(pod) || !new.filter(|other| selects(other)).all(shared) {
                    continue;
                }
                let count = |place: &Place| place.pods.iter().filter(|other| selects(other)).count();
                if constraint.topology_key == HOSTNAME {
                    let here = count(place);
                    assert!(
                        here as i32 <= constraint.max_skew,
                        "{} with {here} pods of a spread",
                        place.host
                    );
                    continue;
                }
                let domain_of = |place: &Place| {
                    place
                        .labels
                        .get(&constraint.topology_key)
                        .filter(|values| values.len() == 1)?
                        .first()
                        .cloned()
                };
                let mut domains: BTreeMap<String, usize> = BTreeMap::new();
                for pool in &snapshot.node_pools {
                    for kind in &snapshot.instance_types[&pool.metadata.name] {
                        let own = kind
                            .requirements
                            .iter()
                            .filter(|own| own.key == constraint.topology_key);
                        for value in own.flat_map(|own| &own.values) {
                            let template = &pool.spec.template;
                            let wanted = template.spec.requirements.iter();
                            let label = template.metadata.labels.get(&constraint.topology_key);
                            if label.is_some_and(|own| own != value) {
                                continue;
                            }
                            if wanted
                                .filter(|own| own.key == constraint.topology_key)
                                .all(|own| allows(own, Some(value)))
                            {
                                domains.entry(value.clone()).or_default();
                            }
                        }
                    }
                }
                for place in places {
                    if let Some(domain) = domain_of(place) {
                        *domains.entry(domain).or_default() += count(place);
                    }
                }
                let Some(here) = domain_of(place) else { continue };
                let short = constraint
                    .min_domains
                    .is_some_and(|wanted| (domains.len() as i32) < wanted);
                let least = if short {
                    0
                } else {
                    domains.values().copied().min().unwrap_or(0)
                };
                let skew = domains[&here] as i32 - least as i32;
                assert!(skew <= constraint.max_skew, "{here} is {skew} ahead: {domains:?}");
            }
        }
    }
}
