//! Conditions as v1beta1 has them, with a severity. Upstream's kinds keep them in `status.conditions`, where people
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

fn rank(type_: &str) -> (bool, &str) {
    (type_ != READY, type_)
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
}
