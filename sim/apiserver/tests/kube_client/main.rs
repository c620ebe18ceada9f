//! The in-memory apiserver, as a kube client sees it.

#![allow(clippy::unwrap_used)] // Fixtures either read or the test is wrong.

mod conformance;
mod watching;
mod writing;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_runtime::Clock;

/// A custom kind with a status, defaults, a list of conditions and a rule or two.
fn boat_crd() -> CustomResourceDefinition {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["length"], "properties": {
            "length": {"type": "integer", "minimum": 1},
            "sails": {"type": "integer", "default": 2},
            "crew": {"type": "array", "items": {"type": "string"}},
            "rigging": {"type": "object", "properties": {"mast": {"type": "string"}, "boom": {"type": "string"}}},
        }},
        "status": {"type": "object", "properties": {
            "afloat": {"type": "boolean"},
            "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                "items": {"type": "object", "required": ["type", "status"], "properties": {
                    "type": {"type": "string"}, "status": {"type": "string"}, "reason": {"type": "string"}}}},
        }},
    }});
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "boats.harbour.slipway.dev"},
        "spec": {"group": "harbour.slipway.dev", "scope": "Namespaced",
            "names": {"kind": "Boat", "plural": "boats", "singular": "boat"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}}}]},
    }))
    .unwrap()
}

fn boats(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("harbour.slipway.dev", "v1", "Boat");
    Api::namespaced_with(client.clone(), "default", &ApiResource::from_gvk(&kind))
}

fn boat(name: &str, spec: &Value) -> DynamicObject {
    serde_json::from_value(json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat",
        "metadata": {"name": name}, "spec": spec}))
    .unwrap()
}

fn harbour() -> Apiserver {
    let server = Apiserver::new(Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap()));
    server.install(&[boat_crd()], &[], &[]);
    server
}
