//! Definitions of kinds that belong to others, open to every field: enough for a provider that reads them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::json;
use slipway_apiserver_sim::Kinds;
use slipway_runtime::Provider;

pub const CORE: &str = "cluster.x-k8s.io";
pub const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// A kind of somebody else, with the label that core finds a contract's version by.
pub fn foreign(group: &str, version: &str, kind: &str) -> CustomResourceDefinition {
    let plural = format!("{}s", kind.to_lowercase());
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let conditions = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        "items": any});
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
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{"name": version, "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": any,
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        "properties": {"conditions": conditions}},
                }}}}],
        },
    }))
    .expect("a definition")
}

/// The kinds of Cluster API's core.
pub fn of_core() -> Vec<CustomResourceDefinition> {
    ["Cluster", "Machine", "MachinePool"]
        .map(|kind| foreign(CORE, "v1beta2", kind))
        .into()
}

/// The kinds and webhooks of a provider's packages, beside those of others. Read it once: schemas take long to make.
pub fn beside(others: &[CustomResourceDefinition], provider: &Provider) -> Kinds {
    provider
        .packages
        .iter()
        .map(|package| Kinds::read(&package.crds, &package.conversion, &package.admission))
        .fold(Kinds::read(others, &[], &[]), Kinds::and)
}
