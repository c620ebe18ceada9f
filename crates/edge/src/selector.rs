//! Label selectors as facts: which objects are meant.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use slipway_runtime::admission::field::{FieldError, Path};

/// Whether the labels are selected. An absent or empty selector selects everything; one that cannot be read, nothing.
pub fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    match selector {
        None => true,
        Some(selector) => Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels)),
    }
}

/// Why a selector cannot be read.
pub fn error(selector: Option<&LabelSelector>, path: &Path) -> Option<FieldError> {
    for (index, expression) in selector?.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let has_values = expression.values.iter().flatten().next().is_some();
        match expression.operator.as_str() {
            "In" | "NotIn" if !has_values => {
                return Some(FieldError::required(
                    &path.child("values"),
                    "In and NotIn need values",
                ));
            }
            "Exists" | "DoesNotExist" if has_values => {
                return Some(FieldError::forbidden(
                    &path.child("values"),
                    "Exists and DoesNotExist take no values",
                ));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                return Some(FieldError::not_supported(
                    &path.child("operator"),
                    other,
                    &["In", "NotIn", "Exists", "DoesNotExist"],
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn selector(value: serde_json::Value) -> LabelSelector {
        serde_json::from_value(value).expect("a selector")
    }

    #[test]
    fn labels_are_selected_as_kubernetes_does_it() {
        let labels: BTreeMap<String, String> = [("site".to_owned(), "north".to_owned())].into();
        for (value, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"site": "north"}}), true),
            (json!({"matchLabels": {"site": "south"}}), false),
            (
                json!({"matchExpressions": [{"key": "site", "operator": "In", "values": ["north", "south"]}]}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "site", "operator": "DoesNotExist"}]}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "site", "operator": "Near", "values": ["north"]}]}),
                false,
            ),
        ] {
            assert_eq!(
                selects(Some(&selector(value.clone())), &labels),
                expected,
                "{value}"
            );
        }
        assert!(selects(None, &labels));
        let wrong = selector(json!({"matchExpressions": [{"key": "site", "operator": "Near"}]}));
        assert_eq!(
            error(Some(&wrong), &Path::new("spec.hostSelector"))
                .expect("an error")
                .to_string(),
            "spec.hostSelector.matchExpressions[0].operator: Unsupported value: \"Near\": supported values: \"In\", \"NotIn\", \
             \"Exists\", \"DoesNotExist\""
        );
    }
}
