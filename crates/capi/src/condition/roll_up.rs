//! Summary (many conditions of one object), aggregate (one condition of many objects) and mirror (one condition of
//! another object).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{Merge, Owned, Owner, Report, Status, find, merge::Reasons};
use crate::{Error, names::reason};

/// One condition out of several of the same object. The types are in their order of relevance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary<'a> {
    pub target: &'a str,
    pub types: &'a [&'a str],
    /// Types for which `True` is the bad news.
    pub negative: &'a [&'a str],
    /// Types that may be absent; any other that is absent counts as unknown.
    pub ignore_if_missing: &'a [&'a str],
    /// Said instead of what the object reports.
    pub overrides: &'a [Report],
    pub merge: Merge<'a>,
}

impl<'a> Summary<'a> {
    /// A summary with the reasons that suit the target.
    pub fn new(target: &'a str, types: &'a [&'a str], reasons: Reasons<'a>) -> Self {
        Self {
            target,
            types,
            merge: Merge {
                reasons,
                ..Merge::default()
            },
            ..Self::default()
        }
    }

    pub fn of(&self, owner: &Owner, conditions: &[Condition]) -> Result<Report, Error> {
        let fail = |problem: &str| Error::Merge {
            target: self.target.to_owned(),
            problem: problem.to_owned(),
        };
        if self.types.is_empty() {
            return Err(fail("no condition types are given"));
        }
        if self.types.contains(&self.target) {
            return Err(fail("it cannot be part of its own summary"));
        }
        for (index, given) in self.overrides.iter().enumerate() {
            if find(conditions, &given.type_).is_none() {
                return Err(fail(&format!(
                    "the overridden condition {} is not reported",
                    given.type_
                )));
            }
            if self.overrides[..index]
                .iter()
                .any(|other| other.type_ == given.type_)
            {
                return Err(fail(&format!(
                    "the condition {} is overridden twice",
                    given.type_
                )));
            }
        }
        let in_scope: Vec<_> = self
            .types
            .iter()
            .filter_map(|type_| match find(conditions, type_) {
                Some(condition) => Some(
                    self.overrides
                        .iter()
                        .find(|given| given.type_ == *type_)
                        .map_or_else(
                            || Owned::new(owner, condition),
                            |given| Owned {
                                owner: owner.clone(),
                                report: given.clone(),
                            },
                        ),
                ),
                None if self.ignore_if_missing.contains(type_) => None,
                None => Some(Owned::not_yet_reported(
                    owner,
                    type_,
                    "Condition not yet reported".to_owned(),
                )),
            })
            .collect();
        let merge = Merge {
            negative: self.negative,
            ..self.merge
        };
        merge
            .summary(self.target, in_scope, self.types)
            .ok_or_else(|| fail("there are no conditions to summarize"))
    }
}

/// One condition out of the same condition of several objects.
#[derive(Clone, Copy, Debug)]
pub struct Aggregate<'a> {
    pub target: &'a str,
    pub source: &'a str,
    pub merge: Merge<'a>,
}

impl<'a> Aggregate<'a> {
    /// An aggregate of a condition for which `True` is good news.
    pub fn new(target: &'a str, source: &'a str, reasons: Reasons<'a>) -> Self {
        Self {
            target,
            source,
            merge: Merge {
                reasons,
                ..Merge::default()
            },
        }
    }

    /// An aggregate of a condition for which `True` is bad news; so it is for the result.
    pub fn of_negative(target: &'a str, source: &'a [&'a str; 1], reasons: Reasons<'a>) -> Self {
        Self {
            target,
            source: source[0],
            merge: Merge {
                negative: source,
                target_is_positive: false,
                reasons,
                priority: None,
            },
        }
    }

    pub fn of<'b>(
        &self,
        objects: impl IntoIterator<Item = (Owner, &'b [Condition])>,
    ) -> Result<Report, Error> {
        let in_scope: Vec<_> = objects
            .into_iter()
            .map(|(owner, conditions)| match find(conditions, self.source) {
                Some(condition) => Owned::new(&owner, condition),
                None => Owned::not_yet_reported(
                    &owner,
                    self.source,
                    format!("Condition {} not yet reported", self.source),
                ),
            })
            .collect();
        self.merge
            .aggregate(self.target, in_scope, &[self.source])
            .ok_or_else(|| Error::Merge {
                target: self.target.to_owned(),
                problem: "there are no objects to aggregate".to_owned(),
            })
    }
}

/// What a mirror says when the source says nothing.
#[derive(Clone, Copy, Debug)]
pub struct Fallback<'a> {
    pub status: Status,
    pub reason: &'a str,
    pub message: &'a str,
}

/// Another object's condition, under a name of ours. The time of its last transition is kept.
pub fn mirror(
    source: &[Condition],
    source_type: &str,
    target: &str,
    fallback: Option<Fallback<'_>>,
) -> Report {
    match (find(source, source_type), fallback) {
        (Some(condition), _) => Report {
            type_: target.to_owned(),
            status: Status::parse(&condition.status),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: Some(condition.last_transition_time.0),
        },
        (None, Some(fallback)) => Report::new(target, fallback.status, fallback.reason, fallback.message),
        (None, None) => Report::new(
            target,
            Status::Unknown,
            reason::NOT_YET_REPORTED,
            format!("Condition {source_type} not yet reported"),
        ),
    }
}
