//! Our custom resources against those of CAPZ that `parts/capz/go.mod` pins, leaf by leaf: a manifest that applied
//! there must apply here. Every difference is listed below with its reason; an unlisted one fails.

use std::{path::PathBuf, process::Command};

use serde_json::{Value, json};
use slipway_aks::api::crd::crds;
use slipway_kit::definitions::{Comparison, Listed};

const MODULE: &str = "sigs.k8s.io/cluster-api-provider-azure@v1.21.0";

/// What differs on purpose: CRD, leaf, keyword, reason.
const DIFFERENCES: &[Listed] = &[
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

pub fn capz() -> PathBuf {
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

fn capz_crd(plural: &str) -> Value {
    let path = capz()
        .join("config/crd/bases")
        .join(format!("infrastructure.cluster.x-k8s.io_{plural}.yaml"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str_with_options(&text, serde_saphyr::options! { budget: None })
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_leaf_of_the_definitions_of_capz_is_ours_too() {
    let mut comparison = Comparison::default();
    // Nodes as Machines are ours alone.
    let of_capz = crds()
        .into_iter()
        .filter(|crd| crd.spec.names.kind != "AzureManagedMachine");
    for crd in of_capz {
        let ours = json!(crd);
        comparison.compare(&ours, &capz_crd(&crd.spec.names.plural), DIFFERENCES);
        assert_eq!(ours["metadata"]["labels"]["cluster.x-k8s.io/v1beta1"], "v1beta1");
        assert_eq!(ours["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"], "v1beta1");
    }
    println!(
        "report: aks crds: {} leaves, {} equal, {} listed differences",
        comparison.leaves,
        comparison.equal,
        comparison.met.len()
    );
    comparison.assert_drop_in(DIFFERENCES);
    assert!(
        comparison.leaves > 500,
        "only {} leaves were compared",
        comparison.leaves
    );
}

/// The names on the way to what a column shows; an element of a list is an empty one.
fn steps(path: &str) -> Vec<String> {
    let mut steps = Vec::new();
    for part in path.replace("\\.", "\u{0}").split(']') {
        let (before, filter) = part
            .split_once('[')
            .map_or((part, false), |(before, _)| (before, true));
        let names = before.split('.').filter(|name| !name.is_empty());
        steps.extend(names.map(|name| name.replace('\u{0}', ".")));
        if filter {
            steps.push(String::new());
        }
    }
    steps
}

#[test]
fn every_column_shows_a_field_that_exists_and_those_people_ask_for_are_there() {
    let mut shown = Vec::new();
    for crd in crds() {
        for version in &crd.spec.versions {
            let version = json!(version);
            for column in version["additionalPrinterColumns"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let path = column["jsonPath"].as_str().expect("a path");
                shown.push(format!("{} {} {path}", crd.spec.names.kind, column["name"]));
                if path.starts_with(".metadata.") {
                    continue;
                }
                let mut schema = &version["schema"]["openAPIV3Schema"];
                for name in steps(path) {
                    schema = match name.as_str() {
                        "" => &schema["items"],
                        name => &schema["properties"][name],
                    };
                    assert!(schema.is_object(), "{}: {path}: no {name}", crd.spec.names.kind);
                }
            }
        }
    }
    for asked in [
        r#"AzureManagedControlPlane "Version" .status.version"#,
        r#"AzureManagedControlPlane "Endpoint" .spec.controlPlaneEndpoint.host"#,
        r#"AzureManagedControlPlane "Message" .status.conditions[?(@.type=='Ready')].message"#,
        r#"AzureManagedMachinePool "Replicas" .status.replicas"#,
        r#"AzureManagedMachinePool "Size" .spec.sku"#,
        r#"AzureManagedMachinePool "Version" .status.version"#,
    ] {
        assert!(shown.iter().any(|one| one == asked), "{asked}: {shown:#?}");
    }
}
