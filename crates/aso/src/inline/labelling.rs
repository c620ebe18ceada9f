//! Labels and annotations of the Secrets and ConfigMaps that values go to. Pure.

use std::{collections::BTreeMap, fmt};

use serde_json::Value;
use slipway_capi::names::label;

use super::problem::Problem;

/// Of an object's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Member {
    Label,
    Annotation,
}

impl fmt::Display for Member {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Label => "label",
            Self::Annotation => "annotation",
        })
    }
}

/// What a Secret or ConfigMap is labelled with: member and name, with the text.
pub type Labelling = BTreeMap<(Member, String), String>;

/// Begins the names that are the manager's own.
const OURS: &str = "slipway.dev/";

/// Reads `labels` and `annotations` of a destination.
pub fn written(destination: &Value, path: &str) -> Result<Labelling, Problem> {
    let mut found = Labelling::new();
    for (member, name) in [(Member::Label, "labels"), (Member::Annotation, "annotations")] {
        let here = format!("{path}.{name}");
        let wrong = |expected| Problem::Malformed {
            path: here.clone(),
            expected,
        };
        let members = match &destination[name] {
            Value::Null => continue,
            Value::Object(members) => members,
            _ => return Err(wrong("must be a map of texts")),
        };
        for (key, value) in members {
            let text = value.as_str().ok_or_else(|| wrong("must be a map of texts"))?;
            if key.starts_with(OURS) || key == label::CLUSTER_NAME {
                return Err(wrong("has a name that the manager sets itself: choose another"));
            }
            found.insert((member, key.clone()), text.to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_and_annotations_are_read_with_their_place() {
        let found = written(
            &json!({"name": "n", "labels": {"team": "a"}, "annotations": {"note": "b"}}),
            "at",
        )
        .unwrap();
        let expected = [
            ((Member::Label, "team".to_owned()), "a".to_owned()),
            ((Member::Annotation, "note".to_owned()), "b".to_owned()),
        ];
        assert_eq!(found, expected.into());
        assert_eq!(written(&json!({"labels": null}), "at"), Ok(Labelling::new()));
        for (destination, told) in [
            (json!({"labels": ["a"]}), "at.labels: must be a map of texts"),
            (
                json!({"annotations": {"a": 1}}),
                "at.annotations: must be a map of texts",
            ),
            (
                json!({"annotations": {"slipway.dev/x": "y"}}),
                "at.annotations: has a name that the manager sets itself: choose another",
            ),
            (
                json!({"labels": {"cluster.x-k8s.io/cluster-name": "y"}}),
                "at.labels: has a name that the manager sets itself: choose another",
            ),
        ] {
            assert_eq!(written(&destination, "at").unwrap_err().to_string(), told);
        }
    }
}
