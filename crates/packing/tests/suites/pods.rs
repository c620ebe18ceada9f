//! One line of a case as pods: `name*3 ask:cpu=1 label:app=web spread:zone;1 need:zone=z1|z2 …`.

use serde_json::json;
use slipway_packing::model::{
    Container, ContainerPort, LabelSelector, NodeSelectorTerm, OwnerReference, Pod, PodAffinityTerm,
    TopologySpreadConstraint,
};

use super::words;
use crate::cluster;
use crate::constraints::With;

/// Every pod gets a moment of its own, so that the order of the lines is the order of age.
pub fn parse(words: &[&str], serial: &mut usize) -> Vec<Pod> {
    let (name, count) = match words[0].split_once('*') {
        Some((name, count)) => (name, Some(count.parse::<usize>().expect("a number of pods"))),
        None => (words[0], None),
    };
    (0..count.unwrap_or(1))
        .map(|index| {
            let own = if count.is_some() {
                format!("{name}-{index}")
            } else {
                name.to_owned()
            };
            *serial += 1;
            let mut pod = cluster::pod(&own, &[]);
            pod.metadata.uid = format!("uid-{:05}", *serial);
            for word in &words[1..] {
                apply(&mut pod, word, index);
            }
            pod
        })
        .collect()
}

fn apply(pod: &mut Pod, word: &str, index: usize) {
    let (name, rest) = words::option(word);
    let rest = &rest.replace('%', &index.to_string());
    match name {
        "ask" => pod.spec.containers[0].resources.requests = words::amounts(rest),
        "label" => pod.metadata.labels.extend(words::label_map(rest)),
        "anno" => pod.metadata.annotations.extend(words::label_map(rest)),
        "ns" => pod.metadata.namespace.clone_from(rest),
        "sel" => pod.spec.node_selector.extend(words::label_map(rest)),
        // A further term is an alternative.
        "need" => {
            let term = NodeSelectorTerm {
                match_expressions: words::requirements(rest),
                ..NodeSelectorTerm::default()
            };
            let node = pod
                .spec
                .affinity
                .get_or_insert_default()
                .node_affinity
                .get_or_insert_default();
            node.required
                .get_or_insert_default()
                .node_selector_terms
                .push(term);
        }
        "field" => {
            let term = NodeSelectorTerm {
                match_fields: words::requirements(rest),
                ..NodeSelectorTerm::default()
            };
            let node = pod
                .spec
                .affinity
                .get_or_insert_default()
                .node_affinity
                .get_or_insert_default();
            node.required
                .get_or_insert_default()
                .node_selector_terms
                .push(term);
        }
        "like" => {
            let (weight, rest) = rest.split_once(';').expect("a weight");
            *pod = pod
                .clone()
                .preferring(weight.parse().expect("a weight"), words::requirements(rest));
        }
        "spread" => {
            let constraint = spread(rest, pod);
            pod.spec.topology_spread_constraints.push(constraint);
        }
        "near" => *pod = pod.clone().near(affinity(rest)),
        "apart" => *pod = pod.clone().apart(affinity(rest)),
        "like-near" | "like-apart" => {
            let (weight, rest) = rest.split_once(';').expect("a weight");
            let weight = weight.parse().expect("a weight");
            *pod = if name == "like-near" {
                pod.clone().preferably_near(weight, affinity(rest))
            } else {
                pod.clone().preferably_apart(weight, affinity(rest))
            };
        }
        "tol" => pod.spec.tolerations.push(words::toleration(rest)),
        "port" => pod.spec.containers[0].ports.push(port(rest)),
        "pvc" => {
            let place = pod.spec.volumes.len();
            pod.spec.volumes.push(volume(&json!({
                "name": format!("volume-{place}"), "persistentVolumeClaim": {"claimName": rest}})));
        }
        // A claim named after the pod and the volume; the class may be left out.
        "ephemeral" => {
            let (volume_name, class) = rest
                .split_once(';')
                .map_or((rest.as_str(), None), |(name, class)| (name, Some(class)));
            pod.spec
                .volumes
                .push(volume(&json!({"name": volume_name, "ephemeral":
                {"volumeClaimTemplate": {"spec": {"storageClassName": class}}}})));
        }
        "init" | "sidecar" => {
            let mut container = Container::default();
            container.resources.requests = words::amounts(rest);
            if name == "sidecar" {
                container.restart_policy = Some("Always".to_owned());
            }
            pod.spec.init_containers.push(container);
        }
        "container" => {
            let mut container = Container::default();
            container.resources.requests = words::amounts(rest);
            pod.spec.containers.push(container);
        }
        "overhead" => pod.spec.overhead = words::amounts(rest),
        "pod-level" => pod.spec.resources.get_or_insert_default().requests = words::amounts(rest),
        "owner" => pod.metadata.owner_references.push(owner(rest)),
        "owner-beside" => pod.metadata.owner_references.push(OwnerReference {
            controller: false,
            ..owner(rest)
        }),
        "device" | "init-device" => device(pod, name, rest),
        "ready" => pod.status.conditions.push(cluster::condition("Ready", "True")),
        "unready" => pod.status.conditions.push(cluster::condition("Ready", "False")),
        "phase" => pod.status.phase.clone_from(rest),
        "deleting" => pod.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned()),
        "priority" => pod.spec.priority = Some(rest.parse().expect("a priority")),
        "started" => pod.status.start_time = Some(rest.clone()),
        "created" => pod.metadata.creation_timestamp = Some(rest.clone()),
        "uid" => pod.metadata.uid.clone_from(rest),
        other => panic!("unknown word for a pod: {other}"),
    }
}

fn volume(value: &serde_json::Value) -> slipway_packing::model::Volume {
    serde_json::from_value(value.clone()).expect("a volume")
}

fn device(pod: &mut Pod, name: &str, claim: &str) {
    let claim = serde_json::from_value(json!({ "name": claim })).expect("a claim");
    if name == "device" {
        pod.spec.containers[0].resources.claims.push(claim);
    } else {
        let mut container = Container::default();
        container.resources.claims.push(claim);
        pod.spec.init_containers.push(container);
    }
}

/// `8080`, `8080/UDP`, `8080@1.2.3.4`
fn port(text: &str) -> ContainerPort {
    let (text, address) = text.split_once('@').unwrap_or((text, ""));
    let (number, protocol) = text.split_once('/').unwrap_or((text, ""));
    ContainerPort {
        host_port: number.parse().expect("a port"),
        host_ip: address.to_owned(),
        protocol: protocol.to_owned(),
    }
}

/// `ReplicaSet/name`
pub fn owner(text: &str) -> OwnerReference {
    let (kind, name) = text.split_once('/').unwrap_or((text, "owner"));
    let api_version = match kind {
        "Node" | "ReplicationController" => "v1",
        "Job" => "batch/v1",
        _ => "apps/v1",
    };
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        controller: true,
    }
}

/// `zone;1`, then any of `anyway`, `by=SELECTOR`, `nil`, `min=3`, `taints=Honor`, `affinity=Ignore`, `match=KEY`. The
/// selector is the pod's own labels unless it says otherwise.
pub fn spread(text: &str, pod: &Pod) -> TopologySpreadConstraint {
    let mut fields = text.split(';');
    let mut constraint = TopologySpreadConstraint {
        topology_key: words::key(fields.next().expect("a key")),
        max_skew: fields.next().expect("a skew").parse().expect("a skew"),
        when_unsatisfiable: "DoNotSchedule".to_owned(),
        label_selector: Some(LabelSelector {
            match_labels: pod.metadata.labels.clone(),
            ..LabelSelector::default()
        }),
        ..TopologySpreadConstraint::default()
    };
    for field in fields {
        let (name, rest) = field.split_once('=').unwrap_or((field, ""));
        match name {
            "anyway" => constraint.when_unsatisfiable = "ScheduleAnyway".to_owned(),
            "by" => constraint.label_selector = Some(words::selector(rest)),
            "in" => constraint.label_selector = Some(expression(rest)),
            "nil" => constraint.label_selector = None,
            "min" => constraint.min_domains = Some(rest.parse().expect("a number")),
            "taints" => constraint.node_taints_policy = Some(rest.to_owned()),
            "affinity" => constraint.node_affinity_policy = Some(rest.to_owned()),
            "match" => constraint.match_label_keys = rest.split(',').map(str::to_owned).collect(),
            other => panic!("unknown word for a spread: {other}"),
        }
    }
    constraint
}

fn expression(text: &str) -> LabelSelector {
    let (key, values) = text.split_once('=').expect("an expression");
    let values: Vec<&str> = values.split('|').collect();
    serde_json::from_value(json!({"matchExpressions": [{"key": key, "operator": "In", "values": values}]}))
        .expect("a selector")
}

/// `host;by=app=web`, then `ns=a|b` or `ns-sel=team=x` (empty selects every namespace).
fn affinity(text: &str) -> PodAffinityTerm {
    let mut fields = text.split(';');
    let mut term = PodAffinityTerm {
        topology_key: words::key(fields.next().expect("a key")),
        ..PodAffinityTerm::default()
    };
    for field in fields {
        let (name, rest) = field.split_once('=').unwrap_or((field, ""));
        match name {
            "by" => term.label_selector = Some(words::selector(rest)),
            "ns" => term.namespaces = rest.split('|').map(str::to_owned).collect(),
            "ns-sel" => term.namespace_selector = Some(words::selector(rest)),
            "match" => term.match_label_keys = rest.split(',').map(str::to_owned).collect(),
            other => panic!("unknown word for an affinity: {other}"),
        }
    }
    term
}
