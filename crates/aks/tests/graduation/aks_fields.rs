//! Every field of AKS's own API: reached by a field of ours, decided by the provider, reached by a patch, or refused.
//! Found out by changing each of our fields and by patching each of theirs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::LazyLock,
};

use flate2::read::DeflateDecoder;
use serde_json::{Value, json};
use slipway_azure::reconcile::step;

use crate::completeness::{leaves, manifests, sample, spec_schema};

/// The versions that are spoken.
const STABLE: &str = "v1api20240901";
const SOMEWHERE: &str = "/subscriptions/sub/resourceGroups/group/providers/Microsoft.Some/things/thing";

/// A field of AKS and a value for it, in the operator's form.
struct Field {
    path: String,
    example: Value,
}

fn walk(table: &Value, form: &Value, path: &str, wrap: &dyn Fn(Value) -> Value, fields: &mut Vec<Field>) {
    let push = |example: Value, fields: &mut Vec<Field>| {
        fields.push(Field {
            path: path.to_owned(),
            example: wrap(example),
        });
    };
    match form {
        Value::Number(index) => {
            let index = usize::try_from(index.as_u64().expect("an index")).expect("an index");
            for entry in table["structs"][index]["f"].as_array().expect("fields") {
                let name = entry[0].as_str().expect("a name").to_owned();
                let below = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                // The pools have a kind of their own.
                if below == "agentPoolProfiles" {
                    continue;
                }
                let inner = |value: Value| wrap(json!({ (name.as_str()): value }));
                walk(
                    table,
                    entry.get(2).unwrap_or(&Value::Null),
                    &below,
                    &inner,
                    fields,
                );
            }
        }
        Value::Array(parts) => {
            let inner = parts.get(1).unwrap_or(&Value::Null);
            match parts[0].as_str() {
                Some("list") => walk(
                    table,
                    inner,
                    &format!("{path}[]"),
                    &|value| wrap(json!([value])),
                    fields,
                ),
                Some("map") => walk(
                    table,
                    inner,
                    &format!("{path}{{}}"),
                    &|value| wrap(json!({"patched": value})),
                    fields,
                ),
                _ => push(inner.clone(), fields),
            }
        }
        Value::String(kind) => match kind.as_str() {
            "reference" => push(json!({"armId": SOMEWHERE}), fields),
            "identities" => push(json!([{"reference": {"armId": SOMEWHERE}}]), fields),
            "secrets" => push(json!({"name": "secret"}), fields),
            "secret" | "config" => push(json!({"name": "secret", "key": "key"}), fields),
            _ => push(json!("patched"), fields),
        },
        _ => push(json!("patched"), fields),
    }
}

fn fields_of(kind: &str) -> Vec<Field> {
    static KINDS: LazyLock<Value> = LazyLock::new(|| {
        serde_json::from_str(include_str!("../../../azure/src/resource/table/kinds.json")).expect("the table")
    });
    let structs = include_bytes!("../../../azure/src/resource/table/structs.bin");
    let entry = &KINDS["kinds"]["containerservice.azure.com"][kind];
    let number = |name: &str| usize::try_from(entry[name].as_u64().expect("a number")).expect("a number");
    let packed = &structs[number("at")..number("at") + number("size")];
    let structs: Value =
        serde_json::from_reader(DeflateDecoder::new(packed)).expect("the structs of the kind");
    let table = json!({ "structs": structs });
    let mut fields = Vec::new();
    walk(
        &table,
        &entry["versions"][STABLE]["spec"],
        "",
        &|value| value,
        &mut fields,
    );
    fields
}

/// The path of a place in a manifest's spec, as the fields above spell it.
fn spelled(pointer: &str, known: &BTreeSet<String>) -> Option<String> {
    let parts: Vec<&str> = pointer.split('/').skip(1).collect();
    let mut path = String::new();
    for part in parts {
        let part = part.replace("~1", "/").replace("~0", "~");
        let candidates = [
            if path.is_empty() {
                part.clone()
            } else {
                format!("{path}.{part}")
            },
            format!("{path}[]"),
            format!("{path}{{}}"),
        ];
        // A reference or a list of identities is one field, however it looks inside.
        let leads_on = |candidate: &String| {
            known
                .range::<String, _>(candidate..)
                .take_while(|field| field.starts_with(candidate.as_str()))
                .any(|field| {
                    let rest = &field[candidate.len()..];
                    rest.is_empty() || rest.starts_with(['.', '[', '{'])
                })
        };
        let Some(next) = candidates.iter().find(|candidate| leads_on(candidate)) else {
            break;
        };
        path.clone_from(next);
    }
    known.contains(&path).then_some(path)
}

fn manifest_of<'a>(all: &'a [Value], kind: &str) -> &'a Value {
    all.iter()
        .find(|manifest| manifest["kind"] == kind)
        .unwrap_or_else(|| panic!("no {kind}"))
}

/// The paths at which two specs differ.
fn changed(before: &Value, after: &Value, known: &BTreeSet<String>) -> BTreeSet<String> {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    leaves("", before, &mut left);
    leaves("", after, &mut right);
    left.iter()
        .chain(&right)
        .filter(|pointer| before.pointer(pointer) != after.pointer(pointer))
        .filter_map(|pointer| spelled(pointer, known))
        .collect()
}

fn full_plane(variant: usize) -> Value {
    let mut plane = sample("", &spec_schema("azuremanagedcontrolplanes"), variant);
    let names = json!({
        "version": (["v1.31.0", "v1.32.0"][variant]), "enablePreviewFeatures": false, "resourceGroupName": "group",
        "asoManagedClusterPatches": [], "sku": {"tier": (["Free", "Standard"][variant])},
        "identity": {"type": "UserAssigned", "userAssignedIdentityResourceID": format!("{SOMEWHERE}{variant}")},
        "virtualNetwork": {"name": "network", "resourceGroup": "networks", "subnet": {"name": "nodes"}}
    });
    json_patch::merge(&mut plane, &names);
    plane
}

fn full_pool(variant: usize) -> Value {
    let mut pool = sample("", &spec_schema("azuremanagedmachinepools"), variant);
    json_patch::merge(
        &mut pool,
        &json!({"name": "pool", "mode": "System", "asoManagedClustersAgentPoolPatches": []}),
    );
    pool
}

/// Which of our fields reach which of theirs.
fn reached(
    kind: &str,
    schema: &str,
    pair: (Value, Value),
    known: &BTreeSet<String>,
    send: &dyn Fn(&Value) -> Vec<Value>,
) -> BTreeMap<String, BTreeSet<String>> {
    let (first, second) = pair;
    let mut pointers = Vec::new();
    leaves("", &sample("", &spec_schema(schema), 0), &mut pointers);
    let before = manifest_of(&send(&first), kind)["spec"].clone();
    let mut reached: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pointer in pointers {
        let (Some(_), Some(other)) = (first.pointer(&pointer), second.pointer(&pointer)) else {
            continue;
        };
        let mut after = first.clone();
        *after.pointer_mut(&pointer).expect("a leaf") = other.clone();
        let name = pointer.replace("/0", "[]").replace("/{}", "{}").replace('/', ".");
        for path in changed(&before, &manifest_of(&send(&after), kind)["spec"], known) {
            reached
                .entry(path)
                .or_default()
                .insert(name.trim_start_matches('.').to_owned());
        }
    }
    reached
}

/// Fields of ours that the samples cannot change, because they count only beside another choice.
const CHOICES: &[(&str, &str, &str)] = &[
    ("ManagedCluster", "identity.type", "identity.type"),
    ("ManagedClustersAgentPool", "mode", "mode"),
    ("ManagedClustersAgentPool", "enableAutoScaling", "scaling"),
];

/// What becomes of a patch that sets a field.
fn patched(kind: &str, field: &Field, without: &[Value]) -> Result<(), String> {
    let patch = json!({"spec": field.example}).to_string();
    let (mut plane, mut pool) = (full_plane(0), full_pool(0));
    if kind == "ManagedCluster" {
        plane["asoManagedClusterPatches"] = json!([patch]);
    } else {
        pool["asoManagedClustersAgentPoolPatches"] = json!([patch]);
    }
    let with = manifests(&plane, &pool);
    let sent = |all: &[Value]| step::put(manifest_of(all, kind), "sub").map(|put| put.body);
    let before = sent(without).map_err(|error| error.to_string())?;
    let after = sent(&with).map_err(|error| error.to_string())?;
    if before == after {
        return Err("the body does not change".to_owned());
    }
    Ok(())
}

fn rows(
    kind: &str,
    reached: &BTreeMap<String, BTreeSet<String>>,
    page: &mut String,
    problems: &mut Vec<String>,
) -> [usize; 4] {
    let all = manifests(&full_plane(0), &full_pool(0));
    let manifest = manifest_of(&all, kind);
    let fields = fields_of(kind);
    let known: BTreeSet<String> = fields.iter().map(|field| field.path.clone()).collect();
    let mut pointers = Vec::new();
    leaves("", &manifest["spec"], &mut pointers);
    let decided: BTreeSet<String> = pointers
        .iter()
        .filter_map(|pointer| spelled(pointer, &known))
        .collect();
    let patches = if kind == "ManagedCluster" {
        "asoManagedClusterPatches"
    } else {
        "asoManagedClustersAgentPoolPatches"
    };
    let mut counts = [0; 4];
    for field in &fields {
        let (count, how) = match reached.get(&field.path) {
            Some(ours) => (
                0,
                format!(
                    "field `{}`",
                    ours.iter().cloned().collect::<Vec<_>>().join("`, `")
                ),
            ),
            None if decided.contains(&field.path) => (1, "decided by the provider".to_owned()),
            None => match patched(kind, field, &all) {
                Ok(()) => (2, format!("patch: `{patches}`")),
                Err(problem) if problem == "the body does not change" => {
                    problems.push(format!("{kind} {}: {problem}", field.path));
                    continue;
                }
                Err(problem) => (3, format!("refused: {}", problem.replace('|', "\\|"))),
            },
        };
        counts[count] += 1;
        let _ = writeln!(page, "| `{}` | {how} |", field.path);
    }
    counts
}

#[test]
fn the_page_tells_how_every_field_of_aks_is_reached() {
    let mut page = format!(
        "# Every field of AKS\n\nFound out by a test, which keeps this page true, over the API version that is spoken ({STABLE}, in Azure Service\n\
         Operator's spelling): which field of ours reaches it, or how else.\n\n\
         - *field*: changing ours changes it.\n\
         - *decided by the provider*: from the MachinePool, from the Cluster, or always the same. A patch still overrides it.\n\
         - *patch*: a merge patch in `spec.asoManagedClusterPatches` or `spec.asoManagedClustersAgentPoolPatches` reaches it;\n  \
           patches come last.\n\
         - *refused*: a patch that sets it is told why not.\n\n\
         The path forward breaks nothing: a field that gets one of its own keeps its patch, which goes on winning. With\n\
         `enablePreviewFeatures` the preview version is spoken, and its fields are reached by patches in the same way.\n"
    );
    let mut problems = Vec::new();
    let mut total = [0; 4];
    for (kind, owner) in [
        ("ManagedCluster", "AzureManagedControlPlane"),
        ("ManagedClustersAgentPool", "AzureManagedMachinePool"),
    ] {
        let known: BTreeSet<String> = fields_of(kind).into_iter().map(|field| field.path).collect();
        let pool = full_pool(0);
        let plane = full_plane(0);
        let mut ours = reached(
            kind,
            "azuremanagedcontrolplanes",
            (full_plane(0), full_plane(1)),
            &known,
            &|plane| manifests(plane, &pool),
        );
        if kind == "ManagedClustersAgentPool" {
            for (path, fields) in reached(
                kind,
                "azuremanagedmachinepools",
                (full_pool(0), full_pool(1)),
                &known,
                &|pool| manifests(&plane, pool),
            ) {
                let of_pool = fields.into_iter().collect::<BTreeSet<_>>();
                ours.entry(path).or_default().extend(of_pool);
            }
        }
        for (_, theirs, field) in CHOICES.iter().filter(|(of, ..)| *of == kind) {
            assert!(known.contains(*theirs), "{theirs}");
            ours.entry((*theirs).to_owned())
                .or_default()
                .insert((*field).to_owned());
        }
        let _ = write!(
            page,
            "\n## {kind} ({owner})\n\n| field of AKS | reached by |\n|---|---|\n"
        );
        let counts = rows(kind, &ours, &mut page, &mut problems);
        for (sum, count) in total.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    println!(
        "report: aks fields: {} reached by fields, {} decided, {} by patches, {} refused",
        total[0], total[1], total[2], total[3]
    );
    assert!(total[0] > 120 && total[2] > 50, "{total:?}");
    crate::pages::check("aks-api.md", &page);
}
