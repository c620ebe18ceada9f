//! What of a change can be made in place, and what not: pure. The fields that an upgrade acts on are taken over from the desired
//! objects; whatever then still differs is not covered, and it is core's own comparison that says so.

use serde_json::{Map, Value};
use slipway_capi::hook::{
    HookError,
    coverage::{Uncovered, uncovered_of_machine, uncovered_of_machine_set},
    types::{
        CanUpdateMachineRequest, CanUpdateMachineResponse, CanUpdateMachineSetRequest,
        CanUpdateMachineSetResponse, Patch, SUCCESS,
    },
};

/// The handler's name in messages of failed comparisons.
const HANDLER: &str = "slipway-edge";

/// An answer that covers what can be covered, and what is left.
#[derive(Clone, Debug, PartialEq)]
pub struct Covered<R> {
    pub response: R,
    pub uncovered: Vec<Uncovered>,
    /// Something differs at all.
    pub changes: bool,
}

/// The fields below a spec that an upgrade brings from one value to another, each as its path. The feature gate is how nodes join: the
/// kubeadm control plane adds it for some versions (from v1.31) and leaves it out of others (from v1.36), and a node that has joined
/// needs nothing of it.
fn fields_of(kind: &str) -> &'static [&'static [&'static str]] {
    match kind {
        "Machine" | "MachineSet" | "KThreesConfig" | "KThreesConfigTemplate" => &[&["version"]],
        "EdgeMachine" | "EdgeMachineTemplate" => &[&["image"]],
        "KubeadmConfig" | "KubeadmConfigTemplate" => &[&[
            "clusterConfiguration",
            "featureGates",
            "ControlPlaneKubeletLocalMode",
        ]],
        _ => &[],
    }
}

/// Takes one field over from the desired object, or away where that does not have it. What is empty then, and not desired, goes too.
fn take_over(target: &mut Value, desired: &Value, path: &[&str]) {
    let (Value::Object(fields), [name, below @ ..]) = (target, path) else {
        return;
    };
    let value = desired.get(name);
    if below.is_empty() {
        match value {
            Some(value) => fields.insert((*name).to_owned(), value.clone()),
            None => fields.remove(*name),
        };
        return;
    }
    let child = fields.entry(*name).or_insert_with(|| Value::Object(Map::new()));
    take_over(child, value.unwrap_or(&Value::Null), below);
    if value.is_none() && child.as_object().is_some_and(Map::is_empty) {
        fields.remove(*name);
    }
}

fn kind_of(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

/// The kinds whose hosts are ours.
pub fn is_edge(infrastructure: &Value) -> bool {
    let group = infrastructure["apiVersion"].as_str().unwrap_or_default();
    matches!(kind_of(infrastructure), "EdgeMachine" | "EdgeMachineTemplate")
        && group.starts_with(crate::api::INFRASTRUCTURE_GROUP)
}

/// The patch that brings the fields of an upgrade from current to desired. Empty: nothing of them differs.
fn patch(current: &Value, desired: &Value, spec: &str) -> Patch {
    let mut target = current.clone();
    for field in fields_of(kind_of(current)) {
        let Some(target) = target.pointer_mut(spec) else {
            return Patch::default();
        };
        take_over(target, desired.pointer(spec).unwrap_or(&Value::Null), field);
    }
    let difference = json_patch::diff(current, &target);
    if difference.0.is_empty() {
        Patch::default()
    } else {
        Patch::json(&difference)
    }
}

/// Whether the image of the host changes. Without that nothing else can: the kubelet comes with the image.
fn image_changes(current: &Value, desired: &Value, spec: &str) -> bool {
    let image = |object: &Value| object.pointer(spec).and_then(|spec| spec.get("image")).cloned();
    image(desired).is_some() && image(current) != image(desired)
}

/// Everything that differs, whether it can be changed in place or not.
pub fn changed_in_machine(request: &CanUpdateMachineRequest) -> Result<Vec<Uncovered>, HookError> {
    uncovered_of_machine(HANDLER, request, &CanUpdateMachineResponse::default())
}

pub fn changed_in_machine_set(request: &CanUpdateMachineSetRequest) -> Result<Vec<Uncovered>, HookError> {
    uncovered_of_machine_set(HANDLER, request, &CanUpdateMachineSetResponse::default())
}

pub fn of_machine(request: &CanUpdateMachineRequest) -> Result<Covered<CanUpdateMachineResponse>, HookError> {
    const SPEC: &str = "/spec";
    let (current, desired) = (&request.current, &request.desired);
    let none = CanUpdateMachineResponse {
        status: SUCCESS.to_owned(),
        ..CanUpdateMachineResponse::default()
    };
    let changes = !changed_in_machine(request)?.is_empty();
    let mut response = none;
    let (now, then) = (&current.infrastructure_machine, &desired.infrastructure_machine);
    if is_edge(now) && is_edge(then) && image_changes(now, then, SPEC) {
        response.machine_patch = patch(&current.machine, &desired.machine, SPEC);
        response.infrastructure_machine_patch = patch(now, then, SPEC);
        if let (Some(now), Some(then)) = (&current.bootstrap_config, &desired.bootstrap_config) {
            response.bootstrap_config_patch = patch(now, then, SPEC);
        }
    }
    let uncovered = uncovered_of_machine(HANDLER, request, &response)?;
    Ok(Covered {
        response,
        uncovered,
        changes,
    })
}

pub fn of_machine_set(
    request: &CanUpdateMachineSetRequest,
) -> Result<Covered<CanUpdateMachineSetResponse>, HookError> {
    const SPEC: &str = "/spec/template/spec";
    let (current, desired) = (&request.current, &request.desired);
    let none = CanUpdateMachineSetResponse {
        status: SUCCESS.to_owned(),
        ..CanUpdateMachineSetResponse::default()
    };
    let changes = !changed_in_machine_set(request)?.is_empty();
    let mut response = none;
    let (now, then) = (
        &current.infrastructure_machine_template,
        &desired.infrastructure_machine_template,
    );
    if is_edge(now) && is_edge(then) && image_changes(now, then, SPEC) {
        response.machine_set_patch = patch(&current.machine_set, &desired.machine_set, SPEC);
        response.infrastructure_machine_template_patch = patch(now, then, SPEC);
        if let (Some(now), Some(then)) = (
            &current.bootstrap_config_template,
            &desired.bootstrap_config_template,
        ) {
            response.bootstrap_config_template_patch = patch(now, then, SPEC);
        }
    }
    let uncovered = uncovered_of_machine_set(HANDLER, request, &response)?;
    Ok(Covered {
        response,
        uncovered,
        changes,
    })
}
