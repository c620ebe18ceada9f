//! From manifests to inline resources. One that cannot be read is a problem of its own and keeps no other from being made.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slipway_azure::resource::{AsoObject, Need, Reference, needs};

use super::{policy::Policy, policy::RECONCILE_POLICY, problem::Problem};
use crate::api::ResourceName;

/// The annotation that names the Secret a resource signs in with, in its namespace.
pub const CREDENTIAL_FROM: &str = "serviceoperator.azure.com/credential-from";
/// The annotation that keeps a resource from being deleted, whoever asks.
pub const PROTECTION: &str = "slipway.dev/deletion-protection";

/// One inline resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Inline {
    /// Where it stands in `spec.resources`.
    pub index: usize,
    pub object: AsoObject,
    pub policy: Policy,
    /// The Secret it signs in with, if it names one.
    pub credential: Option<String>,
    /// Whether it is never deleted.
    pub protected: bool,
    /// What it refers to by name.
    needs: Vec<Need>,
}

/// Where the resource at an index stands, for messages.
fn path(index: usize) -> String {
    format!("spec.resources[{index}]")
}

impl Inline {
    /// Reads one resource of an object in `namespace`. Its own namespace is not asked for: it is its object's.
    pub fn parse(
        manifest: &Value,
        index: usize,
        namespace: &str,
        default_policy: Policy,
    ) -> Result<Self, Problem> {
        let wrong = |expected| Problem::Malformed {
            path: path(index),
            expected,
        };
        if !manifest.is_object() {
            return Err(wrong(
                "must be an object with apiVersion, kind, metadata and spec",
            ));
        }
        let unusable = |error| Problem::Resource {
            path: path(index),
            error: Box::new(error),
        };
        let mut object = AsoObject::parse(manifest).map_err(unusable)?;
        namespace.clone_into(&mut object.namespace);
        let needs = needs(&object).map_err(unusable)?;
        let annotation = |name: &str| manifest["metadata"]["annotations"][name].as_str();
        Ok(Self {
            index,
            policy: annotation(RECONCILE_POLICY)
                .and_then(Policy::by_name)
                .unwrap_or(default_policy),
            credential: annotation(CREDENTIAL_FROM)
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
            protected: annotation(PROTECTION).is_some_and(|value| value != "false"),
            object,
            needs,
        })
    }

    /// Where it stands, for messages.
    pub fn path(&self) -> String {
        path(self.index)
    }

    pub fn name(&self) -> ResourceName {
        ResourceName {
            group: self.object.mapping.group.clone(),
            version: self.object.mapping.version.clone(),
            kind: self.object.mapping.kind.clone(),
            name: self.object.name.clone(),
        }
    }

    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.object.mapping.group == group && self.object.mapping.kind == kind
    }

    /// Everything it refers to by name.
    pub fn needs(&self) -> &[Need] {
        &self.needs
    }

    /// The resources it refers to by name, its owner among them.
    pub fn references(&self) -> impl Iterator<Item = &Reference> {
        self.needs.iter().filter_map(|need| match need {
            Need::Owner(reference) | Need::Resource(reference) => Some(reference),
            _ => None,
        })
    }

    /// Whether a reference means this resource: whatever the version, as long as group, kind and name are its own.
    pub fn is_meant_by(&self, reference: &Reference) -> bool {
        reference.name == self.object.name && self.is(&reference.group, &reference.kind)
    }
}

/// All resources of one object, and what is wrong with those that cannot be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    pub items: Vec<Inline>,
    pub problems: Vec<(ResourceName, Problem)>,
}

/// The name of a resource as far as its manifest tells.
fn named(manifest: &Value) -> ResourceName {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let api_version = text(&manifest["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version.as_str()));
    ResourceName {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: text(&manifest["kind"]),
        name: text(&manifest["metadata"]["name"]),
    }
}

impl Inventory {
    /// Reads `spec.resources` of an object in `namespace`.
    pub fn read(resources: &[Value], namespace: &str, default_policy: Policy) -> Self {
        let mut found = Self::default();
        let mut first = BTreeMap::new();
        for (index, manifest) in resources.iter().enumerate() {
            match Inline::parse(manifest, index, namespace, default_policy) {
                Ok(inline) => {
                    let name = inline.name();
                    let key = (name.group.clone(), name.kind.clone(), name.name.clone());
                    match first.get(&key) {
                        None => {
                            first.insert(key, index);
                            found.items.push(inline);
                        }
                        Some(&earlier) => {
                            let problem = Problem::Duplicate {
                                path: path(index),
                                object: inline.object.display(),
                                first: path(earlier),
                            };
                            found.problems.push((name, problem));
                        }
                    }
                }
                Err(problem) => found.problems.push((named(manifest), problem)),
            }
        }
        found
    }

    /// The first resource of a kind, and its index.
    pub fn first(&self, group: &str, kind: &str) -> Option<&Inline> {
        self.items.iter().find(|inline| inline.is(group, kind))
    }
}

/// The member of a manifest's spec at a path, to write to; what stands in between is made.
pub(crate) fn spec_member<'a>(manifest: &'a mut Value, names: &[&str]) -> Option<&'a mut Value> {
    let mut at = manifest
        .as_object_mut()?
        .entry("spec")
        .or_insert_with(|| json!({}));
    for name in names {
        if at.is_null() {
            *at = json!({});
        }
        at = at.as_object_mut()?.entry(*name).or_insert(Value::Null);
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str) -> Value {
        json!({
            "apiVersion": "resources.azure.com/v1api20200601", "kind": "ResourceGroup",
            "metadata": {"name": name, "namespace": "ignored"}, "spec": {"location": "eastus"},
        })
    }

    fn read(resources: &[Value]) -> Inventory {
        Inventory::read(resources, "ns", Policy::Manage)
    }

    #[test]
    fn a_bad_resource_is_a_problem_of_its_own() {
        let mut typo = group("typo");
        typo["spec"]["locatoin"] = json!("x");
        let mut other = group("b");
        other["kind"] = json!("ResourceGrup");
        let found = read(&[
            group("a"),
            json!("text"),
            typo,
            other,
            group("a"),
            json!({}),
            group("c"),
        ]);
        let names: Vec<_> = found
            .items
            .iter()
            .map(|inline| {
                (
                    inline.index,
                    inline.object.name.as_str(),
                    inline.object.namespace.as_str(),
                )
            })
            .collect();
        assert_eq!(names, [(0, "a", "ns"), (6, "c", "ns")]);
        let told: Vec<_> = found
            .problems
            .iter()
            .map(|(name, problem)| format!("{}/{} {}: {problem}", name.kind, name.name, problem.reason()))
            .collect();
        assert_eq!(
            told,
            [
                "/ InvalidResource: spec.resources[1]: must be an object with apiVersion, kind, metadata and spec",
                "ResourceGroup/typo InvalidResource: spec.resources[2]: ResourceGroup typo: spec.locatoin is not \
                 known in version v1api20200601",
                "ResourceGrup/b KindNotServed: spec.resources[3]: the kind ResourceGrup of \"resources.azure.com\" is not \
                 known: did you mean ResourceGroup?",
                "ResourceGroup/a DuplicateResource: spec.resources[4]: ResourceGroup a is already at \
                 spec.resources[0]: remove one of them, or give it another metadata.name",
                &told[4],
            ]
        );
        assert!(
            told[4].starts_with("/ KindNotServed: spec.resources[5]: "),
            "{}",
            told[4]
        );
    }

    #[test]
    fn annotations_say_how_a_resource_is_treated() {
        let with = |annotations: Value| {
            let mut manifest = group("a");
            manifest["metadata"]["annotations"] = annotations;
            let found = Inline::parse(&manifest, 0, "ns", Policy::DetachOnDelete).unwrap();
            (found.policy, found.credential, found.protected)
        };
        let default = Policy::DetachOnDelete;
        assert_eq!(with(json!({})), (default, None, false));
        assert_eq!(
            with(json!({RECONCILE_POLICY: "skip"})),
            (Policy::Skip, None, false)
        );
        assert_eq!(
            with(json!({RECONCILE_POLICY: "manage"})),
            (Policy::Manage, None, false)
        );
        assert_eq!(with(json!({RECONCILE_POLICY: "Skip"})), (default, None, false));
        assert_eq!(
            with(json!({CREDENTIAL_FROM: "sp", PROTECTION: "true"})),
            (default, Some("sp".to_owned()), true)
        );
        assert_eq!(
            with(json!({CREDENTIAL_FROM: "", PROTECTION: "false"})),
            (default, None, false)
        );
    }
}
