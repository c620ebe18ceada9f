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
    for crd in crds() {
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
