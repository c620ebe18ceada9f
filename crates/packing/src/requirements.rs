//! Requirements on many labels: merging them, and whether two sets can be met by one node.

use std::collections::BTreeMap;
use std::fmt;

use crate::labels;
use crate::requirement::{Operator, Requirement, RequirementSpec};

/// At most one requirement a label; adding another narrows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requirements(BTreeMap<String, Requirement>);

/// Which labels the other side may ask for although this side does not define them.
#[derive(Clone, Copy, Debug)]
pub enum Undefined<'a> {
    /// None: the node exists and has the labels it has.
    Denied,
    /// Well-known labels, and these.
    WellKnown(&'a [String]),
}

impl Undefined<'_> {
    pub fn allows(self, key: &str) -> bool {
        match self {
            Undefined::Denied => false,
            Undefined::WellKnown(extra) => labels::is_well_known(key, extra),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    #[error("label {key:?} does not have known values{hint}")]
    UnknownLabel { key: String, hint: String },
    #[error("key {key}, {incoming} not in {existing}")]
    Disjoint {
        key: String,
        incoming: Box<Requirement>,
        existing: Box<Requirement>,
    },
}

impl Requirements {
    pub fn new() -> Self {
        Requirements::default()
    }

    pub fn from_specs<'a>(specs: impl IntoIterator<Item = &'a RequirementSpec>) -> Self {
        specs.into_iter().map(Requirement::from).collect()
    }

    pub fn from_labels<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        labels
            .into_iter()
            .map(|(key, value)| Requirement::one_of(key, [value.as_str()]))
            .collect()
    }

    pub fn add(&mut self, requirement: Requirement) {
        let merged = match self.0.get(&requirement.key) {
            Some(existing) => requirement.intersection(existing),
            None => requirement,
        };
        self.0.insert(merged.key.clone(), merged);
    }

    /// Puts a requirement in place of the one there is, without narrowing it.
    pub fn replace(&mut self, requirement: Requirement) {
        self.0.insert(requirement.key.clone(), requirement);
    }

    pub fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    pub fn add_all(&mut self, other: &Requirements) {
        for requirement in other.iter() {
            self.add(requirement.clone());
        }
    }

    pub fn get(&self, key: &str) -> Option<&Requirement> {
        self.0.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Requirement> {
        self.0.values()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has_min_values(&self) -> bool {
        self.iter().any(|requirement| requirement.min_values.is_some())
    }

    /// Whether a node described by `self` can also meet `incoming`.
    pub fn compatible(&self, incoming: &Requirements, undefined: Undefined<'_>) -> Result<(), Incompatible> {
        for requirement in incoming.iter() {
            let may_lack = match undefined {
                Undefined::Denied => requirement.allows_absence(),
                Undefined::WellKnown(_) => requirement.allows_undefined(),
            };
            if undefined.allows(&requirement.key) || self.0.contains_key(&requirement.key) || may_lack {
                continue;
            }
            return Err(Incompatible::UnknownLabel {
                key: requirement.key.clone(),
                hint: self.hint(&requirement.key, undefined),
            });
        }
        self.intersects(incoming)
    }

    /// Whether the labels both define have values in common.
    pub fn intersects(&self, incoming: &Requirements) -> Result<(), Incompatible> {
        for requirement in incoming.iter() {
            if let Some(existing) = self.0.get(&requirement.key)
                && !existing.agrees_with(requirement)
            {
                return Err(Incompatible::Disjoint {
                    key: requirement.key.clone(),
                    incoming: Box::new(requirement.clone()),
                    existing: Box::new(existing.clone()),
                });
            }
        }
        Ok(())
    }

    fn hint(&self, key: &str, undefined: Undefined<'_>) -> String {
        let suffix = key.split_once('/').map_or(key, |(_, name)| name);
        let alike = |known: &str| known.contains(key) || known.ends_with(suffix);
        let well_known = [
            labels::NODE_POOL,
            labels::ZONE,
            labels::REGION,
            labels::INSTANCE_TYPE,
            labels::ARCHITECTURE,
            labels::OPERATING_SYSTEM,
            labels::CAPACITY_TYPE,
            labels::WINDOWS_BUILD,
        ];
        well_known
            .into_iter()
            .filter(|known| undefined.allows(known))
            .chain(self.0.keys().map(String::as_str))
            .find(|known| alike(known))
            .map_or_else(String::new, |known| format!(" (typo of {known:?}?)"))
    }

    pub fn to_specs(&self) -> Vec<RequirementSpec> {
        self.iter().flat_map(Requirement::to_specs).collect()
    }

    pub fn is_anything(&self, key: &str) -> bool {
        self.get(key)
            .is_none_or(|requirement| requirement.operator() == Operator::Exists)
    }
}

impl FromIterator<Requirement> for Requirements {
    fn from_iter<I: IntoIterator<Item = Requirement>>(requirements: I) -> Self {
        let mut result = Requirements::new();
        for requirement in requirements {
            result.add(requirement);
        }
        result
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown: Vec<String> = self
            .iter()
            .filter(|requirement| requirement.key != labels::HOSTNAME)
            .map(ToString::to_string)
            .collect();
        shown.sort();
        formatter.write_str(&shown.join(", "))
    }
}
