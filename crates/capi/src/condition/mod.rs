//! Conditions: what they should say ([`Report`]) and how they are stored (metav1 with Cluster API's order and limits, and
//! the v1beta1 form with a severity). All of it is pure.

pub mod legacy;
mod order;

use jiff::Timestamp;
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{Error, names::reason};

/// What Cluster API's schemas allow in `status.conditions`.
pub const MAX_CONDITIONS: usize = 32;
const MAX_MESSAGE_CHARACTERS: usize = 32768;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    True,
    False,
    Unknown,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }

    /// Anything that is neither true nor false is unknown.
    pub fn parse(text: &str) -> Self {
        match text {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

impl From<bool> for Status {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// What a condition should say. It becomes a stored condition by [`set`], which knows since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub type_: String,
    pub status: Status,
    pub reason: String,
    pub message: String,
}

impl Report {
    pub fn new(type_: &str, status: Status, reason: &str, message: impl Into<String>) -> Self {
        Self {
            type_: type_.to_owned(),
            status,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// Whether the stored condition already says what the report says, at this generation.
pub fn says(condition: &Condition, report: &Report, generation: Option<i64>) -> bool {
    condition.observed_generation == generation
        && condition.type_ == report.type_
        && condition.status == report.status.as_str()
        && condition.reason == stored_reason(&report.reason)
        && condition.message == stored_message(&report.message)
}

/// Sets one condition and keeps Cluster API's order. The transition time moves only when the status does.
/// Returns whether anything changed.
pub fn set(
    conditions: &mut Vec<Condition>,
    report: &Report,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let since = Time(to_seconds(now));
    let changed = match conditions
        .iter_mut()
        .find(|condition| condition.type_ == report.type_)
    {
        Some(condition) if says(condition, report, generation) => false,
        Some(condition) => {
            if condition.status != report.status.as_str() {
                report.status.as_str().clone_into(&mut condition.status);
                condition.last_transition_time = since;
            }
            condition.reason = stored_reason(&report.reason);
            condition.message = stored_message(&report.message);
            condition.observed_generation = generation;
            true
        }
        None => {
            conditions.push(Condition {
                type_: report.type_.clone(),
                status: report.status.as_str().to_owned(),
                reason: stored_reason(&report.reason),
                message: stored_message(&report.message),
                observed_generation: generation,
                last_transition_time: since,
            });
            true
        }
    };
    if changed {
        order::sort(conditions);
    }
    changed
}

pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Refuses more conditions than Cluster API's schemas allow, before the apiserver does.
pub fn check_count(conditions: &[Condition]) -> Result<(), Error> {
    let count = conditions.len();
    if count > MAX_CONDITIONS {
        return Err(Error::TooManyConditions {
            count,
            max: MAX_CONDITIONS,
        });
    }
    Ok(())
}

fn stored_reason(text: &str) -> String {
    // A condition without a reason is refused by the schema.
    if text.is_empty() {
        reason::NO_REASON_REPORTED
    } else {
        text
    }
    .to_owned()
}

fn stored_message(text: &str) -> String {
    shortened(text, MAX_MESSAGE_CHARACTERS)
}

/// The text, cut so that it has at most this many characters.
fn shortened(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some(_) => {
            let kept: String = text.chars().take(max - 3).collect();
            format!("{kept}...")
        }
    }
}

/// Kubernetes stores whole seconds; what we hold must equal what is read back.
fn to_seconds(timestamp: Timestamp) -> Timestamp {
    Timestamp::from_second(timestamp.as_second()).unwrap_or(timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn report(type_: &str, status: Status, reason: &str) -> Report {
        Report::new(type_, status, reason, "")
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut conditions = Vec::new();
        let fraction = Timestamp::new(10, 999_999_999).unwrap();
        assert!(set(
            &mut conditions,
            &report("Ready", Status::False, "NotReady"),
            Some(1),
            fraction
        ));
        assert_eq!(conditions[0].last_transition_time.0, at(10), "whole seconds");

        assert!(!set(
            &mut conditions,
            &report("Ready", Status::False, "NotReady"),
            Some(1),
            at(20)
        ));
        assert!(set(
            &mut conditions,
            &report("Ready", Status::False, "Waiting"),
            Some(1),
            at(20)
        ));
        assert_eq!(conditions[0].last_transition_time.0, at(10));
        assert_eq!(conditions[0].reason, "Waiting");

        assert!(set(
            &mut conditions,
            &report("Ready", Status::False, "Waiting"),
            Some(2),
            at(25)
        ));
        assert_eq!(conditions[0].observed_generation, Some(2));
        assert_eq!(conditions[0].last_transition_time.0, at(10));

        assert!(set(
            &mut conditions,
            &report("Ready", Status::True, "Ready"),
            Some(2),
            at(30)
        ));
        assert_eq!(conditions[0].last_transition_time.0, at(30));
    }

    #[test]
    fn a_reason_is_never_empty_and_a_message_fits() {
        let mut conditions = Vec::new();
        let long = Report::new("Ready", Status::True, "", "ü".repeat(40_000));
        set(&mut conditions, &long, None, at(0));
        assert_eq!(conditions[0].reason, "NoReasonReported");
        assert_eq!(conditions[0].message.chars().count(), MAX_MESSAGE_CHARACTERS);
        assert!(
            !set(&mut conditions, &long, None, at(9)),
            "shortened twice the same"
        );
    }
}
