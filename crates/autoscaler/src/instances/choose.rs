//! Which object a claim's machine comes from: of those that meet its requirements and hold its requests, the cheapest, then the
//! emptiest zone.

use std::collections::BTreeMap;

use slipway_packing::{
    labels,
    model::{ResourceList, Taint},
    quantity::Quantity,
    requirement::{Operator, Requirement, RequirementSpec},
    requirements::Requirements,
    taints::{PREFER_NO_SCHEDULE, is_same},
};

use super::{describe::Shape, source::Reference};

/// What a claim asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demand {
    pub requirements: Vec<RequirementSpec>,
    pub requests: ResourceList,
    /// Its taints and startup taints: a machine may carry no others.
    pub taints: Vec<Taint>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Choice<'a> {
    pub shape: &'a Shape,
    /// Why this one, in a sentence.
    pub why: String,
}

/// Why nothing was chosen, by object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("none of {} objects can give a machine{}", .by_object.len(), joined(.by_object))]
pub struct NoChoice {
    pub by_object: Vec<(Reference, String)>,
}

fn joined(by_object: &[(Reference, String)]) -> String {
    let parts: Vec<String> = by_object
        .iter()
        .map(|(object, why)| format!("{object}: {why}"))
        .collect();
    if parts.is_empty() {
        String::new()
    } else {
        format!(": {}", parts.join("; "))
    }
}

/// Chooses. `claims` is how many claims each object already has beyond its machines; `in_zone` how many nodes each zone has.
pub fn choose<'a>(
    demand: &Demand,
    shapes: &'a [Shape],
    in_zone: &BTreeMap<String, usize>,
) -> Result<Choice<'a>, NoChoice> {
    let asked = Requirements::from_specs(&demand.requirements);
    let mut fitting: Vec<&Shape> = Vec::new();
    let mut by_object = Vec::new();
    for shape in shapes {
        match refusal(shape, &asked, demand) {
            None => fitting.push(shape),
            Some(why) => by_object.push((shape.reference.clone(), why)),
        }
    }
    let nodes = |shape: &Shape| in_zone.get(&shape.zone).copied().unwrap_or(0);
    fitting.sort_by(|one, other| {
        one.price
            .value()
            .total_cmp(&other.price.value())
            .then_with(|| nodes(one).cmp(&nodes(other)))
            .then_with(|| one.reference.cmp(&other.reference))
    });
    let Some(shape) = fitting.first() else {
        return Err(NoChoice { by_object });
    };
    let why = format!(
        "{} of {} at {} per hour: the cheapest of {} that fit",
        shape.instance_type,
        shape.reference,
        shape.price.value(),
        fitting.len()
    );
    Ok(Choice { shape, why })
}

/// Why an object's machine is not what is asked for. Only labels that both sides speak of are compared, as planning does:
/// a label of the object that the NodePool does not mention refuses nothing.
fn refusal(shape: &Shape, asked: &Requirements, demand: &Demand) -> Option<String> {
    if let Some(why) = &shape.unavailable {
        return Some(why.clone());
    }
    let mut has: Requirements = shape
        .claim_labels()
        .iter()
        .map(|(key, value)| Requirement::one_of(key, [value.as_str()]))
        .collect();
    if shape.zone.is_empty() {
        has.add(Requirement::new(
            labels::ZONE,
            Operator::DoesNotExist,
            [""; 0],
            None,
        ));
    }
    if let Err(error) = has.intersects(asked) {
        return Some(error.to_string());
    }
    let undeclared = shape.taints.iter().find(|taint| {
        taint.effect != PREFER_NO_SCHEDULE && !demand.taints.iter().any(|known| is_same(known, taint))
    });
    if let Some(taint) = undeclared {
        return Some(format!(
            "its nodes carry the taint {}:{}, which the claim does not",
            taint.key, taint.effect
        ));
    }
    let allocatable = shape.allocatable();
    let short = demand.requests.iter().find(|(name, asked)| {
        !asked.is_zero() && allocatable.get(name).copied().unwrap_or(Quantity::ZERO) < **asked
    });
    short.map(|(name, asked)| {
        let left = allocatable.get(name).copied().unwrap_or_default();
        format!("{asked} of {name} are asked for and it has {left}")
    })
}
