//! What adoption writes, in the management cluster alone: the objects, and the word that they are managed.

use jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::Value;
use slipway_runtime::ObjectKey;

use super::confirm::patch;
use crate::command::objects::{KindName, Objects};

/// What became of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    Created,
    /// It is there; nothing of it is changed.
    Found,
}

/// Creates an object, unless one of that name is there.
pub async fn create(objects: &Objects, manifest: &Value) -> Result<Made, String> {
    let text = |pointer: &str| {
        manifest
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (kind, name) = (text("/kind"), text("/metadata/name"));
    let group = text("/apiVersion").split_once('/').map_or("", |(group, _)| group);
    let resource = objects
        .resource(group, kind)
        .ok_or_else(|| format!("the cluster serves no {kind} of {group}: is its provider installed?"))?;
    let api = kube::Api::<DynamicObject>::namespaced_with(
        objects.client.clone(),
        text("/metadata/namespace"),
        resource,
    );
    let object: DynamicObject =
        serde_json::from_value(manifest.clone()).map_err(|error| format!("{kind} {name}: {error}"))?;
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(Made::Created),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Made::Found),
        Err(error) => Err(format!("cannot create {kind} {name}: {error}")),
    }
}

/// Lets the controllers manage the resources of an object. Tells whether anything was left to confirm.
pub async fn confirm(objects: &Objects, kind: KindName, key: &ObjectKey) -> Result<bool, String> {
    let object = objects.get(kind, key).await?;
    let patch = patch(&object, Timestamp::now())
        .map_err(|error| format!("cannot confirm {} {key}: {error}", kind.kind))?;
    let Some(patch) = patch else { return Ok(false) };
    let api = objects.api(kind, key.namespace().unwrap_or_default())?;
    api.patch(key.name(), &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map_err(|error| match error {
            kube::Error::Api(status) if status.is_conflict() => {
                format!("{} {key} was changed meanwhile: confirm again", kind.kind)
            }
            error => format!("cannot confirm {} {key}: {error}", kind.kind),
        })?;
    Ok(true)
}
