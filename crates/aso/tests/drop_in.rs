//! Our custom resources against those of Cluster API Provider Azure, leaf by leaf and version by version.

use serde_json::json;
use slipway_aso::api::crd::crds;
use slipway_kit::definitions::{Comparison, Listed};

use super::capz::{document, text};

const NO_SPEC: &str = "an object without a spec is read like one with an empty one";

/// What differs on purpose.
const DIFFERENCES: &[Listed] = &[
    ("azureasomanagedclusters", ".spec", "default", NO_SPEC),
    ("azureasomanagedcontrolplanes", ".spec", "default", NO_SPEC),
    ("azureasomanagedmachinepools", ".spec", "default", NO_SPEC),
];

#[test]
fn every_leaf_of_capz_definitions_is_ours_too() {
    let mut comparison = Comparison::default();
    for crd in crds() {
        let ours = json!(crd);
        let plural = &crd.spec.names.plural;
        let theirs = document(&text(&format!(
            "config/crd/bases/infrastructure.cluster.x-k8s.io_{plural}.yaml"
        )));
        comparison.compare(&ours, &theirs, DIFFERENCES);
        let labels = &ours["metadata"]["labels"];
        assert_eq!(labels["cluster.x-k8s.io/v1beta1"], "v1beta1");
        assert_eq!(labels["cluster.x-k8s.io/v1beta2"], "v1beta1");
        let versions = &crd.spec.versions;
        assert_eq!(
            versions[0].deprecated,
            Some(true),
            "{plural} {}",
            versions[0].name
        );
        assert_eq!(
            versions[0].schema, versions[1].schema,
            "{plural}: the apiserver converts between versions only if they are one schema"
        );
    }
    println!(
        "report: aso crds: {} leaves in two versions, {} equal, {} listed differences",
        comparison.leaves,
        comparison.equal,
        comparison.met.len()
    );
    comparison.assert_drop_in(DIFFERENCES);
    assert!(comparison.leaves > 100, "only {} leaves", comparison.leaves);
}
