//! What may change without a new server and is to be brought to running ones: labels and annotations of the machine, its
//! configuration and its InfraMachine; limits, readiness gates and taints of the machine. Deleting ones are included. Pure:
//! says where an object differs; `act::sync` writes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use slipway_capi::{apply, frame::Difference, view::Machine};

use super::{
    act::{MANAGERS, propagated},
    observe::Snapshot,
    plan::Part,
};

/// Where an object differs from what its control plane says.
pub fn differences(
    snapshot: &Snapshot,
    part: Part,
    machine: &Machine,
    metadata: &ObjectMeta,
) -> Vec<Difference> {
    let owned = owned(metadata);
    let mut found = Vec::new();
    let mut compare = |path: &str,
                       present: Option<&BTreeMap<String, String>>,
                       desired: &BTreeMap<String, String>,
                       owned: &BTreeSet<String>| {
        for (key, value) in desired {
            let has = present.and_then(|present| present.get(key));
            if has != Some(value) {
                let from = has.map_or_else(|| "(none)".to_owned(), Clone::clone);
                found.push(difference(format!("{path}[{key}]"), from, value.clone()));
            }
        }
        for key in owned.iter().filter(|key| !desired.contains_key(*key)) {
            let from = present.and_then(|present| present.get(key)).cloned();
            found.push(difference(
                format!("{path}[{key}]"),
                from.unwrap_or_default(),
                "(none)".to_owned(),
            ));
        }
    };
    compare(
        "metadata.labels",
        metadata.labels.as_ref(),
        &snapshot.server_labels(),
        &owned.labels,
    );
    compare(
        "metadata.annotations",
        metadata.annotations.as_ref(),
        &snapshot.server_annotations(),
        &owned.annotations,
    );
    // Core was quicker than whoever made the object, or that was interrupted: the next update in place would take away what it still owns.
    if apply::release_metadata(metadata, MANAGERS).is_some() {
        found.push(difference(
            "metadata.managedFields".to_owned(),
            format!("labels and annotations of {}", MANAGERS.spec),
            format!("labels and annotations of {}", MANAGERS.metadata),
        ));
    }
    let (present, desired) = match part {
        Part::Machine => (present(machine), propagated(&snapshot.object.spec.machines())),
        Part::Config | Part::InfraMachine => (BTreeMap::new(), BTreeMap::new()),
    };
    for (field, value) in &desired {
        let has = present.get(field).unwrap_or(&Value::Null);
        if has != value {
            found.push(difference(
                format!("spec.{field}"),
                has.to_string(),
                value.to_string(),
            ));
        }
    }
    for field in owned
        .fields
        .iter()
        .filter(|field| !desired.contains_key(field.as_str()))
    {
        let has = present.get(field.as_str()).unwrap_or(&Value::Null);
        found.push(difference(
            format!("spec.{field}"),
            has.to_string(),
            "(none)".to_owned(),
        ));
    }
    found
}

fn difference(path: String, from: String, to: String) -> Difference {
    Difference { path, from, to }
}

/// What of a machine's spec is carried, as it is.
fn present(machine: &Machine) -> BTreeMap<&'static str, Value> {
    let without_empty = |pairs: Vec<(&str, Value)>| -> Value {
        Value::Object(
            pairs
                .into_iter()
                .filter(|(_, value)| !value.is_null() && *value != "")
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        )
    };
    let deletion = &machine.spec.deletion;
    let limits = without_empty(vec![
        (
            "nodeDrainTimeoutSeconds",
            json!(deletion.node_drain_timeout_seconds),
        ),
        (
            "nodeVolumeDetachTimeoutSeconds",
            json!(deletion.node_volume_detach_timeout_seconds),
        ),
        (
            "nodeDeletionTimeoutSeconds",
            json!(deletion.node_deletion_timeout_seconds),
        ),
    ]);
    let gates: Vec<Value> = machine
        .spec
        .readiness_gates
        .iter()
        .map(|gate| {
            without_empty(vec![
                ("conditionType", json!(gate.condition_type)),
                ("polarity", json!(gate.polarity)),
            ])
        })
        .collect();
    let taints: Vec<Value> = machine
        .spec
        .taints
        .iter()
        .map(|taint| {
            without_empty(vec![
                ("key", json!(taint.key)),
                ("value", json!(taint.value)),
                ("effect", json!(taint.effect)),
                ("propagation", json!(taint.propagation)),
            ])
        })
        .collect();
    BTreeMap::from([
        ("deletion", limits),
        ("readinessGates", json!(gates)),
        ("taints", json!(taints)),
    ])
}

/// What our manager of labels and annotations owns of an object.
#[derive(Default)]
struct Owned {
    labels: BTreeSet<String>,
    annotations: BTreeSet<String>,
    fields: BTreeSet<String>,
}

fn owned(metadata: &ObjectMeta) -> Owned {
    let entry = metadata.managed_fields.iter().flatten().find(|entry| {
        entry.manager.as_deref() == Some(MANAGERS.metadata)
            && entry.operation.as_deref() == Some("Apply")
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    });
    let Some(fields) = entry.and_then(|entry| entry.fields_v1.as_ref()) else {
        return Owned::default();
    };
    let keys = |value: &Value| -> BTreeSet<String> {
        value
            .as_object()
            .into_iter()
            .flat_map(serde_json::Map::keys)
            .filter_map(|key| key.strip_prefix("f:"))
            .map(ToOwned::to_owned)
            .collect()
    };
    Owned {
        labels: keys(&fields.0["f:metadata"]["f:labels"]),
        annotations: keys(&fields.0["f:metadata"]["f:annotations"]),
        fields: keys(&fields.0["f:spec"]),
    }
}
