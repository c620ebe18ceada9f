//! Whether what an UpgradePolicy wants to be well is so: pure, from the objects of the workload cluster. A status that is older than its
//! spec says nothing, and a gate that selects nothing is not passed: a selector with a slip in it would hold up nobody.

use std::fmt::Display;

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    core::v1::Node,
};
use kube::ResourceExt;

use super::api::HealthGate;

/// How many are named in a message.
const SHOWN: usize = 3;

/// What a gate is asked about.
#[derive(Clone, Debug)]
pub enum Found {
    Deployments(Vec<Deployment>),
    StatefulSets(Vec<StatefulSet>),
    DaemonSets(Vec<DaemonSet>),
    Nodes(Vec<Node>),
}

/// What is not well, each with its reason. `disturbed` machines are being upgraded: so many nodes, and Pods of each DaemonSet, may be away.
pub fn unhealthy(gate: &HealthGate, found: &Found, disturbed: usize) -> Vec<String> {
    let (number, unhealthy) = match found {
        Found::Deployments(found) => (found.len(), found.iter().filter_map(deployment).collect()),
        Found::StatefulSets(found) => (found.len(), found.iter().filter_map(stateful_set).collect()),
        Found::DaemonSets(found) => {
            let unhealthy = found.iter().filter_map(|set| daemon_set(set, disturbed));
            (found.len(), unhealthy.collect())
        }
        Found::Nodes(found) => (found.len(), nodes(found, disturbed)),
    };
    if number == 0 {
        return vec![format!(
            "there is no {} that a health gate selects",
            gate.describe()
        )];
    }
    unhealthy
}

/// A few of them in one line.
pub fn message(unhealthy: &[String]) -> String {
    let mut told: Vec<String> = unhealthy.iter().take(SHOWN).cloned().collect();
    if unhealthy.len() > SHOWN {
        told.push(format!("and {} more", unhealthy.len() - SHOWN));
    }
    told.join("; ")
}

fn told(object: &impl ResourceExt, kind: &str, what: impl Display) -> String {
    let namespace = object.namespace().unwrap_or_default();
    format!("{kind} {namespace}/{} {what}", object.name_any())
}

fn is_current(object: &impl ResourceExt, observed: Option<i64>) -> bool {
    observed.unwrap_or_default() >= object.meta().generation.unwrap_or_default()
}

fn deployment(object: &Deployment) -> Option<String> {
    let status = object.status.clone().unwrap_or_default();
    if !is_current(object, status.observed_generation) {
        return Some(told(
            object,
            "Deployment",
            "has not been looked at by its controller",
        ));
    }
    let mut conditions = status.conditions.iter().flatten();
    let is_available = conditions.any(|one| one.type_ == "Available" && one.status == "True");
    let desired = object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let available = status.available_replicas.unwrap_or_default();
    (!is_available).then(|| {
        let what = format!("is not available: {available} of {desired} Pods are");
        told(object, "Deployment", what)
    })
}

fn stateful_set(object: &StatefulSet) -> Option<String> {
    let status = object.status.clone().unwrap_or_default();
    if !is_current(object, status.observed_generation) {
        return Some(told(
            object,
            "StatefulSet",
            "has not been looked at by its controller",
        ));
    }
    let desired = object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let available = status.available_replicas.unwrap_or_default();
    (available < desired).then(|| {
        let what = format!("is not available: {available} of {desired} Pods are");
        told(object, "StatefulSet", what)
    })
}

fn daemon_set(object: &DaemonSet, disturbed: usize) -> Option<String> {
    let status = object.status.clone().unwrap_or_default();
    if !is_current(object, status.observed_generation) {
        return Some(told(
            object,
            "DaemonSet",
            "has not been looked at by its controller",
        ));
    }
    let (desired, available) = (
        status.desired_number_scheduled,
        status.number_available.unwrap_or(0),
    );
    let missing = usize::try_from(desired - available).unwrap_or(0);
    (missing > disturbed).then(|| {
        let what = format!("is not available: {available} of {desired} Pods are");
        told(object, "DaemonSet", what)
    })
}

fn nodes(found: &[Node], disturbed: usize) -> Vec<String> {
    let is_ready = |node: &&Node| {
        let conditions = node
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        conditions
            .clone()
            .any(|one| one.type_ == "Ready" && one.status == "True")
    };
    let away: Vec<String> = found
        .iter()
        .filter(|node| !is_ready(node))
        .map(|node| format!("Node {} is not ready", node.name_any()))
        .collect();
    if away.len() > disturbed { away } else { Vec::new() }
}
