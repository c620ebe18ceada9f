//! Objects as they are made, read and written by hand.

use kube::{
    Api,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::NAMESPACE;

/// Lays one value over another.
pub fn merge(target: &mut Value, over: &Value) {
    match (target, over) {
        (Value::Object(target), Value::Object(over)) => {
            for (key, value) in over {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (target, over) => *target = over.clone(),
    }
}

pub async fn create(api: &Api<DynamicObject>, body: Value) -> DynamicObject {
    let object: DynamicObject = serde_json::from_value(body).expect("an object");
    api.create(&PostParams::default(), &object)
        .await
        .expect("it is created")
}

/// Changes an object that is there.
pub async fn change<K>(api: &Api<K>, name: &str, patch: &Value) -> K
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let changed = api
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    changed.unwrap_or_else(|error| panic!("{name} is changed: {error}"))
}

/// All of a kind.
pub async fn all<K>(api: &Api<K>) -> Vec<K>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    api.list(&ListParams::default()).await.expect("a list").items
}

/// Whether there is no object of this name.
pub async fn is_absent<K>(api: &Api<K>, name: &str) -> bool
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    api.get_opt(name).await.expect("an answer").is_none()
}

/// A condition of a machine, or null.
pub fn condition(machine: &DynamicObject, type_: &str) -> Value {
    condition_of(&machine.data["status"], type_)
}

/// A condition of what has a list of them, or null.
pub fn condition_of(status: &Value, type_: &str) -> Value {
    status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == type_)
        .cloned()
        .unwrap_or(Value::Null)
}

pub async fn patch_status(api: &Api<DynamicObject>, name: &str, status: Value) {
    // Somebody may have deleted it since it was listed.
    let _ = api
        .patch_status(
            name,
            &PatchParams::default(),
            &Patch::Merge(&json!({"status": status})),
        )
        .await;
}

pub async fn set_condition(api: &Api<DynamicObject>, name: &str, type_: &str, status: &str) {
    let condition = json!({"type": type_, "status": status, "reason": "Played", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    apply_condition(api, name, &format!("core-{}", type_.to_lowercase()), condition).await;
}

async fn apply_condition(api: &Api<DynamicObject>, name: &str, manager: &str, condition: Value) {
    let body = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": name, "namespace": NAMESPACE}, "status": {"conditions": [condition]}});
    let _ = api
        .patch_status(name, &PatchParams::apply(manager).force(), &Patch::Apply(&body))
        .await;
}
