//! The requests that both apiservers get: writes of custom kinds, appliers that share an object, built-in kinds, deletions.

use serde_json::{Value, json};

/// One request. `{}` in the path is the namespace.
pub struct Request {
    pub what: &'static str,
    pub method: &'static str,
    pub path: &'static str,
    pub content_type: &'static str,
    pub body: Value,
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

const BOATS: &str = "/apis/harbour.slipway.dev/v1/namespaces/{}/boats";
const SKIFF: &str = "/apis/harbour.slipway.dev/v1/namespaces/{}/boats/skiff";
const SKIFF_STATUS: &str = "/apis/harbour.slipway.dev/v1/namespaces/{}/boats/skiff/status";
const SLOOP_FIRST: &str = "/apis/harbour.slipway.dev/v1/namespaces/{}/boats/sloop?fieldManager=first";
const SLOOP_SECOND: &str = "/apis/harbour.slipway.dev/v1/namespaces/{}/boats/sloop?fieldManager=second";
const SLOOP_FORCE: &str =
    "/apis/harbour.slipway.dev/v1/namespaces/{}/boats/sloop?fieldManager=second&force=true";
const SLOOP_STATUS: &str =
    "/apis/harbour.slipway.dev/v1/namespaces/{}/boats/sloop/status?fieldManager=second&force=true";
const CONFIG_MAPS: &str = "/api/v1/namespaces/{}/configmaps";
const SECRETS: &str = "/api/v1/namespaces/{}/secrets";

fn step(
    what: &'static str,
    method: &'static str,
    path: &'static str,
    content_type: &'static str,
    body: Value,
) -> Request {
    Request {
        what,
        method,
        path,
        content_type,
        body,
    }
}

fn read(what: &'static str, path: &'static str) -> Request {
    step(what, "GET", path, JSON, Value::Null)
}

fn boat(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "metadata": {"name": name}, "spec": spec})
}

fn applied(spec: &Value) -> Value {
    json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "metadata": {"name": "sloop"}, "spec": spec})
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "reason": "Because"})
}

pub fn script() -> Vec<Request> {
    let mut steps = writes_of_custom_kinds();
    steps.extend(appliers());
    steps.extend(built_in_kinds());
    steps.extend(deletions());
    steps
}

fn writes_of_custom_kinds() -> Vec<Request> {
    vec![
        read("what is not there", SKIFF),
        step(
            "create with unknown and defaulted fields",
            "POST",
            BOATS,
            JSON,
            boat(
                "skiff",
                &json!({"length": 4, "unknown": true, "crew": ["a", "b"]}),
            ),
        ),
        step(
            "create it again",
            "POST",
            BOATS,
            JSON,
            boat("skiff", &json!({"length": 4})),
        ),
        step(
            "create without a required field",
            "POST",
            BOATS,
            JSON,
            boat("dinghy", &json!({})),
        ),
        step(
            "create with a wrong type",
            "POST",
            BOATS,
            JSON,
            boat("dinghy", &json!({"length": "long"})),
        ),
        step(
            "create below the minimum",
            "POST",
            BOATS,
            JSON,
            boat("dinghy", &json!({"length": 0})),
        ),
        step(
            "create as another kind",
            "POST",
            BOATS,
            JSON,
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}),
        ),
        step(
            "create without a name",
            "POST",
            BOATS,
            JSON,
            json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "spec": {"length": 1}}),
        ),
        step(
            "create in a namespace that is not there",
            "POST",
            "/apis/harbour.slipway.dev/v1/namespaces/nowhere/boats",
            JSON,
            boat("skiff", &json!({"length": 4})),
        ),
        step(
            "a dry run leaves nothing",
            "POST",
            "/apis/harbour.slipway.dev/v1/namespaces/{}/boats?dryRun=All",
            JSON,
            boat("ghost", &json!({"length": 4})),
        ),
        read(
            "the ghost",
            "/apis/harbour.slipway.dev/v1/namespaces/{}/boats/ghost",
        ),
        step(
            "merge a label and the spec",
            "PATCH",
            SKIFF,
            MERGE,
            json!({"metadata": {"labels": {"dock": "north"}}, "spec": {"length": 5}, "status": {"afloat": true}}),
        ),
        step(
            "merge the same again",
            "PATCH",
            SKIFF,
            MERGE,
            json!({"spec": {"length": 5}}),
        ),
        step(
            "merge a null away",
            "PATCH",
            SKIFF,
            MERGE,
            json!({"spec": {"crew": null}}),
        ),
        step(
            "merge through status",
            "PATCH",
            SKIFF_STATUS,
            MERGE,
            json!({"spec": {"length": 9}, "status": {"afloat": true, "conditions": [condition("Ready", "True")]}}),
        ),
        step("read status", "GET", SKIFF_STATUS, JSON, Value::Null),
        step(
            "status with a doubled key",
            "PATCH",
            SKIFF_STATUS,
            MERGE,
            json!({"status": {"conditions": [condition("Ready", "True"), condition("Ready", "False")]}}),
        ),
        step(
            "a JSON patch whose test holds",
            "PATCH",
            SKIFF,
            JSON_PATCH,
            json!([{"op": "test", "path": "/spec/length", "value": 5}, {"op": "replace", "path": "/spec/length", "value": 6}]),
        ),
        step(
            "a JSON patch whose test fails",
            "PATCH",
            SKIFF,
            JSON_PATCH,
            json!([{"op": "test", "path": "/spec/length", "value": 5}, {"op": "replace", "path": "/spec/length", "value": 7}]),
        ),
        step(
            "a JSON patch that adds a finalizer",
            "PATCH",
            SKIFF,
            JSON_PATCH,
            json!([{"op": "add", "path": "/metadata/finalizers", "value": ["harbour.slipway.dev/a"]}]),
        ),
        step(
            "a strategic patch of a custom kind",
            "PATCH",
            SKIFF,
            STRATEGIC,
            json!({"spec": {"length": 5}}),
        ),
        step(
            "a patch with an old version",
            "PATCH",
            SKIFF,
            MERGE,
            json!({"metadata": {"resourceVersion": "1"}, "spec": {"length": 5}}),
        ),
        step(
            "an update without a version",
            "PUT",
            SKIFF,
            JSON,
            boat("skiff", &json!({"length": 8})),
        ),
        step(
            "an update with an old version",
            "PUT",
            SKIFF,
            JSON,
            json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "metadata": {"name": "skiff", "resourceVersion": "1"}, "spec": {"length": 8}}),
        ),
        step(
            "an update of what is not there",
            "PUT",
            "/apis/harbour.slipway.dev/v1/namespaces/{}/boats/ghost",
            JSON,
            json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "metadata": {"name": "ghost", "resourceVersion": "1"}, "spec": {"length": 8}}),
        ),
        step(
            "a patch of what is not there",
            "PATCH",
            "/apis/harbour.slipway.dev/v1/namespaces/{}/boats/ghost",
            MERGE,
            json!({"spec": {"length": 5}}),
        ),
        step(
            "a body that is not JSON of an object",
            "POST",
            BOATS,
            JSON,
            json!([1]),
        ),
        read(
            "a kind that is not there",
            "/apis/harbour.slipway.dev/v1/namespaces/{}/ships",
        ),
        read(
            "a version that is not there",
            "/apis/harbour.slipway.dev/v2/namespaces/{}/boats",
        ),
    ]
}

fn appliers() -> Vec<Request> {
    let rigging = |mast: &str| json!({"length": 9, "rigging": {"mast": mast}});
    vec![
        step(
            "apply without a manager",
            "PATCH",
            "/apis/harbour.slipway.dev/v1/namespaces/{}/boats/sloop",
            APPLY,
            applied(&json!({"length": 9})),
        ),
        step(
            "apply without a name",
            "PATCH",
            SLOOP_FIRST,
            APPLY,
            json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "spec": {"length": 9}}),
        ),
        step(
            "apply what is not there",
            "PATCH",
            SLOOP_FIRST,
            APPLY,
            applied(&rigging("pine")),
        ),
        step(
            "apply the same again",
            "PATCH",
            SLOOP_FIRST,
            APPLY,
            applied(&rigging("pine")),
        ),
        step(
            "a second applier adds a field",
            "PATCH",
            SLOOP_SECOND,
            APPLY,
            applied(&json!({"rigging": {"boom": "oak"}})),
        ),
        step(
            "and shares one",
            "PATCH",
            SLOOP_SECOND,
            APPLY,
            applied(&json!({"length": 9, "rigging": {"boom": "oak"}})),
        ),
        step(
            "and would take one",
            "PATCH",
            SLOOP_SECOND,
            APPLY,
            applied(&rigging("steel")),
        ),
        step(
            "and takes it",
            "PATCH",
            SLOOP_FORCE,
            APPLY,
            applied(&rigging("steel")),
        ),
        step(
            "the first lets go of everything but the length",
            "PATCH",
            SLOOP_FIRST,
            APPLY,
            applied(&json!({"length": 9})),
        ),
        step(
            "the second lets go of the mast",
            "PATCH",
            SLOOP_SECOND,
            APPLY,
            applied(&json!({"length": 9, "rigging": {"boom": "elm"}})),
        ),
        step(
            "labels and finalizers by apply",
            "PATCH",
            SLOOP_FIRST,
            APPLY,
            json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "metadata": {"name": "sloop", "labels": {"a": "1", "b": "2"}, "finalizers": ["harbour.slipway.dev/x"]}, "spec": {"length": 9}}),
        ),
        step(
            "and fewer of them",
            "PATCH",
            SLOOP_FIRST,
            APPLY,
            json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "metadata": {"name": "sloop", "labels": {"b": "2"}}, "spec": {"length": 9}}),
        ),
        step(
            "status by apply",
            "PATCH",
            SLOOP_STATUS,
            APPLY,
            json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "metadata": {"name": "sloop"}, "status": {"conditions": [condition("A", "True"), condition("B", "True")]}}),
        ),
        step(
            "one condition fewer",
            "PATCH",
            SLOOP_STATUS,
            APPLY,
            json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "metadata": {"name": "sloop"}, "status": {"conditions": [condition("B", "False")]}}),
        ),
        step(
            "an edit takes a field over",
            "PATCH",
            SLOOP_FIRST,
            MERGE,
            json!({"spec": {"length": 11}}),
        ),
        step(
            "so that applying it conflicts",
            "PATCH",
            SLOOP_SECOND,
            APPLY,
            applied(&json!({"length": 9, "rigging": {"boom": "elm"}})),
        ),
        step(
            "apply with managedFields",
            "PATCH",
            SLOOP_FIRST,
            APPLY,
            json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "metadata": {"name": "sloop", "managedFields": [{}]}, "spec": {"length": 9}}),
        ),
        step(
            "status of what is not there by apply",
            "PATCH",
            "/apis/harbour.slipway.dev/v1/namespaces/{}/boats/ghost/status?fieldManager=x",
            APPLY,
            json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "metadata": {"name": "ghost"}, "status": {"afloat": true}}),
        ),
        read(
            "all boats of a dock",
            "/apis/harbour.slipway.dev/v1/namespaces/{}/boats?labelSelector=dock%3Dnorth",
        ),
        read(
            "all boats with b but not of a dock",
            "/apis/harbour.slipway.dev/v1/namespaces/{}/boats?labelSelector=b%2C%21dock",
        ),
        read(
            "by name",
            "/apis/harbour.slipway.dev/v1/namespaces/{}/boats?fieldSelector=metadata.name%3Dsloop",
        ),
        read(
            "a broken selector",
            "/apis/harbour.slipway.dev/v1/namespaces/{}/boats?labelSelector=%3D%3D",
        ),
    ]
}

fn built_in_kinds() -> Vec<Request> {
    let config_map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}});
    vec![
        step("a ConfigMap", "POST", CONFIG_MAPS, JSON, config_map("chart")),
        step(
            "merged",
            "PATCH",
            "/api/v1/namespaces/{}/configmaps/chart",
            MERGE,
            json!({"data": {"k": null, "l": "w"}}),
        ),
        step(
            "strategically",
            "PATCH",
            "/api/v1/namespaces/{}/configmaps/chart",
            STRATEGIC,
            json!({"data": {"m": "x"}}),
        ),
        step(
            "by apply",
            "PATCH",
            "/api/v1/namespaces/{}/configmaps/log?fieldManager=first",
            APPLY,
            config_map("log"),
        ),
        step(
            "a Secret from plain text",
            "POST",
            SECRETS,
            JSON,
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"value": "abc"}}),
        ),
        step(
            "a Secret of a type",
            "POST",
            SECRETS,
            JSON,
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "typed"}, "type": "cluster.x-k8s.io/secret", "data": {"value": "YWJj"}}),
        ),
        step(
            "a page of ConfigMaps",
            "GET",
            "/api/v1/namespaces/{}/configmaps?limit=1&fieldSelector=metadata.name%21%3Dkube-root-ca.crt",
            JSON,
            Value::Null,
        ),
        step(
            "a Lease",
            "POST",
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            JSON,
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "helm"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}}),
        ),
        step(
            "an update of a Lease with an old version",
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases/helm",
            JSON,
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "helm", "resourceVersion": "1"}, "spec": {"holderIdentity": "you"}}),
        ),
    ]
}

fn deletions() -> Vec<Request> {
    vec![
        step(
            "delete with a wrong uid",
            "DELETE",
            SKIFF,
            JSON,
            json!({"preconditions": {"uid": "another"}}),
        ),
        step(
            "delete what a finalizer holds",
            "DELETE",
            SKIFF,
            JSON,
            Value::Null,
        ),
        step("delete it again", "DELETE", SKIFF, JSON, Value::Null),
        read("it is still there, deleting", SKIFF),
        step(
            "a new finalizer while deleting",
            "PATCH",
            SKIFF,
            MERGE,
            json!({"metadata": {"finalizers": ["harbour.slipway.dev/a", "harbour.slipway.dev/b"]}}),
        ),
        step(
            "release it",
            "PATCH",
            SKIFF,
            MERGE,
            json!({"metadata": {"finalizers": null}}),
        ),
        read("it is gone", SKIFF),
        step(
            "delete what is not held",
            "DELETE",
            "/api/v1/namespaces/{}/configmaps/chart",
            JSON,
            Value::Null,
        ),
        step(
            "delete it again",
            "DELETE",
            "/api/v1/namespaces/{}/configmaps/chart",
            JSON,
            Value::Null,
        ),
    ]
}
