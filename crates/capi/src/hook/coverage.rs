//! Whether an extension can make the whole change: its patches are applied to the current objects, and what still
//! differs from the desired ones is not covered. Only specs count; anything else in a patch is passed over.

use serde_json::Value;

use super::{
    HookError,
    types::{
        CanUpdateMachineRequest, CanUpdateMachineResponse, CanUpdateMachineSetRequest,
        CanUpdateMachineSetResponse, JSON_MERGE_PATCH, JSON_PATCH, Patch,
    },
};

/// A field that an extension cannot bring from current to desired.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uncovered {
    /// The kind of the object.
    pub kind: String,
    /// A JSON pointer.
    pub path: String,
}

impl std::fmt::Display for Uncovered {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {}", self.kind, self.path)
    }
}

/// Fields of a Machine that are changed on running machines anyway, or that identify it: no update is needed.
const MACHINE_FIELDS_PROPAGATED: &[&str] = &[
    "clusterName",
    "bootstrap",
    "infrastructureRef",
    "providerID",
    "minReadySeconds",
    "readinessGates",
    "taints",
];
const MACHINE_DELETION_FIELDS_PROPAGATED: &[&str] = &[
    "nodeDrainTimeoutSeconds",
    "nodeVolumeDetachTimeoutSeconds",
    "nodeDeletionTimeoutSeconds",
];

/// What of the change to a machine is not covered, sorted; nothing means that it can be updated in place.
pub fn uncovered_of_machine(
    handler: &str,
    request: &CanUpdateMachineRequest,
    response: &CanUpdateMachineResponse,
) -> Result<Vec<Uncovered>, HookError> {
    const SPEC: &[&str] = &["spec"];
    let (current, desired) = (&request.current, &request.desired);
    let mut result = compare(
        handler,
        SPEC,
        Some(&current.machine),
        Some(&desired.machine),
        &response.machine_patch,
        true,
    )?;
    result.extend(compare(
        handler,
        SPEC,
        current.bootstrap_config.as_ref(),
        desired.bootstrap_config.as_ref(),
        &response.bootstrap_config_patch,
        false,
    )?);
    result.extend(compare(
        handler,
        SPEC,
        Some(&current.infrastructure_machine),
        Some(&desired.infrastructure_machine),
        &response.infrastructure_machine_patch,
        false,
    )?);
    result.sort();
    Ok(result)
}

/// What of the change to a MachineSet's machines is not covered, sorted.
pub fn uncovered_of_machine_set(
    handler: &str,
    request: &CanUpdateMachineSetRequest,
    response: &CanUpdateMachineSetResponse,
) -> Result<Vec<Uncovered>, HookError> {
    const SPEC: &[&str] = &["spec", "template", "spec"];
    let (current, desired) = (&request.current, &request.desired);
    let mut result = compare(
        handler,
        SPEC,
        Some(&current.machine_set),
        Some(&desired.machine_set),
        &response.machine_set_patch,
        true,
    )?;
    result.extend(compare(
        handler,
        SPEC,
        current.bootstrap_config_template.as_ref(),
        desired.bootstrap_config_template.as_ref(),
        &response.bootstrap_config_template_patch,
        false,
    )?);
    result.extend(compare(
        handler,
        SPEC,
        Some(&current.infrastructure_machine_template),
        Some(&desired.infrastructure_machine_template),
        &response.infrastructure_machine_template_patch,
        false,
    )?);
    result.sort();
    Ok(result)
}

/// Applies a patch to a copy of the object and takes over only the part that counts.
pub fn apply_patch(handler: &str, object: &Value, patch: &Patch, part: &[&str]) -> Result<Value, HookError> {
    let fail = |problem: String| HookError::Patch {
        handler: handler.to_owned(),
        problem,
    };
    let mut patched = object.clone();
    match patch.patch_type.as_str() {
        JSON_PATCH => {
            let operations: json_patch::Patch = serde_json::from_slice(&patch.patch).map_err(|error| {
                fail(format!(
                    "failed to apply patch: error decoding json patch (RFC6902): {error}"
                ))
            })?;
            json_patch::patch(&mut patched, &operations).map_err(|error| {
                fail(format!(
                    "failed to apply patch: error applying json patch (RFC6902): {error}"
                ))
            })?;
        }
        JSON_MERGE_PATCH if patch.patch.is_empty() => {}
        JSON_MERGE_PATCH => {
            let document: Value = serde_json::from_slice(&patch.patch).map_err(|error| {
                fail(format!(
                    "failed to apply patch: error applying json merge patch (RFC7386): {error}"
                ))
            })?;
            if !document.is_object() {
                return Err(fail(
                    "failed to apply patch: error applying json merge patch (RFC7386): it is not an object"
                        .to_owned(),
                ));
            }
            json_patch::merge(&mut patched, &document);
        }
        "" => return Err(fail("failed to apply patch: patchType is not set".to_owned())),
        other => return Err(fail(format!("failed to apply patch: unknown patchType {other}"))),
    }
    let mut result = object.clone();
    if let Some(value) = lookup(&patched, part) {
        let value = value.clone();
        put(&mut result, part, value);
    }
    Ok(result)
}

fn compare(
    handler: &str,
    part: &[&str],
    current: Option<&Value>,
    desired: Option<&Value>,
    patch: &Patch,
    is_machine: bool,
) -> Result<Vec<Uncovered>, HookError> {
    let kind = current
        .or(desired)
        .and_then(|object| object["kind"].as_str())
        .unwrap_or_default();
    let (current, desired) = match (current, desired) {
        (Some(current), Some(desired)) => (current, desired),
        (None, None) => return Ok(Vec::new()),
        // An object cannot be given to, or taken from, a running machine.
        _ => {
            return Ok(vec![Uncovered {
                kind: kind.to_owned(),
                path: String::new(),
            }]);
        }
    };
    let patched = if patch.is_empty() {
        current.clone()
    } else {
        apply_patch(handler, current, patch, part)?
    };
    let spec = |object: &Value| {
        let mut spec = lookup(object, part).cloned().unwrap_or(Value::Null);
        if is_machine {
            drop_propagated(&mut spec);
        }
        spec
    };
    let mut paths = Vec::new();
    difference(
        &spec(&patched),
        &spec(desired),
        &format!("/{}", part.join("/")),
        &mut paths,
    );
    Ok(paths
        .into_iter()
        .map(|path| Uncovered {
            kind: kind.to_owned(),
            path,
        })
        .collect())
}

fn drop_propagated(spec: &mut Value) {
    let Some(fields) = spec.as_object_mut() else {
        return;
    };
    fields.retain(|key, value| {
        // Cluster API compares typed objects, to which an empty text is the same as none.
        !MACHINE_FIELDS_PROPAGATED.contains(&key.as_str()) && value.as_str() != Some("") && !value.is_null()
    });
    if let Some(deletion) = fields.get_mut("deletion").and_then(Value::as_object_mut) {
        deletion.retain(|key, _| !MACHINE_DELETION_FIELDS_PROPAGATED.contains(&key.as_str()));
        if deletion.is_empty() {
            fields.remove("deletion");
        }
    }
}

fn lookup<'a>(object: &'a Value, part: &[&str]) -> Option<&'a Value> {
    part.iter().try_fold(object, |value, key| value.get(key))
}

fn put(object: &mut Value, part: &[&str], value: Value) {
    let mut slot = object;
    for key in part {
        if !slot.is_object() {
            *slot = Value::Object(serde_json::Map::new());
        }
        slot = &mut slot[*key];
    }
    *slot = value;
}

/// The JSON pointers at which two documents differ. Objects are followed; lists are compared whole, as their entries
/// have no identity of their own.
pub fn difference(left: &Value, right: &Value, at: &str, paths: &mut Vec<String>) {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let path = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
                match (left.get(key), right.get(key)) {
                    (Some(left), Some(right)) => difference(left, right, &path, paths),
                    _ => paths.push(path),
                }
            }
        }
        (left, right) if left == right => {}
        _ => paths.push(at.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::types::{MachineObjects, MachineSetObjects};
    use serde_json::json;

    fn objects(version: &str, image: &str, disk: u32) -> MachineObjects {
        MachineObjects {
            machine: json!({"kind": "Machine", "metadata": {"name": "m"}, "spec": {"clusterName": "c",
                "version": version, "providerID": "edge://a", "deletion": {"nodeDrainTimeoutSeconds": disk}}}),
            infrastructure_machine: json!({"kind": "EdgeMachine", "spec": {"image": image, "disk": disk}}),
            bootstrap_config: Some(json!({"kind": "KThreesConfig", "spec": {"agentConfig": {"a/b": 1}}})),
        }
    }

    fn request() -> CanUpdateMachineRequest {
        CanUpdateMachineRequest {
            current: objects("v1.34.2+k3s1", "one", 10),
            desired: objects("v1.34.3+k3s1", "two", 10),
        }
    }

    fn patch(operations: Value) -> Patch {
        Patch::json(&serde_json::from_value(operations).unwrap())
    }

    fn paths(uncovered: &[Uncovered]) -> Vec<String> {
        uncovered.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn both_kinds_of_patches_cover_what_they_change() {
        let response = CanUpdateMachineResponse {
            machine_patch: patch(
                json!([{"op": "replace", "path": "/spec/version", "value": "v1.34.3+k3s1"}]),
            ),
            infrastructure_machine_patch: Patch::merge(&json!({"spec": {"image": "two"}})),
            ..Default::default()
        };
        assert_eq!(uncovered_of_machine("h", &request(), &response).unwrap(), []);
    }

    #[test]
    fn what_is_left_is_named_by_kind_and_path() {
        let none = CanUpdateMachineResponse::default();
        let mut request = request();
        request.desired.bootstrap_config =
            Some(json!({"kind": "KThreesConfig", "spec": {"agentConfig": {"a/b": 2}}}));
        assert_eq!(
            paths(&uncovered_of_machine("h", &request, &none).unwrap()),
            [
                "EdgeMachine /spec/image",
                "KThreesConfig /spec/agentConfig/a~1b",
                "Machine /spec/version"
            ]
        );
        request.desired.bootstrap_config = None;
        assert!(
            paths(&uncovered_of_machine("h", &request, &none).unwrap())
                .contains(&"KThreesConfig ".to_owned())
        );
    }

    #[test]
    fn a_patch_that_overshoots_does_not_cover() {
        let response = CanUpdateMachineResponse {
            machine_patch: patch(
                json!([{"op": "replace", "path": "/spec/version", "value": "v1.34.3+k3s1"}]),
            ),
            infrastructure_machine_patch: Patch::merge(&json!({"spec": {"image": "two", "disk": 99}})),
            ..Default::default()
        };
        assert_eq!(
            paths(&uncovered_of_machine("h", &request(), &response).unwrap()),
            ["EdgeMachine /spec/disk"]
        );
    }

    #[test]
    fn fields_that_are_propagated_anyway_and_metadata_do_not_count() {
        let mut request = request();
        request.desired = request.current.clone();
        request.desired.machine["spec"]["taints"] = json!([{"key": "a"}]);
        request.desired.machine["spec"]["deletion"]["nodeDrainTimeoutSeconds"] = json!(99);
        request.desired.machine["spec"]["infrastructureRef"] = json!({"name": "other"});
        request.desired.machine["spec"]["failureDomain"] = json!("");
        request.desired.machine["metadata"]["labels"] = json!({"a": "b"});
        let response = CanUpdateMachineResponse {
            infrastructure_machine_patch: Patch::merge(&json!({"metadata": {"labels": {"x": "y"}}})),
            ..Default::default()
        };
        assert_eq!(uncovered_of_machine("h", &request, &response).unwrap(), []);
        request.desired.machine["spec"]["failureDomain"] = json!("2");
        assert_eq!(
            paths(&uncovered_of_machine("h", &request, &response).unwrap()),
            ["Machine /spec/failureDomain"]
        );
    }

    #[test]
    fn machine_sets_are_compared_by_their_template() {
        let objects = |version: &str| MachineSetObjects {
            machine_set: json!({"kind": "MachineSet", "spec": {"replicas": version.len(),
                "template": {"spec": {"version": version}}}}),
            infrastructure_machine_template: json!({"kind": "EdgeMachineTemplate", "spec": {"template": {"spec": {}}}}),
            bootstrap_config_template: None,
        };
        let request = CanUpdateMachineSetRequest {
            current: objects("v1"),
            desired: objects("v1.1"),
        };
        let none = CanUpdateMachineSetResponse::default();
        assert_eq!(
            paths(&uncovered_of_machine_set("h", &request, &none).unwrap()),
            ["MachineSet /spec/template/spec/version"]
        );
        let response = CanUpdateMachineSetResponse {
            machine_set_patch: Patch::merge(&json!({"spec": {"template": {"spec": {"version": "v1.1"}}}})),
            ..Default::default()
        };
        assert_eq!(uncovered_of_machine_set("h", &request, &response).unwrap(), []);
    }

    #[test]
    fn a_patch_that_cannot_be_applied_blocks_with_its_reason() {
        let bad = |patch_type: &str, document: &str| {
            let response = CanUpdateMachineResponse {
                machine_patch: Patch {
                    patch_type: patch_type.to_owned(),
                    patch: document.as_bytes().to_vec(),
                },
                ..Default::default()
            };
            uncovered_of_machine("h.x", &request(), &response)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            bad("", "[]"),
            "the answer of extension handler \"h.x\" cannot be used: failed to apply patch: patchType is not set"
        );
        assert!(bad("Strategic", "{}").ends_with("unknown patchType Strategic"));
        assert!(bad(JSON_PATCH, "{}").contains("error decoding json patch (RFC6902)"));
        assert!(
            bad(
                JSON_PATCH,
                r#"[{"op": "replace", "path": "/spec/none", "value": 1}]"#
            )
            .contains("error applying json patch (RFC6902)")
        );
        assert!(bad(JSON_MERGE_PATCH, "[]").contains("RFC7386"));
    }
}
