//! What all providers registered, by what it is looked up by.

use std::collections::BTreeMap;

use crate::{
    Condition, ConditionType, Id, Insight, Judgement, Kind, Link, OWN_REASONS, Part, Reason, Status,
};

/// Conditions that are True while something is under way or wrong, on every kind: Cluster API's own.
const TRUE_IS_NEWS: &[&str] = &[
    "Deleting",
    "Paused",
    "Remediating",
    "RollingOut",
    "ScalingDown",
    "ScalingUp",
    "Updating",
];
const SUMMARIES: &[&str] = &["Available", "Ready"];

/// How a condition is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Sums up the others.
    Summary,
    /// True is well.
    Good,
    /// True is news.
    News,
    /// True is bad news.
    Alarm,
}

/// A kind that nobody registered.
const UNKNOWN: Kind = Kind::new("", "", Part::Detail);

#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    kinds: BTreeMap<(&'static str, &'static str), Kind>,
    reasons: BTreeMap<&'static str, Vec<Reason>>,
    conditions: BTreeMap<(&'static str, &'static str), ConditionType>,
}

impl Catalogue {
    pub fn new(
        insights: impl IntoIterator<Item = Insight>,
        conditions: impl IntoIterator<Item = ConditionType>,
    ) -> Self {
        let mut catalogue = Self::default();
        let own = Insight {
            kinds: Vec::new(),
            reasons: OWN_REASONS.to_vec(),
        };
        for insight in [own].into_iter().chain(insights) {
            for kind in insight.kinds {
                catalogue.kinds.insert((kind.group, kind.kind), kind);
            }
            for reason in insight.reasons {
                let known = catalogue.reasons.entry(reason.name).or_default();
                if !known.contains(&reason) {
                    known.push(reason);
                }
            }
        }
        for condition in conditions {
            catalogue
                .conditions
                .insert((condition.kind, condition.name), condition);
        }
        catalogue
    }

    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.values()
    }

    /// Every reason, by name.
    pub fn reasons(&self) -> impl Iterator<Item = &Reason> {
        self.reasons.values().flatten()
    }

    pub fn conditions(&self) -> impl Iterator<Item = &ConditionType> {
        self.conditions.values()
    }

    pub fn is_known(&self, id: &Id) -> bool {
        self.kinds.contains_key(&(id.group.as_str(), id.kind.as_str()))
    }

    pub fn kind(&self, id: &Id) -> Kind {
        let known = self.kinds.get(&(id.group.as_str(), id.kind.as_str())).copied();
        known.unwrap_or_else(|| {
            // Another provider's: its place follows from its group and name, as Cluster API's contract has them.
            let part = match id.group.as_str() {
                _ if id.kind.ends_with("Template") => Part::Template,
                "controlplane.cluster.x-k8s.io" => Part::ControlPlane,
                "infrastructure.cluster.x-k8s.io" if id.kind.ends_with("Cluster") => Part::Infrastructure,
                _ => Part::Detail,
            };
            Kind { part, ..UNKNOWN }
        })
    }

    /// What a reason means on a kind. What is registered for part of its message goes before what is for the reason, and what
    /// is for the kind before what holds for all.
    pub fn reason(&self, kind: &str, name: &str, message: &str) -> Option<&Reason> {
        let of_name = |name| self.reasons.get(name).into_iter().flatten();
        of_name(name)
            .chain(of_name("").filter(|_| !name.is_empty()))
            .filter(|reason| reason.kinds.is_empty() || reason.kinds.contains(&kind))
            .filter(|reason| message.contains(reason.says))
            .max_by_key(|reason| (reason.says.len(), !reason.kinds.is_empty()))
    }

    /// What holds when a condition is True.
    pub fn meaning(&self, kind: &str, condition: &str) -> Option<&'static str> {
        let mut all = self.conditions.iter();
        let found = all.find(|((of, name), _)| *of == kind && *name == condition);
        found.map(|(_, condition)| condition.meaning)
    }

    pub fn has_conditions(&self, kind: &str) -> bool {
        self.conditions.keys().any(|(of, _)| *of == kind)
    }

    pub(crate) fn reading(kind: &Kind, condition: &Condition) -> Reading {
        let name = condition.name.as_str();
        if kind.alarms.contains(&name) {
            Reading::Alarm
        } else if SUMMARIES.contains(&name) || kind.summaries.contains(&name) {
            Reading::Summary
        } else if TRUE_IS_NEWS.contains(&name) {
            Reading::News
        } else {
            Reading::Good
        }
    }

    /// Whether a condition says something that a person wants to know.
    pub(crate) fn is_news(kind: &Kind, condition: &Condition) -> bool {
        let is_true = condition.status == Status::True;
        match Self::reading(kind, condition) {
            Reading::Summary | Reading::Good => !is_true,
            Reading::News | Reading::Alarm => is_true,
        }
    }

    /// Where to look for the cause of a reason that says itself that it lies elsewhere; `None` where it lies here.
    pub(crate) fn elsewhere(&self, kind: &Kind, of: &str, judgement: &Judgement) -> Option<Vec<Link>> {
        let reason = judgement.reason.as_str();
        let is_mirror = |(condition, _): &&(&str, Link)| *condition == judgement.condition;
        if let Some((_, link)) = kind.mirrors.iter().find(is_mirror) {
            return Some(vec![*link]);
        }
        let general = || {
            let owned = Link::Owned { group: "", kind: "" };
            let links = kind.children.iter().chain(kind.needs).copied();
            links.chain([owned]).collect()
        };
        match self.reason(of, reason, &judgement.message) {
            Some(known) => match known.elsewhere? {
                [] => Some(general()),
                links => Some(links.to_vec()),
            },
            None if reason.is_empty() || reason.starts_with("WaitingFor") || reason.starts_with("Not") => {
                Some(general())
            }
            None => None,
        }
    }
}
