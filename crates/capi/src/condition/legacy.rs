//! Conditions as v1beta1 has them, with a severity. The peers' kinds keep them in `status.conditions`, where people
//! and dashboards look.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Status;

const READY: &str = "Ready";
const MAX_MESSAGE_CHARACTERS: usize = 10240;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LegacyCondition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    /// Set only while the status is bad news.
    #[serde(default, skip_serializing_if = "Severity::is_none")]
    pub severity: Severity,
    #[serde(default = "epoch")]
    pub last_transition_time: Time,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

fn epoch() -> Time {
    Time(Timestamp::UNIX_EPOCH)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Severity {
    Error,
    Warning,
    Info,
    #[default]
    #[serde(rename = "", other)]
    None,
}

impl Severity {
    // The signature is serde's.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// What an old-form condition should say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyReport {
    pub type_: String,
    pub status: Status,
    pub severity: Severity,
    pub reason: String,
    pub message: String,
}

impl LegacyReport {
    /// Good news carries no reason.
    pub fn good(type_: &str) -> Self {
        Self {
            type_: type_.to_owned(),
            status: Status::True,
            severity: Severity::None,
            reason: String::new(),
            message: String::new(),
        }
    }

    pub fn bad(type_: &str, severity: Severity, reason: &str, message: impl Into<String>) -> Self {
        Self {
            type_: type_.to_owned(),
            status: Status::False,
            severity,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    pub fn unknown(type_: &str, reason: &str, message: impl Into<String>) -> Self {
        Self {
            type_: type_.to_owned(),
            status: Status::Unknown,
            severity: Severity::None,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    fn of(condition: &LegacyCondition) -> Self {
        Self {
            type_: condition.type_.clone(),
            status: Status::parse(&condition.status),
            severity: condition.severity,
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        }
    }
}

/// Sets one condition, `Ready` first and the others by name. In this form the time moves with any change.
/// Returns whether anything changed.
pub fn set(conditions: &mut Vec<LegacyCondition>, report: &LegacyReport, now: Timestamp) -> bool {
    let report = &LegacyReport {
        message: super::shortened(&report.message, MAX_MESSAGE_CHARACTERS),
        ..report.clone()
    };
    let existing = conditions
        .iter()
        .position(|condition| condition.type_ == report.type_);
    if existing.is_some_and(|index| LegacyReport::of(&conditions[index]) == *report) {
        return false;
    }
    let condition = LegacyCondition {
        type_: report.type_.clone(),
        status: report.status.as_str().to_owned(),
        severity: report.severity,
        last_transition_time: Time(super::to_seconds(now)),
        reason: report.reason.clone(),
        message: report.message.clone(),
    };
    match existing {
        Some(index) => conditions[index] = condition,
        None => conditions.push(condition),
    }
    conditions.sort_by(|left, right| rank(&left.type_).cmp(&rank(&right.type_)));
    true
}

pub fn find<'a>(conditions: &'a [LegacyCondition], type_: &str) -> Option<&'a LegacyCondition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

pub fn remove(conditions: &mut Vec<LegacyCondition>, type_: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.type_ != type_);
    conditions.len() != before
}

fn rank(type_: &str) -> (bool, &str) {
    (type_ != READY, type_)
}

/// How the old-form summary and aggregate are worded.
#[derive(Clone, Copy, Debug, Default)]
pub struct LegacyMerge<'a> {
    /// The conditions that count, in their order of relevance; all but `Ready` if absent.
    pub types: Option<&'a [&'a str]>,
    /// Types for which `True` is the bad news.
    pub negative: &'a [&'a str],
    /// Says `1 of 3 completed` instead of the first message.
    pub step_counter: bool,
    /// Counts steps only while no other than these conditions are reported; they are the number of steps.
    pub step_counter_if_only: Option<&'a [&'a str]>,
    /// Adds ` @ Kind/name` to the reason.
    pub source: Option<(&'a str, &'a str)>,
}

struct Scoped<'a> {
    condition: &'a LegacyCondition,
    negative: bool,
    /// Kind and name of the object, if it is to be named.
    object: Option<(&'a str, &'a str)>,
}

impl Scoped<'_> {
    fn status(&self) -> Status {
        let status = Status::parse(&self.condition.status);
        if self.negative { status.opposite() } else { status }
    }

    /// What counts first is last.
    fn rank(&self) -> u8 {
        match (self.status(), self.condition.severity) {
            (Status::False, Severity::Error) => 0,
            (Status::False, Severity::Warning) => 1,
            (Status::False, Severity::Info) => 2,
            (Status::True, _) => 3,
            (Status::Unknown, _) => 4,
            (Status::False, Severity::None) => 99,
        }
    }
}

/// `Ready` out of the object's other conditions. `None` if there is nothing to sum up.
pub fn summary(conditions: &[LegacyCondition], merge: LegacyMerge<'_>) -> Option<LegacyReport> {
    let scoped: Vec<_> = conditions
        .iter()
        .filter(|condition| condition.type_ != READY)
        .filter(|condition| {
            merge
                .types
                .is_none_or(|types| types.contains(&condition.type_.as_str()))
        })
        .map(|condition| Scoped {
            condition,
            negative: merge.negative.contains(&condition.type_.as_str()),
            object: merge.source,
        })
        .collect();
    let only = merge.step_counter_if_only;
    let counts = merge.step_counter
        && only.is_none_or(|only| {
            scoped
                .iter()
                .all(|scoped| only.contains(&scoped.condition.type_.as_str()))
        });
    let steps = counts.then(|| {
        only.map(<[_]>::len)
            .or(merge.types.map(<[_]>::len))
            .unwrap_or(scoped.len())
    });
    merged(READY, scoped, merge.types.unwrap_or_default(), steps)
}

/// `target` out of the `Ready` of several objects, given as kind, name and conditions.
pub fn aggregate<'a>(
    target: &str,
    objects: &'a [(&'a str, &'a str, &'a [LegacyCondition])],
    name_source: bool,
) -> Option<LegacyReport> {
    let scoped: Vec<_> = objects
        .iter()
        .filter_map(|(kind, name, conditions)| {
            find(conditions, READY).map(|condition| Scoped {
                condition,
                negative: false,
                object: name_source.then_some((*kind, *name)),
            })
        })
        .collect();
    merged(target, scoped, &[], Some(objects.len()))
}

/// Another object's `Ready` under a name of ours; the fallback if it has none.
pub fn mirror(
    source: &[LegacyCondition],
    target: &str,
    fallback: Option<LegacyReport>,
) -> Option<LegacyReport> {
    find(source, READY)
        .map(LegacyReport::of)
        .or(fallback)
        .map(|report| LegacyReport {
            type_: target.to_owned(),
            ..report
        })
}

fn merged(
    target: &str,
    mut scoped: Vec<Scoped<'_>>,
    order: &[&str],
    steps: Option<usize>,
) -> Option<LegacyReport> {
    let top = scoped.iter().map(Scoped::rank).min()?;
    let completed = scoped
        .iter()
        .filter(|scoped| scoped.status() == Status::True && scoped.condition.severity == Severity::None)
        .count();
    scoped.retain(|scoped| scoped.rank() == top);
    scoped.sort_by(|left, right| {
        rank(&left.condition.type_)
            .cmp(&rank(&right.condition.type_))
            .then_with(|| left.object.cmp(&right.object))
    });
    let first = order
        .iter()
        .find_map(|type_| scoped.iter().find(|scoped| scoped.condition.type_ == *type_))
        .or(scoped.first())?;
    let status = first.status();
    if status == Status::True {
        return Some(LegacyReport::good(target));
    }
    let reason = match first.object {
        Some((kind, name)) if !first.condition.reason.contains('@') => {
            format!("{} @ {kind}/{name}", first.condition.reason)
        }
        _ => first.condition.reason.clone(),
    };
    let message = match steps {
        Some(steps) => format!("{completed} of {steps} completed"),
        None => first.condition.message.clone(),
    };
    Some(LegacyReport {
        type_: target.to_owned(),
        status,
        severity: if status == Status::False {
            first.condition.severity
        } else {
            Severity::None
        },
        reason,
        message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn conditions(reports: &[LegacyReport]) -> Vec<LegacyCondition> {
        let mut conditions = Vec::new();
        for report in reports {
            set(&mut conditions, report, at(0));
        }
        conditions
    }

    #[test]
    fn the_form_is_that_of_v1beta1() {
        let mut stored = conditions(&[LegacyReport::good("Zone"), LegacyReport::good("Apple")]);
        set(
            &mut stored,
            &LegacyReport::bad("Ready", Severity::Warning, "Waiting", "for it"),
            at(7),
        );
        assert_eq!(
            serde_json::to_value(&stored).unwrap(),
            serde_json::json!([
                {"type": "Ready", "status": "False", "severity": "Warning", "reason": "Waiting",
                    "message": "for it", "lastTransitionTime": "1970-01-01T00:00:07Z"},
                {"type": "Apple", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"},
                {"type": "Zone", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"},
            ])
        );
        let back: Vec<LegacyCondition> =
            serde_json::from_value(serde_json::to_value(&stored).unwrap()).unwrap();
        assert_eq!(back, stored);
    }

    #[test]
    fn the_time_moves_with_any_change_but_not_without_one() {
        let mut stored = conditions(&[LegacyReport::bad("A", Severity::Info, "R", "one")]);
        assert!(!set(
            &mut stored,
            &LegacyReport::bad("A", Severity::Info, "R", "one"),
            at(5)
        ));
        assert_eq!(stored[0].last_transition_time.0, at(0));
        assert!(set(
            &mut stored,
            &LegacyReport::bad("A", Severity::Info, "R", "two"),
            at(5)
        ));
        assert_eq!(stored[0].last_transition_time.0, at(5));
    }

    #[test]
    fn errors_win_over_warnings_over_information_over_good_news_over_the_unknown() {
        let good = LegacyReport::good("Good");
        let unknown = LegacyReport::unknown("Unknown", "U", "unknown");
        let info = LegacyReport::bad("Info", Severity::Info, "I", "info");
        let warning = LegacyReport::bad("Warning", Severity::Warning, "W", "warning");
        let error = LegacyReport::bad("Error", Severity::Error, "E", "error");
        let sum = |reports: &[&LegacyReport]| {
            let reports: Vec<_> = reports.iter().map(|report| (*report).clone()).collect();
            summary(&conditions(&reports), LegacyMerge::default()).unwrap()
        };
        assert_eq!(sum(&[&good, &unknown]), LegacyReport::good("Ready"));
        assert_eq!(sum(&[&unknown]), LegacyReport::unknown("Ready", "U", "unknown"));
        assert_eq!(
            sum(&[&good, &info]),
            LegacyReport::bad("Ready", Severity::Info, "I", "info")
        );
        assert_eq!(
            sum(&[&good, &info, &warning]),
            LegacyReport::bad("Ready", Severity::Warning, "W", "warning")
        );
        assert_eq!(
            sum(&[&warning, &error, &info]),
            LegacyReport::bad("Ready", Severity::Error, "E", "error")
        );
        assert_eq!(summary(&[], LegacyMerge::default()), None);
    }

    #[test]
    fn steps_are_counted_where_asked() {
        let stored = conditions(&[
            LegacyReport::good("A"),
            LegacyReport::bad("B", Severity::Info, "Waiting", "long story"),
        ]);
        let merge = LegacyMerge {
            types: Some(&["A", "B", "C"]),
            step_counter: true,
            ..Default::default()
        };
        assert_eq!(summary(&stored, merge).unwrap().message, "1 of 3 completed");
        let merge = LegacyMerge {
            step_counter: true,
            step_counter_if_only: Some(&["A"]),
            ..Default::default()
        };
        assert_eq!(summary(&stored, merge).unwrap().message, "long story");
    }

    #[test]
    fn an_aggregate_counts_objects_and_names_its_source() {
        let good = conditions(&[LegacyReport::good("Ready")]);
        let bad = conditions(&[LegacyReport::bad("Ready", Severity::Error, "Broken", "x")]);
        let objects: Vec<(&str, &str, &[LegacyCondition])> = vec![
            ("Machine", "a", &good),
            ("Machine", "b", &bad),
            ("Machine", "c", &[]),
        ];
        assert_eq!(
            aggregate("MachinesReady", &objects, true).unwrap(),
            LegacyReport::bad(
                "MachinesReady",
                Severity::Error,
                "Broken @ Machine/b",
                "1 of 3 completed"
            )
        );
    }

    #[test]
    fn a_mirror_takes_ready_or_the_fallback() {
        let bad = conditions(&[LegacyReport::bad("Ready", Severity::Error, "Broken", "x")]);
        assert_eq!(
            mirror(&bad, "InfrastructureReady", None).unwrap(),
            LegacyReport::bad("InfrastructureReady", Severity::Error, "Broken", "x")
        );
        assert_eq!(mirror(&[], "InfrastructureReady", None), None);
        assert_eq!(
            mirror(&[], "InfrastructureReady", Some(LegacyReport::good("any"))),
            Some(LegacyReport::good("InfrastructureReady"))
        );
    }
}
