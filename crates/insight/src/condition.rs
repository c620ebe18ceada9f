//! Conditions as an object has them, in whichever form: metav1 where core reads it first, else metav1 in the status, else
//! Cluster API's v1beta1 form with a severity.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::path;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Status {
    True,
    False,
    Unknown,
}

/// Of the v1beta1 form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Severity {
    Info,
    Warning,
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub name: String,
    pub status: Status,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

/// The conditions of an object: the newest form that it has, with the severity of the older one beside it.
pub fn conditions(object: &Value) -> Vec<Condition> {
    let status = &object["status"];
    let list = |value: &Value| -> Vec<Condition> {
        value.as_array().into_iter().flatten().filter_map(read).collect()
    };
    let forms = [
        list(&status["v1beta2"]["conditions"]),
        list(&status["conditions"]),
        list(&status["deprecated"]["v1beta1"]["conditions"]),
    ];
    let mut found: Vec<Condition> = Vec::new();
    for older in forms {
        for one in &mut found {
            let before = older
                .iter()
                .find(|old| old.name == one.name && old.status == one.status);
            one.severity = one.severity.or(before.and_then(|old| old.severity));
        }
        // Some kinds of core say nothing in the new form but whether they are paused.
        if found.iter().all(|one| one.name == "Paused") {
            let is_new = |one: &Condition| !found.iter().any(|known| known.name == one.name);
            let new: Vec<Condition> = older.into_iter().filter(is_new).collect();
            found.extend(new);
        }
    }
    found
}

fn read(value: &Value) -> Option<Condition> {
    let text = |pointer| path::text(value, pointer).unwrap_or_default().to_owned();
    let name = path::text(value, "/type")?.to_owned();
    let severity = match text("/severity").as_str() {
        "Info" => Some(Severity::Info),
        "Warning" => Some(Severity::Warning),
        "Error" => Some(Severity::Error),
        _ => None,
    };
    Some(Condition {
        name,
        status: match text("/status").as_str() {
            "True" => Status::True,
            "False" => Status::False,
            _ => Status::Unknown,
        },
        reason: text("/reason"),
        message: text("/message"),
        since: path::time(value, "/lastTransitionTime"),
        severity,
        generation: path::number(value, "/observedGeneration"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newer_form_counts_and_the_older_one_has_the_severity() {
        let object = json!({"status": {
            "conditions": [
                {"type": "Ready", "status": "False", "severity": "Error", "reason": "Old"},
                {"type": "Gone", "status": "False"},
            ],
            "v1beta2": {"conditions": [
                {"type": "Ready", "status": "False", "reason": "New", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]},
        }});
        let found = conditions(&object);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].reason, "New");
        assert_eq!(found[0].severity, Some(Severity::Error));
        assert_eq!(found[0].since, "2026-01-01T00:00:00Z".parse().ok());
    }

    #[test]
    fn what_is_no_condition_is_left_out() {
        let object = json!({"status": {"conditions": [{"status": "True"}, 7, {"type": "Odd", "status": 3}]}});
        let found = conditions(&object);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].status, Status::Unknown);
    }
}
