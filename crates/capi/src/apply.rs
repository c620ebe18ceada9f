//! Server-side apply with two field managers, as updates in place need it: one owns what is synced on every
//! reconcile (labels and annotations), the other the spec, which changes only when a machine is made or updated.
//! With a single manager a sync of labels would drop every field of the spec it does not repeat.
//!
//! The life of an object is: [`create`] applies everything with the spec manager and then lets go of its labels and
//! annotations; from then on [`metadata_intent`] goes out with the metadata manager and [`spec_intent`] with the
//! spec manager. Objects made before there were two managers are brought over once by [`migrate`].

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta, Time};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::{Map, Value, json};

use crate::{Error, names::label};

/// The two managers of one controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldManagers {
    pub spec: &'static str,
    pub metadata: &'static str,
}

/// The manager that writes without server-side apply were recorded under.
const CLASSIC_MANAGER: &str = "manager";
/// The manager under which the apiserver records the fields of an object that has no managed fields.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// What is applied of an object: never status, nor what the apiserver writes into the metadata.
pub fn spec_intent(object: &Value) -> Value {
    const METADATA: &[&str] = &[
        "name",
        "namespace",
        "uid",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
    ];
    let mut intent = json!({ "apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {} });
    for key in METADATA {
        let value = &object["metadata"][key];
        if !value.is_null() {
            intent["metadata"][key] = value.clone();
        }
    }
    if !object["spec"].is_null() {
        intent["spec"] = object["spec"].clone();
    }
    intent
}

/// Labels and annotations for the metadata manager, which makes it the owner of exactly these. The uid keeps the
/// apply from recreating an object that was deleted meanwhile.
pub fn metadata_intent<'a>(
    api_version: &str,
    kind: &str,
    metadata: &ObjectMeta,
    labels: impl IntoIterator<Item = (&'a str, &'a str)>,
    annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Value {
    let map = |pairs: &mut dyn Iterator<Item = (&'a str, &'a str)>| -> Value {
        Value::Object(pairs.map(|(key, value)| (key.to_owned(), json!(value))).collect())
    };
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "labels": map(&mut labels.into_iter()),
            "annotations": map(&mut annotations.into_iter()),
        },
    })
}

fn is_apply_of(entry: &ManagedFieldsEntry, manager: &str) -> bool {
    entry.manager.as_deref() == Some(manager)
        && entry.operation.as_deref() == Some("Apply")
        && entry.subresource.as_deref().unwrap_or_default().is_empty()
}

/// The merge patch by which the spec manager lets go of the labels and annotations it created the object with, so
/// that the metadata manager can own, and later unset, them. `None` if it owns none.
pub fn release_metadata(metadata: &ObjectMeta, managers: FieldManagers) -> Option<Value> {
    let mut entries = metadata.managed_fields.clone()?;
    let fields = entries
        .iter_mut()
        .find(|entry| is_apply_of(entry, managers.spec))?
        .fields_v1
        .as_mut()?;
    let owned = fields.0.get_mut("f:metadata")?.as_object_mut()?;
    let labels = owned.remove("f:labels").is_some();
    let annotations = owned.remove("f:annotations").is_some();
    if owned.is_empty()
        && let Some(all) = fields.0.as_object_mut()
    {
        all.remove("f:metadata");
    }
    (labels || annotations).then(|| write_managed_fields(metadata, &entries))
}

/// The merge patch that brings an object over that was made with one manager: recognised by the cluster-name label
/// among the fields of the spec manager. Both that entry and those of unapplied writes are dropped; the next two
/// applies own the fields again, each its own. `None` if the object has been brought over.
pub fn migrate(
    api_version: &str,
    metadata: &ObjectMeta,
    managers: FieldManagers,
    former: &[&str],
    now: Timestamp,
) -> Option<Value> {
    let entries = metadata.managed_fields.as_ref()?;
    let is_ours = |entry: &ManagedFieldsEntry| {
        is_apply_of(entry, managers.spec) || former.iter().any(|name| is_apply_of(entry, name))
    };
    let owns_cluster_name = |entry: &ManagedFieldsEntry| {
        entry.fields_v1.as_ref().is_some_and(|fields| {
            !fields.0["f:metadata"]["f:labels"][format!("f:{}", label::CLUSTER_NAME)].is_null()
        })
    };
    if !entries
        .iter()
        .any(|entry| is_ours(entry) && owns_cluster_name(entry))
    {
        return None;
    }
    let is_unapplied = |entry: &ManagedFieldsEntry| {
        entry.operation.as_deref() == Some("Update")
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
            && entry
                .manager
                .as_deref()
                .is_some_and(|manager| manager == CLASSIC_MANAGER || former.contains(&manager))
    };
    let mut kept: Vec<_> = entries
        .iter()
        .filter(|entry| !is_ours(entry) && !is_unapplied(entry))
        .cloned()
        .collect();
    kept.push(seed(api_version, managers.metadata, now));
    Some(write_managed_fields(metadata, &kept))
}

/// The merge patch that repairs an object whose managed fields the apiserver lost: without an entry of ours, it
/// would record all fields under a manager of its own at the next apply, and none could be unset again. `None` if
/// nothing is lost.
pub fn repair(api_version: &str, metadata: &ObjectMeta, manager: &str, now: Timestamp) -> Option<Value> {
    let entries = metadata.managed_fields.clone().unwrap_or_default();
    let is_guess = |entry: &ManagedFieldsEntry| entry.manager.as_deref() == Some(BEFORE_FIRST_APPLY);
    if !entries.is_empty() && !entries.iter().any(is_guess) {
        return None;
    }
    let mut kept: Vec<_> = entries.into_iter().filter(|entry| !is_guess(entry)).collect();
    if !kept.iter().any(|entry| is_apply_of(entry, manager)) {
        kept.push(seed(api_version, manager, now));
    }
    Some(write_managed_fields(metadata, &kept))
}

/// An entry that owns next to nothing; it is what keeps the apiserver from guessing.
fn seed(api_version: &str, manager: &str, now: Timestamp) -> ManagedFieldsEntry {
    ManagedFieldsEntry {
        manager: Some(manager.to_owned()),
        operation: Some("Apply".to_owned()),
        api_version: Some(api_version.to_owned()),
        time: Some(Time(now)),
        fields_type: Some("FieldsV1".to_owned()),
        fields_v1: Some(FieldsV1(json!({ "f:metadata": { "f:name": {} } }))),
        ..Default::default()
    }
}

/// Written under the resource version: managed fields are one list, and a stale one would undo others' entries.
fn write_managed_fields(metadata: &ObjectMeta, entries: &[ManagedFieldsEntry]) -> Value {
    json!({ "metadata": { "resourceVersion": metadata.resource_version, "managedFields": entries } })
}

/// Applies an intent with force: of its own fields a controller is the only author.
pub async fn apply(
    client: &Client,
    resource: &ApiResource,
    manager: &str,
    intent: &Value,
    dry_run: bool,
) -> Result<DynamicObject, Error> {
    let name = intent["metadata"]["name"].as_str().unwrap_or_default();
    let mut params = PatchParams::apply(manager).force();
    params.dry_run = dry_run;
    api(client, resource, intent)
        .patch(name, &params, &Patch::Apply(intent))
        .await
        .map_err(Error::api(format!("applying {}", describe(resource, intent))))
}

/// Sends a merge patch that names the object it is for. A resource version in it makes a stale write a conflict.
pub async fn merge(
    client: &Client,
    resource: &ApiResource,
    namespace: &str,
    name: &str,
    patch: &Value,
) -> Result<DynamicObject, Error> {
    Api::<DynamicObject>::namespaced_with(client.clone(), namespace, resource)
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map_err(Error::api(format!(
            "patching {} {namespace}/{name}",
            resource.kind
        )))
}

/// Makes an object that two managers share from the start: everything is applied by the spec manager, which then
/// lets go of labels and annotations. Calling it again is safe at every point.
pub async fn create(
    client: &Client,
    resource: &ApiResource,
    managers: FieldManagers,
    object: &Value,
) -> Result<DynamicObject, Error> {
    let stored = apply(client, resource, managers.spec, &spec_intent(object), false).await?;
    match release_metadata(&stored.metadata, managers) {
        None => Ok(stored),
        Some(patch) => {
            let name = stored.metadata.name.clone().unwrap_or_default();
            let namespace = stored.metadata.namespace.clone().unwrap_or_default();
            merge(client, resource, &namespace, &name, &patch).await
        }
    }
}

fn api(client: &Client, resource: &ApiResource, object: &Value) -> Api<DynamicObject> {
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

fn describe(resource: &ApiResource, object: &Value) -> String {
    format!(
        "{} {}",
        resource.kind,
        crate::owner::key(
            object["metadata"]["namespace"].as_str(),
            object["metadata"]["name"].as_str().unwrap_or_default()
        )
    )
}

/// The object reduced to what a hook may see: identity, labels, annotations and spec.
pub fn for_hook(object: &Value) -> Value {
    let mut metadata = Map::new();
    for key in ["name", "namespace", "labels", "annotations"] {
        let value = &object["metadata"][key];
        if !value.is_null() {
            metadata.insert(key.to_owned(), value.clone());
        }
    }
    json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": metadata,
        "spec": if object["spec"].is_null() { json!({}) } else { object["spec"].clone() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANAGERS: FieldManagers = FieldManagers {
        spec: "slipway-k3s",
        metadata: "slipway-k3s-metadata",
    };

    fn metadata(entries: &Value) -> ObjectMeta {
        serde_json::from_value(json!({
            "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "managedFields": entries,
        }))
        .unwrap()
    }

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "a/v1", "fieldsType": "FieldsV1",
            "fieldsV1": fields})
    }

    #[test]
    fn an_intent_has_no_status_and_nothing_the_apiserver_writes() {
        let intent = spec_intent(&json!({
            "apiVersion": "a/v1", "kind": "K",
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "generation": 3, "managedFields": [],
                "creationTimestamp": "x", "labels": {"l": "1"}},
            "spec": {"x": 1}, "status": {"ready": true},
        }));
        assert_eq!(
            intent,
            json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "a", "uid": "u", "labels": {"l": "1"}},
                "spec": {"x": 1}})
        );
    }

    #[test]
    fn the_spec_manager_lets_go_of_labels_and_annotations_only() {
        let ours = json!({"f:metadata": {"f:labels": {"f:a": {}}, "f:annotations": {"f:b": {}},
            "f:ownerReferences": {}}, "f:spec": {"f:x": {}}});
        let theirs = entry(
            "kubectl",
            "Apply",
            &json!({"f:metadata": {"f:labels": {"f:c": {}}}}),
        );
        let object = metadata(&json!([entry(MANAGERS.spec, "Apply", &ours), theirs.clone()]));
        let patch = release_metadata(&object, MANAGERS).unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let entries = &patch["metadata"]["managedFields"];
        assert_eq!(
            entries[0]["fieldsV1"],
            json!({"f:metadata": {"f:ownerReferences": {}}, "f:spec": {"f:x": {}}})
        );
        assert_eq!(entries[1], theirs);

        let released = metadata(entries);
        assert_eq!(release_metadata(&released, MANAGERS), None);
        let updated = metadata(&json!([entry(
            MANAGERS.spec,
            "Update",
            &json!({"f:metadata": {"f:labels": {}}})
        )]));
        assert_eq!(
            release_metadata(&updated, MANAGERS),
            None,
            "only applied fields are released"
        );
    }

    #[test]
    fn an_object_of_one_manager_is_brought_over_once() {
        let everything =
            json!({"f:metadata": {"f:labels": {"f:cluster.x-k8s.io/cluster-name": {}}}, "f:spec": {}});
        let status = json!({"manager": "manager", "operation": "Update", "subresource": "status"});
        let object = metadata(&json!([
            entry(MANAGERS.spec, "Apply", &everything),
            entry("manager", "Update", &everything),
            entry("kubectl", "Update", &everything),
            status.clone(),
        ]));
        let patch = migrate("a/v1", &object, MANAGERS, &[], Timestamp::UNIX_EPOCH).unwrap();
        let entries = patch["metadata"]["managedFields"].as_array().unwrap();
        let managers: Vec<_> = entries
            .iter()
            .map(|entry| entry["manager"].as_str().unwrap())
            .collect();
        assert_eq!(managers, ["kubectl", "manager", MANAGERS.metadata]);
        assert_eq!(entries[1], status, "status writes stay recorded");
        let brought_over = metadata(&patch["metadata"]["managedFields"]);
        assert_eq!(
            migrate("a/v1", &brought_over, MANAGERS, &[], Timestamp::UNIX_EPOCH),
            None
        );

        let of_a_peer = metadata(&json!([entry("kthreescontrolplane", "Apply", &everything)]));
        assert_eq!(
            migrate("a/v1", &of_a_peer, MANAGERS, &[], Timestamp::UNIX_EPOCH),
            None
        );
        assert!(
            migrate(
                "a/v1",
                &of_a_peer,
                MANAGERS,
                &["kthreescontrolplane"],
                Timestamp::UNIX_EPOCH
            )
            .is_some()
        );
    }

    #[test]
    fn lost_managed_fields_get_an_entry_of_ours_back() {
        let repaired = |entries: Value| {
            repair(
                "a/v1",
                &metadata(&entries),
                MANAGERS.metadata,
                Timestamp::UNIX_EPOCH,
            )
            .map(|patch| {
                patch["metadata"]["managedFields"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|entry| entry["manager"].as_str().unwrap().to_owned())
                    .collect::<Vec<_>>()
            })
        };
        let guess = entry("before-first-apply", "Update", &json!({}));
        let other = entry("kubectl", "Apply", &json!({}));
        let ours = entry(MANAGERS.metadata, "Apply", &json!({}));
        assert_eq!(repaired(json!([])).unwrap(), [MANAGERS.metadata]);
        assert_eq!(repaired(json!([guess])).unwrap(), [MANAGERS.metadata]);
        assert_eq!(
            repaired(json!([guess, other])).unwrap(),
            ["kubectl", MANAGERS.metadata]
        );
        assert_eq!(repaired(json!([guess, ours])).unwrap(), [MANAGERS.metadata]);
        assert_eq!(repaired(json!([other])), None);
    }
}
