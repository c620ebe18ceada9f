//! Where conditions live in an object's status, and the patch that writes a status only if it differs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{MAX_CONDITIONS, legacy::LegacyCondition};
use crate::{Error, names::reason};

/// How a kind stores its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A kind of our own: metav1 conditions in `status.conditions`.
    Own,
    /// A peer's kind: the old form in `status.conditions`, metav1 conditions in `status.v1beta2.conditions`.
    Peer,
}

/// Puts conditions into a status where the form has them. The old form is left out for kinds of our own.
pub fn place(form: Form, status: &mut Value, conditions: &[Condition], legacy: &[LegacyCondition]) {
    if !status.is_object() {
        *status = json!({});
    }
    let stored = json!(conditions);
    match form {
        Form::Own => status["conditions"] = stored,
        Form::Peer => {
            status["conditions"] = json!(legacy);
            if !status["v1beta2"].is_object() {
                status["v1beta2"] = json!({});
            }
            status["v1beta2"]["conditions"] = stored;
        }
    }
}

/// An object's metav1 conditions, looked for where Cluster API's core looks: `status.v1beta2.conditions` first.
/// An old-form condition is read as far as it goes; one without type or status is an error, as it is to core.
pub fn read(object: &Value) -> Result<Vec<Condition>, Error> {
    let status = &object["status"];
    let list = [&status["v1beta2"]["conditions"], &status["conditions"]]
        .into_iter()
        .find_map(Value::as_array);
    let Some(list) = list else {
        return Ok(Vec::new());
    };
    let fail = |problem: String| Error::UnreadableConditions {
        kind: object["kind"].as_str().unwrap_or("object").to_owned(),
        name: object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        problem,
    };
    list.iter()
        .filter(|value| value.is_object())
        .map(|value| {
            let mut value = value.clone();
            // The newer form requires both; the older one may lack them.
            for (key, default) in [("lastTransitionTime", "1970-01-01T00:00:00Z"), ("status", "")] {
                if value[key].as_str().is_none_or(str::is_empty) {
                    value[key] = json!(default);
                }
            }
            let mut condition = Condition::deserialize(value).map_err(|error| fail(error.to_string()))?;
            if condition.type_.is_empty() {
                return Err(fail("type must be set for all conditions".to_owned()));
            }
            if !matches!(condition.status.as_str(), "True" | "False" | "Unknown") {
                return Err(fail(format!(
                    "status for the {} condition must be one of True, False, Unknown",
                    condition.type_
                )));
            }
            if condition.reason.is_empty() {
                reason::NO_REASON_REPORTED.clone_into(&mut condition.reason);
            }
            Ok(condition)
        })
        .collect()
}

/// The merge patch that turns the status `before` into `after`, or `None` if it is what it should be.
///
/// Lists are written whole. Where others write into the same lists (conditions of a shared kind), give the resource
/// version: then a write in between makes ours a conflict instead of undoing theirs.
pub fn status_patch(
    before: &Value,
    after: &Value,
    resource_version: Option<&str>,
) -> Result<Option<Value>, Error> {
    for list in [&after["conditions"], &after["v1beta2"]["conditions"]] {
        let count = list.as_array().map_or(0, Vec::len);
        if count > MAX_CONDITIONS {
            return Err(Error::TooManyConditions {
                count,
                max: MAX_CONDITIONS,
            });
        }
    }
    Ok(
        merge_difference(before, after).map(|status| match resource_version {
            None => json!({ "status": status }),
            Some(version) => json!({ "metadata": { "resourceVersion": version }, "status": status }),
        }),
    )
}

/// The RFC 7386 patch from `before` to `after`. `null` in `after` is the same as absent.
pub fn merge_difference(before: &Value, after: &Value) -> Option<Value> {
    let empty = Map::new();
    match (before, after) {
        (before, Value::Object(after)) => {
            let is_object = before.is_object();
            let before = before.as_object().unwrap_or(&empty);
            let mut patch = Map::new();
            for (key, value) in after {
                let old = before.get(key).unwrap_or(&Value::Null);
                if let Some(difference) = merge_difference(old, value) {
                    patch.insert(key.clone(), difference);
                }
            }
            for (key, old) in before {
                if !old.is_null() && after.get(key).is_none_or(Value::is_null) {
                    patch.insert(key.clone(), Value::Null);
                }
            }
            (!patch.is_empty() || !is_object).then_some(Value::Object(patch))
        }
        (before, after) => (before != after).then(|| after.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::{Report, Status, legacy, set};
    use jiff::Timestamp;

    fn conditions() -> (Vec<Condition>, Vec<LegacyCondition>) {
        let (mut new, mut old) = (Vec::new(), Vec::new());
        set(
            &mut new,
            &Report::new("Ready", Status::True, "Ready", ""),
            Some(1),
            Timestamp::UNIX_EPOCH,
        );
        legacy::set(
            &mut old,
            &legacy::LegacyReport::good("Ready"),
            Timestamp::UNIX_EPOCH,
        );
        (new, old)
    }

    #[test]
    fn peers_kinds_carry_both_forms_and_core_reads_the_newer() {
        let (new, old) = conditions();
        let mut status = json!({"ready": true});
        place(Form::Peer, &mut status, &new, &old);
        assert_eq!(status["conditions"][0].get("reason"), None);
        assert_eq!(status["v1beta2"]["conditions"][0]["reason"], "Ready");
        assert_eq!(status["ready"], true);
        assert_eq!(read(&json!({"status": status})).unwrap(), new);

        let mut own = json!(null);
        place(Form::Own, &mut own, &new, &old);
        assert_eq!(own["conditions"][0]["reason"], "Ready");
        assert_eq!(own.get("v1beta2"), None);
    }

    #[test]
    fn old_form_conditions_can_be_read_and_broken_ones_are_named() {
        let object = |condition: Value| {
            json!({"kind": "Boat", "metadata": {"name": "skiff"},
            "status": {"conditions": [condition]}})
        };
        let read_back = read(&object(json!({"type": "Ready", "status": "True"}))).unwrap();
        assert_eq!(read_back[0].reason, "NoReasonReported");
        let message = read(&object(json!({"type": "Ready", "status": "Maybe"})))
            .unwrap_err()
            .to_string();
        assert_eq!(
            message,
            "cannot read the conditions of Boat skiff: status for the Ready condition must be one of True, False, Unknown"
        );
        assert!(read(&object(json!({"status": "True"}))).is_err());
        assert_eq!(read(&json!({})).unwrap(), []);
    }

    #[test]
    fn a_status_that_is_as_it_should_be_is_not_written() {
        let status = json!({"ready": true, "conditions": [{"type": "Ready"}]});
        assert_eq!(status_patch(&status, &status, Some("7")).unwrap(), None);
        assert_eq!(
            status_patch(&json!({}), &json!({"gone": null}), None).unwrap(),
            None
        );
        assert_eq!(
            status_patch(
                &json!({"a": 1, "b": {"c": 1, "d": 2}, "e": [1]}),
                &json!({"b": {"c": 1, "d": 3}, "e": [1, 2]}),
                Some("7")
            )
            .unwrap(),
            Some(json!({"metadata": {"resourceVersion": "7"},
                "status": {"a": null, "b": {"d": 3}, "e": [1, 2]}}))
        );
    }

    #[test]
    fn more_conditions_than_the_schema_takes_are_refused_before_the_write() {
        let many: Vec<_> = (0..33)
            .map(|index| json!({"type": format!("T{index}")}))
            .collect();
        let error = status_patch(&json!({}), &json!({"conditions": many}), None).unwrap_err();
        assert!(error.to_string().contains("33 conditions"), "{error}");
    }

    proptest::proptest! {
        /// Applying the difference gives the target, whatever the two documents are.
        #[test]
        fn applying_a_difference_reaches_the_target(before in document(), after in document()) {
            let mut patched = before.clone();
            if let Some(patch) = merge_difference(&before, &after) {
                json_patch::merge(&mut patched, &patch);
            }
            proptest::prop_assert_eq!(patched, after);
        }
    }

    fn document() -> impl proptest::strategy::Strategy<Value = Value> {
        use proptest::prelude::*;
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (0..3i32).prop_map(Value::from)
        ];
        let value = leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[abc]", inner, 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        });
        prop::collection::btree_map("[abc]", value, 0..3)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }
}
