//! Every field of a control plane and a pool: where it is sent, and whether it may be set, changed and unset on an object
//! that exists. The page in the documentation is what this finds out.

use std::{collections::BTreeSet, fmt::Write as _};

use serde_json::{Value, json};
use slipway_aks::{
    admit::existing::Existing,
    api::{AzureManagedControlPlane, AzureManagedMachinePool},
    control_plane::admit::{defaults, update},
    pool::admit::{OtherSystemPools, update as pool_update},
};
use slipway_runtime::admission::field::Path;

use super::completeness::{leaves, manifests, sample, spec_schema};

fn plane(spec: &Value) -> AzureManagedControlPlane {
    serde_json::from_value(json!({"metadata": {"name": "plane"}, "spec": spec}))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn plane_refuses(old: &Value, new: &Value) -> bool {
    let (mut old, mut new) = (plane(old), plane(new));
    defaults::control_plane(&mut old, None, || Err("no key is asked for".to_owned()));
    defaults::control_plane(&mut new, Some(&old), || Err("no key is asked for".to_owned()));
    !update::validate(&old, &new, Existing::Made).is_empty()
}

fn pool_refuses(old: &Value, new: &Value) -> bool {
    let class = |spec: &Value| {
        let pool: AzureManagedMachinePool =
            serde_json::from_value(json!({"metadata": {"name": "pool"}, "spec": spec}))
                .unwrap_or_else(|error| panic!("{error}"));
        // Samples are any text; labels and taints are not.
        let word = |text: &str| {
            text.chars()
                .filter(char::is_ascii_alphanumeric)
                .collect::<String>()
        };
        let mut class = pool.spec.class;
        class.node_labels = class
            .node_labels
            .into_values()
            .map(|value| ("key".to_owned(), word(&value)))
            .collect();
        for taint in &mut class.taints {
            taint.key = word(&taint.key);
            taint.value = word(&taint.value);
        }
        class
    };
    !pool_update::validate(
        &Path::new("spec"),
        &class(old),
        &class(new),
        &OtherSystemPools::Count(1),
    )
    .is_empty()
}

/// The value without one leaf; an array goes whole with its only item.
fn without(value: &Value, pointer: &str) -> Option<Value> {
    let mut value = value.clone();
    let pointer = pointer.strip_suffix("/0").unwrap_or(pointer);
    let (parent, name) = pointer.rsplit_once('/')?;
    value.pointer_mut(parent)?.as_object_mut()?.remove(name)?;
    Some(value)
}

fn required(schema: &Value, pointer: &str) -> bool {
    let mut at = schema;
    let mut needed = false;
    for part in pointer.split('/').skip(1) {
        if part == "0" {
            at = &at["items"];
        } else if at["additionalProperties"].is_object() {
            at = &at["additionalProperties"];
            needed = false;
        } else {
            needed = at["required"]
                .as_array()
                .is_some_and(|names| names.iter().any(|name| name == part))
                && at["properties"][part]["default"].is_null();
            at = &at["properties"][part];
        }
    }
    needed
}

/// One field and what may become of it on an object that exists.
pub struct Row {
    pub name: String,
    pub sent: String,
    pub set: &'static str,
    pub change: &'static str,
    pub unset: &'static str,
}

/// The value as the apiserver completes it: an absent field with a default has it.
fn completed(schema: &Value, mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if !members.contains_key(name) && !property["default"].is_null() {
                    members.insert(name.clone(), property["default"].clone());
                }
                if let Some(member) = members.get_mut(name) {
                    *member = completed(property, member.take());
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                *item = completed(&schema["items"], item.take());
            }
        }
        _ => {}
    }
    value
}

fn rows(
    plural: &str,
    skip: &[&str],
    refuses: fn(&Value, &Value) -> bool,
    send: &dyn Fn(&Value) -> Vec<Value>,
) -> Vec<Row> {
    let schema = spec_schema(plural);
    let (mut first, mut second) = (sample("", &schema, 0), sample("", &schema, 1));
    if plural == "azuremanagedcontrolplanes" {
        // Versions compare only as versions, and a member that is not there cannot change.
        first["version"] = json!("v1.31.0");
        second["version"] = json!("v1.32.0");
    } else {
        // What a spot pool may say, so that only the leaf in question can be refused.
        for spec in [&mut first, &mut second] {
            spec["scaleSetPriority"] = json!("Spot");
            spec["scaling"] = json!({"minSize": 3, "maxSize": 9});
        }
        second["scaling"] = json!({"minSize": 4, "maxSize": 10});
        second["scaleSetPriority"] = json!("Regular");
    }
    let mut pointers = Vec::new();
    leaves("", &first, &mut pointers);
    let mut rows = Vec::new();
    for pointer in &pointers {
        let path = pointer.replace("/0", "[]").replace("/{}", "{}").replace('/', ".");
        let name = path.trim_start_matches('.');
        if skip.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        let mut changed = first.clone();
        *changed.pointer_mut(pointer).expect("a leaf") = second.pointer(pointer).cloned().unwrap_or_default();
        let word = |refused: bool| if refused { "refused" } else { "yes" };
        let kinds: BTreeSet<String> = send(&first)
            .iter()
            .zip(send(&changed))
            .filter(|(before, after)| *before != after)
            .map(|(before, _)| before["kind"].as_str().unwrap_or_default().to_owned())
            .collect();
        let less = |from: &Value| without(from, pointer).map(|less| completed(&schema, less));
        let (set, unset) = match (less(&first), less(&changed)) {
            (Some(_), _) if required(&schema, pointer) => ("required", "required"),
            // What is the default already can be left out of everything.
            (Some(less), Some(other)) => (
                word(refuses(&less, &first) || refuses(&other, &changed)),
                word(refuses(&first, &less) || refuses(&changed, &other)),
            ),
            _ => ("-", "-"),
        };
        rows.push(Row {
            name: name.to_owned(),
            sent: if kinds.is_empty() {
                "-".to_owned()
            } else {
                kinds.into_iter().collect::<Vec<_>>().join(", ")
            },
            set,
            change: word(refuses(&first, &changed)),
            unset,
        });
    }
    rows
}

pub fn control_plane_rows() -> Vec<Row> {
    let pool = json!({"mode": "System", "sku": "small"});
    rows(
        "azuremanagedcontrolplanes",
        &["identityRef", "controlPlaneEndpoint"],
        plane_refuses,
        &|plane| manifests(plane, &pool),
    )
}

pub fn pool_rows() -> Vec<Row> {
    let plane = json!({
        "version": "v1.31.0", "location": "westus", "resourceGroupName": "group", "identityRef": {},
        "virtualNetwork": {"name": "network", "cidrBlock": "10.0.0.0/8", "subnet": {"name": "nodes", "cidrBlock": "10.240.0.0/16"}}
    });
    let send = |pool: &Value| -> Vec<Value> { agent_pool(&plane, pool).into_iter().collect() };
    rows(
        "azuremanagedmachinepools",
        &["providerIDList"],
        pool_refuses,
        &send,
    )
}

#[test]
fn the_documented_fields_are_the_fields() {
    let mut page = String::from(
        "# Fields\n\nFound out by a test, which keeps this page true: where a field is sent, and whether it may be set, changed and\n\
         unset on an object that exists. `-`: not sent, or not to be set by itself. What Azure then gets is told by\n\
         [what may change](mutations.md); a combination may still break a [rule](rules.md).\n",
    );
    let mut count = 0;
    for (kind, rows) in [
        ("AzureManagedControlPlane", control_plane_rows()),
        ("AzureManagedMachinePool", pool_rows()),
    ] {
        let _ = write!(
            page,
            "\n## {kind}\n\n| field | sent in | set | change | unset |\n|---|---|---|---|---|\n"
        );
        for row in rows {
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {} |",
                row.name, row.sent, row.set, row.change, row.unset
            );
            count += 1;
        }
    }
    assert!(count > 160, "{count} fields");
    super::pages::check("fields.md", &page);
}

fn agent_pool(spec: &Value, pool: &Value) -> Option<Value> {
    use slipway_aks::render::{Facts, PoolFacts};
    let plane = plane(spec);
    let pool: AzureManagedMachinePool =
        serde_json::from_value(json!({"metadata": {"name": "pool"}, "spec": pool})).ok()?;
    let facts = Facts {
        plane: &plane,
        cluster_name: "fleet",
        subscription: "sub",
        services: None,
        pods: None,
    };
    let pool_facts = PoolFacts {
        class: &pool.spec.class,
        azure_name: pool.azure_name(),
        replicas: 50,
        version: None,
        existing: None,
    };
    slipway_aks::render::agent_pool(&facts, &pool_facts).ok()
}
