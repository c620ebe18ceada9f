//! The CustomResourceDefinitions: what the types say, finished for the apiserver.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::{
    AzureClusterIdentity, AzureManagedCluster, AzureManagedClusterTemplate, AzureManagedControlPlane,
    AzureManagedControlPlaneTemplate, AzureManagedMachine, AzureManagedMachinePool,
    AzureManagedMachinePoolTemplate,
};

/// Every CustomResourceDefinition of this provider.
pub fn crds() -> Vec<CustomResourceDefinition> {
    [
        AzureManagedCluster::crd(),
        AzureManagedClusterTemplate::crd(),
        AzureManagedControlPlane::crd(),
        AzureManagedControlPlaneTemplate::crd(),
        AzureManagedMachinePool::crd(),
        AzureManagedMachinePoolTemplate::crd(),
        AzureManagedMachine::crd(),
        AzureClusterIdentity::crd(),
    ]
    .into_iter()
    .map(finish)
    .collect()
}

/// Adds the contracts that the kind fulfils, and takes `nullable` away: an explicit null is then dropped before
/// defaulting, as it always was for these kinds, and not kept in place of the default.
fn finish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let labels = crd.metadata.labels.get_or_insert_default();
    for contract in ["v1beta1", "v1beta2"] {
        labels.insert(format!("cluster.x-k8s.io/{contract}"), "v1beta1".to_owned());
    }
    crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
    let mut value = json!(crd);
    let schema = &mut value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    // An object without a spec was let in before; what a spec needs is still asked of one.
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("required");
    }
    walk(schema, "");
    match crd.spec.names.kind.as_str() {
        // Nothing in it is needed, so manifests and stored objects may be without one.
        "AzureManagedCluster" => schema["properties"]["spec"]["default"] = json!({}),
        "AzureManagedControlPlaneTemplate" => leave_to_each_cluster(schema),
        _ => {}
    }
    serde_json::from_value(value).expect("a definition stays one when `nullable` is taken away")
}

/// What a template need not have: its clusters have a resource group and a network of their own name.
fn leave_to_each_cluster(schema: &mut Value) {
    const SPEC: &str = "/properties/spec/properties/template/properties/spec";
    for (at, field) in [("", "resourceGroupName"), ("/properties/virtualNetwork", "name")] {
        let required = schema.pointer_mut(&format!("{SPEC}{at}/required"));
        if let Some(required) = required.and_then(Value::as_array_mut) {
            required.retain(|name| name != field);
        }
    }
}

fn walk(schema: &mut Value, name: &str) {
    let Value::Object(fields) = schema else { return };
    if !matches!(name, "allowedNamespaces" | "list") {
        fields.remove("nullable");
    }
    // A selector is applied whole, by whoever applies it.
    if matches!(name, "matchExpressions" | "values") {
        fields.insert("x-kubernetes-list-type".to_owned(), json!("atomic"));
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        for (name, property) in properties {
            walk(property, name);
        }
    }
    for nested in ["items", "additionalProperties"] {
        if let Some(nested) = fields.get_mut(nested) {
            walk(nested, "");
        }
    }
}
