//! Conversion between v1beta1 and v1beta2, without loss in either direction. What v1beta1 cannot hold travels in the
//! annotation Cluster API uses for that; what a client of v1beta1 changed afterwards wins, field by field.

use serde_json::{Map, Value, json};

use crate::api::{BOOTSTRAP_GROUP, CONTROL_PLANE_GROUP};

/// Where the v1beta2 version of an object is kept on its v1beta1 form.
const DATA_ANNOTATION: &str = "cluster.x-k8s.io/conversion-data";

/// Converts one object to `target`, a full `group/version`.
pub fn convert(object: Value, target: &str) -> Result<Value, String> {
    let current = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if current == target {
        return Ok(object);
    }
    let (group, from) = current
        .split_once('/')
        .ok_or_else(|| format!("cannot convert {kind}: apiVersion {current:?} has no group"))?;
    let (target_group, to) = target
        .split_once('/')
        .ok_or_else(|| format!("cannot convert {kind}: target apiVersion {target:?} has no group"))?;
    let known = matches!(
        (group, kind.as_str()),
        (BOOTSTRAP_GROUP, "KThreesConfig" | "KThreesConfigTemplate")
            | (CONTROL_PLANE_GROUP, "KThreesControlPlane")
    );
    if group != target_group || !known {
        return Err(format!("cannot convert {current} {kind} to {target}"));
    }
    match (from, to) {
        ("v1beta2", "v1beta1") => down_with_data(object, &kind, target),
        ("v1beta1", "v1beta2") => up_with_data(object, &kind, target),
        _ => Err(format!("cannot convert {kind} from {current} to {target}")),
    }
}

fn down_with_data(v1beta2: Value, kind: &str, target: &str) -> Result<Value, String> {
    let mut kept = v1beta2.clone();
    if let Some(kept) = kept.as_object_mut() {
        kept.remove("metadata");
    }
    let data = serde_json::to_string(&kept).map_err(|error| format!("cannot keep {kind}: {error}"))?;
    let mut v1beta1 = v1beta2;
    down(&mut v1beta1, kind);
    v1beta1["apiVersion"] = target.into();
    let metadata = object_at(&mut v1beta1, "metadata");
    object_at_map(metadata, "annotations").insert(DATA_ANNOTATION.into(), data.into());
    Ok(v1beta1)
}

fn up_with_data(v1beta1: Value, kind: &str, target: &str) -> Result<Value, String> {
    let mut v1beta2 = v1beta1;
    let mut stored = None;
    if let Some(annotations) = v1beta2
        .get_mut("metadata")
        .and_then(|metadata| metadata.get_mut("annotations"))
        .and_then(Value::as_object_mut)
    {
        stored = annotations.remove(DATA_ANNOTATION);
    }
    if v1beta2["metadata"]["annotations"]
        .as_object()
        .is_some_and(Map::is_empty)
        && let Some(metadata) = v1beta2["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
    up(&mut v1beta2, kind);
    if let Some(stored) = stored.as_ref().and_then(Value::as_str) {
        let stored: Value = serde_json::from_str(stored)
            .map_err(|error| format!("cannot read annotation {DATA_ANNOTATION} of {kind}: {error}"))?;
        // What the v1beta1 form would have become had nobody touched it: the difference is what was changed there.
        let mut untouched = stored.clone();
        down(&mut untouched, kind);
        up(&mut untouched, kind);
        for part in ["spec", "status"] {
            let mut restored = stored.get(part).cloned().unwrap_or(Value::Null);
            carry_changes(
                &mut restored,
                untouched.get(part).unwrap_or(&Value::Null),
                v1beta2.get(part).unwrap_or(&Value::Null),
            );
            if part == "spec" {
                drop_outdated_contract_reference(&mut restored, &untouched, &v1beta2);
            }
            if let Some(v1beta2) = v1beta2.as_object_mut() {
                if restored.is_null() {
                    v1beta2.remove(part);
                } else {
                    v1beta2.insert(part.into(), restored);
                }
            }
        }
    }
    v1beta2["apiVersion"] = target.into();
    Ok(v1beta2)
}

/// A client of v1beta1 that pointed at another template meant just that: the reference in the shape of the v1beta2
/// contract, which it cannot see and which would win, gives way.
fn drop_outdated_contract_reference(restored: &mut Value, untouched: &Value, v1beta2: &Value) {
    let reference = "/spec/machineTemplate/infrastructureRef";
    if untouched.pointer(reference) != v1beta2.pointer(reference)
        && let Some(contract) = restored
            .pointer_mut("/machineTemplate/spec")
            .and_then(Value::as_object_mut)
    {
        contract.remove("infrastructureRef");
    }
}

/// Changes `target` the way `before` became `after`: maps key by key, everything else as a whole.
fn carry_changes(target: &mut Value, before: &Value, after: &Value) {
    if before == after {
        return;
    }
    let (Value::Object(target_map), Value::Object(before_map), Value::Object(after_map)) =
        (&mut *target, before, after)
    else {
        *target = after.clone();
        return;
    };
    for (key, after_value) in after_map {
        let before_value = before_map.get(key).unwrap_or(&Value::Null);
        if before_value != after_value {
            carry_changes(
                target_map.entry(key.clone()).or_insert(Value::Null),
                before_value,
                after_value,
            );
        }
    }
    for key in before_map.keys().filter(|key| !after_map.contains_key(*key)) {
        target_map.remove(key);
    }
}

fn object_at<'value>(value: &'value mut Value, key: &str) -> &'value mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    let map = value.as_object_mut().expect("an object was just put there");
    object_at_map(map, key)
}

fn object_at_map<'value>(map: &'value mut Map<String, Value>, key: &str) -> &'value mut Map<String, Value> {
    let entry = map.entry(key.to_owned()).or_insert_with(|| json!({}));
    if !entry.is_object() {
        *entry = json!({});
    }
    entry.as_object_mut().expect("an object was just put there")
}

/// The part of the object that is a KThreesConfigSpec, if it has one.
fn config_spec<'value>(object: &'value mut Value, kind: &str) -> Option<&'value mut Map<String, Value>> {
    let path: &[&str] = match kind {
        "KThreesConfig" => &["spec"],
        "KThreesConfigTemplate" => &["spec", "template", "spec"],
        _ => &["spec", "kthreesConfigSpec"],
    };
    let mut at = object;
    for key in path {
        at = at.get_mut(key)?;
    }
    at.as_object_mut()
}

fn remove(map: &mut Map<String, Value>, keys: &[&str]) {
    for key in keys {
        map.remove(*key);
    }
}

fn down(object: &mut Value, kind: &str) {
    if let Some(spec) = config_spec(object, kind) {
        if let Some(server) = spec.get_mut("serverConfig").and_then(Value::as_object_mut) {
            remove(
                server,
                &[
                    "disableCloudController",
                    "cloudProviderName",
                    "systemDefaultRegistry",
                    "etcdProxyImage",
                    "agentToken",
                    "datastore",
                ],
            );
        }
        if let Some(agent) = spec.get_mut("agentConfig").and_then(Value::as_object_mut) {
            remove(agent, &["airGappedInstallScriptPath", "providerID"]);
        }
        remove_if_empty(spec, "serverConfig");
        remove_if_empty(spec, "agentConfig");
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        remove(
            status,
            &[
                "version",
                "versions",
                "upToDateReplicas",
                "availableReplicas",
                "initialization",
                "v1beta2",
            ],
        );
    }
    if kind == "KThreesConfigTemplate"
        && let Some(template) = object
            .pointer_mut("/spec/template")
            .and_then(Value::as_object_mut)
    {
        template.remove("metadata");
    }
    if kind == "KThreesControlPlane"
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        remove(spec, &["rollout", "rolloutBefore", "rolloutStrategy"]);
        if let Some(after) = spec.remove("rolloutAfter") {
            spec.insert("upgradeAfter".into(), after);
        }
        if let Some(template) = spec.get_mut("machineTemplate").and_then(Value::as_object_mut) {
            let contract = template.remove("spec");
            let reference = template.remove("infrastructureRef").or_else(|| {
                // The v1beta1 version requires a reference with a version, which the v1beta2 form leaves to the contract.
                // Nobody inside reads it; its clients get the one infrastructure of their time is served in.
                let reference = contract.as_ref()?.get("infrastructureRef")?;
                let group = reference["apiGroup"].as_str().unwrap_or_default();
                Some(json!({
                    "apiVersion": format!("{group}/v1beta1"),
                    "kind": reference["kind"],
                    "name": reference["name"],
                }))
            });
            let drain = template.remove("nodeDrainTimeout");
            remove(template, &["nodeVolumeDetachTimeout", "nodeDeletionTimeout"]);
            if let Some(reference) = reference {
                spec.insert("infrastructureTemplate".into(), reference);
            }
            if let Some(drain) = drain {
                spec.insert("nodeDrainTimeout".into(), drain);
            }
        }
        remove_if_empty(spec, "machineTemplate");
    }
}

fn remove_if_empty(map: &mut Map<String, Value>, key: &str) {
    if map.get(key).and_then(Value::as_object).is_some_and(Map::is_empty) {
        map.remove(key);
    }
}

fn up(object: &mut Value, kind: &str) {
    if let Some(spec) = config_spec(object, kind) {
        let server = object_at_map(spec, "serverConfig");
        let own_cloud = server.get("disableExternalCloudProvider") == Some(&Value::Bool(true));
        server.insert(
            "cloudProviderName".into(),
            if own_cloud { "" } else { "external" }.into(),
        );
        server.insert("disableCloudController".into(), (!own_cloud).into());
    }
    if kind == "KThreesControlPlane"
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        if let Some(after) = spec.remove("upgradeAfter") {
            spec.insert("rolloutAfter".into(), after);
        }
        let reference = spec.remove("infrastructureTemplate");
        let drain = spec.remove("nodeDrainTimeout");
        if reference.is_some() || drain.is_some() {
            let template = object_at_map(spec, "machineTemplate");
            if let Some(reference) = reference {
                template.insert("infrastructureRef".into(), reference);
            }
            if let Some(drain) = drain {
                template.insert("nodeDrainTimeout".into(), drain);
            }
        }
    }
}
