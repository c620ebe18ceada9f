//! The kinds there are in the management cluster: the provider's own, and those of others as far as the test needs them.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::json;
use slipway_apiserver_sim::Kinds;
use slipway_k3s::provider;

use super::{CORE, INFRASTRUCTURE};

/// A kind of somebody else, as far as the test needs it.
fn foreign_crd(group: &str, version: &str, kind: &str) -> CustomResourceDefinition {
    let plural = format!("{}s", kind.to_lowercase());
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let conditions = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        "items": any.clone()});
    let scope = if kind == "ExtensionConfig" {
        "Cluster"
    } else {
        "Namespaced"
    };
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"), "labels": {"cluster.x-k8s.io/v1beta2": version}},
        "spec": {
            "group": group, "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [{"name": version, "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": any.clone(),
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        "properties": {"conditions": conditions}},
                }}}}],
        },
    }))
    .expect("a definition")
}

pub(super) fn foreign_crds() -> Vec<CustomResourceDefinition> {
    vec![
        foreign_crd(CORE, "v1beta2", "Cluster"),
        foreign_crd(CORE, "v1beta2", "Machine"),
        foreign_crd(CORE, "v1beta2", "MachinePool"),
        foreign_crd("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig"),
        foreign_crd(INFRASTRUCTURE, "v1beta1", "HostMachine"),
        foreign_crd(INFRASTRUCTURE, "v1beta1", "HostMachineTemplate"),
    ]
}

/// Every kind and webhook there is in the management cluster, read once: schemas take long to make.
pub(super) fn kinds() -> &'static Kinds {
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| {
        provider()
            .packages
            .iter()
            .map(|package| Kinds::read(&package.crds, &package.conversion, &package.admission))
            .fold(Kinds::read(&foreign_crds(), &[], &[]), Kinds::and)
    });
    &KINDS
}
