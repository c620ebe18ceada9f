//! No field is accepted and ignored: every leaf of every kind's spec, set to one value and to another, makes a difference
//! to the userdata, to what the plan goes by, or to the objects that are made. What does not is on a reviewed list.

use serde_json::{Value, json};
use slipway_k3s::{
    api::{KThreesConfigSpec, KThreesControlPlane, crd},
    bootstrap::render::{self, Ca, Cas, Facts, Role},
    control_plane::{act, observe},
};

/// Leaves that make no difference here, and why.
const EXCEPTIONS: &[(&str, &str)] = &[
    (
        "serverConfig.disableExternalCloudProvider",
        "deprecated and without effect, as in cluster-api-k3s; conversion from v1beta1 reads it",
    ),
    (
        "files.content",
        "read by the controller: component.rs a_file_waits_for_its_secret, userdata.rs",
    ),
    (
        "files.contentFrom.secret.name",
        "read by the controller: component.rs a_file_waits_for_its_secret",
    ),
    (
        "files.contentFrom.secret.key",
        "read by the controller: component.rs a_file_waits_for_its_secret",
    ),
    (
        "serverConfig.datastore.endpointFrom.secret.name",
        "read by the controller: behaviours.rs an_external_datastore_is_used_and_healed",
    ),
    (
        "serverConfig.datastore.endpointFrom.secret.key",
        "read by the controller: behaviours.rs an_external_datastore_is_used_and_healed",
    ),
    (
        "version",
        "read by the controller, which gives it to the host before the machine's: userdata.rs",
    ),
    (
        "machineTemplate.infrastructureRef.namespace",
        "always the control plane's own; admission refuses another",
    ),
    (
        "machineTemplate.infrastructureRef.fieldPath",
        "of Kubernetes' ObjectReference; a template has no parts to point at",
    ),
    (
        "machineTemplate.infrastructureRef.resourceVersion",
        "of Kubernetes' ObjectReference; the template is read as it is",
    ),
    (
        "machineTemplate.infrastructureRef.uid",
        "of Kubernetes' ObjectReference; a template is found by name",
    ),
];

/// A leaf, by the names of its fields.
type Leaf = Vec<String>;

fn schema_of(kind: &str) -> Value {
    let all = crd::bootstrap().into_iter().chain(crd::control_plane());
    let definition = all
        .into_iter()
        .find(|definition| definition.spec.names.kind == kind)
        .expect("the kind");
    let version = definition
        .spec
        .versions
        .iter()
        .find(|version| version.name == "v1beta2")
        .expect("the version");
    let schema = serde_json::to_value(&version.schema).expect("a schema");
    schema["openAPIV3Schema"]["properties"]["spec"].clone()
}

fn leaves(schema: &Value, path: &Leaf, found: &mut Vec<Leaf>) {
    if let Some(properties) = schema["properties"].as_object() {
        for (name, inner) in properties {
            let mut deeper = path.clone();
            deeper.push(name.clone());
            leaves(inner, &deeper, found);
        }
    } else if schema["items"]["properties"].is_object() {
        leaves(&schema["items"], path, found);
    } else {
        found.push(path.clone());
    }
}

/// One of two values that a leaf can have.
fn value(schema: &Value, path: &Leaf, second: bool) -> Value {
    let name = path.last().map(String::as_str).unwrap_or_default();
    if let Some(choices) = schema["enum"].as_array() {
        let choices: Vec<&Value> = choices.iter().filter(|choice| !choice.is_null()).collect();
        return choices[usize::from(second).min(choices.len() - 1)].clone();
    }
    match (name, schema["type"].as_str()) {
        ("apiVersion", _) => json!(if second {
            "second.example/v1"
        } else {
            "first.example/v1"
        }),
        ("maxSurge", _) => json!(i32::from(second)),
        ("after" | "rolloutAfter", _) => json!(format!("2026-0{}-01T00:00:00Z", 1 + i32::from(second))),
        (name, Some("string")) if name.ends_with("Timeout") || name.ends_with("Period") => {
            json!(if second { "7m" } else { "9m" })
        }
        (_, Some("string")) => json!(if second { "second" } else { "first" }),
        (_, Some("boolean")) => json!(second),
        (_, Some("integer")) => json!(3 + i32::from(second) * 2),
        (_, Some("array")) => json!([if second { "second=b" } else { "first=a" }]),
        (_, Some("object")) => json!({"key": if second { "second" } else { "first" }}),
        _ => panic!("{path:?} has no value here: {schema}"),
    }
}

/// The smallest spec with the leaf: what it needs besides is filled in.
fn with_leaf(schema: &Value, path: &[String], whole: &Leaf, second: bool) -> Value {
    let Some((name, rest)) = path.split_first() else {
        return value(schema, whole, second);
    };
    if schema["items"]["properties"].is_object() {
        return json!([with_leaf(&schema["items"], path, whole, second)]);
    }
    let mut object = json!({});
    for required in schema["required"].as_array().into_iter().flatten() {
        let required = required.as_str().unwrap_or_default();
        object[required] = filled(&schema["properties"][required], required);
    }
    object[name] = with_leaf(&schema["properties"][name], rest, whole, second);
    object
}

/// Anything that is valid.
fn filled(schema: &Value, name: &str) -> Value {
    if let Some(properties) = schema["properties"].as_object() {
        let mut object = json!({});
        for required in schema["required"].as_array().into_iter().flatten() {
            let required = required.as_str().unwrap_or_default();
            object[required] = filled(&properties[required], required);
        }
        return object;
    }
    if name == "version" {
        return json!("v1.34.1+k3s1");
    }
    value(schema, &vec![name.to_owned()], false)
}

fn userdata(spec: &KThreesConfigSpec) -> Vec<String> {
    let facts = Facts {
        endpoint_host: "10.9.9.9".into(),
        endpoint_port: 6443,
        token: "token-of-servers".into(),
        agent_token: (spec.server().agent_token == Some(slipway_k3s::api::AgentToken::Separate))
            .then(|| "token-of-workers".to_owned()),
        version: "v1.34.1+k3s1".into(),
        cas: Cas {
            server: Ca::default(),
            client: Ca::default(),
            etcd: spec.has_embedded_etcd().then(Ca::default),
        },
        datastore_endpoint: (!spec.has_embedded_etcd()).then(|| "etcd://here".to_owned()),
        file_contents: vec![b"content".to_vec(); spec.files.as_deref().unwrap_or_default().len()],
    };
    [Role::Init, Role::JoinServer, Role::Worker]
        .into_iter()
        .map(|role| render::render(spec, &facts, role).expect("userdata"))
        .collect()
}

fn exception(path: &str) -> bool {
    EXCEPTIONS.iter().any(|(name, _)| *name == path)
}

fn judge(kind: &str, path: &str, same: bool, problems: &mut Vec<String>) {
    match (same, exception(path)) {
        (true, false) => problems.push(format!("{kind} spec.{path} is accepted and ignored")),
        (false, true) => problems.push(format!("{kind} spec.{path} is an exception without a reason")),
        _ => {}
    }
}

#[test]
fn every_field_of_a_config_reaches_the_host() {
    let schema = schema_of("KThreesConfig");
    let mut found = Vec::new();
    leaves(&schema, &Vec::new(), &mut found);
    let mut problems = Vec::new();
    for leaf in &found {
        let render = |second: bool| {
            let spec = with_leaf(&schema, leaf, leaf, second);
            let mut spec: KThreesConfigSpec = serde_json::from_value(spec.clone())
                .unwrap_or_else(|error| panic!("{leaf:?}: {error}: {spec}"));
            // Where the script is only counts where there is one.
            if let Some(agent) = &mut spec.agent_config
                && agent.air_gapped_install_script_path.is_some()
            {
                agent.air_gapped = Some(true);
            }
            userdata(&spec)
        };
        judge(
            "KThreesConfig",
            &leaf.join("."),
            render(false) == render(true),
            &mut problems,
        );
    }
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(found.len() > 35, "the schema has leaves: {}", found.len());
    println!(
        "report: k3s completeness: {} leaves of KThreesConfig",
        found.len()
    );
}

/// What a control plane's spec comes to: what is decided by, and what is made.
fn outcome(plane: &KThreesControlPlane) -> String {
    let machines = plane.spec.machines();
    let decided = format!(
        "{:?} {:?} {:?}",
        observe::desired(plane),
        plane.spec.effective_rollout_after(),
        plane
            .spec
            .rollout_before
            .as_ref()
            .and_then(|before| before.certificates_expiry_days),
    );
    let made = format!(
        "{:?} {:?} {:?} {:?}",
        observe::desired_config(plane),
        observe::template_reference(plane),
        act::propagated(&machines),
        machines.metadata,
    );
    decided + &made
}

#[test]
fn every_field_of_a_control_plane_is_decided_by_or_made() {
    let schema = schema_of("KThreesControlPlane");
    let mut found = Vec::new();
    leaves(&schema, &Vec::new(), &mut found);
    let mut problems = Vec::new();
    let mut own = 0;
    for leaf in &found {
        // What is inside the config is judged by the host.
        if leaf[0] == "kthreesConfigSpec" {
            continue;
        }
        own += 1;
        let outcome = |second: bool| {
            let spec = with_leaf(&schema, leaf, leaf, second);
            let object = json!({"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KThreesControlPlane",
                "metadata": {"name": "edge"}, "spec": spec});
            let plane: KThreesControlPlane =
                serde_json::from_value(object).unwrap_or_else(|error| panic!("{leaf:?}: {error}"));
            outcome(&plane)
        };
        let path = leaf.join(".");
        let same = outcome(false) == outcome(true);
        match (same, exception(&path) && path != "version") {
            (true, false) => {
                problems.push(format!("KThreesControlPlane spec.{path} is accepted and ignored"));
            }
            (false, true) => problems.push(format!("spec.{path} is an exception without a reason")),
            _ => {}
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    println!("report: k3s completeness: {own} leaves of KThreesControlPlane beside its config");
}

/// Templates hold what core copies: every field of theirs is a field, of the same shape, of what is made from them.
#[test]
fn templates_hold_nothing_that_is_lost_in_the_copy() {
    let inner = |kind: &str| schema_of(kind)["properties"]["template"]["properties"]["spec"].clone();
    let plain = |schema: &Value| -> Vec<Leaf> {
        let mut found = Vec::new();
        leaves(schema, &Vec::new(), &mut found);
        found
    };
    let configs = plain(&schema_of("KThreesConfig"));
    assert_eq!(plain(&inner("KThreesConfigTemplate")), configs);
    let planes = plain(&schema_of("KThreesControlPlane"));
    let mut template = plain(&inner("KThreesControlPlaneTemplate"));
    template.push(vec!["replicas".into()]);
    template.push(vec!["version".into()]);
    template.sort();
    let mut planes_sorted = planes;
    planes_sorted.sort();
    assert_eq!(template, planes_sorted);
}
