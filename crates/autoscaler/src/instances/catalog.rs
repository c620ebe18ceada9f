//! Described objects become packing's instance types for one NodePool. Equal machines in several places are one type with
//! several offerings; each offering knows the object it stands for.

use std::collections::{BTreeMap, BTreeSet};

use slipway_packing::{
    labels,
    model::{InstanceType, Offering, Overhead, ResourceList, Taint},
    requirement::{Operator, RequirementSpec},
    taints::{PREFER_NO_SCHEDULE, is_same},
};

use super::{
    annotations::{Finding, FindingReason},
    describe::Shape,
    source::Reference,
};

/// What one NodePool can be given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalog {
    pub types: Vec<InstanceType>,
    /// The shapes behind the types: of each type, in the order of its offerings.
    pub offered: BTreeMap<String, Vec<Offered>>,
    /// Labels that Nodes get from their objects beyond Karpenter's own: pods may select on them.
    pub well_known_labels: Vec<String>,
    pub findings: Vec<Finding>,
}

/// An offering and the object it stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct Offered {
    pub reference: Reference,
    pub zone: String,
    pub capacity_type: String,
    pub price: f64,
    pub unavailable: Option<String>,
}

/// What makes machines the same type. Amounts are compared as what they are, not as they are written.
#[derive(Clone, Debug, PartialEq)]
struct Alike<'a> {
    name: &'a str,
    labels: &'a BTreeMap<String, String>,
    capacity: &'a ResourceList,
    overhead: &'a Overhead,
    volume_limits: &'a BTreeMap<String, u32>,
}

/// The instance types of a NodePool.
///
/// `pool_keys` are the labels that the NodePool gives its nodes itself, by label or requirement; `pool_taints` are its taints
/// and startup taints. An object whose nodes carry another taint is left out: pods would be planned onto nodes that refuse them.
pub fn catalog(shapes: &[Shape], pool: &str, pool_keys: &BTreeSet<String>, pool_taints: &[Taint]) -> Catalog {
    let mut result = Catalog::default();
    let mut groups: Vec<(Alike<'_>, Vec<&Shape>)> = Vec::new();
    let mut keys = BTreeSet::new();
    for shape in shapes {
        let undeclared = shape.taints.iter().find(|taint| {
            taint.effect != PREFER_NO_SCHEDULE && !pool_taints.iter().any(|known| is_same(known, taint))
        });
        if let Some(taint) = undeclared {
            result.findings.push(Finding {
                object: shape.reference.clone(),
                reason: FindingReason::UndeclaredTaint,
                message: format!(
                    "its nodes carry the taint {}={}:{}, which NodePool {pool} does not declare; add it to \
                     spec.template.spec.taints, or make a NodePool for tainted nodes",
                    taint.key, taint.value, taint.effect
                ),
                excludes: true,
            });
            continue;
        }
        keys.extend(
            shape
                .labels
                .keys()
                .filter(|key| !labels::is_well_known(key, &[]))
                .cloned(),
        );
        let alike = Alike {
            name: &shape.instance_type,
            labels: &shape.labels,
            capacity: &shape.capacity,
            overhead: &shape.overhead,
            volume_limits: &shape.volume_limits,
        };
        match groups.iter_mut().find(|(known, _)| *known == alike) {
            Some((_, members)) => members.push(shape),
            None => groups.push((alike, vec![shape])),
        }
    }
    for (alike, members) in &groups {
        let is_shared = groups
            .iter()
            .filter(|(other, _)| other.name == alike.name)
            .count()
            > 1;
        let name = if is_shared {
            told_apart(alike, members)
        } else {
            alike.name.to_owned()
        };
        let mut members = members.clone();
        members.sort_by(|one, other| {
            (&one.zone, &one.capacity_type, &one.reference).cmp(&(
                &other.zone,
                &other.capacity_type,
                &other.reference,
            ))
        });
        result
            .offered
            .insert(name.clone(), members.iter().map(|shape| offered(shape)).collect());
        result.types.push(InstanceType {
            requirements: requirements(alike, &members, &keys, pool_keys),
            capacity: alike.capacity.clone(),
            overhead: alike.overhead.clone(),
            offerings: members.iter().map(|shape| offering(shape)).collect(),
            volume_attachment_limits: alike.volume_limits.clone(),
            name,
        });
    }
    result.types.sort_by(|one, other| one.name.cmp(&other.name));
    result.well_known_labels = keys.into_iter().collect();
    result
}

/// Machines of one name that differ get names of their own: that of the first object that makes them.
fn told_apart(alike: &Alike<'_>, members: &[&Shape]) -> String {
    let first = members.iter().map(|shape| &shape.reference).min();
    first.map_or_else(
        || alike.name.to_owned(),
        |first| format!("{}@{first}", alike.name),
    )
}

fn offered(shape: &Shape) -> Offered {
    Offered {
        reference: shape.reference.clone(),
        zone: shape.zone.clone(),
        capacity_type: shape.capacity_type.clone(),
        price: shape.price.value(),
        unavailable: shape.unavailable.clone(),
    }
}

fn one_of(key: &str, values: &BTreeSet<&str>) -> RequirementSpec {
    let values: Vec<&str> = values.iter().copied().collect();
    RequirementSpec::new(key, Operator::In, &values)
}

fn offering(shape: &Shape) -> Offering {
    let mut requirements = vec![one_of(
        labels::CAPACITY_TYPE,
        &[shape.capacity_type.as_str()].into(),
    )];
    requirements.push(if shape.zone.is_empty() {
        RequirementSpec::new(labels::ZONE, Operator::DoesNotExist, &[])
    } else {
        one_of(labels::ZONE, &[shape.zone.as_str()].into())
    });
    Offering {
        requirements,
        price: shape.price.value(),
        available: shape.unavailable.is_none(),
        ..Offering::default()
    }
}

/// What holds for every machine of a type. A label that other types have and this one lacks is said to be absent, unless the
/// NodePool gives it: otherwise a pod that selects on it would be given a node without it.
fn requirements(
    alike: &Alike<'_>,
    members: &[&Shape],
    keys: &BTreeSet<String>,
    pool_keys: &BTreeSet<String>,
) -> Vec<RequirementSpec> {
    let mut requirements = vec![one_of(labels::INSTANCE_TYPE, &[alike.name].into())];
    for (key, value) in alike.labels {
        requirements.push(one_of(key, &[value.as_str()].into()));
    }
    for key in keys {
        if !alike.labels.contains_key(key) && !pool_keys.contains(key) {
            requirements.push(RequirementSpec::new(key, Operator::DoesNotExist, &[]));
        }
    }
    let capacity_types = members.iter().map(|shape| shape.capacity_type.as_str()).collect();
    requirements.push(one_of(labels::CAPACITY_TYPE, &capacity_types));
    let zones: BTreeSet<&str> = members
        .iter()
        .map(|shape| shape.zone.as_str())
        .filter(|zone| !zone.is_empty())
        .collect();
    if zones.is_empty() {
        requirements.push(RequirementSpec::new(labels::ZONE, Operator::DoesNotExist, &[]));
    } else if members.iter().all(|shape| !shape.zone.is_empty()) {
        requirements.push(one_of(labels::ZONE, &zones));
    }
    requirements
}
