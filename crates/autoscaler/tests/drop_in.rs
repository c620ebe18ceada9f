//! NodePool and NodeClaim against the definitions of the Karpenter that `parts/karpenter/go.mod` pins, field by field and
//! rule by rule: what Karpenter accepts is accepted here, and what it refuses is refused.

use std::{collections::BTreeMap, path::PathBuf, process::Command};

use serde_json::{Value, json};
use slipway_autoscaler::{
    api::crd::crds,
    environment::{Counts, KARPENTER},
    options,
};

const MODULE: &str = "sigs.k8s.io/karpenter";

/// Where the pinned module is. It asks for a newer Go than may be here, which `download` reports after unpacking it; only
/// whether it was unpacked counts.
fn karpenter() -> PathBuf {
    let go = |arguments: &[&str]| {
        Command::new("go")
            .args(arguments)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../parts/karpenter"))
            .output()
            .unwrap_or_else(|error| panic!("go cannot be run ({error}): this test needs Go to find {MODULE}"))
    };
    let download = go(&["mod", "download", MODULE]);
    let list = go(&["list", "-m", "-f", "{{.Dir}}", MODULE]);
    let directory = String::from_utf8_lossy(&list.stdout).trim().to_owned();
    assert!(
        !directory.is_empty(),
        "{MODULE} cannot be had; run `go mod download {MODULE}` in parts/karpenter: {} {}",
        String::from_utf8_lossy(&download.stderr),
        String::from_utf8_lossy(&list.stderr)
    );
    directory.into()
}

fn theirs(plural: &str) -> Value {
    let path = karpenter().join(format!("pkg/apis/crds/karpenter.sh_{plural}.yaml"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str_with_options(&text, serde_saphyr::options! { budget: None })
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn ours(plural: &str) -> Value {
    let crd = crds().into_iter().find(|crd| crd.spec.names.plural == plural);
    json!(crd.unwrap_or_else(|| panic!("there is no {plural}")))
}

/// Every schema by its path, with all that is said of it but words for people.
fn leaves(at: &str, schema: &Value, into: &mut BTreeMap<String, Value>) {
    let mut leaf = schema.clone();
    let fields = leaf.as_object_mut().expect("a schema is an object");
    for apart in [
        "description",
        "title",
        "properties",
        "items",
        "additionalProperties",
    ] {
        fields.remove(apart);
    }
    if let Some(Value::Array(required)) = fields.get_mut("required") {
        required.sort_by_key(ToString::to_string);
    }
    for number in ["minimum", "maximum"] {
        if let Some(value) = fields.get(number).and_then(Value::as_f64) {
            fields.insert(number.to_owned(), json!(value));
        }
    }
    into.insert(at.to_owned(), leaf);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        leaves(&format!("{at}.{name}"), property, into);
    }
    for (nested, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[nested].is_object() {
            leaves(&format!("{at}{mark}"), &schema[nested], into);
        }
    }
}

fn rules(leaves: &BTreeMap<String, Value>) -> usize {
    leaves
        .values()
        .filter_map(|leaf| leaf["x-kubernetes-validations"].as_array())
        .map(Vec::len)
        .sum()
}

#[test]
fn node_pools_and_node_claims_are_karpenters() {
    let mut problems = Vec::new();
    let mut compared = Vec::new();
    for (plural, least_leaves, rules_there) in [("nodepools", 50, 18), ("nodeclaims", 40, 9)] {
        let (ours, theirs) = (ours(plural), theirs(plural));
        let version = |crd: &Value| crd["spec"]["versions"][0].clone();
        let (mut our_leaves, mut their_leaves) = (BTreeMap::new(), BTreeMap::new());
        leaves("", &version(&ours)["schema"]["openAPIV3Schema"], &mut our_leaves);
        leaves(
            "",
            &version(&theirs)["schema"]["openAPIV3Schema"],
            &mut their_leaves,
        );
        for part in [".apiVersion", ".kind", ".metadata"] {
            // The apiserver knows these of every kind, whether a definition repeats them or not.
            our_leaves.remove(part);
            their_leaves.remove(part);
        }
        assert!(
            their_leaves.len() >= least_leaves,
            "{plural}: {}",
            their_leaves.len()
        );
        assert_eq!(
            rules(&their_leaves),
            rules_there,
            "{plural}: rules of the pinned definition"
        );
        for path in our_leaves.keys().chain(their_leaves.keys()) {
            let (one, other) = (our_leaves.get(path), their_leaves.get(path));
            if one != other {
                problems.push(format!(
                    "{plural}{path}\n  ours   {}\n  theirs {}",
                    one.unwrap_or(&Value::Null),
                    other.unwrap_or(&Value::Null)
                ));
            }
        }
        for part in ["group", "scope", "names"] {
            let (one, other) = (&ours["spec"][part], &theirs["spec"][part]);
            let mut one = one.clone();
            if let Some(names) = one.as_object_mut() {
                names.retain(|_, value| *value != json!([]));
            }
            if one != *other {
                problems.push(format!("{plural}: {part}\n  ours   {one}\n  theirs {other}"));
            }
        }
        for part in [
            "name",
            "served",
            "storage",
            "additionalPrinterColumns",
            "subresources",
        ] {
            let (one, other) = (&version(&ours)[part], &version(&theirs)[part]);
            if one != other {
                problems.push(format!("{plural}: {part}\n  ours   {one}\n  theirs {other}"));
            }
        }
        compared.push(format!(
            "{plural}: {} schemas, {} rules",
            their_leaves.len(),
            rules(&their_leaves)
        ));
    }
    problems.sort();
    problems.dedup();
    assert!(
        problems.is_empty(),
        "{} differences:\n{}",
        problems.len(),
        problems.join("\n")
    );
    println!("report: autoscaler crds as Karpenter's: {}", compared.join("; "));
}

/// The module of karpenter-provider-cluster-api cannot be had, so what is known of its kind is written here.
#[test]
fn a_node_class_is_found_under_the_names_it_always_had() {
    let crd = ours("clusterapinodeclasses");
    assert_eq!(
        crd["metadata"]["name"],
        "clusterapinodeclasses.karpenter.cluster.x-k8s.io"
    );
    assert_eq!(crd["spec"]["scope"], "Cluster");
    assert_eq!(crd["spec"]["names"]["shortNames"], json!(["capinc", "capincs"]));
    assert_eq!(crd["spec"]["names"]["categories"], json!(["karpenter"]));
    assert_eq!(crd["spec"]["names"]["listKind"], "ClusterAPINodeClassList");
    let version = &crd["spec"]["versions"][0];
    assert_eq!(version["name"], "v1alpha1");
    assert!(version["subresources"]["status"].is_object());
    let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    assert!(spec["properties"]["scalableResourceSelector"]["properties"]["matchExpressions"].is_object());
    assert!(
        spec["required"].is_null(),
        "a manifest written for the Go provider has none of the new fields: {spec}"
    );
}

/// A manifest as the Go provider's users have it, and one with everything that is new.
#[test]
fn manifests_are_read() {
    use slipway_autoscaler::api::{ClusterAPINodeClass, DriftPolicy, NodePool};
    let class: ClusterAPINodeClass = serde_json::from_value(json!({
        "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass", "metadata": {"name": "default"},
        "spec": {"scalableResourceSelector": {"matchLabels": {"pool": "a"}}},
    }))
    .expect("an old manifest");
    assert_eq!(class.spec.scalable_resource, None);
    let class: ClusterAPINodeClass = serde_json::from_value(json!({
        "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass", "metadata": {"name": "default"},
        "spec": {
            "scalableResource": {"kind": "EdgeMachineTemplate", "group": "infrastructure.cluster.x-k8s.io"},
            "labels": ["tier=edge", "gpu"], "clusterName": "one", "namespace": "fleet", "driftPolicy": "Autoscaler",
            "overhead": {"kubeReserved": {"cpu": "100m"}}, "deadlines": {"registration": "45m"},
            "price": {"configMap": {"namespace": "karpenter", "name": "prices"}},
            "machineTemplate": {"bootstrapRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KThreesConfigTemplate",
                "name": "agents"}, "version": "v1.36.3+k3s1"},
        },
    }))
    .expect("a new manifest");
    assert_eq!(class.spec.drift_policy, Some(DriftPolicy::Autoscaler));
    assert_eq!(
        class
            .spec
            .price
            .and_then(|price| price.config_map)
            .map(|map| map.key),
        Some("prices".to_owned())
    );
    let pool: NodePool = serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "general"},
        "spec": {"template": {"spec": {
            "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "default"},
            "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}},
            "limits": {"cpu": 100, "memory": "1Ti"}},
    }))
    .expect("a pool");
    assert_eq!(pool.spec.limits["cpu"].value(), 100);
}

/// The names that Karpenter reads its settings from.
fn variables() -> Vec<String> {
    let path = karpenter().join("pkg/operator/options/options.go");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let names = text.lines().filter(|line| line.trim_start().starts_with("fs."));
    let quoted = |line: &str| {
        line.split('"')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let is_variable = |text: &String| {
        !text.is_empty()
            && text
                .chars()
                .all(|letter| letter.is_ascii_uppercase() || letter == '_')
    };
    names
        .filter_map(|line| quoted(line).into_iter().find(is_variable))
        .collect()
}

#[test]
fn every_setting_of_karpenters_is_accounted_for() {
    let known: Vec<&str> = KARPENTER.iter().map(|(name, _)| *name).collect();
    assert_eq!(variables(), known);
    let flags = options::flags();
    for (name, counts) in KARPENTER {
        let read = flags
            .iter()
            .find(|flag| flag.get_env().is_some_and(|variable| variable == *name));
        let expected = match counts {
            Counts::As(flag) => Some(*flag),
            _ => None,
        };
        assert_eq!(read.and_then(|flag| flag.get_long()), expected, "{name}");
    }
    let page = include_str!("../../../docs/autoscaler.md");
    let manual = include_str!("../../../docs/manager.md");
    for (name, counts) in KARPENTER {
        assert!(
            page.contains(&format!("`{name}`")),
            "docs/autoscaler.md does not name {name}"
        );
        if let Counts::ByFlag(flag) = counts {
            assert!(
                manual.contains(&format!("`{flag}`")),
                "docs/manager.md does not name {flag}"
            );
        }
    }
}
