//! Our custom resources against those of the peer that `parts/capz/go.mod` pins, leaf by leaf: a manifest that applied
//! there must apply here. Every difference is listed below with its reason; an unlisted one fails.

use std::{collections::BTreeMap, path::PathBuf, process::Command};

use serde_json::{Value, json};
use slipway_aks::api::crd::crds;

const MODULE: &str = "sigs.k8s.io/cluster-api-provider-azure@v1.21.0";

/// What differs on purpose: CRD, leaf, keyword, reason.
const DIFFERENCES: &[(&str, &str, &str, &str)] = &[
    (
        "azuremanagedclusters",
        ".spec",
        "default",
        "an object without a spec is read like one with an empty one",
    ),
    (
        "azuremanagedcontrolplanes",
        ".spec.sku.tier",
        "enum",
        "AKS has the tier Premium",
    ),
    (
        "azuremanagedcontrolplanetemplates",
        ".spec.template.spec.sku.tier",
        "enum",
        "AKS has the tier Premium",
    ),
];

pub fn peer() -> PathBuf {
    let output = Command::new("go")
        .args(["mod", "download", "-json", MODULE])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../parts/capz"))
        .output()
        .unwrap_or_else(|error| panic!("go cannot be run ({error}): this test needs Go to find {MODULE}"));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let Some(directory) = answer["Dir"].as_str() else {
        panic!(
            "{MODULE} cannot be had; run `go mod download {MODULE}` in parts/capz: {} {}",
            answer["Error"],
            String::from_utf8_lossy(&output.stderr)
        )
    };
    directory.into()
}

fn peer_crd(plural: &str) -> Value {
    let path = peer()
        .join("config/crd/bases")
        .join(format!("infrastructure.cluster.x-k8s.io_{plural}.yaml"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str_with_options(&text, serde_saphyr::options! { budget: None })
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn leaves(at: &str, schema: &Value, required: bool, into: &mut BTreeMap<String, Value>) {
    let mut leaf = json!({"required": required});
    for keyword in [
        "type",
        "enum",
        "default",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "pattern",
        "nullable",
        "format",
        "x-kubernetes-int-or-string",
        "x-kubernetes-map-type",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
    ] {
        if let Some(value) = schema.get(keyword) {
            leaf[keyword] = match (keyword, value.as_f64()) {
                ("minimum" | "maximum", Some(number)) => json!(number),
                // What the apiserver assumes for an integer anyway, and what an object without fields is.
                ("format", _) if value == "int64" => continue,
                _ => value.clone(),
            };
        }
    }
    into.insert(at.to_owned(), leaf);
    let wanted: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        leaves(
            &format!("{at}.{name}"),
            property,
            wanted.contains(&name.as_str()),
            into,
        );
    }
    if schema["items"].is_object() {
        leaves(&format!("{at}[]"), &schema["items"], false, into);
    }
    if schema["additionalProperties"].is_object() {
        leaves(&format!("{at}{{}}"), &schema["additionalProperties"], false, into);
    }
}

fn keyword_differs(keyword: &str, theirs: &Value, ours: &Value) -> bool {
    match keyword {
        // Ours may ask for less.
        "required" => theirs == false && ours == true,
        "enum" => {
            let empty = Vec::new();
            let mut theirs = theirs.as_array().unwrap_or(&empty).clone();
            let mut ours = ours.as_array().unwrap_or(&empty).clone();
            theirs.sort_by_key(ToString::to_string);
            ours.sort_by_key(ToString::to_string);
            theirs != ours
        }
        _ => theirs != ours,
    }
}

/// Columns that upstream shows and we do not, or otherwise. We show more, and some of them without `-o wide`.
fn missing_columns(plural: &str, ours: &Value, theirs: &Value) -> Vec<String> {
    let columns = |version: &Value| -> Vec<Value> {
        let all = version["additionalPrinterColumns"].as_array().cloned();
        let mut all = all.unwrap_or_default();
        for column in &mut all {
            column.as_object_mut().expect("a column").remove("priority");
        }
        all
    };
    let ours = columns(ours);
    let missing = columns(theirs)
        .into_iter()
        .filter(|column| !ours.contains(column));
    missing
        .map(|column| format!("{plural}: no column {column}"))
        .collect()
}

#[test]
fn every_leaf_of_the_peers_definitions_is_ours_too() {
    let mut problems = Vec::new();
    let (mut total, mut equal, mut listed) = (0, 0, 0);
    for crd in crds() {
        let plural = crd.spec.names.plural.clone();
        let ours = json!(crd);
        let theirs = peer_crd(&plural);
        let (mut our_leaves, mut their_leaves) = (BTreeMap::new(), BTreeMap::new());
        let version = |crd: &Value| crd["spec"]["versions"][0].clone();
        leaves(
            "",
            &version(&ours)["schema"]["openAPIV3Schema"],
            false,
            &mut our_leaves,
        );
        leaves(
            "",
            &version(&theirs)["schema"]["openAPIV3Schema"],
            false,
            &mut their_leaves,
        );
        for (path, theirs) in &their_leaves {
            if matches!(path.as_str(), "" | ".apiVersion" | ".kind" | ".metadata") {
                continue;
            }
            total += 1;
            let Some(ours) = our_leaves.get(path) else {
                problems.push(format!("{plural}{path}: missing"));
                continue;
            };
            let keywords: std::collections::BTreeSet<&String> = theirs
                .as_object()
                .into_iter()
                .chain(ours.as_object())
                .flat_map(serde_json::Map::keys)
                .collect();
            let mut same = true;
            for keyword in keywords {
                if !keyword_differs(keyword, &theirs[keyword], &ours[keyword]) {
                    continue;
                }
                same = false;
                if DIFFERENCES
                    .iter()
                    .any(|(crd, leaf, word, _)| *crd == plural && leaf == path && word == keyword)
                {
                    listed += 1;
                } else {
                    problems.push(format!(
                        "{plural}{path}: {keyword} is {} and not {}",
                        ours[keyword], theirs[keyword]
                    ));
                }
            }
            equal += usize::from(same);
        }
        // What is ours alone may not be asked of a manifest that does not know it.
        for (path, ours) in &our_leaves {
            let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
            if !their_leaves.contains_key(path)
                && their_leaves.contains_key(parent)
                && ours["required"] == true
            {
                problems.push(format!("{plural}{path}: is ours alone and required"));
            }
        }
        for part in [
            "shortNames",
            "categories",
            "kind",
            "listKind",
            "plural",
            "singular",
        ] {
            let (ours, theirs) = (&ours["spec"]["names"][part], &theirs["spec"]["names"][part]);
            let empty = json!([]);
            if ours != theirs && !(theirs.is_null() && (ours.is_null() || *ours == empty)) {
                problems.push(format!("{plural}: {part} is {ours} and not {theirs}"));
            }
        }
        problems.extend(missing_columns(&plural, &version(&ours), &version(&theirs)));
        {
            let part = "subresources";
            let (ours, theirs) = (&version(&ours)[part], &version(&theirs)[part]);
            let unset = |value: &Value| value.is_null() || *value == json!([]) || *value == json!({});
            if ours != theirs && !(unset(ours) && unset(theirs)) {
                problems.push(format!("{plural}: {part} is {ours} and not {theirs}"));
            }
        }
        assert_eq!(ours["metadata"]["labels"]["cluster.x-k8s.io/v1beta1"], "v1beta1");
        assert_eq!(ours["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"], "v1beta1");
    }
    println!("report: aks crds: {total} leaves, {equal} equal, {listed} listed differences");
    assert!(
        problems.is_empty(),
        "{} differences:\n{}",
        problems.len(),
        problems.join("\n")
    );
    assert_eq!(listed, DIFFERENCES.len(), "a listed difference is no longer one");
    assert!(total > 500, "only {total} leaves were compared");
}
