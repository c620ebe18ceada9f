//! One requirement on one label: a set of values or its complement, integer bounds, and the least number of values a
//! choice must keep. This is the algebra everything else stands on.

use std::cmp::{max, min};
use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::labels;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
    Gte,
    Lte,
}

impl Operator {
    pub const fn name(self) -> &'static str {
        match self {
            Operator::In => "In",
            Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            Operator::Gt => "Gt",
            Operator::Lt => "Lt",
            Operator::Gte => "Gte",
            Operator::Lte => "Lte",
        }
    }
}

/// A requirement as written in a manifest (`NodeSelectorRequirement`, with Karpenter's `minValues`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequirementSpec {
    pub key: String,
    pub operator: Operator,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_values: Option<u32>,
}

impl RequirementSpec {
    pub fn new(key: &str, operator: Operator, values: &[&str]) -> Self {
        RequirementSpec {
            key: key.to_owned(),
            operator,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
            min_values: None,
        }
    }
}

/// The canonical form. `Gt n` is held as `Gte n+1`, `Lt n` as `Lte n-1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    pub key: String,
    complement: bool,
    /// The label has to be there. `Exists` together with `NotIn` keeps this, and a set that two contradicting
    /// requirements left empty is not the same as the label's absence.
    present: bool,
    values: BTreeSet<String>,
    gte: Option<i64>,
    lte: Option<i64>,
    pub min_values: Option<u32>,
}

/// Kubernetes takes label values that are decimal integers as numbers; anything else is outside every bound.
fn as_integer(value: &str) -> Option<i64> {
    value.parse().ok()
}

fn within(value: &str, gte: Option<i64>, lte: Option<i64>) -> bool {
    if gte.is_none() && lte.is_none() {
        return true;
    }
    as_integer(value).is_some_and(|number| {
        gte.is_none_or(|bound| number >= bound) && lte.is_none_or(|bound| number <= bound)
    })
}

fn tighter(left: Option<i64>, right: Option<i64>, pick: fn(i64, i64) -> i64) -> Option<i64> {
    match (left, right) {
        (Some(left), Some(right)) => Some(pick(left, right)),
        (one, other) => one.or(other),
    }
}

impl Requirement {
    pub fn new(
        key: &str,
        operator: Operator,
        values: impl IntoIterator<Item = impl Into<String>>,
        min_values: Option<u32>,
    ) -> Self {
        let mut requirement = Requirement {
            key: labels::normalized(key).to_owned(),
            complement: !matches!(operator, Operator::In | Operator::DoesNotExist),
            present: !matches!(operator, Operator::NotIn | Operator::DoesNotExist),
            values: BTreeSet::new(),
            gte: None,
            lte: None,
            min_values,
        };
        let mut values = values.into_iter().map(Into::into);
        match operator {
            Operator::In | Operator::NotIn => requirement.values = values.collect(),
            Operator::Exists | Operator::DoesNotExist => {}
            Operator::Gt | Operator::Lt | Operator::Gte | Operator::Lte => {
                // Admission has checked that there is one integer; without one the bound counts as zero.
                let bound = values.next().as_deref().and_then(as_integer).unwrap_or(0);
                match operator {
                    Operator::Gt => match bound.checked_add(1) {
                        Some(bound) => requirement.gte = Some(bound),
                        None => return Requirement::impossible(key, None),
                    },
                    Operator::Gte => requirement.gte = Some(bound),
                    Operator::Lt => requirement.lte = Some(bound.saturating_sub(1)),
                    _ => requirement.lte = Some(bound),
                }
            }
        }
        requirement
    }

    pub fn one_of(key: &str, values: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Requirement::new(key, Operator::In, values, None)
    }

    /// Any value, as long as the label is there.
    pub fn anything(key: &str) -> Self {
        Requirement::new(key, Operator::Exists, [""; 0], None)
    }

    /// No value at all.
    pub fn nothing(key: &str, min_values: Option<u32>) -> Self {
        Requirement::new(key, Operator::DoesNotExist, [""; 0], min_values)
    }

    /// The label has to be there, and no value will do.
    fn impossible(key: &str, min_values: Option<u32>) -> Self {
        Requirement {
            present: true,
            ..Requirement::nothing(key, min_values)
        }
    }

    pub fn values(&self) -> &BTreeSet<String> {
        &self.values
    }

    pub fn is_complement(&self) -> bool {
        self.complement
    }

    /// How many values it allows; a complement allows nearly all.
    pub fn len(&self) -> u64 {
        if self.complement {
            i64::MAX as u64 - self.values.len() as u64
        } else {
            self.values.len() as u64
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn operator(&self) -> Operator {
        match (self.complement, self.values.is_empty()) {
            (true, true) => Operator::Exists,
            (true, false) => Operator::NotIn,
            (false, false) => Operator::In,
            (false, true) => Operator::DoesNotExist,
        }
    }

    /// Satisfied by a node without the label.
    pub fn allows_absence(&self) -> bool {
        !self.present
    }

    /// Satisfied by a node to be created of which nothing is known about the label: it may stay absent, or, where only
    /// some values are excluded, the node is given another one.
    pub fn allows_undefined(&self) -> bool {
        !self.present || self.operator() == Operator::NotIn
    }

    pub fn has(&self, value: &str) -> bool {
        self.values.contains(value) != self.complement && within(value, self.gte, self.lte)
    }

    /// What both allow.
    pub fn intersection(&self, other: &Requirement) -> Requirement {
        let gte = tighter(self.gte, other.gte, max);
        let lte = tighter(self.lte, other.lte, min);
        let min_values = max(self.min_values, other.min_values);
        if gte.zip(lte).is_some_and(|(gte, lte)| gte > lte) {
            return Requirement::impossible(&self.key, min_values);
        }
        let mut values: BTreeSet<String> = match (self.complement, other.complement) {
            (true, true) => self.values.union(&other.values).cloned().collect(),
            (true, false) => other.values.difference(&self.values).cloned().collect(),
            (false, true) => self.values.difference(&other.values).cloned().collect(),
            (false, false) => self.values.intersection(&other.values).cloned().collect(),
        };
        values.retain(|value| within(value, gte, lte));
        let complement = self.complement && other.complement;
        // A concrete set has been cut to its bounds and needs them no more.
        let (gte, lte) = if complement { (gte, lte) } else { (None, None) };
        Requirement {
            key: self.key.clone(),
            complement,
            present: self.present || other.present,
            values,
            gte,
            lte,
            min_values,
        }
    }

    /// Whether anything is allowed by both, without building what.
    pub fn intersects(&self, other: &Requirement) -> bool {
        let gte = tighter(self.gte, other.gte, max);
        let lte = tighter(self.lte, other.lte, min);
        if gte.zip(lte).is_some_and(|(gte, lte)| gte > lte) {
            return false;
        }
        match (self.complement, other.complement) {
            (true, true) => true,
            (true, false) => other
                .values
                .iter()
                .any(|value| !self.values.contains(value) && within(value, gte, lte)),
            (false, true) => self
                .values
                .iter()
                .any(|value| !other.values.contains(value) && within(value, gte, lte)),
            (false, false) => self
                .values
                .iter()
                .any(|value| other.values.contains(value) && within(value, gte, lte)),
        }
    }

    /// As [`Requirement::intersects`], but two requirements that a missing label satisfies agree on its absence.
    pub fn agrees_with(&self, incoming: &Requirement) -> bool {
        self.intersects(incoming) || (self.allows_absence() && incoming.allows_absence())
    }

    /// One value it allows, always the same one.
    pub fn any_value(&self) -> Option<String> {
        match self.operator() {
            Operator::In => self.values.first().cloned(),
            Operator::NotIn | Operator::Exists => {
                let mut candidate = self.gte.unwrap_or(0).min(self.lte.unwrap_or(i64::MAX));
                while self.values.contains(&candidate.to_string()) && candidate < i64::MAX {
                    candidate += 1;
                }
                Some(candidate.to_string())
            }
            _ => None,
        }
    }

    /// The manifest form; two entries where both bounds are set, because one entry can carry only one.
    pub fn to_specs(&self) -> Vec<RequirementSpec> {
        let spec = |operator, values: Vec<String>| RequirementSpec {
            key: self.key.clone(),
            operator,
            values,
            min_values: self.min_values,
        };
        let mut specs = Vec::new();
        if let Some(gte) = self.gte {
            specs.push(spec(Operator::Gte, vec![gte.to_string()]));
        }
        if let Some(lte) = self.lte {
            specs.push(spec(Operator::Lte, vec![lte.to_string()]));
        }
        if specs.is_empty() {
            specs.push(spec(self.operator(), self.values.iter().cloned().collect()));
        }
        specs
    }
}

impl From<&RequirementSpec> for Requirement {
    fn from(spec: &RequirementSpec) -> Self {
        Requirement::new(
            &spec.key,
            spec.operator,
            spec.values.iter().cloned(),
            spec.min_values,
        )
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operator = self.operator();
        write!(formatter, "{} {}", self.key, operator.name())?;
        if matches!(operator, Operator::In | Operator::NotIn) {
            let shown: Vec<&str> = self.values.iter().take(5).map(String::as_str).collect();
            write!(formatter, " [{}", shown.join(" "))?;
            if self.values.len() > 5 {
                write!(formatter, " and {} others", self.values.len() - 5)?;
            }
            formatter.write_str("]")?;
        }
        if let Some(gte) = self.gte {
            write!(formatter, " >={gte}")?;
        }
        if let Some(lte) = self.lte {
            write!(formatter, " <={lte}")?;
        }
        if let Some(min_values) = self.min_values {
            write!(formatter, " minValues {min_values}")?;
        }
        Ok(())
    }
}
