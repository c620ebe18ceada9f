//! NodeOverlays over what machines are said to be like: which of them are applied, what they change, and what is wrong with the
//! others. Pure. They are taken in the order of their weight; what a heavier one said of a machine stands.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use kube::ResourceExt;
use slipway_packing::{
    labels::{self, normalized},
    model::ResourceList,
    quantity::Quantity,
    requirement::{Operator, Requirement, RequirementSpec},
    requirements::{Requirements, Undefined},
    resources::{CPU, MEMORY, PODS},
};

use super::{
    describe::{EPHEMERAL_STORAGE, Shape},
    price::Price,
    source::Reference,
};
use crate::api::{NodeOverlay, NodeOverlaySpec};

/// What overlays have changed of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlaid {
    pub price: bool,
    pub capacity: bool,
}

/// A NodePool as overlays see it: its template's labels, and what its class can give.
#[derive(Clone, Copy, Debug)]
pub struct PoolShapes<'a> {
    pub name: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    pub shapes: &'a [Shape],
}

/// Why an overlay is not applied to anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error("{0}")]
    Invalid(String),
    #[error(
        "NodeOverlay {other} says the {what} of {object} in NodePool {pool} too, with the same weight {weight}: give one of them \
         another weight, or narrow the requirements of one"
    )]
    Conflict {
        other: String,
        what: String,
        object: Reference,
        pool: String,
        weight: i32,
    },
}

/// What an overlay says of a machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Price,
    Resource(String),
}

impl fmt::Display for Said {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Price => formatter.write_str("price"),
            Self::Resource(name) => formatter.write_str(name),
        }
    }
}

/// A machine of one NodePool.
type Place<'a> = (&'a str, &'a Reference);

/// Overlays, judged over everything that NodePools can be given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overlays {
    /// The heaviest first, with what each asks of machines.
    applied: Vec<(Arc<NodeOverlay>, Requirements)>,
    rejected: BTreeMap<String, Rejected>,
    /// Objects and NodePools that an applied one is for, by its name.
    reached: BTreeMap<String, (BTreeSet<Reference>, BTreeSet<String>)>,
}

fn weight(overlay: &NodeOverlay) -> i32 {
    overlay.spec.weight.unwrap_or(0)
}

/// What it says, whatever of it counts in the end.
fn said(spec: &NodeOverlaySpec) -> Vec<Said> {
    let price = (spec.price.is_some() || spec.price_adjustment.is_some()).then_some(Said::Price);
    let resources = spec.capacity.keys().cloned().map(Said::Resource);
    price.into_iter().chain(resources).collect()
}

impl Overlays {
    /// Judges them all together: one that says of any machine what another of its weight has said already is not applied anywhere.
    pub fn judge(all: &[Arc<NodeOverlay>], pools: &[PoolShapes<'_>]) -> Self {
        let mut result = Overlays::default();
        let mut ordered: Vec<&Arc<NodeOverlay>> = all.iter().collect();
        // As Karpenter has it: of two with one weight, the one whose name is later in the alphabet comes first.
        ordered.sort_by_key(|overlay| std::cmp::Reverse((weight(overlay), overlay.name_any())));
        let mut known: BTreeMap<(Place<'_>, Said), (i32, String)> = BTreeMap::new();
        for overlay in ordered {
            let (name, weight) = (overlay.name_any(), weight(overlay));
            if let Some(why) = invalid(&overlay.spec) {
                result.rejected.insert(name, Rejected::Invalid(why));
                continue;
            }
            let asked = asked(&overlay.spec);
            let wanted = &asked;
            let places: Vec<Place<'_>> = pools
                .iter()
                .flat_map(|pool| {
                    let selected = pool
                        .shapes
                        .iter()
                        .filter(move |shape| selects(wanted, pool.name, pool.labels, shape));
                    selected.map(move |shape| (pool.name, &shape.reference))
                })
                .collect();
            let says: Vec<(Place<'_>, Said)> = said(&overlay.spec)
                .into_iter()
                .flat_map(|said| places.iter().map(move |place| (*place, said.clone())))
                .collect();
            let conflict = says.iter().find_map(|key| {
                let (of_other, other) = known.get(key)?;
                let ((pool, object), what) = key;
                (*of_other == weight).then(|| Rejected::Conflict {
                    other: other.clone(),
                    what: what.to_string(),
                    object: (*object).clone(),
                    pool: (*pool).to_owned(),
                    weight,
                })
            });
            if let Some(conflict) = conflict {
                result.rejected.insert(name, conflict);
                continue;
            }
            for key in says {
                known.insert(key, (weight, name.clone()));
            }
            let reached = result.reached.entry(name).or_default();
            for (pool, object) in places {
                reached.0.insert(object.clone());
                reached.1.insert(pool.to_owned());
            }
            result.applied.push((Arc::clone(overlay), asked));
        }
        result
    }

    /// Why one is not applied, if it is not.
    pub fn rejected(&self, overlay: &str) -> Option<&Rejected> {
        self.rejected.get(overlay)
    }

    /// What one is applied to, in words.
    pub fn reaches(&self, overlay: &str) -> String {
        match self.reached.get(overlay) {
            Some((objects, pools)) if !objects.is_empty() => {
                let pools: Vec<&str> = pools.iter().map(String::as_str).collect();
                format!(
                    "applied to the machines of {} objects in NodePools {}",
                    objects.len(),
                    pools.join(", ")
                )
            }
            _ => "no machine of any NodePool meets its requirements".to_owned(),
        }
    }

    /// Changes what the machines of a NodePool are like.
    pub fn lay_over(&self, pool: &str, labels: &BTreeMap<String, String>, shapes: &mut [Shape]) {
        for shape in shapes {
            let mut added = ResourceList::new();
            for (overlay, asked) in &self.applied {
                if !selects(asked, pool, labels, shape) {
                    continue;
                }
                if let Some(price) = priced(&overlay.spec, shape.price).filter(|_| !shape.overlaid.price) {
                    shape.price = price;
                    shape.overlaid.price = true;
                }
                for (name, amount) in &overlay.spec.capacity {
                    added.entry(name.clone()).or_insert(*amount);
                }
            }
            shape.overlaid.capacity = !added.is_empty();
            shape.capacity.extend(added);
        }
    }
}

/// The price after it, if it says one. Never less than nothing.
fn priced(spec: &NodeOverlaySpec, price: Price) -> Option<Price> {
    if let Some(given) = &spec.price {
        return given.parse().ok().map(Price::Known);
    }
    let adjustment = spec.price_adjustment.as_deref()?;
    let adjusted = match adjustment.strip_suffix('%') {
        Some(percent) => price.value() * (1.0 + percent.parse::<f64>().ok()? / 100.0),
        None => price.value() + adjustment.parse::<f64>().ok()?,
    };
    let adjusted = adjusted.max(0.0);
    Some(match price {
        Price::Known(_) => Price::Known(adjusted),
        Price::Guessed(_) => Price::Guessed(adjusted),
    })
}

fn asked(spec: &NodeOverlaySpec) -> Requirements {
    let specs = spec.requirements.iter().map(|one| RequirementSpec {
        key: normalized(&one.key).to_owned(),
        ..one.clone()
    });
    Requirements::from_specs(&specs.collect::<Vec<_>>())
}

/// Whether a machine's node will meet the requirements: a label that it will not have meets nothing but its absence.
fn selects(asked: &Requirements, pool: &str, labels: &BTreeMap<String, String>, shape: &Shape) -> bool {
    let mut has = Requirements::from_labels(labels);
    has.add_all(&Requirements::from_labels(&shape.claim_labels()));
    has.replace(Requirement::one_of(labels::NODE_POOL, [pool]));
    has.compatible(asked, Undefined::Denied).is_ok()
}

/// What the definition cannot say, or did not when the object was stored.
fn invalid(spec: &NodeOverlaySpec) -> Option<String> {
    spec.requirements
        .iter()
        .find_map(invalid_requirement)
        .or_else(|| invalid_capacity(&spec.capacity))
        .or_else(|| invalid_price(spec))
}

fn invalid_requirement(one: &RequirementSpec) -> Option<String> {
    let (key, operator) = (&one.key, one.operator.name());
    if let Some(restricted) = labels::restriction(normalized(key), &[]) {
        return Some(format!("requirement {key}: {restricted}"));
    }
    match one.operator {
        Operator::In | Operator::NotIn if one.values.is_empty() => {
            Some(format!("requirement {key}: {operator} needs a value"))
        }
        Operator::Gt | Operator::Lt | Operator::Gte | Operator::Lte => {
            let is_number = matches!(&one.values[..], [value] if value.parse::<u32>().is_ok());
            (!is_number)
                .then(|| format!("requirement {key}: {operator} needs one whole number that is not negative"))
        }
        Operator::In if normalized(key) == labels::CAPACITY_TYPE => {
            let known = [
                labels::CAPACITY_ON_DEMAND,
                labels::CAPACITY_SPOT,
                labels::CAPACITY_RESERVED,
            ];
            let none_known = !one.values.iter().any(|value| known.contains(&value.as_str()));
            none_known.then(|| {
                format!(
                    "requirement {key}: {} is none of {}",
                    one.values.join(", "),
                    known.join(", ")
                )
            })
        }
        _ => None,
    }
}

fn invalid_capacity(capacity: &ResourceList) -> Option<String> {
    capacity.iter().find_map(|(name, amount)| {
        if [CPU, MEMORY, EPHEMERAL_STORAGE, PODS].contains(&name.as_str()) {
            Some(format!(
                "capacity {name}: what everybody knows of machines cannot be changed, only other resources added"
            ))
        } else if *amount < Quantity::ZERO {
            Some(format!("capacity {name}: {amount} is less than nothing"))
        } else {
            None
        }
    })
}

fn invalid_price(spec: &NodeOverlaySpec) -> Option<String> {
    if spec.price.is_some() && spec.price_adjustment.is_some() {
        return Some("it sets both price and priceAdjustment: give one of them".to_owned());
    }
    let says_price = spec.price.is_some() || spec.price_adjustment.is_some();
    let is_number = priced(spec, Price::Known(1.0)).is_some_and(|price| price.value().is_finite());
    (says_price && !is_number)
        .then(|| "price and priceAdjustment are numbers, such as 0.12, +0.5, -0.5, +10% or -15%".to_owned())
}
