//! Objects on the apiserver simulator, written and read by a test without a model of them.

use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;

/// The objects of one kind in one namespace.
pub fn api(server: &Apiserver, namespace: &str, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(server.client(), namespace, &resource)
}

/// Kinds without a namespace, of those that tests write.
const CLUSTER_SCOPED: &[&str] = &[
    "ClusterAPINodeClass",
    "Namespace",
    "Node",
    "NodeClaim",
    "NodePool",
];

/// The API of an object that is shown, or of one that is to be made.
pub fn api_of(server: &Apiserver, object: &Value) -> Api<DynamicObject> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if CLUSTER_SCOPED.contains(&object["kind"].as_str().unwrap_or_default()) {
        let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        return Api::all_with(server.client(), &resource);
    }
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    api(
        server,
        namespace,
        &text(&object["apiVersion"]),
        &text(&object["kind"]),
    )
}

/// Makes an object, as a user would.
pub async fn create(server: &Apiserver, manifest: &Value) -> DynamicObject {
    let object: DynamicObject = serde_json::from_value(manifest.clone()).expect("a manifest is an object");
    api_of(server, manifest)
        .create(&PostParams::default(), &object)
        .await
        .unwrap_or_else(|error| panic!("creating {}: {error}", manifest["kind"]))
}

/// Makes an object that may be there already.
pub async fn try_create(server: &Apiserver, manifest: &Value) {
    if let Ok(object) = serde_json::from_value::<DynamicObject>(manifest.clone()) {
        let _ = api_of(server, manifest)
            .create(&PostParams::default(), &object)
            .await;
    }
}

/// Merges a patch into an object. Somebody may have deleted it since it was shown.
pub async fn merge(server: &Apiserver, object: &Value, patch: Value) {
    let _ = api_of(server, object)
        .patch(name(object), &PatchParams::default(), &Patch::Merge(patch))
        .await;
}

/// Merges a patch into an object's status.
pub async fn merge_status(server: &Apiserver, object: &Value, status: Value) {
    let patch = Patch::Merge(json!({ "status": status }));
    let _ = api_of(server, object)
        .patch_status(name(object), &PatchParams::default(), &patch)
        .await;
}

/// Sets one condition of an object, as the one manager that owns it.
pub async fn set_condition(server: &Apiserver, object: &Value, type_: &str, status: &str, reason: &str) {
    let condition = json!({"type": type_, "status": status, "reason": reason, "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let body = json!({"apiVersion": object["apiVersion"], "kind": object["kind"],
        "metadata": {"name": object["metadata"]["name"], "namespace": object["metadata"]["namespace"]},
        "status": {"conditions": [condition]}});
    let manager = PatchParams::apply(&format!("core-{}", type_.to_lowercase())).force();
    let _ = api_of(server, object)
        .patch_status(name(object), &manager, &Patch::Apply(&body))
        .await;
}

pub async fn delete(server: &Apiserver, object: &Value) {
    let _ = api_of(server, object)
        .delete(name(object), &DeleteParams::default())
        .await;
}

pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

pub fn find<'a>(objects: &'a [Value], kind: &str, named: &str) -> Option<&'a Value> {
    objects
        .iter()
        .find(|object| object["kind"] == kind && name(object) == named)
}

pub fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// A condition in `status.conditions`, or null.
pub fn condition<'a>(object: &'a Value, type_: &str) -> &'a Value {
    object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|one| one["type"] == type_)
        .unwrap_or(&Value::Null)
}

/// Whether a condition in `status.conditions` is True.
pub fn holds(object: &Value, type_: &str) -> bool {
    condition(object, type_)["status"] == "True"
}
