//! The labels and annotations of a Secret or ConfigMap that values go to, as a patch. Pure.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::inline::{Labelling, Member};

/// What a destination was labelled with: a label that is taken out of the spec goes by it.
const LABELLED: &str = "slipway.dev/labelled";

fn place(member: Member) -> &'static str {
    match member {
        Member::Label => "labels",
        Member::Annotation => "annotations",
    }
}

/// The labels and annotations that were set before.
fn before(metadata: &ObjectMeta) -> BTreeSet<(Member, String)> {
    let annotations = metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(LABELLED));
    let read: Value = text
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let mut found = BTreeSet::new();
    for member in [Member::Label, Member::Annotation] {
        let names = read[place(member)].as_array().into_iter().flatten();
        found.extend(names.filter_map(|name| Some((member, name.as_str()?.to_owned()))));
    }
    found
}

/// What of the labels and annotations of a destination is another, as a patch of its metadata; what others set stays. `None`:
/// nothing.
pub(super) fn relabelled(desired: &Labelling, stored: Option<&ObjectMeta>) -> Option<Value> {
    let stored = stored.cloned().unwrap_or_default();
    let has = |(member, name): &(Member, String)| {
        let all = match member {
            Member::Label => stored.labels.as_ref(),
            Member::Annotation => stored.annotations.as_ref(),
        };
        all.and_then(|all| all.get(name)).cloned()
    };
    let before = before(&stored);
    let mut patch = json!({});
    for (key, text) in desired
        .iter()
        .filter(|(key, text)| has(key).as_ref() != Some(*text))
    {
        patch[place(key.0)][&key.1] = json!(text);
    }
    for key in before.iter().filter(|key| !desired.contains_key(key)) {
        patch[place(key.0)][&key.1] = Value::Null;
    }
    if !before.iter().eq(desired.keys()) {
        let mut names = json!({});
        for member in [Member::Label, Member::Annotation] {
            let of_member = desired.keys().filter(|(one, _)| *one == member);
            names[place(member)] = of_member.map(|(_, name)| name.as_str()).collect();
        }
        let text = (!desired.is_empty()).then(|| names.to_string());
        patch["annotations"][LABELLED] = json!(text);
    }
    (patch != json!({})).then_some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(labels: &Value, annotations: &Value) -> ObjectMeta {
        serde_json::from_value(json!({"labels": labels, "annotations": annotations})).unwrap()
    }

    #[test]
    fn what_differs_is_set_what_is_taken_out_goes_and_what_others_set_stays() {
        let desired: Labelling = [
            ((Member::Label, "team".to_owned()), "a".to_owned()),
            ((Member::Annotation, "note".to_owned()), "b".to_owned()),
        ]
        .into();
        let record = r#"{"annotations":["note"],"labels":["team"]}"#;
        let made = relabelled(&desired, None).unwrap();
        assert_eq!(
            made,
            json!({"labels": {"team": "a"}, "annotations": {"note": "b", (LABELLED): record}})
        );
        let stored = metadata(
            &json!({"team": "a", "theirs": "x"}),
            &json!({"note": "b", (LABELLED): record}),
        );
        assert_eq!(relabelled(&desired, Some(&stored)), None);
        let meddled = metadata(&json!({"team": "z"}), &json!({"note": "b", (LABELLED): record}));
        assert_eq!(
            relabelled(&desired, Some(&meddled)),
            Some(json!({"labels": {"team": "a"}}))
        );
        assert_eq!(
            relabelled(&Labelling::new(), Some(&stored)),
            Some(json!({"labels": {"team": null}, "annotations": {"note": null, (LABELLED): null}}))
        );
        assert_eq!(relabelled(&Labelling::new(), Some(&ObjectMeta::default())), None);
        assert_eq!(relabelled(&Labelling::new(), None), None);
    }
}
