//! Every field a view models must exist, with its type, in the CustomResourceDefinitions of the Cluster API version
//! that `parts/go.mod` pins. The fields are taken from the views' own schemas, so none can be forgotten.

use std::{path::PathBuf, process::Command};

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value;
use slipway_capi::view::{self, v1beta1};

/// Where Go keeps the pinned module. A machine without it cannot tell whether the views are right.
fn cluster_api() -> PathBuf {
    let parts = concat!(env!("CARGO_MANIFEST_DIR"), "/../../parts");
    let output = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api"])
        .current_dir(parts)
        .output()
        .unwrap_or_else(|error| {
            panic!("go cannot be run ({error}): this test needs Go to find the pinned Cluster API")
        });
    let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(
        output.status.success() && !directory.is_empty(),
        "the pinned Cluster API is not downloaded; run `go mod download sigs.k8s.io/cluster-api` in parts/: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    directory.into()
}

/// The schema of one version in a CustomResourceDefinition.
fn crd_schema(file: &str, version: &str) -> Value {
    let path = cluster_api().join("core/config/crd/bases").join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{} cannot be read: {error}", path.display()));
    let options = serde_saphyr::options! { budget: None };
    let crd: Value = serde_saphyr::from_str_with_options(&text, options)
        .unwrap_or_else(|error| panic!("{} is not YAML: {error}", path.display()));
    crd["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|candidate| candidate["name"] == version)
        .map_or_else(
            || panic!("{file} has no version {version}"),
            |found| found["schema"]["openAPIV3Schema"].clone(),
        )
}

fn view_schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

fn type_of(schema: &Value) -> String {
    if schema["x-kubernetes-int-or-string"] == true {
        return "int-or-string".to_owned();
    }
    // k8s-openapi writes an integer or a string as a choice, and serde's unit variants as several.
    for choice in ["anyOf", "oneOf"] {
        if let Some(list) = schema[choice].as_array() {
            let mut types: Vec<_> = list
                .iter()
                .map(type_of)
                .filter(|name| name != "null" && name != "?")
                .collect();
            types.sort();
            types.dedup();
            if types == ["integer", "string"] {
                return "int-or-string".to_owned();
            }
            if let [one] = types.as_slice() {
                return one.clone();
            }
        }
    }
    match &schema["type"] {
        Value::String(name) => name.clone(),
        Value::Array(names) => names
            .iter()
            .filter_map(Value::as_str)
            .find(|name| *name != "null")
            .unwrap_or("?")
            .to_owned(),
        _ if schema["properties"].is_object() => "object".to_owned(),
        _ => "?".to_owned(),
    }
}

/// Walks both schemas; returns how many fields were compared.
fn compare(at: &str, view: &Value, crd: &Value, problems: &mut Vec<String>) -> usize {
    if crd.is_null() {
        problems.push(format!("{at} is not in the CustomResourceDefinition"));
        return 1;
    }
    let (ours, theirs) = (type_of(view), type_of(crd));
    if ours != theirs {
        problems.push(format!(
            "{at} is {theirs} in the CustomResourceDefinition, but the view reads {ours}"
        ));
        return 1;
    }
    let mut count = 1;
    if let Some(properties) = view["properties"].as_object() {
        for (name, property) in properties {
            count += compare(
                &format!("{at}.{name}"),
                property,
                &crd["properties"][name],
                problems,
            );
        }
    }
    if view["items"].is_object() {
        count += compare(&format!("{at}[]"), &view["items"], &crd["items"], problems);
    }
    if view["additionalProperties"].is_object() {
        count += compare(
            &format!("{at}{{}}"),
            &view["additionalProperties"],
            &crd["additionalProperties"],
            problems,
        );
    }
    count
}

fn check<T: JsonSchema>(file: &str, version: &str, at_least: usize) {
    let (view, crd) = (view_schema::<T>(), crd_schema(file, version));
    let mut problems = Vec::new();
    let mut count = 0;
    for part in ["spec", "status"] {
        count += compare(
            part,
            &view["properties"][part],
            &crd["properties"][part],
            &mut problems,
        );
    }
    assert!(problems.is_empty(), "{file} {version}:\n{}", problems.join("\n"));
    assert!(
        count >= at_least,
        "only {count} fields of {file} {version} were compared"
    );
}

#[test]
fn cluster() {
    check::<view::Cluster>("cluster.x-k8s.io_clusters.yaml", "v1beta2", 45);
}

#[test]
fn machine() {
    check::<view::Machine>("cluster.x-k8s.io_machines.yaml", "v1beta2", 55);
}

#[test]
fn machine_set() {
    check::<view::MachineSet>("cluster.x-k8s.io_machinesets.yaml", "v1beta2", 55);
}

#[test]
fn machine_deployment() {
    check::<view::MachineDeployment>("cluster.x-k8s.io_machinedeployments.yaml", "v1beta2", 60);
}

#[test]
fn machine_pool() {
    check::<view::MachinePool>("cluster.x-k8s.io_machinepools.yaml", "v1beta2", 55);
}

#[test]
fn extension_config() {
    check::<view::ExtensionConfig>("runtime.cluster.x-k8s.io_extensionconfigs.yaml", "v1beta2", 30);
}

#[test]
fn older_cluster() {
    check::<v1beta1::Cluster>("cluster.x-k8s.io_clusters.yaml", "v1beta1", 45);
}

#[test]
fn older_machine_pool() {
    check::<v1beta1::MachinePool>("cluster.x-k8s.io_machinepools.yaml", "v1beta1", 35);
}

#[test]
fn the_comparison_finds_a_missing_field_and_a_wrong_type() {
    let view = serde_json::json!({"type": "object", "properties": {
        "gone": {"type": "string"}, "text": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}}}});
    let crd = serde_json::json!({"type": "object", "properties": {
        "text": {"type": "integer"}, "list": {"type": "array", "items": {"type": "boolean"}}}});
    let mut problems = Vec::new();
    compare("spec", &view, &crd, &mut problems);
    assert_eq!(
        problems,
        [
            "spec.gone is not in the CustomResourceDefinition",
            "spec.list[] is boolean in the CustomResourceDefinition, but the view reads string",
            "spec.text is integer in the CustomResourceDefinition, but the view reads string",
        ]
    );
}

/// The names in `names` that Cluster API defines as constants are read from its source, so that a typo or a
/// renamed constant is found.
#[test]
fn names_are_those_of_cluster_api() {
    use slipway_capi::names::{annotation, condition, finalizer, label, reason, taint};
    let root = cluster_api();
    let api = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api/api"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../parts"))
        .output()
        .expect("go ran before");
    let mut sources = vec![
        root.join("cmd/clusterctl/api/v1alpha3"),
        root.join("util/conditions"),
        root.join("core/config"),
    ];
    // Depending on what else is pinned, the module of the types is listed or only in the cache beside its parent.
    let listed = String::from_utf8_lossy(&api.stdout).trim().to_owned();
    let base = if listed.is_empty() {
        let version = root
            .to_string_lossy()
            .rsplit('@')
            .next()
            .unwrap_or_default()
            .to_owned();
        root.parent()
            .expect("a module has a parent")
            .join(format!("cluster-api/api@{version}"))
    } else {
        listed.into()
    };
    sources.push(base.join("core/v1beta2"));
    sources.push(base.join("runtime/v1beta2"));
    let mut text = String::new();
    for directory in &sources {
        let entries = std::fs::read_dir(directory).unwrap_or_else(|error| {
            panic!(
                "{} cannot be read ({error}); run `go mod download` in parts/",
                directory.display()
            )
        });
        for entry in entries.flatten() {
            if entry
                .path()
                .extension()
                .is_some_and(|extension| extension == "go")
            {
                text.push_str(&std::fs::read_to_string(entry.path()).unwrap_or_default());
            }
        }
    }
    let missing: Vec<_> = [
        label::CLUSTER_NAME,
        label::WATCH_FILTER,
        label::CONTROL_PLANE,
        label::CONTROL_PLANE_NAME,
        label::MACHINE_SET_NAME,
        label::MACHINE_DEPLOYMENT_NAME,
        label::MACHINE_POOL_NAME,
        label::MACHINE_TEMPLATE_HASH,
        label::INTERRUPTIBLE,
        label::PROVIDER,
        label::TOPOLOGY_OWNED,
        label::MOVE,
        annotation::PAUSED,
        annotation::MANAGED_BY,
        annotation::REPLICAS_MANAGED_BY,
        annotation::CLONED_FROM_NAME,
        annotation::CLONED_FROM_GROUP_KIND,
        annotation::DELETE_MACHINE,
        annotation::REMEDIATE_MACHINE,
        annotation::CERTIFICATES_EXPIRY,
        annotation::EXCLUDE_NODE_DRAINING,
        annotation::EXCLUDE_WAIT_FOR_VOLUME_DETACH,
        annotation::PRE_TERMINATE_HOOK_PREFIX,
        annotation::TOPOLOGY_DRY_RUN,
        annotation::BLOCK_MOVE,
        annotation::DELETE_FOR_MOVE,
        annotation::PENDING_HOOKS,
        annotation::UPDATE_IN_PROGRESS,
        finalizer::CLUSTER,
        finalizer::MACHINE,
        taint::NODE_UNINITIALIZED,
        condition::AVAILABLE,
        condition::READY,
        condition::MACHINES_READY,
        condition::MACHINES_UP_TO_DATE,
        condition::ROLLING_OUT,
        condition::SCALING_UP,
        condition::SCALING_DOWN,
        condition::REMEDIATING,
        condition::DELETING,
        condition::PAUSED,
        condition::UP_TO_DATE,
        condition::UPDATING,
        condition::HEALTH_CHECK_SUCCEEDED,
        condition::OWNER_REMEDIATED,
        condition::DISCOVERED,
        reason::NOT_AVAILABLE,
        reason::NOT_READY,
        reason::NOT_UP_TO_DATE,
        reason::NOT_ROLLING_OUT,
        reason::NOT_SCALING_UP,
        reason::NOT_SCALING_DOWN,
        reason::NOT_REMEDIATING,
        reason::NOT_PAUSED,
        reason::CONNECTION_DOWN,
        reason::NOT_DELETING,
        reason::NO_REASON_REPORTED,
    ]
    .into_iter()
    .filter(|name| !text.contains(&format!("\"{name}\"")))
    .collect();
    assert!(missing.is_empty(), "Cluster API does not know {missing:?}");
}
