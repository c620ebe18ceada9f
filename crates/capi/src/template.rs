//! Objects made from templates (`EdgeMachineTemplate` to `EdgeMachine`), as Cluster API makes them: everything of
//! `spec.template`, marked with what it was cloned from.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use rand::Rng;
use serde_json::{Value, json};

use crate::{
    Error,
    names::{TEMPLATE_SUFFIX, annotation, label},
    owner,
};

/// The letters of generated names: no vowels, so that no words come about, and nothing that is easily confused.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
const MAX_NAME_LENGTH: usize = 63;

/// A name nobody has: the base, cut to fit, and five random letters.
pub fn generate_name(base: &str, randomness: &mut impl Rng) -> String {
    let mut cut = base.len().min(MAX_NAME_LENGTH - SUFFIX_LENGTH);
    while !base.is_char_boundary(cut) {
        cut -= 1;
    }
    let suffix = (0..SUFFIX_LENGTH).map(|_| char::from(LETTERS[randomness.random_range(0..LETTERS.len())]));
    base[..cut].chars().chain(suffix).collect()
}

/// What an object made from a template is given beside the template.
#[derive(Clone, Debug, Default)]
pub struct NewObject {
    pub name: String,
    pub namespace: String,
    pub cluster_name: String,
    pub owner: Option<OwnerReference>,
    /// Win over those of the template.
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// The object a template describes.
pub fn clone(template: &Value, new: &NewObject) -> Result<Value, Error> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&template["kind"]);
    let name = text(&template["metadata"]["name"]);
    let api_version = text(&template["apiVersion"]);
    let fail = |problem: &str| Error::Template {
        kind: kind.clone(),
        name: name.clone(),
        problem: problem.to_owned(),
    };
    if kind.is_empty() || api_version.is_empty() {
        return Err(fail("it has no kind or apiVersion"));
    }
    if new.name.is_empty() {
        return Err(fail("the new object has no name"));
    }
    let inner = match &template["spec"]["template"] {
        Value::Null => json!({}),
        inner @ Value::Object(_) => inner.clone(),
        _ => return Err(fail("spec.template is not an object")),
    };
    let merged = |field: &str, given: &BTreeMap<String, String>| -> Result<BTreeMap<String, String>, Error> {
        let mut result: BTreeMap<String, String> = match &inner["metadata"][field] {
            Value::Null => BTreeMap::new(),
            map => serde_json::from_value(map.clone())
                .map_err(|_| fail(&format!("spec.template.metadata.{field} is not a map of strings")))?,
        };
        result.extend(given.clone());
        Ok(result)
    };
    let mut labels = merged("labels", &new.labels)?;
    labels.insert(label::CLUSTER_NAME.to_owned(), new.cluster_name.clone());
    let mut annotations = merged("annotations", &new.annotations)?;
    annotations.insert(annotation::CLONED_FROM_NAME.to_owned(), name.clone());
    annotations.insert(
        annotation::CLONED_FROM_GROUP_KIND.to_owned(),
        group_kind(&api_version, &kind),
    );

    let mut metadata = json!({
        "name": new.name,
        "namespace": new.namespace,
        "labels": labels,
        "annotations": annotations,
    });
    if let Some(owner) = &new.owner {
        metadata["ownerReferences"] = json!([owner]);
    }
    let mut object = inner.clone();
    object["metadata"] = metadata;
    if object["apiVersion"].as_str().is_none_or(str::is_empty) {
        object["apiVersion"] = json!(api_version);
    }
    if object["kind"].as_str().is_none_or(str::is_empty) {
        object["kind"] = json!(kind.strip_suffix(TEMPLATE_SUFFIX).unwrap_or(&kind));
    }
    Ok(object)
}

/// `Kind.group`, as the cloned-from annotation has it.
pub fn group_kind(api_version: &str, kind: &str) -> String {
    match owner::group_of(api_version) {
        "" => kind.to_owned(),
        group => format!("{kind}.{group}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::StdRng};

    #[test]
    fn a_clone_carries_the_template_and_where_it_came_from() {
        let template = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "EdgeMachineTemplate",
            "metadata": {"name": "workers", "labels": {"not": "taken"}},
            "spec": {"template": {
                "metadata": {"labels": {"tier": "template", "kept": "yes"}, "annotations": {"a": "b"},
                    "finalizers": ["never"], "uid": "never"},
                "spec": {"host": {"cpu": 4}},
            }},
        });
        let owner = OwnerReference {
            api_version: "cluster.x-k8s.io/v1beta2".into(),
            kind: "Machine".into(),
            name: "m".into(),
            uid: "1".into(),
            ..Default::default()
        };
        let object = clone(
            &template,
            &NewObject {
                name: "workers-1".into(),
                namespace: "fleet".into(),
                cluster_name: "edge".into(),
                owner: Some(owner),
                labels: [("tier".to_owned(), "given".to_owned())].into(),
                annotations: BTreeMap::new(),
            },
        )
        .unwrap();
        assert_eq!(
            object,
            json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "EdgeMachine",
                "metadata": {
                    "name": "workers-1", "namespace": "fleet",
                    "labels": {"tier": "given", "kept": "yes", "cluster.x-k8s.io/cluster-name": "edge"},
                    "annotations": {
                        "a": "b",
                        "cluster.x-k8s.io/cloned-from-name": "workers",
                        "cluster.x-k8s.io/cloned-from-groupkind":
                            "EdgeMachineTemplate.infrastructure.cluster.x-k8s.io",
                    },
                    "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
                        "name": "m", "uid": "1"}],
                },
                "spec": {"host": {"cpu": 4}},
            })
        );
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations[annotation::CLONED_FROM_NAME], "workers");
        assert_eq!(
            annotations[annotation::CLONED_FROM_GROUP_KIND],
            "EdgeMachineTemplate.infrastructure.cluster.x-k8s.io"
        );
    }

    #[test]
    fn a_template_that_is_none_is_refused_with_its_name() {
        let new = NewObject {
            name: "a".into(),
            ..Default::default()
        };
        let template = json!({"apiVersion": "a/v1", "kind": "XTemplate", "metadata": {"name": "t"},
            "spec": {"template": "text"}});
        assert_eq!(
            clone(&template, &new).unwrap_err().to_string(),
            "the template XTemplate t cannot be cloned: spec.template is not an object"
        );
        let labels = json!({"apiVersion": "a/v1", "kind": "XTemplate", "metadata": {"name": "t"},
            "spec": {"template": {"metadata": {"labels": {"a": 1}}}}});
        assert!(
            clone(&labels, &new)
                .unwrap_err()
                .to_string()
                .contains("metadata.labels")
        );
    }

    #[test]
    fn generated_names_fit_and_differ() {
        let mut randomness = StdRng::seed_from_u64(1);
        let first = generate_name("workers-", &mut randomness);
        let second = generate_name("workers-", &mut randomness);
        assert_ne!(first, second);
        assert!(first.starts_with("workers-") && first.len() == 13, "{first}");
        let long = generate_name(&"x".repeat(80), &mut randomness);
        assert_eq!(long.len(), 63);
        assert!(long.bytes().skip(58).all(|letter| LETTERS.contains(&letter)));
    }
}
