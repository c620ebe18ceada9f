//! The CustomResourceDefinitions: what the types say, finished for the apiserver.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::{ClusterAPINodeClass, NodeClaim, NodePool};

/// Every CustomResourceDefinition of the autoscaler.
pub fn crds() -> Vec<CustomResourceDefinition> {
    [NodePool::crd(), NodeClaim::crd(), ClusterAPINodeClass::crd()]
        .into_iter()
        .map(finish)
        .collect()
}

/// Takes `nullable` away, and defaults that stand for "absent": an explicit null is dropped before defaulting, as the
/// apiserver does it for Karpenter's definitions.
fn finish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
    let mut value = json!(crd);
    walk(&mut value["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
    serde_json::from_value(value).expect("a definition stays one without `nullable`")
}

fn walk(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    fields.remove("nullable");
    let stands_for_absent = |default: &Value| default.is_null() || *default == json!([]);
    if fields.get("default").is_some_and(stands_for_absent) {
        fields.remove("default");
    }
    // The derivation of structural schemas empties the choices, because `type` may not be in them elsewhere.
    if fields.get("x-kubernetes-int-or-string") == Some(&json!(true)) && fields.contains_key("anyOf") {
        fields.insert(
            "anyOf".to_owned(),
            json!([{"type": "integer"}, {"type": "string"}]),
        );
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(walk);
    }
    for nested in ["items", "additionalProperties"] {
        if let Some(nested) = fields.get_mut(nested) {
            walk(nested);
        }
    }
}
