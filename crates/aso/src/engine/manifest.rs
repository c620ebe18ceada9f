//! The object that the operator is given for a resource: the manifest as the user wrote it and Cluster API decided it, with its
//! owner, the mark by which the resource is known to be ours, and what the operator may do. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ApiResource;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use slipway_azure::{
    ResourceId, ownership,
    resource::{Reference, Shape},
    takeover::{BEFORE_PAUSE, POLICY, SKIP},
};
use slipway_capi::names::label;

use super::object::OperatedObject;
use crate::{inline::Inline, resources::hex};

/// On an object of the operator: a hash of what it was last given, so that a field that was taken out is noticed.
const GIVEN: &str = "slipway.dev/given";
/// As much of a value as an event shows.
const SHOWN: usize = 60;

/// What an object of the operator is made from, beside its manifest.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    pub namespace: String,
    pub cluster: String,
    pub controller: Option<OwnerReference>,
    pub mark: Option<String>,
    /// What the operator may do; `None`: as the manifest says.
    pub policy: Option<&'static str>,
    /// The operator is to look before it writes.
    pub looks: bool,
    /// Resources that the operator has no object for, and their ids: it finds them by those alone.
    pub elsewhere: Vec<(Reference, ResourceId)>,
}

/// An object of the operator as it is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    pub api: ApiResource,
    pub namespace: String,
    pub name: String,
    pub body: Value,
    /// It was told here to leave Azure alone, and may write again: its policy from then on.
    pub resumes: Option<Option<String>>,
}

/// A field that differs: path, before and after.
pub type FieldChange = (String, String, String);

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// The object that the operator is given.
pub fn desired(manifest: &Value, inline: &Inline, terms: &Terms, live: Option<&OperatedObject>) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!(inline.object.name));
    metadata.insert("namespace".to_owned(), json!(terms.namespace));
    let of = |member: &str| {
        manifest["metadata"][member]
            .as_object()
            .cloned()
            .unwrap_or_default()
    };
    let mut labels = of("labels");
    labels.insert(label::CLUSTER_NAME.to_owned(), json!(terms.cluster));
    let mut annotations = of("annotations");
    if let Some(policy) = terms.policy {
        annotations.insert(POLICY.to_owned(), json!(policy));
    }
    if terms.looks {
        annotations.insert(POLICY.to_owned(), json!(SKIP));
        annotations.insert(BEFORE_PAUSE.to_owned(), json!(""));
    }
    metadata.insert("labels".to_owned(), Value::Object(labels));
    metadata.insert("ownerReferences".to_owned(), json!(terms.controller.as_slice()));
    let mut spec = manifest["spec"].clone();
    if !spec.is_object() {
        spec = json!({});
    }
    by_id(&mut spec, inline, &terms.elsewhere);
    // Nothing changes an owner that Azure knows, not even from a name to the id that it means.
    if let Some(owner) = live.and_then(|live| live.0.data.pointer("/spec/owner"))
        && means_same(owner, &manifest["spec"]["owner"], &spec["owner"])
    {
        spec["owner"] = owner.clone();
    }
    if let Some(mark) = &terms.mark
        && Shape::spec(&inline.object.mapping).child("tags").is_map()
        && is_marked(&spec, live)
    {
        if !spec["tags"].is_object() {
            spec["tags"] = json!({});
        }
        spec["tags"][ownership::TAG] = json!(mark);
    }
    let hash = hash(&json!([metadata, annotations, spec]));
    annotations.insert(GIVEN.to_owned(), json!(hash));
    metadata.insert("annotations".to_owned(), Value::Object(annotations));
    json!({
        "apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": metadata, "spec": spec,
    })
}

/// Whether an owner as an object has it is the one that the manifest names, by name or by id.
fn means_same(found: &Value, named: &Value, by_id: &Value) -> bool {
    let same = |member: &str, other: &Value| {
        let id = |value: &Value| value[member].as_str().map(str::to_lowercase);
        id(found).is_some() && id(found) == id(other)
    };
    same("name", named) || same("armId", by_id)
}

/// No write is made for the mark alone: an object that has none gets it with the next change.
fn is_marked(spec: &Value, live: Option<&OperatedObject>) -> bool {
    let Some(live) = live else { return true };
    let found = &live.0.data["spec"];
    let has_mark = found["tags"].get(ownership::TAG).is_some();
    let mut changes = Vec::new();
    compare("spec", found, spec, &mut changes);
    has_mark || !changes.is_empty()
}

/// What the operator has no object for is named by its id.
fn by_id(spec: &mut Value, inline: &Inline, elsewhere: &[(Reference, ResourceId)]) {
    let id_of = |reference: &Reference| {
        let is_it = |(one, _): &&(Reference, ResourceId)| {
            (&one.group, &one.kind, &one.name) == (&reference.group, &reference.kind, &reference.name)
        };
        elsewhere.iter().find(is_it).map(|(_, id)| id)
    };
    if let Some(id) = inline.object.owner().as_ref().and_then(id_of) {
        spec["owner"] = json!({"armId": id.as_str()});
    }
    named_by_id(spec, &id_of);
}

fn named_by_id<'a>(value: &mut Value, id_of: &impl Fn(&Reference) -> Option<&'a ResourceId>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| named_by_id(item, id_of)),
        Value::Object(fields) => {
            let text = |name: &str| {
                fields
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let reference = Reference {
                group: text("group"),
                kind: text("kind"),
                name: text("name"),
                arm_id: None,
            };
            if !reference.group.is_empty()
                && let Some(id) = id_of(&reference)
            {
                *value = json!({"armId": id.as_str()});
                return;
            }
            fields.values_mut().for_each(|field| named_by_id(field, id_of));
        }
        _ => {}
    }
}

fn hash(value: &Value) -> String {
    hex(&Sha256::digest(value.to_string())[..12])
}

/// What of an object differs from what it is to be. `None`: nothing, and nothing that was given before is to be taken out.
pub fn differences(live: &OperatedObject, desired: &Value) -> Option<Vec<FieldChange>> {
    let found = json!({"metadata": live.0.metadata, "spec": live.0.data["spec"]});
    let mut changes = Vec::new();
    for member in ["labels", "annotations"] {
        let at = format!("metadata.{member}");
        compare(
            &at,
            &found["metadata"][member],
            &desired["metadata"][member],
            &mut changes,
        );
    }
    let is_given = !changes.iter().any(|(path, ..)| path.contains(GIVEN));
    changes.retain(|(path, ..)| !path.contains(GIVEN));
    compare("spec", &found["spec"], &desired["spec"], &mut changes);
    let owners = found["metadata"]["ownerReferences"].as_array();
    let is_owned = desired["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .all(|owner| owners.is_some_and(|owners| owners.iter().any(|one| one["uid"] == owner["uid"])));
    (!is_given || !is_owned || !changes.is_empty()).then_some(changes)
}

/// Every value of `desired` that `found` does not have.
fn compare(path: &str, found: &Value, desired: &Value, changes: &mut Vec<FieldChange>) {
    match (found, desired) {
        (_, Value::Null) => {}
        (Value::Object(found), Value::Object(desired)) => {
            for (name, value) in desired {
                let before = found.get(name).unwrap_or(&Value::Null);
                compare(&format!("{path}.{name}"), before, value, changes);
            }
        }
        (Value::Null, Value::Object(desired)) if desired.is_empty() => {}
        (Value::Array(found), Value::Array(desired)) if found.len() == desired.len() => {
            for (index, (before, value)) in found.iter().zip(desired).enumerate() {
                compare(&format!("{path}[{index}]"), before, value, changes);
            }
        }
        _ if found == desired => {}
        (Value::Null, _) => changes.push((path.to_owned(), "nothing".to_owned(), shown(desired))),
        _ => changes.push((path.to_owned(), shown(found), shown(desired))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inline::Policy;

    fn manifest() -> Value {
        json!({
            "apiVersion": "containerservice.azure.com/v1api20240901", "kind": "ManagedCluster",
            "metadata": {"name": "fleet", "annotations": {"serviceoperator.azure.com/credential-from": "sign-in"}},
            "spec": {"location": "westus3", "owner": {"name": "fleet"}, "agentPoolProfiles": [
                {"name": "a", "vnetSubnetReference": {"group": "network.azure.com", "kind": "VirtualNetworksSubnet", "name": "s"}}
            ]},
        })
    }

    fn make(manifest: &Value, terms: &Terms, live: Option<&OperatedObject>) -> Value {
        let inline = Inline::parse(manifest, 0, "team", Policy::Manage).unwrap();
        desired(manifest, &inline, terms, live)
    }

    fn terms() -> Terms {
        Terms {
            namespace: "team".to_owned(),
            cluster: "shop".to_owned(),
            controller: Some(OwnerReference {
                uid: "u".to_owned(),
                ..OwnerReference::default()
            }),
            mark: Some("m1".to_owned()),
            ..Terms::default()
        }
    }

    fn stored(body: &Value) -> OperatedObject {
        OperatedObject(serde_json::from_value(body.clone()).unwrap())
    }

    #[test]
    fn an_object_is_the_manifest_with_its_owner_its_cluster_and_our_mark() {
        let body = make(&manifest(), &terms(), None);
        assert_eq!(body["metadata"]["namespace"], "team");
        assert_eq!(body["metadata"]["labels"][label::CLUSTER_NAME], "shop");
        assert_eq!(
            body["metadata"]["annotations"]["serviceoperator.azure.com/credential-from"],
            "sign-in"
        );
        assert_eq!(body["spec"]["tags"][ownership::TAG], "m1");
        assert_eq!(body["spec"]["owner"], json!({"name": "fleet"}));
        assert!(body["metadata"]["annotations"][POLICY].is_null());
        let looking = Terms {
            looks: true,
            ..terms()
        };
        let quiet = make(&manifest(), &looking, None);
        let annotations = &quiet["metadata"]["annotations"];
        assert_eq!(
            (&annotations[POLICY], &annotations[BEFORE_PAUSE]),
            (&json!("skip"), &json!(""))
        );
    }

    #[test]
    fn what_the_operator_has_no_object_for_is_named_by_its_id() {
        let id = |text: &str| ResourceId::parse(text).unwrap();
        let reference = |group: &str, kind: &str, name: &str| Reference {
            group: group.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            arm_id: None,
        };
        let group = "/subscriptions/s/resourceGroups/fleet";
        let subnet = format!("{group}/providers/Microsoft.Network/virtualNetworks/v/subnets/s");
        let elsewhere = vec![
            (
                reference("resources.azure.com", "ResourceGroup", "fleet"),
                id(group),
            ),
            (
                reference("network.azure.com", "VirtualNetworksSubnet", "s"),
                id(&subnet),
            ),
        ];
        let body = make(&manifest(), &Terms { elsewhere, ..terms() }, None);
        assert_eq!(body["spec"]["owner"], json!({"armId": group}));
        assert_eq!(
            body["spec"]["agentPoolProfiles"][0]["vnetSubnetReference"],
            json!({"armId": subnet})
        );
    }

    #[test]
    fn nothing_differs_once_it_is_given_and_what_the_operator_adds_is_its_own() {
        let body = make(&manifest(), &terms(), None);
        let mut live = body.clone();
        live["spec"]["azureName"] = json!("fleet");
        live["metadata"]["annotations"]["serviceoperator.azure.com/resource-id"] = json!("/x");
        assert_eq!(
            differences(&stored(&live), &make(&manifest(), &terms(), Some(&stored(&live)))),
            None
        );
        let mut meddled = live.clone();
        meddled["spec"]["location"] = json!("eastus");
        let again = make(&manifest(), &terms(), Some(&stored(&meddled)));
        assert_eq!(
            differences(&stored(&meddled), &again).unwrap(),
            [(
                "spec.location".to_owned(),
                "\"eastus\"".to_owned(),
                "\"westus3\"".to_owned()
            )]
        );
        // A field that is taken out is in nothing but the hash.
        let mut less = manifest();
        less["spec"].as_object_mut().unwrap().remove("location");
        let after = make(&less, &terms(), Some(&stored(&live)));
        assert_eq!(differences(&stored(&live), &after), Some(Vec::new()));
        // Another holder, as after a move.
        let mut elsewhere = terms();
        elsewhere.controller.as_mut().unwrap().uid = "v".to_owned();
        assert!(
            differences(
                &stored(&live),
                &make(&manifest(), &elsewhere, Some(&stored(&live)))
            )
            .is_some()
        );
    }

    #[test]
    fn no_write_is_made_for_the_mark_alone_and_no_owner_is_changed() {
        let mut theirs = manifest();
        theirs["metadata"]["namespace"] = json!("team");
        theirs["spec"]["owner"] = json!({"name": "fleet"});
        let live = stored(&theirs);
        let body = make(&manifest(), &terms(), Some(&live));
        assert!(body["spec"]["tags"].is_null(), "{body}");
        let mut changed = manifest();
        changed["spec"]["dnsPrefix"] = json!("new");
        assert_eq!(
            make(&changed, &terms(), Some(&live))["spec"]["tags"][ownership::TAG],
            "m1"
        );
        let elsewhere = vec![(
            Reference {
                group: "resources.azure.com".to_owned(),
                kind: "ResourceGroup".to_owned(),
                name: "fleet".to_owned(),
                arm_id: None,
            },
            ResourceId::parse("/subscriptions/s/resourceGroups/fleet").unwrap(),
        )];
        let body = make(&manifest(), &Terms { elsewhere, ..terms() }, Some(&live));
        assert_eq!(body["spec"]["owner"], json!({"name": "fleet"}));
    }
}
